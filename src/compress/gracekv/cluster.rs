//! Step 3: evicted tokens that no probe tells apart form a cluster.
//!
//! The metric is that of the queries: with the covariance `C = L L'` of all probes of the group (centred: an offset that all
//! queries share does not hinder a merge) and `X_t = L' k_t`, `|X_t - X_u|^2 = Var_q(s_qt - s_qu)`, but for directions that hold
//! a tenth of the variance, which are left out. Weighted k-means, with fewer steps where clusters are small; a token weighs what
//! the output would lose without it. First centres: the heaviest tokens. A cluster that runs empty takes the token that lies
//! worst (ours: so every entry of the budget is used).

use ndarray::{s, Array2, ArrayView2, Axis};

use super::cholesky;
use super::observe::Head;
use crate::cache::product::{add_weighted_rows, times_rows};
use crate::compress::vector;

/// Tokens whose distances to all centres are in memory at a time; there may be thousands of centres.
const TILE: usize = 128;
/// Tokens per cluster below which more steps than [`FEW_STEPS`] change nothing that could be measured.
const SMALL_CLUSTER: usize = 24;
/// Steps of the clustering when clusters are small.
const FEW_STEPS: usize = 2;
/// Share of the variance of the queries that the metric may leave out.
const METRIC_TOLERANCE: f32 = 0.1;
/// Part of the mean weight that every token has.
const MIN_WEIGHT: f32 = 1e-3;

/// The cluster, below `n`, of each of the `evicted` tokens; no cluster is empty.
pub fn cluster(head: &Head, evicted: &[u32], n: usize, n_lloyd: usize) -> Vec<u32> {
    let factor = metric(head.queries.view());
    let mut x = Array2::zeros((evicted.len(), factor.ncols()));
    for (tokens, mut x) in evicted.chunks(TILE).zip(x.axis_chunks_iter_mut(Axis(0), TILE)) {
        add_weighted_rows(head.keys.of(tokens).view(), factor.view(), x.view_mut());
    }
    let n_step = if evicted.len() < SMALL_CLUSTER * n { n_lloyd.min(FEW_STEPS) } else { n_lloyd };
    k_means(&x, &weights(head, evicted), n, n_step)
}

/// The cluster, below `n`, of each of `n_token` tokens when clusters are runs of neighbours of equal length.
pub fn runs(n_token: usize, n: usize) -> Vec<u32> {
    (0..n_token).map(|i| (i * n / n_token) as u32).collect()
}

/// A factor of the covariance of the queries, without the directions in which they hardly differ. Shapes: `{rank, head_dim_k}`.
pub fn metric(queries: ArrayView2<f32>) -> Array2<f32> {
    let n = queries.nrows().max(1) as f32;
    let mean = queries.sum_axis(Axis(0)) / n;
    let centred = &queries - &mean;
    let covariance = centred.t().dot(&centred) / n;
    cholesky::factor_low_rank(covariance, METRIC_TOLERANCE)
}

/// Clustering weights, with the mean 1.
pub fn weights(head: &Head, evicted: &[u32]) -> Vec<f32> {
    let mut weights: Vec<f32> = evicted.iter().map(|&t| head.error[t as usize].sqrt()).collect();
    let mean = weights.iter().sum::<f32>() / weights.len().max(1) as f32;
    if !(mean > 0.0 && mean.is_finite()) {
        weights.fill(1.0);
        return weights;
    }
    weights.iter_mut().for_each(|w| *w = *w / mean + MIN_WEIGHT);
    weights
}

/// Weighted k-means over the rows of `x`.
pub fn k_means(x: &Array2<f32>, weight: &[f32], n: usize, n_step: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..x.nrows()).collect();
    order.sort_by(|&a, &b| weight[b].total_cmp(&weight[a]));
    order.truncate(n);
    let mut centres = x.select(Axis(0), &order);
    let mut of = vec![0u32; x.nrows()];
    let mut distance = vec![0.0; x.nrows()];
    for step in 0..n_step.max(1) {
        let before = of.clone();
        assign(x, &centres, &mut of, &mut distance);
        if of == before && step > 0 {
            break;
        }
        move_centres(x, weight, &of, &mut centres);
    }
    fill_empty(&mut of, weight, &mut distance, n);
    of
}

/// The nearest centre of each row, and its squared distance less the square of the row.
fn assign(x: &Array2<f32>, centres: &Array2<f32>, of: &mut [u32], distance: &mut [f32]) {
    let half_norm: Vec<f32> = centres.rows().into_iter().map(|c| c.dot(&c) / 2.0).collect();
    let mut product = Array2::zeros((centres.nrows(), TILE));
    let tiles = x.axis_chunks_iter(Axis(0), TILE).zip(of.chunks_mut(TILE)).zip(distance.chunks_mut(TILE));
    for ((x, of), distance) in tiles {
        let mut product = product.slice_mut(s![.., ..x.nrows()]);
        times_rows(centres.view(), x, product.view_mut());
        distance.fill(f32::INFINITY);
        of.fill(0);
        for (j, row) in (0..).zip(product.rows()) {
            if let Some(row) = row.as_slice() {
                vector::nearest(distance, of, row, half_norm[j as usize], j);
            }
        }
        for (d, x) in distance.iter_mut().zip(x.rows()) {
            *d = (2.0 * *d + x.dot(&x)).max(0.0);
        }
    }
}

/// Each centre becomes the weighted mean of its rows; one without rows stays.
fn move_centres(x: &Array2<f32>, weight: &[f32], of: &[u32], centres: &mut Array2<f32>) {
    let mut sums = Array2::<f32>::zeros(centres.dim());
    let mut total = vec![0.0f32; centres.nrows()];
    for ((x, &w), &j) in x.rows().into_iter().zip(weight).zip(of) {
        sums.row_mut(j as usize).scaled_add(w, &x);
        total[j as usize] += w;
    }
    for ((mut centre, sum), &total) in centres.rows_mut().into_iter().zip(sums.rows()).zip(&total) {
        if total > 0.0 {
            centre.assign(&(&sum / total));
        }
    }
}

/// Gives each empty cluster the token with the largest weighted distance from its centre that is not alone.
fn fill_empty(of: &mut [u32], weight: &[f32], distance: &mut [f32], n: usize) {
    let mut size = vec![0usize; n];
    of.iter().for_each(|&j| size[j as usize] += 1);
    let empty: Vec<u32> = (0..n as u32).filter(|&j| size[j as usize] == 0).collect();
    if empty.is_empty() {
        return;
    }
    let cost: Vec<f32> = weight.iter().zip(distance.iter()).map(|(w, d)| w * d).collect();
    let mut order: Vec<usize> = (0..of.len()).collect();
    order.sort_by(|&a, &b| cost[b].total_cmp(&cost[a]));
    let mut candidates = order.into_iter();
    for j in empty {
        if let Some(t) = candidates.find(|&t| size[of[t] as usize] > 1) {
            size[of[t] as usize] -= 1;
            of[t] = j;
            size[j as usize] = 1;
        }
    }
}
