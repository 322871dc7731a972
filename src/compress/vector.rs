//! Kernels over `f32` slices that the methods spend their time in: exponentials, softmax, column reductions (stage 5).
//!
//! Each is compiled for several widths of vectors, of which the machine's is picked at run time; the code itself is scalar and safe.
//! The order of every sum is fixed by the code, so results do not depend on the number of threads.

use half::f16;
use multiversion::multiversion;

/// Lanes of a running sum or maximum; fixed, so that the order of additions is.
const N_LANE: usize = 16;

/// `e^x` for `-87 <= x <= 88`, relative error below 3e-7: `2^n` by exponent bits, `2^f` by a polynomial.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x * std::f32::consts::LOG2_E + ROUND;
    let n = t - ROUND;
    // ln 2 in two parts, so that n ln 2 is subtracted without rounding.
    let r = (x - n * 0.693_145_75) - n * 1.428_606_8e-6;
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23))
}

#[inline(always)]
fn fold(x: &[f32], start: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; N_LANE];
    let (chunks, rest) = x.as_chunks::<N_LANE>();
    for chunk in chunks {
        for (l, &v) in lanes.iter_mut().zip(chunk) {
            *l = f(*l, v);
        }
    }
    let rest = rest.iter().fold(start, |a, &v| f(a, v));
    lanes.into_iter().fold(rest, &f)
}

/// Turns logits into probabilities in place and returns their log-sum-exp.
///
/// A logit more than `-floor` below the largest counts as if it were `floor` below it: no product of results is subnormal.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn softmax(x: &mut [f32], floor: f32) -> f32 {
    let (max, sum) = exp_running(x, f32::MIN, floor);
    let scale = 1.0 / sum;
    for v in x.iter_mut() {
        *v *= scale;
    }
    max + sum.ln()
}

/// `x = e^(x - shift)`, where a difference below `floor` counts as `floor`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn exp_minus(x: &mut [f32], shift: f32, floor: f32) {
    for v in x {
        *v = exp((*v - shift).clamp(floor, 80.0));
    }
}

/// `x = e^(x - m)` with `m` the larger of `max` and the largest `x`; returns `m` and the sum of the results.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn exp_running(x: &mut [f32], max: f32, floor: f32) -> (f32, f32) {
    let max = fold(x, max, |a, b| if b > a { b } else { a });
    for v in x.iter_mut() {
        *v = exp((*v - max).clamp(floor, 0.0));
    }
    (max, fold(x, 0.0, |a, b| a + b))
}

/// `cap * tanh(x / cap)` in place; nothing when `cap` is 0.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn softcap(x: &mut [f32], cap: f32) {
    if cap == 0.0 {
        return;
    }
    for v in x {
        let e = exp((*v * (2.0 / cap)).clamp(-80.0, 80.0));
        *v = cap * (1.0 - 2.0 / (e + 1.0));
    }
}

/// `x = e^(x - shift)` element by element, `floor` as in [`softmax`]; adds the results to `sum`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn exp_shifted(x: &mut [f32], shift: &[f32], floor: f32, sum: &mut [f32]) {
    for ((v, s), t) in x.iter_mut().zip(shift).zip(sum) {
        *v = exp((*v - s).clamp(floor, 80.0));
        *t += *v;
    }
}

/// `out = x` element by element.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn widen(x: &[f16], out: &mut [f32]) {
    const EXPONENT: u32 = 112 << 23;
    const SMALLEST: u32 = 113 << 23;
    for (out, x) in out.iter_mut().zip(x) {
        let (sign, x) = (u32::from(x.to_bits() & 0x8000) << 16, u32::from(x.to_bits() & 0x7fff) << 13);
        // Subnormal numbers stand above the smallest normal one, which is then taken off.
        let subnormal = f32::from_bits(x + SMALLEST) - f32::from_bits(SMALLEST);
        let normal = x + if x < 0x7c00 << 13 { EXPONENT } else { 2 * EXPONENT };
        *out = f32::from_bits(sign | if x < 0x400 << 13 { subnormal.to_bits() } else { normal });
    }
}

/// `acc = max(acc, x)` element by element.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn max_into(acc: &mut [f32], x: &[f32]) {
    for (a, &v) in acc.iter_mut().zip(x) {
        *a = if v > *a { v } else { *a };
    }
}

/// `acc += scale * x` element by element.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add_scaled(acc: &mut [f32], scale: f32, x: &[f32]) {
    for (a, &v) in acc.iter_mut().zip(x) {
        *a += scale * v;
    }
}

