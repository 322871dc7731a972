//! Step 4: key, bias and value of each cluster, fitted to the attention that the probes give its tokens.
//!
//! Of cluster j: `r_t = sum_q w_q a_qt`, `Z_qj = sum_t a_qt`, `M_qj = sum_t a_qt v_t`, `k0` = r-weighted mean key.
//! Key by ridge regression in clusters of [`Options::min_fitted`] tokens and more, `k0` in others; under `omega_q ~ w_q Z_qj`:
//! `y_q = ln Z_qj + lz_q - q.k0`, `mu = E[q]`, `b0 = E[y]`,
//! `G = E[q q'] - mu mu'`, `k~ = k0 + (G + ridge mean(diag G) I)^-1 E[(y - b0)(q - mu)]`.
//! Bias: `e_q = exp(min(q.k~ - lz_q, 3))`, `e^b = sum w e Z / sum w e^2`. Value: `z~_q = e^b e_q`, `v~ = sum w z~ M / sum w z~^2`;
//! it needs no `M`: `sum_q w z~ M = sum_t v_t sum_q w z~ a_qt`. Under a soft-cap the regression is in capped logits (ours).

use ndarray::{Array2, ArrayViewMut2, Axis};

use super::observe::{Head, Rows};
use super::{cholesky, Options};
use crate::cache::product::add_weighted_rows;
use crate::compress::vector;

/// Tokens whose logits are in memory at a time.
const TILE: usize = 256;
/// As in [`vector::softmax`].
const FLOOR: f32 = -60.0;
/// Largest logarithm of `e_q`.
pub(super) const MAX_LOG_E: f32 = 3.0;
/// Logarithm of the smallest coefficient, relative to the largest, so that no product is subnormal.
const NEGLIGIBLE: f32 = -24.0;
/// Smallest share of a probe row in a regression.
const MIN_OMEGA: f32 = 1e-4;

/// A fitted entry.
#[derive(Clone, Debug)]
pub struct Prototype {
    /// Shapes: `{head_dim_k}`.
    pub key: Vec<f32>,
    /// Shapes: `{head_dim_v}`.
    pub value: Vec<f32>,
    /// Added to its logit.
    pub bias: f32,
    /// Tokens it stands for.
    pub n_tokens: u32,
    /// The token, when it is the only one.
    pub token: Option<u32>,
}

/// One prototype for each of the `n` clusters of the `evicted` tokens, `cluster_of` as made by [`super::cluster`].
pub fn fit(head: &Head, evicted: &[u32], cluster_of: &[u32], n: usize, options: &Options) -> Vec<Prototype> {
    let mut members = vec![Vec::new(); n];
    evicted.iter().zip(cluster_of).for_each(|(&t, &j)| members[j as usize].push(t));
    let mut prototypes = Vec::with_capacity(n);
    let mut rest = &members[..];
    while !rest.is_empty() {
        // As many small clusters as fit into a tile share one product of matrices.
        let mut n_tokens = 0;
        let fits = |cluster: &&Vec<u32>| {
            n_tokens += cluster.len();
            n_tokens <= TILE
        };
        let n_batch = rest.iter().take_while(fits).count();
        let (batch, after) = rest.split_at(n_batch.max(1));
        rest = after;
        if n_batch == 0 {
            prototypes.push(fit_cluster(head, &batch[0], None, options));
            continue;
        }
        let mut logits = head.logits(head.keys.of(&batch.concat()).view());
        let mut logits = logits.view_mut();
        for tokens in batch {
            let (own, others) = logits.split_at(Axis(0), tokens.len());
            prototypes.push(fit_cluster(head, tokens, Some(own), options));
            logits = others;
        }
    }
    prototypes
}

/// `logits: {n_row, tokens.len()}`, or none when they are too many to hold.
fn fit_cluster(head: &Head, tokens: &[u32], mut logits: Option<ArrayViewMut2<f32>>, options: &Options) -> Prototype {
    if let [token] = *tokens {
        let row = |rows: &Rows| rows.of(tokens).into_iter().collect();
        return Prototype {
            key: row(&head.keys),
            value: row(&head.values),
            bias: 0.0,
            n_tokens: 1,
            token: Some(token),
        };
    }
    let (shift, sum) = sums(head, tokens, &mut logits);
    let log_z: Vec<f32> = (0..sum.len()).map(|q| shift[q] - head.lz[q] + sum[q].ln()).collect();
    let (k0, v0) = (mean_row(&head.keys, tokens, &head.mass), mean_row(&head.values, tokens, &head.mass));
    let key = (tokens.len() >= options.min_fitted)
        .then(|| fit_key(head, &log_z, &k0, options.ridge))
        .flatten()
        .unwrap_or_else(|| k0.clone());
    let n_tokens = tokens.len() as u32;
    if !options.fit_bias {
        return Prototype { key, value: v0, bias: ln_m(head, tokens, &k0), n_tokens, token: None };
    }
    let (bias, log_e) = fit_bias(head, &log_z, &key);
    match fit_value(head, tokens, &mut logits, &shift, bias, &log_e) {
        Some(value) if bias.is_finite() => Prototype { key, value, bias, n_tokens, token: None },
        // No probe reaches the cluster: a mean entry that counts its tokens.
        _ => Prototype { key: k0, value: v0, bias: (n_tokens as f32).ln(), n_tokens, token: None },
    }
}

