//! Vector loops of the attention kernel, compiled once per instruction set and chosen when the program starts.
//!
//! Written over fixed-size arrays so that the compiler vectorises them; `#[target_feature]` wrappers give it the registers.
//! Results differ between instruction sets only by the rounding of fused multiply-adds.

use std::sync::OnceLock;

/// Lanes of the widest register the loops are written for.
pub(super) const LANES: usize = 16;

/// One step of attention of a few queries over a block of entries (online softmax).
///
/// Shapes: `q: {d, r}` scaled, `k: {d, n}`, `v: {dv, n}`, `bias: {n}` or empty, `state: {2 + dv, r}` = maximum, sum, output.
pub(super) struct Block<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub bias: &'a [f32],
    pub d: usize,
    pub dv: usize,
    pub n: usize,
    pub softcap: f32,
}

/// Processes a block; `scores` is scratch of at least `n` rounded up to [`LANES`].
pub(super) type BlockFn = fn(&Block, scores: &mut [f32], state: &mut [f32]);

/// The loop for this processor.
pub(super) fn block_fn() -> BlockFn {
    static CHOSEN: OnceLock<BlockFn> = OnceLock::new();
    *CHOSEN.get_or_init(choose)
}

#[cfg(target_arch = "x86_64")]
fn choose() -> BlockFn {
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("fma")
    {
        return |b, s, st| {
            // SAFETY: the features were detected.
            unsafe { block_avx512(b, s, st) }
        };
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return |b, s, st| {
            // SAFETY: the features were detected.
            unsafe { block_avx2(b, s, st) }
        };
    }
    block::<false>
}

#[cfg(target_arch = "aarch64")]
fn choose() -> BlockFn {
    // Fused multiply-add is part of the baseline instruction set.
    block::<true>
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn choose() -> BlockFn {
    block::<false>
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma,avx2")]
fn block_avx512(b: &Block, scores: &mut [f32], state: &mut [f32]) {
    block::<true>(b, scores, state);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn block_avx2(b: &Block, scores: &mut [f32], state: &mut [f32]) {
    block::<true>(b, scores, state);
}

/// `a * b + c`, fused where the instruction set has it (elsewhere `mul_add` would call a slow library function).
#[inline(always)]
fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[inline(always)]
fn dot<const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (a16, b16) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let mut rest = 0.0;
    for (x, y) in a16.remainder().iter().zip(b16.remainder()) {
        rest = fma::<FUSED>(*x, *y, rest);
    }
    for (x, y) in a16.zip(b16) {
        for l in 0..LANES {
            acc[l] = fma::<FUSED>(x[l], y[l], acc[l]);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] += acc[l + width];
        }
        width /= 2;
    }
    acc[0] + rest
}

/// `exp(x)` for `x <= 0`, relative error below 1e-6; 0 below -87.
#[inline(always)]
fn exp_lane<const FUSED: bool>(x: f32) -> f32 {
    let y = if x < -87.0 { -87.0 } else { x };
    // Adding and subtracting 1.5 * 2^23 rounds to an integer without a call.
    let n = fma::<FUSED>(y, std::f32::consts::LOG2_E, 12_582_912.0) - 12_582_912.0;
    let r = fma::<FUSED>(n, -0.693_359_4, y);
    let r = fma::<FUSED>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1] {
        p = fma::<FUSED>(p, r, c);
    }
    let p = fma::<FUSED>(p * r, r, r) + 1.0;
    let scale = f32::from_bits((((n as i32) + 127) << 23) as u32);
    if x < -87.0 {
        0.0
    } else {
        p * scale
    }
}

#[inline(always)]
fn block<const FUSED: bool>(b: &Block, scores: &mut [f32], state: &mut [f32]) {
    for (q, state) in b.q.chunks_exact(b.d).zip(state.chunks_exact_mut(b.dv + 2)) {
        let (head, out) = state.split_at_mut(2);
        let scores = &mut scores[..b.n.next_multiple_of(LANES)];
        for (s, k) in scores.iter_mut().zip(b.k.chunks_exact(b.d)).take(b.n) {
            *s = dot::<FUSED>(q, k);
        }
        if b.softcap > 0.0 {
            for s in &mut scores[..b.n] {
                *s = b.softcap * (*s / b.softcap).tanh();
            }
        }
        for (s, bias) in scores.iter_mut().zip(b.bias) {
            *s += bias;
        }
        for s in &mut scores[b.n..] {
            *s = f32::NEG_INFINITY;
        }
        let mut max = [head[0]; LANES];
        for s in scores.chunks_exact(LANES) {
            for l in 0..LANES {
                max[l] = if s[l] > max[l] { s[l] } else { max[l] };
            }
        }
        let m = max.iter().fold(f32::NEG_INFINITY, |a, &x| if x > a { x } else { a });
        if m == f32::NEG_INFINITY {
            continue;
        }
        let rescale = exp_lane::<FUSED>(head[0] - m);
        let mut sum = [0.0f32; LANES];
        for s in scores.chunks_exact_mut(LANES) {
            for l in 0..LANES {
                s[l] = exp_lane::<FUSED>(s[l] - m);
                sum[l] += s[l];
            }
        }
        head[1] = head[1] * rescale + sum.iter().sum::<f32>();
        head[0] = m;
        if rescale != 1.0 {
            for o in out.iter_mut() {
                *o *= rescale;
            }
        }
        accumulate::<FUSED>(&scores[..b.n], b.v, out);
    }
}

