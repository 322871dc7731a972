//! One step of attention: a few queries, a block of keys and values, online softmax.
//!
//! Four keys meet up to [`Isa::N_QUERY`] queries in registers, so that a key is loaded and converted once for all of them and
//! the four sums of a query are folded together; values are added to columns that stay in registers over all entries.
//! Rows are fetched a page ahead, where the processor's own prefetching stops.
//! Source: online softmax of FlashAttention (arXiv 2205.14135).

use super::{Element, Isa};

/// Entries that a block may have.
pub(in super::super) const MAX_ENTRIES: usize = 256;

/// Rows of keys or values.
#[derive(Clone, Copy)]
pub(in super::super) enum Rows<'a> {
    /// IEEE half precision.
    F16(&'a [u16]),
    /// Single precision.
    F32(&'a [f32]),
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Rows::F16(x) => x.len(),
            Rows::F32(x) => x.len(),
        }
    }
}

/// One step of attention of a few queries over a block of entries (online softmax).
///
/// Shapes: `q: {d, r}` scaled, `k: {d, n}`, `v: {dv, n}`, `bias: {n}` or empty, `n` up to [`MAX_ENTRIES`];
/// the state is `{2 + dv, r}` = maximum, sum, output.
pub(in super::super) struct Block<'a> {
    pub q: &'a [f32],
    pub k: Rows<'a>,
    pub v: Rows<'a>,
    pub bias: &'a [f32],
    pub d: usize,
    pub dv: usize,
    pub n: usize,
    pub softcap: f32,
}

/// Adds a block to the state.
///
/// # Panics
/// When the sizes do not fit together.
#[inline(always)]
pub(super) fn run<I: Isa>(b: &Block, state: &mut [f32]) {
    let r = b.q.len() / b.d;
    assert!(b.d > 0 && b.dv > 0 && b.n <= MAX_ENTRIES && b.q.len() == r * b.d && state.len() == r * (b.dv + 2));
    assert!(b.k.len() == b.n * b.d && b.v.len() == b.n * b.dv && (b.bias.is_empty() || b.bias.len() == b.n));
    for at in (0..r).step_by(I::N_QUERY) {
        let q = &b.q[at * b.d..];
        let state = &mut state[at * (b.dv + 2)..];
        // SAFETY: the assertions above hold for the rows; `q` and `state` have the number of queries that is named.
        unsafe {
            match (r - at).min(I::N_QUERY) {
                1 => queries::<I, 1>(b, q, state),
                2 => queries::<I, 2>(b, q, state),
                3 => queries::<I, 3>(b, q, state),
                _ => queries::<I, 4>(b, q, state),
            }
        }
    }
}

/// A block for `R` queries.
///
/// # Safety
/// `q` and `state` must have `R` rows, and the sizes in `b` must be true.
#[inline(always)]
unsafe fn queries<I: Isa, const R: usize>(b: &Block, q: &[f32], state: &mut [f32]) {
    if b.n == 0 {
        return;
    }
    let mut p = [[0.0f32; MAX_ENTRIES]; R];
    match b.k {
        Rows::F16(k) => logits::<I, u16, R>(b, q, k, &mut p),
        Rows::F32(k) => logits::<I, f32, R>(b, q, k, &mut p),
    }
    for (p, state) in p.iter_mut().zip(state.chunks_exact_mut(b.dv + 2)) {
        softmax::<I>(b, p, state);
    }
    match b.v {
        Rows::F16(v) => values::<I, u16, R>(b, &p, v, state),
        Rows::F32(v) => values::<I, f32, R>(b, &p, v, state),
    }
}

/// How far ahead rows are fetched. Units: bytes.
const AHEAD: usize = 4096;
/// Units: bytes.
const CACHE_LINE: usize = 64;