/// Per probe row, the largest logit over `tokens` and the sum of exponentials less it; `logits` become these exponentials.
fn sums(head: &Head, tokens: &[u32], logits: &mut Option<ArrayViewMut2<f32>>) -> (Vec<f32>, Vec<f32>) {
    let n_row = head.queries.nrows();
    let (mut shift, mut sum) = (vec![f32::MIN; n_row], vec![0.0; n_row]);
    let mut add = |mut tile: ArrayViewMut2<f32>| {
        let before = shift.clone();
        tile.rows().into_iter().filter_map(|row| row.to_slice()).for_each(|row| vector::max_into(&mut shift, row));
        sum.iter_mut().zip(&before).zip(&shift).for_each(|((s, b), m)| *s *= (b - m).exp());
        for row in tile.rows_mut() {
            row.into_slice().into_iter().for_each(|row| vector::exp_shifted(row, &shift, FLOOR, &mut sum));
        }
    };
    match logits {
        Some(logits) => add(logits.view_mut()),
        None => tokens.chunks(TILE).for_each(|tokens| add(head.logits(head.keys.of(tokens).view()).view_mut())),
    }
    (shift, sum)
}

/// Mean of the rows of `tokens` weighted by `mass`.
fn mean_row(rows: &Rows, tokens: &[u32], mass: &[f32]) -> Vec<f32> {
    let total: f32 = tokens.iter().map(|&t| mass[t as usize]).sum();
    let known = total > 0.0 && total.is_finite();
    let mut mean = vec![0.0; rows.dim()];
    for tile in tokens.chunks(TILE) {
        for (&t, row) in tile.iter().zip(rows.of(tile).rows()) {
            let w = if known { mass[t as usize] / total } else { 1.0 / tokens.len() as f32 };
            row.to_slice().into_iter().for_each(|row| vector::add_scaled(&mut mean, w, row));
        }
    }
    mean
}

/// The paper's bias: `m = clamp(n c^2, 1, n)`, `c = |k0| / mean |k|`.
fn ln_m(head: &Head, tokens: &[u32], k0: &[f32]) -> f32 {
    let norm = |k: &[f32]| vector::dot(k, k).sqrt();
    let n = tokens.len() as f32;
    let of_tile = |tile| head.keys.of(tile).rows().into_iter().filter_map(|k| k.to_slice()).map(norm).sum::<f32>();
    let mean_norm = tokens.chunks(TILE).map(of_tile).sum::<f32>() / n;
    let c = norm(k0) / (mean_norm + 1e-6);
    (n * c * c).clamp(1.0, n).ln()
}

/// Whether all numbers are finite in half precision, in which caches store them.
pub fn storable(x: &[f32]) -> bool {
    x.iter().all(|x| x.abs() <= 65504.0)
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(f32::MIN, |m, &x| if x > m { x } else { m })
}

/// `ln` of a sum of exponentials needs its terms relative to the largest: `weight_q e^(x_q - max)`, and `max`.
fn weighted_exp(x: &[f32], weight: &[f32], floor: f32) -> (Vec<f32>, f32) {
    let (mut e, max) = (x.to_vec(), largest(x));
    vector::exp_minus(&mut e, max, floor);
    e.iter_mut().zip(weight).for_each(|(e, w)| *e *= w);
    (e, max)
}

