//! Symmetric positive (semi)definite systems: the linear algebra of steps 3 to 5.
//!
//! Blocked, so that nearly all of the work is products of matrices; only lower triangles are read and written.

use multiversion::multiversion;
use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, ArrayView2, Axis};

use crate::compress::vector;

/// Columns that are factored by scalar code before one product updates the rest.
const BLOCK: usize = 32;

/// A factor `F` with as few columns as leave out at most `tolerance` of the trace: `a = F F'` but for that (pivoted Cholesky).
///
/// Shapes: `a: {n, n}`, symmetric and positive semidefinite; result: `{rank, n}`.
pub fn factor_low_rank(a: Array2<f32>, tolerance: f32) -> Array2<f32> {
    let n = a.nrows();
    let mut left = a.diag().to_vec();
    let stop = tolerance.max(1e-6) * left.iter().sum::<f32>();
    let mut columns = Array2::zeros((n, n));
    let mut rank = 0;
    while rank < n && left.iter().sum::<f32>() > stop {
        let Some(pivot) = (0..n).max_by(|&i, &j| left[i].total_cmp(&left[j]).then(j.cmp(&i))) else { break };
        if !(left[pivot] > 0.0 && left[pivot].is_finite()) {
            break;
        }
        let scale = 1.0 / left[pivot].sqrt();
        // Column `rank` is row `rank` here, so that all rows are contiguous.
        let (done, mut open) = columns.view_mut().split_at(Axis(0), rank);
        let mut column = open.row_mut(0);
        column.assign(&a.row(pivot));
        for before in done.rows() {
            column.scaled_add(-before[pivot], &before);
        }
        column *= scale;
        left.iter_mut().zip(column).for_each(|(d, c)| *d = (*d - *c * *c).max(0.0));
        left[pivot] = 0.0;
        rank += 1;
    }
    columns.slice(s![..rank, ..]).t().as_standard_layout().into_owned()
}

/// Solves `a x = b` for positive definite `a`, which is destroyed; `b` becomes `x`. False when `a` is singular or not finite.
///
/// Shapes: `a: {n, n}`, `b: {n_rhs, n}`.
pub fn solve(a: &mut Array2<f32>, b: &mut Array2<f32>) -> bool {
    if !factor(a) {
        return false;
    }
    substitute_forward(a.view(), b);
    substitute_backward(a.view(), b);
    b.iter().all(|x| x.is_finite())
}

/// [`solve`] for one right-hand side. Shapes: `b: {n}`.
pub fn solve_one(a: &mut Array2<f32>, b: &mut [f32]) -> bool {
    let n = b.len();
    let (true, Some(l)) = (factor(a), a.as_slice()) else { return false };
    for i in 0..n {
        let row = &l[i * n..i * n + n];
        b[i] = (b[i] - vector::dot(&row[..i], &b[..i])) / row[i];
    }
    for i in (0..n).rev() {
        let row = &l[i * n..i * n + n];
        b[i] /= row[i];
        let (before, x) = b.split_at_mut(i);
        vector::add_scaled(before, -x[0], &row[..i]);
    }
    b.iter().all(|x| x.is_finite())
}

/// Cholesky's factorisation `a = L L'` in the lower triangle, the upper one becomes 0; false when `a` is not positive definite.
fn factor(a: &mut Array2<f32>) -> bool {
    let n = a.nrows();
    let mut definite = true;
    for first in (0..n).step_by(BLOCK) {
        let last = n.min(first + BLOCK);
        let Some(rows) = a.as_slice_mut() else { return false };
        definite &= factor_columns(&mut rows[first * n..], n, first, last);
        let (left, mut right) = a.view_mut().split_at(Axis(1), last);
        let panel = left.slice(s![last.., first..last]);
        let mut rest = right.slice_mut(s![last.., ..]);
        general_mat_mul(-1.0, &panel, &panel.t(), 1.0, &mut rest);
    }
    for i in 0..n {
        a.slice_mut(s![i, i + 1..]).fill(0.0);
    }
    definite
}

/// Factors the columns `first..last`; `rows` are the rows from `first` on, of length `n`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn factor_columns(rows: &mut [f32], n: usize, first: usize, last: usize) -> bool {
    let mut definite = true;
    for j in first..last {
        let (done, open) = rows.split_at_mut((j - first + 1) * n);
        let own = &mut done[(j - first) * n..];
        // Zeros from the pivot on, so that all products have the same length.
        let mut pivot_row = [0.0; BLOCK];
        pivot_row[..j - first].copy_from_slice(&own[first..j]);
        let pivot = own[j] - vector::product(&pivot_row, &pivot_row);
        let scale = if pivot > 0.0 && pivot.is_finite() { 1.0 / pivot.sqrt() } else { 0.0 };
        definite &= scale > 0.0;
        own[j] = pivot.max(0.0) * scale;
        for row in open.chunks_exact_mut(n) {
            row[j] = (row[j] - vector::product(&row[first..last], &pivot_row[..last - first])) * scale;
        }
    }
    definite
}

