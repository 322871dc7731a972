//! `d2o`: H2O's tokens, more of them in layers whose attention is spread, and evicted ones merged into similar kept ones (stage 5).
//!
//! Source: Wan et al., "D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large Language Models"
//! (arXiv 2406.13035), section 3, and the authors' code. Layers: shares softmax(-F), F the variance of accumulated attention in
//! 0..1, mean over heads. Tokens: 4 sinks, heavy hitters and as many recent. Merging: an evicted key goes to the kept key of largest
//! cosine u if u >= tau; weights e^u, and e^1 for the kept one, normalised; values likewise; keys as cached, rotated.
//! Adapted from decoding to one eviction after the prompt: tau, a moving average over evictions, is its first value, the mean of u.
//! Deviations: F is scaled over the heads of all layers (their code: within a layer, which tells nothing where there are two KV
//! heads); no layer is left out (theirs: the first two and the last); tau per head instead of per layer; a layer gets one entry per
//! head before shares count. Others: `baseline`.

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, ArrayView1};
use rayon::prelude::*;

use super::baseline::{keep_best, n_kept, Form, NOWHERE};
use super::h2o::accumulated;
use super::registry::LOOKAHEAD;
use super::score::matrix;
use super::select::{Kept, Pinned};
use super::{vector, Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::plan::{HeadPlan, LayerPlan, Row};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str =
    "h2o's tokens, budgets by layer, evicted ones merged into similar ones (D2O, arXiv 2406.13035)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD];

/// Sinks and recent tokens of the paper; [`Pinned::within`] lets half of the entries stand for the latter.
const PAPER: Pinned = Pinned { n_sink: 4, n_window: usize::MAX };
/// Evicted tokens that are compared with the kept ones at a time.
const TILE: usize = 256;

/// The method.
pub struct D2o {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(D2o { form: Form::new(options) })
}

/// Entries of each head of the layers, `n_kept` on average, by the attention their heads accumulated.
fn divide(scores: &[Vec<f32>], n_head_kv: usize, n_kept: usize) -> Vec<usize> {
    let variances: Vec<f64> = scores.iter().map(|s| ArrayView1::from(s).mapv(f64::from).var(1.0)).collect();
    let (low, high) = variances.iter().fold((f64::MAX, 0.0f64), |(l, h), &v| (l.min(v), h.max(v)));
    let weight = |layer: &[f64]| {
        let scaled = layer.iter().map(|v| (v - low) / (high - low + 1e-6)).sum::<f64>();
        (-scaled / layer.len() as f64).exp()
    };
    let weights: Vec<f64> = variances.chunks(n_head_kv).map(weight).collect();
    let (n_free, sum) = ((weights.len() * (n_kept - 1)) as f64, weights.iter().sum::<f64>());
    let n_tokens = scores.first().map_or(0, Vec::len);
    weights.iter().map(|w| (1 + (n_free * w / sum) as usize).min(n_tokens)).collect()
}

/// Kept tokens, which take up similar ones.
struct Merging {
    kept: Kept,
}

impl Merging {
    fn head(&self, view: &View, il: usize, g: usize) -> Result<HeadPlan> {
        let tokens = &self.kept.heads(il)[g];
        let mut plan = HeadPlan::keep(tokens.iter().copied());
        let evicted: Vec<usize> = (0..view.n_tokens).filter(|&t| tokens.binary_search(&(t as u32)).is_err()).collect();
        let (keys, values) = (view.keys(il, g)?, view.values(il, g)?);
        let (dk, dv) = (view.head_dim_k, view.head_dim_v);
        let unit = |t: usize| {
            let k = &keys[t * dk..(t + 1) * dk];
            let norm = vector::dot(k, k).sqrt().max(1e-6);
            k.iter().map(move |x| x / norm)
        };
        let kept_keys = matrix(tokens.iter().flat_map(|&t| unit(t as usize)).collect(), dk)?;
        let nearest: Vec<(usize, f32)> = evicted
            .chunks(TILE)
            .map(|tile| {
                let tile = matrix(tile.iter().flat_map(|&t| unit(t)).collect(), dk)?;
                Ok(most_similar(&tile, &kept_keys))
            })
            .collect::<Result<Vec<_>>>()?
            .concat();
        let tau = nearest.iter().map(|(_, u)| u).sum::<f32>() / nearest.len() as f32;
        let mut groups: Vec<Vec<(usize, f32)>> = vec![Vec::new(); tokens.len()];
        for (&t, &(j, u)) in evicted.iter().zip(&nearest).filter(|(_, (_, u))| *u >= tau) {
            groups[j].push((t, u));
        }
        let rows = plan.entries.iter_mut().zip(&mut groups).zip(tokens).filter(|((_, group), _)| !group.is_empty());
        for (row, ((entry, group), &token)) in rows.enumerate() {
            group.push((token as usize, 1.0));
            plan.new_keys.extend(weighted_mean(&keys, dk, group));
            plan.new_values.extend(weighted_mean(&values, dv, group));
            (entry.key, entry.value) = (Row::New(row as u32), Row::New(row as u32));
            entry.n_tokens = group.len() as u32;
        }
        Ok(plan)
    }
}

impl Allocation for Merging {
    fn layer(&self, view: &View, il: usize) -> Result<LayerPlan> {
        let n_head = self.kept.heads(il).len();
        let heads = (0..n_head).into_par_iter().map(|g| self.head(view, il, g)).collect::<Result<_>>()?;
        Ok(LayerPlan { il, heads })
    }

    fn n_entries(&self, il: usize) -> Vec<usize> {
        self.kept.n_entries(il)
    }
}

/// Mean of rows with weights `e^u`.
fn weighted_mean(rows: &[f32], dim: usize, group: &[(usize, f32)]) -> Vec<f32> {
    let mut mean = vec![0.0; dim];
    let sum: f32 = group.iter().map(|(_, u)| u.exp()).sum();
    group.iter().for_each(|&(t, u)| vector::add_scaled(&mut mean, u.exp() / sum, &rows[t * dim..(t + 1) * dim]));
    mean
}

/// For each row of `a` the row of `b` with the largest inner product, and that product.
fn most_similar(a: &Array2<f32>, b: &Array2<f32>) -> Vec<(usize, f32)> {
    let mut products = Array2::zeros((a.nrows(), b.nrows()));
    general_mat_mul(1.0, a, &b.t(), 0.0, &mut products);
    let best = |best: (usize, f32), (j, &u): (usize, &f32)| if u > best.1 { (j, u) } else { best };
    (0..a.nrows()).map(|i| products.slice(s![i, ..]).iter().enumerate().fold((0, f32::MIN), best)).collect()
}

impl Method for D2o {
    fn needs(&self) -> Needs {
        Needs { attention_mass: true, lookahead: self.form.lookahead, ..Needs::default() }
    }

    fn pinned(&self, _budget: &Budget) -> Pinned {
        // The paper's sinks and recent tokens stay, but not as they are: they take up others.
        NOWHERE
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let scores = accumulated(view, self.form)?;
        let n_of_layer = divide(&scores, view.n_head_kv, n_kept);
        let kept = keep_best(view, &scores, |i| (PAPER.within(n_of_layer[i], view.n_tokens), n_of_layer[i]));
        Ok(Box::new(Merging { kept }))
    }
}