/// `out += sum_i p[i] * v[i]`, a register's width of components at a time so that they stay in registers.
#[inline(always)]
fn accumulate<const FUSED: bool>(p: &[f32], v: &[f32], out: &mut [f32]) {
    const WIDE: usize = 4 * LANES;
    let dv = out.len();
    let mut at = 0;
    while at + WIDE <= dv {
        columns::<FUSED, WIDE>(p, v, dv, at, out);
        at += WIDE;
    }
    while at + LANES <= dv {
        columns::<FUSED, LANES>(p, v, dv, at, out);
        at += LANES;
    }
    for c in at..dv {
        let mut acc = out[c];
        for (w, row) in p.iter().zip(v.chunks_exact(dv)) {
            acc = fma::<FUSED>(*w, row[c], acc);
        }
        out[c] = acc;
    }
}

#[inline(always)]
fn columns<const FUSED: bool, const W: usize>(p: &[f32], v: &[f32], dv: usize, at: usize, out: &mut [f32]) {
    let mut acc = [0.0f32; W];
    acc.copy_from_slice(&out[at..at + W]);
    for (w, row) in p.iter().zip(v.chunks_exact(dv)) {
        let row = &row[at..at + W];
        for l in 0..W {
            acc[l] = fma::<FUSED>(*w, row[l], acc[l]);
        }
    }
    out[at..at + W].copy_from_slice(&acc);
}

/// Adds a partial result (`{2 + dv}`: maximum, sum, output) to another of the same query.
pub(super) fn merge(part: &[f32], into: &mut [f32]) {
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
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// Attention in f64, straight from the definition.
    fn reference(b: &Block, r: usize) -> Vec<f64> {
        let q = &b.q[r * b.d..][..b.d];
        let logit = |i: usize| {
            let s: f64 = q.iter().zip(&b.k[i * b.d..]).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let cap = f64::from(b.softcap);
            let s = if cap > 0.0 { cap * (s / cap).tanh() } else { s };
            s + b.bias.get(i).map_or(0.0, |&x| f64::from(x))
        };
        let z: f64 = (0..b.n).map(|i| logit(i).exp()).sum();
        (0..b.dv).map(|c| (0..b.n).map(|i| logit(i).exp() / z * f64::from(b.v[i * b.dv + c])).sum()).collect()
    }

    #[test]
    fn every_loop_agrees_with_the_definition_in_one_block_or_many() {
        for (d, dv, n, softcap, with_bias) in
            [(64, 64, 37, 0.0, true), (80, 72, 16, 0.0, false), (128, 128, 100, 30.0, true), (8, 24, 1, 0.0, false)]
        {
            let (q, k, v) = (noise(3 * d, 1), noise(n * d, 2), noise(n * dv, 3));
            let bias = if with_bias { noise(n, 4) } else { Vec::new() };
            let whole = Block { q: &q, k: &k, v: &v, bias: &bias, d, dv, n, softcap };
            for f in [block_fn(), block::<false>] {
                for step in [n, 7.min(n)] {
                    let mut state = vec![0.0; 3 * (dv + 2)];
                    state.chunks_exact_mut(dv + 2).for_each(|s| s[0] = f32::NEG_INFINITY);
                    for at in (0..n).step_by(step) {
                        let n = step.min(n - at);
                        let part = Block {
                            k: &k[at * d..][..n * d],
                            v: &v[at * dv..][..n * dv],
                            bias: if with_bias { &bias[at..at + n] } else { &[] },
                            n,
                            ..whole
                        };
                        f(&part, &mut [0.0; 128], &mut state);
                    }
                    for r in 0..3 {
                        let s = &state[r * (dv + 2)..][..dv + 2];
                        for (got, want) in s[2..].iter().zip(reference(&whole, r)) {
                            assert!((f64::from(got / s[1]) - want).abs() < 2e-6, "d {d} n {n} step {step}");
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
            let (got, want) = (f64::from(exp_lane::<true>(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 1e-6 * want, "exp({x}) = {got}, not {want}");
        }
        assert_eq!(exp_lane::<true>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_lane::<false>(0.0), 1.0);
    }
}
