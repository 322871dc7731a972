//! Value flow: what the question needs of every token in every head (stage 5, section "value flow" of arXiv 2608.07001).
//!
//! Direct attention of the probes, and the attention of the tokens they read (multi-hop). Deviations (ours, measured): the probes include
//! lookahead queries; probes and query heads are aggregated by maximum, so scores are probabilities; the seeds of a hop are decoded again.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2};
use rayon::prelude::*;

use super::attention::{attend, log_sum_exp, matrix, soft_cap, Queries};
use super::options::Options;
use super::sensitivity::omega;
use crate::cache::view::{ProbeKind, View};
use crate::error::{Error, Result};

/// What the pass knows of one (layer, KV head).
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    /// The layer.
    pub il: usize,
    /// The KV head.
    pub g: usize,
    /// The probes' queries, a row per probe and query head of the group.
    pub queries: Queries,
    /// Log-sum-exp of all logits of each row.
    pub lse: Vec<f32>,
    /// Head sensitivity.
    pub omega: f32,
    /// Relevance `R` of each token.
    pub relevance: Vec<f32>,
}

impl Head {
    /// Frees what only the allocation needs.
    pub fn forget_probes(&mut self) {
        (self.queries, self.lse) = (Queries::default(), Vec::new());
    }

    /// `omega * R_t`, by which exact tokens are ranked.
    pub fn worth(&self, t: u32) -> f32 {
        self.omega * self.relevance[t as usize]
    }
}

/// All heads, layer by layer, with `R = s` (see [`relevance`] for the hops).
///
/// # Errors
/// [`Error::Shape`] without window or lookahead probes; or when the source cannot be read.
pub(super) fn direct(view: &View) -> Result<Vec<Head>> {
    let probes: Vec<usize> = (0..view.probes.list.len()).collect();
    if probes.is_empty() {
        return Err(Error::shape("gracekv (paper)", "window or lookahead queries", "none"));
    }
    let heads: Vec<(usize, usize)> =
        view.layers.iter().flat_map(|&il| (0..view.n_head_kv).map(move |g| (il, g))).collect();
    heads.into_par_iter().map(|(il, g)| head(view, il, g, &probes)).collect()
}

/// `s_t = max over probes u and heads h of softmax_t(q_u^h . k)`, a full softmax over what u sees, and `omega` of one head.
fn head(view: &View, il: usize, g: usize, probes: &[usize]) -> Result<Head> {
    let queries = probe_queries(view, il, g, probes)?;
    let (keys, values) = (view.keys(il, g)?, view.values(il, g)?);
    let values = matrix(&values, view.head_dim_v)?;
    let mut relevance = vec![0f32; view.n_tokens];
    let mut outputs = Array2::zeros((queries.n_seen.len(), view.head_dim_v));
    let lse = attend(&keys, view.head_dim_k, &queries, view.logit_softcap, |first, p| {
        for row in p.rows() {
            relevance.iter_mut().zip(row).for_each(|(r, &p)| *r = r.max(p));
        }
        let mut rows = outputs.slice_mut(s![first..first + p.nrows(), ..]);
        general_mat_mul(1.0, &p, &values, 0.0, &mut rows);
    })?;
    let (outputs, _) = outputs.into_raw_vec_and_offset();
    let omega = omega(view, il, g, &outputs)?;
    Ok(Head { il, g, queries, lse, omega, relevance })
}

/// The scaled queries of `probes` for the group of KV head `g`; a lookahead query also sees the lookahead keys up to its own.
fn probe_queries(view: &View, il: usize, g: usize, probes: &[usize]) -> Result<Queries> {
    let (d, n_group) = (view.head_dim_k, view.n_group());
    let want = view.probes.list.len() * view.n_head * d;
    let got = view.probes.queries.get(il).map_or(0, Vec::len);
    if got != want {
        return Err(Error::shape(format!("probe queries of layer {il}"), want.to_string(), got.to_string()));
    }
    let drafts = view.probes.lookahead_keys.get(il).map_or(&[][..], Vec::as_slice);
    let mut queries = Queries::default();
    let mut n_draft = 0;
    for &p in probes {
        let probe = view.probes.list[p];
        n_draft += usize::from(probe.kind == ProbeKind::Lookahead);
        for h in g * n_group..(g + 1) * n_group {
            let row: Vec<f32> = view.query(il, p, h).iter().map(|x| x * view.kq_scale).collect();
            let own = drafts.chunks_exact(d).skip(g).step_by(view.n_head_kv).take(n_draft);
            let dot = |k: &[f32]| soft_cap(row.iter().zip(k).map(|(q, k)| q * k).sum(), view.logit_softcap);
            let logits: Vec<f32> = if probe.kind == ProbeKind::Lookahead { own.map(dot).collect() } else { Vec::new() };
            queries.beyond.push(log_sum_exp(&logits));
            queries.n_seen.push((probe.pos as usize + 1).min(view.n_tokens));
            queries.rows.extend(row);
        }
    }
    Ok(queries)
}

