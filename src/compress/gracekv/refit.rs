//! Step 5: the values of all entries of a head, exact ones included, refitted together to the outputs of the probes.
//!
//! `P_qi` = softmax over the entries of `q.k_i + b_i`; `V += (P' W P + lam I)^-1 P' W (O - P V)`, `W = diag(w_q)`,
//! `lam = ridge * mean(diag P' W P)`. With more entries than probe rows in the equal dual form
//! `P' W^1/2 (W^1/2 P P' W^1/2 + lam I)^-1 W^1/2 (O - P V)`, a tile of entries at a time: a head that keeps thousands
//! would otherwise need several times the memory of its cache.

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, ArrayView2};
use std::ops::Range;

use super::observe::Head;
use super::{cholesky, fit};
use crate::compress::vector;

/// Entries whose probabilities are in memory at a time.
const TILE: usize = 256;
/// Rows of a block of the Gram matrix.
const BLOCK: usize = 128;
/// As in [`vector::softmax`].
const FLOOR: f32 = -60.0;

/// The entries of a head: exact tokens, and behind them entries with new keys.
pub struct Entries<'a> {
    /// Exact tokens.
    pub tokens: &'a [u32],
    /// Keys of the others. Shapes: `{head_dim_k, n_new}`.
    pub new_keys: &'a [f32],
    /// Bias of every entry.
    pub bias: &'a [f32],
}

impl Entries<'_> {
    /// Logits of entries `range`. Shapes: `{range.len(), n_row}`.
    fn logits(&self, head: &Head, range: Range<usize>) -> Array2<f32> {
        let (n_exact, dim) = (self.tokens.len(), head.keys.dim());
        let new = |i: usize| i.saturating_sub(n_exact) * dim;
        let tokens = &self.tokens[range.start.min(n_exact)..range.end.min(n_exact)];
        let keys = head.keys.of_and(tokens, &self.new_keys[new(range.start)..new(range.end)]);
        let mut logits = head.queries.dot(&keys.t());
        for row in logits.rows_mut() {
            let Some(row) = row.into_slice() else { continue };
            vector::softcap(row, head.softcap);
            row.iter_mut().zip(&self.bias[range.clone()]).for_each(|(s, b)| *s += b);
        }
        logits
    }

    fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let n = self.bias.len();
        (0..n).step_by(TILE).map(move |first| first..n.min(first + TILE))
    }

    /// Log-sum-exp of the logits of each probe row over all entries.
    fn log_sum_exp(&self, head: &Head) -> Vec<f32> {
        let n_row = head.queries.nrows();
        let (mut max, mut sum) = (vec![f32::MIN; n_row], vec![0.0; n_row]);
        for range in self.tiles() {
            for (q, row) in self.logits(head, range).rows_mut().into_iter().enumerate() {
                let Some(row) = row.into_slice() else { continue };
                let (now, tile) = vector::exp_running(row, max[q], FLOOR);
                sum[q] = sum[q] * (max[q] - now).exp() + tile;
                max[q] = now;
            }
        }
        max.iter().zip(&sum).map(|(m, s)| m + s.ln()).collect()
    }

    /// `W^1/2 P` of entries `range`. Shapes: `{range.len(), n_row}`.
    fn weighted(&self, head: &Head, range: Range<usize>, lse: &[f32]) -> Array2<f32> {
        let mut p = self.logits(head, range);
        for ((row, &lse), w) in p.rows_mut().into_iter().zip(lse).zip(&head.weight) {
            let Some(row) = row.into_slice() else { continue };
            vector::exp_minus(row, lse, FLOOR);
            row.iter_mut().for_each(|p| *p *= w.sqrt());
        }
        p
    }
}

/// The new values of entries with these values; none when the system is singular or a result cannot be stored.
///
/// Shapes: `values: {head_dim_v, n_entries}`.
pub fn refit(head: &Head, entries: &Entries, mut values: Array2<f32>, ridge: f32) -> Option<Array2<f32>> {
    let (n, n_row) = (values.nrows(), head.queries.nrows());
    let lse = entries.log_sum_exp(head);
    let mut residual = head.output.clone();
    residual.rows_mut().into_iter().zip(&head.weight).for_each(|(mut row, w)| row *= w.sqrt());
    let solve = |system: &mut Array2<f32>, b: &mut Array2<f32>| {
        let lambda = ridge * system.diag().sum() / n as f32;
        system.diag_mut().map_inplace(|x| *x += lambda);
        cholesky::solve(system, b)
    };
    if n <= n_row {
        let p = entries.weighted(head, 0..n, &lse);
        residual -= &p.dot(&values);
        let (mut system, mut delta) = (Array2::zeros((n, n)), p.t().dot(&residual));
        add_lower_gram(&mut system, p.t());
        if !solve(&mut system, &mut delta) {
            return None;
        }
        values += &delta;
    } else {
        let mut system = Array2::zeros((n_row, n_row));
        for range in entries.tiles() {
            let p = entries.weighted(head, range.clone(), &lse);
            add_lower_gram(&mut system, p.view());
            general_mat_mul(-1.0, &p, &values.slice(s![range, ..]), 1.0, &mut residual);
        }
        if !solve(&mut system, &mut residual) {
            return None;
        }
        for range in entries.tiles() {
            let p = entries.weighted(head, range.clone(), &lse);
            general_mat_mul(1.0, &p.t(), &residual, 1.0, &mut values.slice_mut(s![range, ..]));
        }
    }
    fit::storable(values.as_slice()?).then_some(values)
}

/// Adds the lower triangle of `x x'`, in blocks; what stands above is not all of it.
fn add_lower_gram(gram: &mut Array2<f32>, x: ArrayView2<f32>) {
    for first in (0..x.nrows()).step_by(BLOCK) {
        let last = x.nrows().min(first + BLOCK);
        let (rows, before) = (x.slice(s![first..last, ..]), x.slice(s![..last, ..]));
        general_mat_mul(1.0, &rows, &before.t(), 1.0, &mut gram.slice_mut(s![first..last, ..last]));
    }
}