/// Fetches what lies [`AHEAD`] of the `n` elements at `p`: the next rows of the same head.
#[inline(always)]
fn fetch_ahead<I: Isa, E>(p: *const E, n: usize) {
    for at in (0..n * std::mem::size_of::<E>()).step_by(CACHE_LINE) {
        I::prefetch(p.cast::<u8>().wrapping_add(AHEAD + at));
    }
}

/// `p[r][i] = q[r] . k[i]`
///
/// # Safety
/// As [`queries`].
#[inline(always)]
unsafe fn logits<I: Isa, E: Element, const R: usize>(b: &Block, q: &[f32], k: &[E], p: &mut [[f32; MAX_ENTRIES]; R]) {
    let whole = b.d - b.d % I::LANES;
    for i in (0..b.n).step_by(4) {
        // Behind the end the last row is read again; its result is not used.
        let rows: [*const E; 4] = std::array::from_fn(|j| k.as_ptr().add((i + j).min(b.n - 1) * b.d));
        rows.iter().for_each(|row| fetch_ahead::<I, E>(*row, b.d));
        let mut acc = [[I::splat(0.0); 4]; R];
        for c in (0..whole).step_by(I::LANES) {
            let k = rows.map(|row| E::load::<I>(row.add(c)));
            for r in 0..R {
                let q = I::load(q.as_ptr().add(r * b.d + c));
                for j in 0..4 {
                    acc[r][j] = I::fma(q, k[j], acc[r][j]);
                }
            }
        }
        if whole < b.d {
            let k = rows.map(|row| E::load_first::<I>(row.add(whole), b.d - whole));
            for r in 0..R {
                let q = f32::load_first::<I>(q.as_ptr().add(r * b.d + whole), b.d - whole);
                for j in 0..4 {
                    acc[r][j] = I::fma(q, k[j], acc[r][j]);
                }
            }
        }
        for r in 0..R {
            // MAX_ENTRIES is a multiple of 4.
            I::store_sums(p[r].as_mut_ptr().add(i), acc[r]);
        }
    }
}

/// Turns logits into weights, relative to the maximum so far, to which maximum, sum and output are brought.
#[inline(always)]
fn softmax<I: Isa>(b: &Block, p: &mut [f32; MAX_ENTRIES], state: &mut [f32]) {
    const W: usize = 16;
    let (head, out) = state.split_at_mut(2);
    if b.softcap > 0.0 {
        for s in &mut p[..b.n] {
            *s = b.softcap * (*s / b.softcap).tanh();
        }
    }
    for (s, bias) in p.iter_mut().zip(b.bias) {
        *s += bias;
    }
    let end = b.n.next_multiple_of(W);
    p[b.n..end].fill(f32::NEG_INFINITY);
    let mut max = [head[0]; W];
    for s in p[..end].chunks_exact(W) {
        for l in 0..W {
            max[l] = if s[l] > max[l] { s[l] } else { max[l] };
        }
    }
    let m = max.iter().fold(f32::NEG_INFINITY, |a, &x| if x > a { x } else { a });
    if m == f32::NEG_INFINITY {
        p[..end].fill(0.0);
        return;
    }
    let mut sum = [0.0f32; W];
    for s in p[..end].chunks_exact_mut(W) {
        for l in 0..W {
            s[l] = exp_lane::<I>(s[l] - m);
            sum[l] += s[l];
        }
    }
    let rescale = exp_lane::<I>(head[0] - m);
    head[1] = head[1] * rescale + sum.iter().sum::<f32>();
    head[0] = m;
    if rescale != 1.0 {
        for o in out {
            *o *= rescale;
        }
    }
}

