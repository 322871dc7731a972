//! Softmax attention of given queries over one head of the full cache (stage 5): what the value flow and the head sensitivity are made of.
//!
//! Rows are taken in small blocks, so that memory stays at `BLOCK * n_tokens` whatever the number of queries.

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, ArrayView2};

use crate::error::{Error, Result};

const BLOCK: usize = 32;

/// A slice as a matrix of rows of `n_col` values.
pub(super) fn matrix(x: &[f32], n_col: usize) -> Result<ArrayView2<'_, f32>> {
    let n_row = x.len() / n_col.max(1);
    ArrayView2::from_shape((n_row, n_col), x)
        .map_err(|_| Error::shape("gracekv", format!("rows of {n_col} values"), format!("{} values", x.len())))
}

/// `cap * tanh(s / cap)`; without a cap `s`.
pub(super) fn soft_cap(s: f32, cap: f32) -> f32 {
    if cap > 0.0 {
        cap * (s / cap).tanh()
    } else {
        s
    }
}

/// `ln sum exp(x)`, -inf for nothing.
pub(super) fn log_sum_exp(x: &[f32]) -> f32 {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    max + x.iter().map(|&x| (x - max).exp()).sum::<f32>().ln()
}

/// `ln(exp(a) + exp(b))`.
pub(super) fn log_add(a: f32, b: f32) -> f32 {
    log_sum_exp(&[a, b])
}

/// Queries with what each of them sees.
#[derive(Clone, Debug, Default)]
pub(super) struct Queries {
    /// Scaled queries, one a row. Shapes: `{head_dim_k, n_row}`.
    pub rows: Vec<f32>,
    /// Tokens of the prompt each row sees, from the first.
    pub n_seen: Vec<usize>,
    /// Log-sum-exp of the logits a row has outside the prompt, -inf for none.
    pub beyond: Vec<f32>,
}

/// Probabilities `p_qt = exp(s_qt - lse_q)` of all rows over the prompt, block by block; returns `lse_q`.
///
/// Shapes: `keys: {head_dim_k, n_tokens}`; `visit(first_row, {n_tokens, n_row of the block})`. What a row does not see has probability 0.
pub(super) fn attend(
    keys: &[f32],
    head_dim_k: usize,
    queries: &Queries,
    cap: f32,
    mut visit: impl FnMut(usize, ArrayView2<f32>),
) -> Result<Vec<f32>> {
    let (keys, rows) = (matrix(keys, head_dim_k)?, matrix(&queries.rows, head_dim_k)?);
    let mut lse = Vec::with_capacity(rows.nrows());
    let mut block = Array2::zeros((BLOCK.min(rows.nrows()), keys.nrows()));
    for first in (0..rows.nrows()).step_by(BLOCK) {
        let end = (first + BLOCK).min(rows.nrows());
        let mut p = block.slice_mut(s![..end - first, ..]);
        general_mat_mul(1.0, &rows.slice(s![first..end, ..]), &keys.t(), 0.0, &mut p);
        for (mut row, i) in p.rows_mut().into_iter().zip(first..end) {
            let Some(row) = row.as_slice_mut() else { continue };
            lse.push(softmax(row, queries.n_seen[i], queries.beyond[i], cap));
        }
        visit(first, p.view());
    }
    Ok(lse)
}

/// Turns logits into probabilities in place; returns their log-sum-exp.
fn softmax(row: &mut [f32], n_seen: usize, beyond: f32, cap: f32) -> f32 {
    let (seen, hidden) = row.split_at_mut(n_seen.min(row.len()));
    hidden.fill(0.0);
    if cap > 0.0 {
        seen.iter_mut().for_each(|s| *s = soft_cap(*s, cap));
    }
    let max = seen.iter().copied().fold(beyond, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let mut sum = 0.0;
    for s in seen.iter_mut() {
        *s = (*s - max).exp();
        sum += *s;
    }
    sum += (beyond - max).exp();
    seen.iter_mut().for_each(|s| *s /= sum);
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{reals, Rng};
    use super::*;

    #[test]
    fn probabilities_agree_with_direct_exponentials() {
        let (d, n, n_row) = (8, 50, 70);
        let mut rng = Rng(1);
        let keys = reals(&mut rng, d * n);
        let queries = Queries {
            rows: reals(&mut rng, d * n_row),
            n_seen: (0..n_row).map(|i| 1 + (i * 7) % n).collect(),
            beyond: (0..n_row).map(|i| if i % 3 == 0 { f32::NEG_INFINITY } else { 0.5 }).collect(),
        };
        for cap in [0.0, 2.0] {
            let mut got = Vec::new();
            let lse = attend(&keys, d, &queries, cap, |_, p| got.extend(p.iter().copied())).unwrap();
            for i in 0..n_row {
                let e = |t: usize| {
                    let dot: f64 =
                        (0..d).map(|j| f64::from(queries.rows[i * d + j]) * f64::from(keys[t * d + j])).sum();
                    let c = f64::from(cap);
                    (if c > 0.0 { c * (dot / c).tanh() } else { dot }).exp()
                };
                let z = (0..queries.n_seen[i]).map(e).sum::<f64>() + f64::from(queries.beyond[i]).exp();
                assert!((f64::from(lse[i]) - z.ln()).abs() < 1e-5);
                for t in 0..n {
                    let want = if t < queries.n_seen[i] { e(t) / z } else { 0.0 };
                    assert!((f64::from(got[i * n + t]) - want).abs() < 1e-6, "row {i} token {t}");
                }
            }
        }
    }
}