/// The key whose logits follow `ln Z_qj + lz_q` best; none when it cannot be stored.
fn fit_key(head: &Head, log_z: &[f32], k0: &[f32], ridge: f32) -> Option<Vec<f32>> {
    let dim = k0.len();
    let (mut omega, _) = weighted_exp(log_z, &head.weight, FLOOR);
    let total: f32 = omega.iter().sum();
    omega.iter_mut().for_each(|w| *w /= total);
    let queries = head.queries.as_slice()?;
    let mut y = vec![0.0; log_z.len()];
    vector::multiply(queries, k0, &mut y);
    (0..y.len()).for_each(|q| y[q] = log_z[q] + head.lz[q] - y[q]);
    let b0 = vector::dot(&omega, &y);
    let mut mu = vec![0.0; dim];
    vector::add_weighted(queries, &omega, &mut mu);

    // Rows without weight are left out of the products.
    let (mut centred, mut root, mut target) = (Vec::new(), Vec::new(), Vec::new());
    for (q, row) in queries.chunks_exact(dim).enumerate().filter(|(q, _)| omega[*q] > MIN_OMEGA) {
        centred.extend_from_slice(row);
        root.push(omega[q].sqrt());
        target.push(omega[q].sqrt() * (y[q] - b0));
    }
    vector::centre(&mut centred, &mu, &root);
    let mut delta = vec![0.0; dim];
    vector::add_weighted(&centred, &target, &mut delta);
    let centred = Array2::from_shape_vec((root.len(), dim), centred).ok()?;
    let mut gram = Array2::zeros((dim, dim));
    add_weighted_rows(centred.t().as_standard_layout().view(), centred.view(), gram.view_mut());
    let mean = gram.diag().sum() / dim as f32;
    gram.diag_mut().map_inplace(|x| *x += ridge * mean);
    if !cholesky::solve_one(&mut gram, &mut delta) {
        return None;
    }
    vector::add_scaled(&mut delta, 1.0, k0);
    storable(&delta).then_some(delta)
}

/// The bias of the entry with this key, and `ln e_q`.
fn fit_bias(head: &Head, log_z: &[f32], key: &[f32]) -> (f32, Vec<f32>) {
    let mut log_e = vec![0.0; log_z.len()];
    head.queries.as_slice().into_iter().for_each(|queries| vector::multiply(queries, key, &mut log_e));
    vector::softcap(&mut log_e, head.softcap);
    log_e.iter_mut().zip(&head.lz).for_each(|(s, lz)| *s = (*s - lz).min(MAX_LOG_E));
    let (we, max_e) = weighted_exp(&log_e, &head.weight, FLOOR);
    let ones = vec![1.0; we.len()];
    let ((z, max_z), (e, _)) = (weighted_exp(log_z, &ones, FLOOR), weighted_exp(&log_e, &ones, FLOOR));
    let sum = |x: &[f32]| we.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
    ((sum(&z) / sum(&e)).ln() as f32 + max_z - max_e, log_e)
}

/// `sum_q w z~ M / sum w z~^2`, with `logits` as left by [`sums`]; none when it cannot be stored.
fn fit_value(
    head: &Head,
    tokens: &[u32],
    logits: &mut Option<ArrayViewMut2<f32>>,
    shift: &[f32],
    bias: f32,
    log_e: &[f32],
) -> Option<Vec<f32>> {
    let mut log_coef: Vec<f32> = (0..shift.len()).map(|q| log_e[q] + shift[q] - head.lz[q]).collect();
    let max_coef = largest(&log_coef);
    vector::exp_minus(&mut log_coef, max_coef, NEGLIGIBLE);
    let coef: Vec<f32> = log_coef.iter().zip(&head.weight).map(|(c, w)| c * w).collect();
    let mut value = vec![0.0f32; head.values.dim()];
    let mut add = |tokens: &[u32], tile: ArrayViewMut2<f32>| {
        for (v, e) in head.values.of(tokens).rows().into_iter().zip(tile.rows()) {
            if let (Some(e), Some(v)) = (e.to_slice(), v.to_slice()) {
                vector::add_scaled(&mut value, vector::dot(&coef, e), v);
            }
        }
    };
    match logits {
        Some(logits) => add(tokens, logits.view_mut()),
        None => tokens.chunks(TILE).for_each(|tokens| {
            let mut tile = head.logits(head.keys.of(tokens).view());
            let mut unused = vec![0.0; shift.len()];
            for row in tile.rows_mut() {
                row.into_slice().into_iter().for_each(|row| vector::exp_shifted(row, shift, FLOOR, &mut unused));
            }
            add(tokens, tile.view_mut());
        }),
    }
    let max_e = largest(log_e);
    let norm: f64 =
        log_e.iter().zip(&head.weight).map(|(&x, &w)| f64::from(w) * f64::from((x - max_e).exp()).powi(2)).sum();
    let scale = f64::from(max_coef - bias - 2.0 * max_e).exp() / norm;
    value.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
    storable(&value).then_some(value)
}
