//! Step 4: key, bias and value of each cluster, fitted to the attention that the probes give its tokens.
//!
//! Of cluster j: `r_t = sum_q w_q a_qt`, `Z_qj = sum_t a_qt`, `M_qj = sum_t a_qt v_t`, `k0` = r-weighted mean key.
//! Key by ridge regression under `omega_q ~ w_q Z_qj`: `y_q = ln Z_qj + lz_q - q.k0`, `mu = E[q]`, `b0 = E[y]`,
//! `G = E[q q'] - mu mu'`, `k~ = k0 + (G + ridge mean(diag G) I)^-1 E[(y - b0)(q - mu)]`.
//! Bias: `e_q = exp(min(q.k~ - lz_q, 3))`, `e^b = sum w e Z / sum w e^2`. Value: `z~_q = e^b e_q`, `v~ = sum w z~ M / sum w z~^2`;
//! it needs no `M`: `sum_q w z~ M = sum_t v_t sum_q w z~ a_qt`. Under a soft-cap the regression is in capped logits (ours).

use ndarray::{s, Array1, Array2, ArrayViewMut2, Axis};

use super::probe::Head;
use super::{cholesky, Options};
use crate::compress::vector;

/// Tokens whose logits are in memory at a time.
const TILE: usize = 512;
/// As in [`vector::softmax`].
const FLOOR: f32 = -60.0;
/// Largest logarithm of `e_q`.
const MAX_LOG_E: f32 = 3.0;
/// Coefficients below this part of the largest are 0, so that no product is subnormal.
const NEGLIGIBLE: f64 = 1e-9;

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
        let mut logits = head.logits(&batch.concat());
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
        let row = |matrix: &Array2<f32>| matrix.row(token as usize).to_vec();
        return Prototype {
            key: row(&head.keys),
            value: row(&head.values),
            bias: 0.0,
            n_tokens: 1,
            token: Some(token),
        };
    }
    let (shift, sum) = sums(head, tokens, &mut logits);
    let lse: Vec<f32> = shift.iter().zip(&sum).map(|(m, s)| m + s.ln()).collect();
    let (k0, v0) = (mean_row(&head.keys, tokens, &head.mass), mean_row(&head.values, tokens, &head.mass));
    let key =
        if options.fit_key { fit_key(head, &lse, &k0, options.ridge) } else { None }.unwrap_or_else(|| k0.clone());

    let fitted = fit_bias(head, &lse, &key).and_then(|(bias, z)| {
        let coef: Vec<f64> =
            (0..z.len()).map(|q| f64::from(head.weight[q]) * z[q] * f64::from(shift[q] - head.lz[q]).exp()).collect();
        let norm: f64 = z.iter().zip(&head.weight).map(|(z, &w)| f64::from(w) * z * z).sum();
        Some((bias, fit_value(head, tokens, &mut logits, &shift, &coef, norm)?))
    });
    let n_tokens = tokens.len() as u32;
    match fitted {
        Some((bias, value)) => Prototype { key: key.to_vec(), value, bias, n_tokens, token: None },
        // No probe reaches the cluster: a mean entry that counts its tokens.
        None => Prototype { key: k0.to_vec(), value: v0.to_vec(), bias: (n_tokens as f32).ln(), n_tokens, token: None },
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
        None => tokens.chunks(TILE).for_each(|tokens| add(head.logits(tokens).view_mut())),
    }
    (shift, sum)
}

/// Mean of the rows of `tokens` weighted by `mass`.
fn mean_row(matrix: &Array2<f32>, tokens: &[u32], mass: &[f32]) -> Array1<f32> {
    let total: f32 = tokens.iter().map(|&t| mass[t as usize]).sum();
    let mut mean = Array1::zeros(matrix.ncols());
    for &t in tokens {
        let w = if total > 0.0 { mass[t as usize] / total } else { 1.0 / tokens.len() as f32 };
        mean.scaled_add(w, &matrix.row(t as usize));
    }
    mean
}