/// `acc += scale * a^2 * (v + o - 2 * d)` element by element: the squared distance of a value from the output, weighted.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add_output_error(acc: &mut [f32], scale: f32, a: &[f32], v: &[f32], o: f32, d: &[f32]) {
    for (((acc, &a), &v), &d) in acc.iter_mut().zip(a).zip(v).zip(d) {
        *acc += scale * a * a * (v + o - 2.0 * d).max(0.0);
    }
}

/// Where `half_norm - x` is below `best`, stores it there and `id` in `ids`: one centre of a nearest-centre search.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn nearest(best: &mut [f32], ids: &mut [u32], x: &[f32], half_norm: f32, id: u32) {
    for ((b, i), &x) in best.iter_mut().zip(ids).zip(x) {
        let d = half_norm - x;
        let closer = d < *b;
        *b = if closer { d } else { *b };
        *i = if closer { id } else { *i };
    }
}

/// Sum.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |a, b| a + b)
}

/// Inner product, to be inlined into other kernels.
#[inline(always)]
pub fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; N_LANE];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<N_LANE>(), b.as_chunks::<N_LANE>());
    for (a, b) in a.iter().zip(b) {
        for ((l, &x), &y) in lanes.iter_mut().zip(a).zip(b) {
            *l += x * y;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    let mut half = N_LANE / 2;
    while half > 0 {
        (0..half).for_each(|i| lanes[i] += lanes[i + half]);
        half /= 2;
    }
    lanes[0] + rest
}

/// Inner product.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    product(a, b)
}

/// `out[i] = rows[i] . x`. Shapes: `rows: {x.len(), out.len()}`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn multiply(rows: &[f32], x: &[f32], out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(x.len().max(1)).zip(out) {
        *out = product(row, x);
    }
}

/// `out += sum_i weight[i] * rows[i]`. Shapes: `rows: {out.len(), weight.len()}`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add_weighted(rows: &[f32], weight: &[f32], out: &mut [f32]) {
    for (row, &w) in rows.chunks_exact(out.len().max(1)).zip(weight) {
        for (o, &x) in out.iter_mut().zip(row) {
            *o += w * x;
        }
    }
}

/// `rows[i] += a[i] * x`. Shapes: `rows: {x.len(), a.len()}`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn add_outer(rows: &mut [f32], a: &[f32], x: &[f32]) {
    for (row, &a) in rows.chunks_exact_mut(x.len().max(1)).zip(a) {
        for (r, &x) in row.iter_mut().zip(x) {
            *r += a * x;
        }
    }
}

/// `rows[i] = scale[i] * (rows[i] - centre)`. Shapes: `rows: {centre.len(), scale.len()}`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn centre(rows: &mut [f32], centre: &[f32], scale: &[f32]) {
    for (row, &scale) in rows.chunks_exact_mut(centre.len().max(1)).zip(scale) {
        for (x, &c) in row.iter_mut().zip(centre) {
            *x = scale * (*x - c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_single_precision() {
        for i in (-87_000..88_000).step_by(if cfg!(miri) { 997 } else { 1 }) {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "exp({x})");
        }
    }

    #[test]
    fn softmax_equals_f64_and_survives_huge_logits() {
        for scale in [1.0, 100.0, 1e30] {
            let x: Vec<f32> = (0..1001).map(|i| (i as f32 * 0.7).sin() * scale).collect();
            let max = x.iter().fold(f32::MIN, |a, &b| a.max(b));
            let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
            let mut p = x.clone();
            let lz = softmax(&mut p, -60.0);
            assert!((f64::from(lz) - f64::from(max) - sum.ln()).abs() < 1e-5 * f64::from(max));
            for (p, x) in p.iter().zip(&x) {
                let want = f64::from(x - max).exp() / sum;
                assert!((f64::from(*p) - want).abs() <= 2e-6 * want + 1e-26, "{p} {want}");
            }
        }
    }

    #[test]
    fn widening_is_that_of_the_library() {
        let x: Vec<f16> = (0..=u16::MAX).step_by(if cfg!(miri) { 31 } else { 1 }).map(f16::from_bits).collect();
        let mut out = vec![0.0; x.len()];
        widen(&x, &mut out);
        for (x, out) in x.iter().zip(out) {
            let is_equal = x.to_f32().to_bits() == out.to_bits();
            assert!(is_equal || (x.is_nan() && out.is_nan()), "{:#x}: {out}", x.to_bits());
        }
    }

    #[test]
    fn softcap_equals_tanh() {
        let mut x: Vec<f32> = (-500..500).map(|i| i as f32).collect();
        let want: Vec<f32> = x.iter().map(|v| 50.0 * (v / 50.0).tanh()).collect();
        softcap(&mut x, 50.0);
        assert!(x.iter().zip(&want).all(|(a, b)| (a - b).abs() < 2e-5));
    }
}