/// `b = L^-1 b`.
fn substitute_forward(l: ArrayView2<f32>, b: &mut Array2<f32>) {
    for first in (0..l.nrows()).step_by(BLOCK) {
        let last = l.nrows().min(first + BLOCK);
        let (done, mut open) = b.view_mut().split_at(Axis(0), first);
        general_mat_mul(
            -1.0,
            &l.slice(s![first..last, ..first]),
            &done,
            1.0,
            &mut open.slice_mut(s![..last - first, ..]),
        );
        for i in first..last {
            let (done, mut open) = open.view_mut().split_at(Axis(0), i - first);
            let mut row = open.row_mut(0);
            for (x, &l) in done.rows().into_iter().zip(l.slice(s![i, first..i])) {
                row.scaled_add(-l, &x);
            }
            row /= l[[i, i]];
        }
    }
}

/// `b = L'^-1 b`.
fn substitute_backward(l: ArrayView2<f32>, b: &mut Array2<f32>) {
    for first in (0..l.nrows()).step_by(BLOCK).rev() {
        let last = l.nrows().min(first + BLOCK);
        let (mut open, done) = b.view_mut().split_at(Axis(0), last);
        let mut block = open.slice_mut(s![first.., ..]);
        general_mat_mul(-1.0, &l.slice(s![last.., first..last]).t(), &done, 1.0, &mut block);
        for i in (first..last).rev() {
            let (mut open, done) = block.view_mut().split_at(Axis(0), i - first + 1);
            let mut row = open.row_mut(i - first);
            for (x, &l) in done.rows().into_iter().zip(l.slice(s![i + 1..last, i])) {
                row.scaled_add(-l, &x);
            }
            row /= l[[i, i]];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::memory::Random;

    fn random(rows: usize, cols: usize) -> Array2<f32> {
        Array2::from_shape_vec((rows, cols), Random(rows as u64).vector(rows * cols, 1.0)).unwrap()
    }

    #[test]
    fn solves_systems_of_every_size() {
        // Interpreted, a size that takes more than one panel takes minutes.
        let sizes: &[usize] = if cfg!(miri) { &[1, 2, 33] } else { &[1, 2, 31, 32, 33, 100, 200] };
        for &n in sizes {
            let m = random(n, n);
            let a = m.dot(&m.t()) + Array2::<f32>::eye(n) * (0.1 * n as f32);
            let want = random(n, 5);
            let mut x = a.dot(&want);
            assert!(solve(&mut a.clone(), &mut x));
            assert!((&x - &want).iter().all(|d| d.abs() < 1e-3), "{n}");
            let mut one = a.dot(&want.column(1)).to_vec();
            assert!(solve_one(&mut a.clone(), &mut one));
            assert!(one.iter().zip(want.column(1)).all(|(x, w)| (x - w).abs() < 1e-3), "{n}");
        }
    }

    #[test]
    fn factors_matrices_of_low_rank() {
        let m = random(40, 7);
        let a = m.dot(&m.t());
        let l = factor_low_rank(a.clone(), 0.0);
        assert_eq!(l.ncols(), 7);
        assert!((l.dot(&l.t()) - &a).iter().all(|d| d.abs() < 1e-3));
    }

    #[test]
    fn leaves_out_no_more_than_is_allowed() {
        let m = random(30, 50);
        let a = m.dot(&m.t());
        let trace = a.diag().sum();
        let mut ranks = Vec::new();
        for tolerance in [0.0, 0.01, 0.1, 0.5, 1.0] {
            let l = factor_low_rank(a.clone(), tolerance);
            let rest = &a - &l.dot(&l.t());
            assert!(rest.diag().sum() <= (tolerance + 1e-5) * trace, "{tolerance}");
            ranks.push(l.ncols());
        }
        assert!(ranks.windows(2).all(|r| r[0] > r[1]) && ranks[4] == 0, "{ranks:?}");
        assert_eq!(factor_low_rank(Array2::zeros((4, 4)), 0.02).dim(), (4, 0));
        assert_eq!(factor_low_rank(Array2::from_elem((4, 4), f32::NAN), 0.02).dim(), (4, 0));
    }

    #[test]
    fn refuses_what_is_singular_or_not_finite() {
        let b = random(3, 2);
        assert!(!solve(&mut Array2::zeros((3, 3)), &mut b.clone()));
        assert!(!solve(&mut Array2::from_elem((3, 3), 1.0), &mut b.clone()));
        assert!(!solve(&mut Array2::from_elem((3, 3), f32::NAN), &mut b.clone()));
    }
}
