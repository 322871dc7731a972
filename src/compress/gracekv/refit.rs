//! Step 5: the values of all entries of a head, exact ones included, refitted together to the outputs of the probes.
//!
//! `P_qi` = softmax over the entries of `q.k_i + b_i`; `V += (P' W P + lam I)^-1 P' W (O - P V)`, `W = diag(w_q)`,
//! `lam = ridge * mean(diag P' W P)`. With more entries than probe rows in the equal dual form
//! `P' W^1/2 (W^1/2 P P' W^1/2 + lam I)^-1 W^1/2 (O - P V)`.

use ndarray::Array2;

use super::observe::Head;
use super::{cholesky, fit};
use crate::compress::vector;

/// As in [`vector::softmax`].
const FLOOR: f32 = -60.0;

/// The new values of entries with these keys, biases and values; none when the system is singular or a result cannot be stored.
///
/// Shapes: `keys: {head_dim_k, n_entries}`, `values: {head_dim_v, n_entries}`.
pub fn refit(head: &Head, keys: &Array2<f32>, bias: &[f32], values: Array2<f32>, ridge: f32) -> Option<Array2<f32>> {
    let mut p = head.queries.dot(&keys.t());
    for row in p.rows_mut() {
        let row = row.into_slice()?;
        vector::softcap(row, head.softcap);
        row.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        vector::softmax(row, FLOOR);
    }
    let mut residual = &head.output - &p.dot(&values);
    for ((mut p, mut residual), w) in p.rows_mut().into_iter().zip(residual.rows_mut()).zip(&head.weight) {
        p *= w.sqrt();
        residual *= w.sqrt();
    }
    let lambda = ridge * p.iter().map(|x| x * x).sum::<f32>() / p.ncols() as f32;
    let primal = p.ncols() <= p.nrows();
    let mut system = if primal { p.t().dot(&p) } else { p.dot(&p.t()) };
    system.diag_mut().map_inplace(|x| *x += lambda);
    let mut delta = if primal { p.t().dot(&residual) } else { residual };
    if !cholesky::solve(&mut system, &mut delta) {
        return None;
    }
    let values = values + if primal { delta } else { p.t().dot(&delta) };
    fit::storable(values.as_slice()?).then_some(values)
}
