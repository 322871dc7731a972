//! Distortion: what the probes lose when one entry stands for an interval (stage 5, section "prototype tree" of arXiv 2608.07001).
//!
//! `Z = sum_I exp(s)`, `M = sum_I exp(s) v`, `Z~ = m exp(s~)`, `M~ = Z~ v~`; everything is divided by Z (log-sum-exp), so that Z = 1,
//! M is the softmax mean of the values and `Z~ = exp(ln m + s~ - ln Z)`: nothing overflows, and eps is relative to Z. `Z~` is capped at e^30.
//! A probe inside the prompt takes part only where it sees the whole node (ours); the mean is over all probes and query heads.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, ArrayView2};

use super::attention::{log_add, soft_cap};
use super::flow::Head;
use super::options::Options;
use super::tree::Prototype;
use crate::error::Result;

const EPS: f64 = 1e-6;
const MAX_LOG_RATIO: f32 = 30.0;

/// `ln Z` and `M / Z` of an interval under every probe row.
#[derive(Clone, Debug)]
pub(super) struct Mass {
    /// `ln Z`.
    pub log_z: Vec<f32>,
    /// `M / Z`. Shapes: `{head_dim_v, n_row}`.
    pub mean: Array2<f32>,
}

impl Mass {
    /// The mass of an interval. Shapes: `logits: {n, n_row}`, `values: {head_dim_v, n}`.
    pub fn new(logits: ArrayView2<f32>, values: ArrayView2<f32>) -> Self {
        let mut p = logits.to_owned();
        let mut log_z = Vec::with_capacity(p.nrows());
        for mut row in p.rows_mut() {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.mapv_inplace(|s| (s - max).exp());
            let sum = row.sum();
            row.mapv_inplace(|e| e / sum);
            log_z.push(max + sum.ln());
        }
        let mut mean = Array2::zeros((p.nrows(), values.ncols()));
        general_mat_mul(1.0, &p, &values, 0.0, &mut mean);
        Mass { log_z, mean }
    }

    /// The mass of two disjoint intervals together.
    pub fn union(&self, other: &Mass) -> Mass {
        let log_z: Vec<f32> = self.log_z.iter().zip(&other.log_z).map(|(&a, &b)| log_add(a, b)).collect();
        let mut mean = self.mean.clone();
        for (i, mut row) in mean.rows_mut().into_iter().enumerate() {
            let (a, b) = ((self.log_z[i] - log_z[i]).exp(), (other.log_z[i] - log_z[i]).exp());
            row.zip_mut_with(&other.mean.row(i), |x, &y| *x = a * *x + b * y);
        }
        Mass { log_z, mean }
    }
}

/// The probes of one head as distortion needs them.
pub(super) struct Gauge<'a> {
    head: &'a Head,
    queries: ArrayView2<'a, f32>,
    /// Last token of the node at hand: rows that do not see it take no part.
    last: usize,
    cap: f32,
    options: &'a Options,
}

impl<'a> Gauge<'a> {
    /// The gauge for a node whose last token is `last`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::error::Error::Shape) when the queries are not rows of `head_dim_k`.
    pub fn new(head: &'a Head, head_dim_k: usize, last: u32, cap: f32, options: &'a Options) -> Result<Self> {
        let queries = super::attention::matrix(&head.queries.rows, head_dim_k)?;
        Ok(Gauge { head, queries, last: last as usize, cap, options })
    }

    /// Logits of all rows for `keys: {head_dim_k, n}`. Shapes: `{n, n_row}`.
    pub fn logits(&self, keys: ArrayView2<f32>) -> Array2<f32> {
        let mut logits = Array2::zeros((self.queries.nrows(), keys.nrows()));
        general_mat_mul(1.0, &self.queries, &keys.t(), 0.0, &mut logits);
        if self.cap > 0.0 {
            logits.mapv_inplace(|s| soft_cap(s, self.cap));
        }
        logits
    }

    /// `D(I) = mean over q of a_q(I) D_q(I)`, `D_q = lambda_Z (Z - Z~)^2 / (Z^2 + eps) + lambda_M |M - M~|^2 / (|M|^2 + eps)`,
    /// `a_q(I)` the attention mass of I.
    pub fn distortion(&self, mass: &Mass, prototype: &Prototype) -> f64 {
        let logits = self.queries.dot(&ArrayView1::from(&prototype.key));
        let value = &prototype.value;
        self.mean(mass, |i, m| {
            let log_ratio = soft_cap(logits[i], self.cap) + prototype.ln_m - mass.log_z[i];
            let ratio = log_ratio.min(MAX_LOG_RATIO).exp();
            (f64::from(1.0 - ratio).powi(2), f64::from(gap2(m, value, ratio)))
        })
    }

    /// `D_drop`: the same with `Z~ = M~ = 0`.
    pub fn dropped(&self, mass: &Mass) -> f64 {
        self.mean(mass, |_, m| (1.0, f64::from(gap2(m, m, 0.0))))
    }

    /// Mean over rows of the mass times `lambda_Z z + lambda_M m / |M|^2`, for `(z, m)` of each row that sees the node.
    fn mean(&self, mass: &Mass, error: impl Fn(usize, &[f32]) -> (f64, f64)) -> f64 {
        let (lambda_z, lambda_m) = (f64::from(self.options.lambda_z), f64::from(self.options.lambda_m));
        let mut sum = 0.0;
        for (i, row) in mass.mean.rows().into_iter().enumerate() {
            let Some(m) = row.to_slice().filter(|_| self.head.queries.n_seen[i] > self.last) else { continue };
            let (z, gap) = error(i, m);
            let norm = f64::from(gap2(m, m, 0.0));
            let share = f64::from((mass.log_z[i] - self.head.lse[i]).exp());
            sum += share * (lambda_z * z / (1.0 + EPS) + lambda_m * gap / (norm + EPS));
        }
        sum / mass.log_z.len().max(1) as f64
    }
}

/// `|a - scale * b|^2`, summed in eight lanes so that the compiler can use vector registers.
fn gap2(a: &[f32], b: &[f32], scale: f32) -> f32 {
    let mut lanes = [0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| (a - scale * b).powi(2)).sum();
    for (a, b) in a8.zip(b8) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += (a - scale * b) * (a - scale * b);
        }
    }
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests;