/// Adds the hops: `R = (1 - lambda_graph) * s + lambda_graph * d`; returns how many hops were followed.
///
/// `d` is scaled to the mean mass of `s` on `open`, the tokens that are not kept anyway, so that `lambda_graph` is a share (ours).
/// A source that cannot decode leaves `R = s`.
///
/// # Errors
/// When the source cannot be read.
pub(super) fn relevance(view: &View, heads: &mut [Head], open: Range<usize>, o: &Options) -> Result<u64> {
    if !o.multi_hop || o.lambda_graph == 0.0 || heads.is_empty() {
        return Ok(0);
    }
    let mut mean = vec![0f64; view.n_tokens];
    for head in heads.iter() {
        mean.iter_mut().zip(&head.relevance).for_each(|(m, &s)| *m += f64::from(s) / heads.len() as f64);
    }
    let (n_hop, d) = match hops(view, &mean, open.clone(), o) {
        Err(Error::Unsupported { .. }) => return Ok(0),
        found => found?,
    };
    let (mass, total) = (mean[open].iter().sum::<f64>(), d.iter().sum::<f64>());
    if total > 0.0 {
        for head in heads {
            for (r, d) in head.relevance.iter_mut().zip(&d) {
                *r = (1.0 - o.lambda_graph) * *r + o.lambda_graph * (d * mass / total) as f32;
            }
        }
    }
    Ok(n_hop)
}

/// `d_t = sum over hops j of decay^j * a^j_t`: `a^j` the attention of the seeds of hop j, `a^0 = mean`, and the seeds of hop j + 1 are the
/// tokens with the largest `a^j` that were no seeds before.
pub(super) fn hops(view: &View, mean: &[f64], open: Range<usize>, o: &Options) -> Result<(u64, Vec<f64>)> {
    let mut free: Vec<bool> = (0..view.n_tokens).map(|t| open.contains(&t)).collect();
    let mut weight = mean.to_vec();
    let mut d = vec![0f64; view.n_tokens];
    let mut scale = 1.0;
    for hop in 0..o.n_hop {
        let mut seeds: Vec<u32> =
            (0..view.n_tokens as u32).filter(|&t| free[t as usize] && weight[t as usize] > 0.0).collect();
        seeds.sort_by(|&a, &b| weight[b as usize].total_cmp(&weight[a as usize]).then(a.cmp(&b)));
        seeds.truncate(o.n_seed);
        seeds.sort_unstable();
        if seeds.is_empty() {
            return Ok((hop as u64, d));
        }
        seeds.iter().for_each(|&t| free[t as usize] = false);
        let total: f64 = seeds.iter().map(|&t| weight[t as usize]).sum();
        let share: Vec<f64> = seeds.iter().map(|&t| weight[t as usize] / total).collect();
        weight = reach(view, &seeds, &share, o.n_hop_layer)?;
        scale *= f64::from(o.hop_decay);
        for t in (0..view.n_tokens).filter(|&t| free[t]) {
            d[t] += scale * weight[t];
        }
    }
    Ok((o.n_hop as u64, d))
}

/// `a_t = sum over seeds of share * softmax_t(q_seed . k)`, averaged over query heads and sampled layers.
fn reach(view: &View, seeds: &[u32], share: &[f64], n_layer: usize) -> Result<Vec<f64>> {
    let decoded = view.source.queries_of(seeds)?;
    let (d, n_group, n_sampled) = (view.head_dim_k, view.n_group(), n_layer.clamp(1, view.layers.len()));
    let layers = (0..n_sampled).map(|i| view.layers[(2 * i + 1) * view.layers.len() / (2 * n_sampled)]);
    let heads: Vec<(usize, usize)> = layers
        .filter(|&il| decoded.get(il).is_some_and(|q| q.len() == d * view.n_head * seeds.len()))
        .flat_map(|il| (0..view.n_head_kv).map(move |g| (il, g)))
        .collect();
    let parts: Vec<Vec<f64>> = heads
        .par_iter()
        .map(|&(il, g)| {
            let mut queries = Queries::default();
            for (i, &seed) in seeds.iter().enumerate() {
                let at = (i * view.n_head + g * n_group) * d;
                queries.rows.extend(decoded[il][at..at + n_group * d].iter().map(|x| x * view.kq_scale));
                queries.n_seen.extend(std::iter::repeat_n(seed as usize + 1, n_group));
                queries.beyond.extend(std::iter::repeat_n(f32::NEG_INFINITY, n_group));
            }
            let mut sum = vec![0f64; view.n_tokens];
            attend(&view.keys(il, g)?, d, &queries, view.logit_softcap, |first, p| {
                for (row, i) in p.rows().into_iter().zip(first..) {
                    let w = share[i / n_group] / (n_group * heads.len()) as f64;
                    sum.iter_mut().zip(row).for_each(|(s, &p)| *s += w * f64::from(p));
                }
            })?;
            Ok(sum)
        })
        .collect::<Result<_>>()?;
    let mut all = vec![0f64; view.n_tokens];
    parts.iter().for_each(|part| all.iter_mut().zip(part).for_each(|(a, p)| *a += p));
    Ok(all)
}

#[cfg(test)]
mod tests;
