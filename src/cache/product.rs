//! Products of probe rows with rows of a head (stage 4): with what the processor has for it, else with ndarray's.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};

use crate::ggml::{product_fn, ProductSize};

/// Rows that are turned at a time: as columns next to each other they fill lines of the first-level cache, and fit it.
const PANEL: usize = 64;

/// `c = a b^T`. Shapes: `a: {k, m}`, `b: {k, n}`, `c: {n, m}`.
pub fn times_rows(a: ArrayView2<f32>, b: ArrayView2<f32>, mut c: ArrayViewMut2<f32>) {
    let ([m, k], n) = ([a.nrows(), a.ncols()], b.nrows());
    if m == 0 || k == 0 {
        return c.fill(0.0);
    }
    if let (Some(f), Some(a), Some(b), Some(c)) = (product_fn(), a.as_slice(), b.as_slice(), c.as_slice_mut()) {
        let mut panel = vec![0.0; k * PANEL.min(n)];
        for (i, rows) in b.chunks(PANEL * k).enumerate() {
            let n_col = rows.len() / k;
            let panel = &mut panel[..k * n_col];
            for (j, out) in panel.chunks_exact_mut(n_col).enumerate() {
                out.iter_mut().zip(rows[j..].iter().step_by(k)).for_each(|(out, x)| *out = *x);
            }
            f(a, panel, &mut c[i * PANEL..], ProductSize { ne: [m, k, n_col], apart: n, add: false });
        }
        return;
    }
    general_mat_mul(1.0, &a, &b.t(), 0.0, &mut c);
}

/// `c += a b`. Shapes: `a: {k, m}`, `b: {n, k}`, `c: {n, m}`.
pub fn add_weighted_rows(a: ArrayView2<f32>, b: ArrayView2<f32>, mut c: ArrayViewMut2<f32>) {
    let [m, k, n] = [a.nrows(), a.ncols(), b.ncols()];
    match (product_fn(), a.as_slice(), b.as_slice(), c.as_slice_mut()) {
        (Some(f), Some(a), Some(b), Some(c)) => f(a, b, c, ProductSize { ne: [m, k, n], apart: n, add: true }),
        _ => general_mat_mul(1.0, &a, &b, 1.0, &mut c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::memory::Random;
    use ndarray::Array2;

    /// Against sums in `f64`, for shapes that fill no tile of rows, columns or vectors.
    #[test]
    fn products_are_right_for_every_shape() {
        let mut random = Random(5);
        for [m, k, n] in
            [[1, 1, 1], [6, 64, 64], [7, 3, 65], [13, 64, 256], [5, 80, 17], [12, 1, 79], [0, 4, 99], [3, 0, 70]]
        {
            let [a, b] = [m * k, k * n].map(|len| random.vector(len, 1.0));
            let a = Array2::from_shape_vec((m, k), a).unwrap();
            let b = Array2::from_shape_vec((k, n), b).unwrap();
            let want = |i: usize, j: usize| (0..k).map(|l| f64::from(a[[i, l]]) * f64::from(b[[l, j]])).sum::<f64>();
            let mut sum = Array2::from_elem((m, n), 1.0);
            add_weighted_rows(a.view(), b.view(), sum.view_mut());
            let mut product = Array2::from_elem((m, n), f32::NAN);
            times_rows(a.view(), b.t().as_standard_layout().view(), product.view_mut());
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                assert!((f64::from(product[[i, j]]) - want(i, j)).abs() < 1e-5, "{m} {k} {n}: {i} {j}");
                assert!((f64::from(sum[[i, j]]) - 1.0 - want(i, j)).abs() < 1e-5, "{m} {k} {n}: {i} {j}");
            }
        }
    }
}