/// `exp(x)` for `x <= 0`, relative error below 1e-6; 0 below -87.
#[inline(always)]
fn exp_lane<I: Isa>(x: f32) -> f32 {
    let fma = |a: f32, b: f32, c: f32| if I::FUSED { a.mul_add(b, c) } else { a * b + c };
    let y = if x < -87.0 { -87.0 } else { x };
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = fma(y, std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma(n, -0.693_359_4, y);
    let r = fma(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1] {
        p = fma(p, r, c);
    }
    let p = fma(p * r, r, r) + 1.0;
    let scale = f32::from_bits(t.to_bits().wrapping_add(127).wrapping_shl(23));
    if x < -87.0 {
        0.0
    } else {
        p * scale
    }
}

/// `out[r] += sum_i p[r][i] v[i]`
///
/// # Safety
/// As [`queries`].
#[inline(always)]
unsafe fn values<I: Isa, E: Element, const R: usize>(
    b: &Block,
    p: &[[f32; MAX_ENTRIES]; R],
    v: &[E],
    state: &mut [f32],
) {
    let wide = 4 * I::LANES;
    let mut at = 0;
    while at + wide <= b.dv {
        columns::<I, E, R, 4>(b, p, v, at, state);
        at += wide;
    }
    while at + I::LANES <= b.dv {
        columns::<I, E, R, 1>(b, p, v, at, state);
        at += I::LANES;
    }
    if at < b.dv {
        last_columns::<I, E, R>(b, p, v, at, state);
    }
}

/// [`values`] for `C` vectors of columns from `at` on.
///
/// # Safety
/// As [`queries`], and the columns must exist.
#[inline(always)]
unsafe fn columns<I: Isa, E: Element, const R: usize, const C: usize>(
    b: &Block,
    p: &[[f32; MAX_ENTRIES]; R],
    v: &[E],
    at: usize,
    state: &mut [f32],
) {
    let out = |r: usize, c: usize| r * (b.dv + 2) + 2 + at + c * I::LANES;
    let mut acc: [[I::V; C]; R] =
        std::array::from_fn(|r| std::array::from_fn(|c| I::load(state.as_ptr().add(out(r, c)))));
    for i in 0..b.n {
        let row = v.as_ptr().add(i * b.dv + at);
        fetch_ahead::<I, E>(row, C * I::LANES);
        let v: [I::V; C] = std::array::from_fn(|c| E::load::<I>(row.add(c * I::LANES)));
        for r in 0..R {
            let w = I::splat(p[r][i]);
            for c in 0..C {
                acc[r][c] = I::fma(w, v[c], acc[r][c]);
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            I::store(state.as_mut_ptr().add(out(r, c)), acc[r][c]);
        }
    }
}

/// [`values`] for the columns from `at` on, fewer than a vector has.
///
/// # Safety
/// As [`queries`].
#[inline(always)]
unsafe fn last_columns<I: Isa, E: Element, const R: usize>(
    b: &Block,
    p: &[[f32; MAX_ENTRIES]; R],
    v: &[E],
    at: usize,
    state: &mut [f32],
) {
    let n = b.dv - at;
    for (r, p) in p.iter().enumerate() {
        let out = &mut state[r * (b.dv + 2) + 2 + at..][..n];
        let mut padded = [0.0f32; 16];
        padded[..n].copy_from_slice(out);
        let mut acc = I::load(padded.as_ptr());
        for (i, w) in p[..b.n].iter().enumerate() {
            acc = I::fma(I::splat(*w), E::load_first::<I>(v.as_ptr().add(i * b.dv + at), n), acc);
        }
        I::store(padded.as_mut_ptr(), acc);
        out.copy_from_slice(&padded[..n]);
    }
}

/// Adds a partial result (`{2 + dv}`: maximum, sum, output) to another of the same query.
pub(in super::super) fn merge(part: &[f32], into: &mut [f32]) {
    if part[1] <= 0.0 {
        return;
    }
    let m = part[0].max(into[0]);
    let (a, b) = ((into[0] - m).exp(), (part[0] - m).exp());
    into[0] = m;
    into[1] = into[1] * a + part[1] * b;
    for (o, p) in into[2..].iter_mut().zip(&part[2..]) {
        *o = *o * a + *p * b;
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "x86_64")]
    use super::super::x86;
    use super::super::{block_fn, BlockFn, Portable};
    use super::*;
    use crate::ggml::Type;

    /// Numbers between -1 and 1 that f16 holds exactly.
    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 21) as f32 / 1024.0 - 1.0
            })
            .collect()
    }

    /// Attention of one query in f64, straight from the definition.
    fn reference(q: &[f32], k: &[f32], v: &[f32], bias: &[f32], dv: usize, softcap: f32) -> Vec<f64> {
        let n = v.len() / dv;
        let logit = |i: usize| {
            let s: f64 = q.iter().zip(&k[i * q.len()..]).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let cap = f64::from(softcap);
            let s = if cap > 0.0 { cap * (s / cap).tanh() } else { s };
            s + bias.get(i).map_or(0.0, |&x| f64::from(x))
        };
        let z: f64 = (0..n).map(|i| logit(i).exp()).sum();
        (0..dv).map(|c| (0..n).map(|i| logit(i).exp() / z * f64::from(v[i * dv + c])).sum()).collect()
    }

    /// The loops that this processor runs, and whether they read halves.
    fn loops() -> Vec<(BlockFn, bool)> {
        let mut all: Vec<(BlockFn, bool)> = vec![(run::<Portable>, false), block_fn()];
        #[cfg(target_arch = "x86_64")]
        all.extend(x86::avx2());
        all
    }

    fn halves(x: &[f32]) -> Vec<u16> {
        let mut bytes = vec![0; x.len() * 2];
        assert!(Type::F16.from_f32(x, x.len(), &mut bytes));
        bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
    }

    #[test]
    fn every_loop_agrees_with_the_definition_in_one_block_or_many() {
        for (r, d, dv, n, softcap, with_bias) in [
            (3, 64, 64, 37, 0.0, true),
            (5, 80, 72, 16, 0.0, false),
            (1, 128, 128, 256, 30.0, true),
            (7, 9, 70, 1, 0.0, false),
            (4, 256, 24, 6, 0.0, true),
        ] {
            let (q, k, v) = (noise(r * d, 1), noise(n * d, 2), noise(n * dv, 3));
            let (k16, v16) = (halves(&k), halves(&v));
            let bias = if with_bias { noise(n, 4) } else { Vec::new() };
            let want: Vec<Vec<f64>> = (0..r).map(|r| reference(&q[r * d..][..d], &k, &v, &bias, dv, softcap)).collect();
            for ((f, reads_halves), step) in loops().into_iter().flat_map(|l| [(l, n), (l, 7.min(n))]) {
                for half in [false, true].into_iter().filter(|half| reads_halves || !half) {
                    let mut state = vec![0.0; r * (dv + 2)];
                    state.chunks_exact_mut(dv + 2).for_each(|s| s[0] = f32::NEG_INFINITY);
                    for at in (0..n).step_by(step) {
                        let n = step.min(n - at);
                        let (k, v) = match half {
                            true => (Rows::F16(&k16[at * d..][..n * d]), Rows::F16(&v16[at * dv..][..n * dv])),
                            false => (Rows::F32(&k[at * d..][..n * d]), Rows::F32(&v[at * dv..][..n * dv])),
                        };
                        let bias = if with_bias { &bias[at..at + n] } else { &[] };
                        f(&Block { q: &q, k, v, bias, d, dv, n, softcap }, &mut state);
                    }
                    for (s, want) in state.chunks_exact(dv + 2).zip(&want) {
                        for (got, want) in s[2..].iter().zip(want) {
                            assert!(
                                (f64::from(got / s[1]) - want).abs() < 2e-6,
                                "r {r} d {d} n {n} step {step} halves {half}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn exp_is_accurate_and_vanishes_at_minus_infinity() {
        for i in 0..8700 {
            let x = -(i as f32) * 0.01;
            let (got, want) = (f64::from(exp_lane::<Portable>(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 1e-6 * want, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp_lane::<Portable>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_lane::<Portable>(0.0), 1.0);
    }
}