/// The key whose logits follow `lse` (the logarithm of what the cluster's tokens add up to) best; none when it is not finite.
fn fit_key(head: &Head, lse: &[f32], k0: &Array1<f32>, ridge: f32) -> Option<Array1<f32>> {
    let n_row = lse.len();
    let log_omega: Vec<f32> = (0..n_row).map(|q| lse[q] - head.lz[q] + head.weight[q].ln()).collect();
    let max = log_omega.iter().fold(f32::MIN, |m, &x| m.max(x));
    let mut omega: Array1<f32> = log_omega.iter().map(|x| (x - max).exp()).collect();
    omega /= omega.sum();
    let y = Array1::from_vec(lse.to_vec()) - head.queries.dot(k0);
    let (mu, b0) = (head.queries.t().dot(&omega), omega.dot(&y));

    let root = omega.mapv(f32::sqrt);
    let centred = (&head.queries - &mu) * root.view().insert_axis(Axis(1));
    let mut gram = centred.t().dot(&centred);
    let mut delta = centred.t().dot(&((y - b0) * root)).insert_axis(Axis(1));
    let mean = gram.diag().sum() / gram.nrows() as f32;
    gram.diag_mut().map_inplace(|x| *x += ridge * mean);
    cholesky::solve(&mut gram, &mut delta).then(|| k0 + &delta.slice(s![.., 0]))
}

/// The bias of the entry with this key, and `z~_q`; none when the probes do not determine it.
fn fit_bias(head: &Head, lse: &[f32], key: &Array1<f32>) -> Option<(f32, Vec<f64>)> {
    let mut logit = head.queries.dot(key).to_vec();
    vector::softcap(&mut logit, head.softcap);
    let e: Vec<f64> = logit.iter().zip(&head.lz).map(|(s, lz)| f64::from((s - lz).min(MAX_LOG_E)).exp()).collect();
    let (mut above, mut below) = (0.0, 0.0);
    for q in 0..e.len() {
        above += f64::from(head.weight[q]) * e[q] * f64::from(lse[q] - head.lz[q]).exp();
        below += f64::from(head.weight[q]) * e[q] * e[q];
    }
    let scale = above / below;
    let bias = scale.ln() as f32;
    bias.is_finite().then(|| (bias, e.into_iter().map(|e| scale * e).collect()))
}

/// `sum_t v_t sum_q coef_q e_qt / norm` with `e` as left by [`sums`]; none when it is not finite.
fn fit_value(
    head: &Head,
    tokens: &[u32],
    logits: &mut Option<ArrayViewMut2<f32>>,
    shift: &[f32],
    coef: &[f64],
    norm: f64,
) -> Option<Vec<f32>> {
    let largest = coef.iter().fold(0.0f64, |m, &c| m.max(c));
    let relative = |&c: &f64| if c > NEGLIGIBLE * largest { (c / largest) as f32 } else { 0.0 };
    let coef: Vec<f32> = coef.iter().map(relative).collect();
    let mut value = vec![0.0f32; head.values.ncols()];
    let mut add = |tokens: &[u32], tile: ArrayViewMut2<f32>| {
        for (&t, e) in tokens.iter().zip(tile.rows()) {
            if let (Some(e), Some(v)) = (e.to_slice(), head.values.row(t as usize).to_slice()) {
                vector::add_scaled(&mut value, vector::dot(&coef, e), v);
            }
        }
    };
    match logits {
        Some(logits) => add(tokens, logits.view_mut()),
        None => tokens.chunks(TILE).for_each(|tokens| {
            let mut tile = head.logits(tokens);
            let mut unused = vec![0.0; shift.len()];
            for row in tile.rows_mut() {
                row.into_slice().into_iter().for_each(|row| vector::exp_shifted(row, shift, FLOOR, &mut unused));
            }
            add(tokens, tile.view_mut());
        }),
    }
    let scale = largest / norm;
    value.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
    value.iter().all(|v| v.is_finite()).then_some(value)
}
