//! Slots: the prompt cut where its meaning changes, once for all layers and heads (stage 5, section "semantic slots" of arXiv 2608.07001).
//!
//! Curvature of the hidden states, averaged over layers and window sizes, gives every token a boundary score; dynamic programming
//! picks the boundaries. Deviations (ours): windows are shortened at the ends of the text; summed scores alone cut about every
//! 20 tokens, so each boundary costs as much as brings the mean slot to its target, and lengths far from the target cost a little.

use ndarray::Array2;
use rayon::prelude::*;

use super::options::Options;
use crate::cache::view::Hidden;
use crate::error::{Error, Result};

/// The prompt cut into contiguous intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Slots {
    /// One past the last token of each slot, ascending; the last is `n_tokens`.
    pub ends: Vec<usize>,
    /// Change of meaning between token `i` and `i + 1`; all 0 without hidden states.
    pub curvature: Vec<f32>,
}

impl Slots {
    /// Cuts a prompt of `n_tokens`: fixed slots without hidden states or on request, else at changes of meaning.
    ///
    /// # Errors
    /// [`Error::Shape`] when hidden states or surprisal do not cover the prompt.
    pub fn cut(hidden: &Hidden, surprisal: &[f32], n_tokens: usize, o: &Options) -> Result<Self> {
        check(hidden, surprisal, n_tokens)?;
        let curvature = curvature(hidden, n_tokens, &o.curvature_windows, o.lambda_stab);
        if o.fixed_slots || hidden.layers.is_empty() {
            let ends = (1..=n_tokens.div_ceil(o.slot_target)).map(|i| (i * o.slot_target).min(n_tokens)).collect();
            return Ok(Slots { ends, curvature });
        }
        let mut score = robust_z(&curvature);
        if !surprisal.is_empty() {
            for (b, z) in score.iter_mut().zip(robust_z(surprisal)) {
                *b += f64::from(o.lambda_surprisal) * z;
            }
        }
        let lengths = Lengths { min: o.slot_min, max: o.slot_max, target: o.slot_target };
        Ok(Slots { ends: lengths.cut_to_target(&score), curvature })
    }
}

fn check(hidden: &Hidden, surprisal: &[f32], n_tokens: usize) -> Result<()> {
    for (i, layer) in hidden.layers.iter().enumerate() {
        if hidden.n_proj == 0 || layer.len() != hidden.n_proj * n_tokens {
            let want = format!("{} x {n_tokens} values", hidden.n_proj);
            return Err(Error::shape(format!("hidden states of sampled layer {i}"), want, layer.len().to_string()));
        }
    }
    if !surprisal.is_empty() && surprisal.len() != n_tokens {
        return Err(Error::shape("surprisal", format!("{n_tokens} values"), surprisal.len().to_string()));
    }
    Ok(())
}

/// Curvature of every token: `kappa_i = mean(kappa) - lambda_stab * std(kappa)` over sampled layers and window sizes.
///
/// With unit hidden states h: `mu- = mean(h[i-w+1..=i])`, `mu+ = mean(h[i+1..=i+w])`, `d- = h_i - mu-`, `d+ = mu+ - h_i`,
/// `kappa = 1 - cos(d-, d+)`, 0 where a difference vanishes. The last token has none: 0.
pub(super) fn curvature(hidden: &Hidden, n_tokens: usize, windows: &[usize], lambda_stab: f32) -> Vec<f32> {
    let all: Vec<Vec<f64>> = hidden
        .layers
        .par_iter()
        .flat_map_iter(|layer| {
            let sums = prefix_sums(layer, hidden.n_proj);
            windows.iter().map(move |&w| layer_curvature(&sums, w)).collect::<Vec<_>>()
        })
        .collect();
    let n = all.len().max(1) as f64;
    let of_token = |i: usize| {
        let mean = all.iter().map(|k| k[i]).sum::<f64>() / n;
        let var = all.iter().map(|k| (k[i] - mean).powi(2)).sum::<f64>() / n;
        (mean - f64::from(lambda_stab) * var.sqrt()) as f32
    };
    (0..n_tokens).map(of_token).collect()
}

/// Row `i` is the sum of the first `i` hidden states, each scaled to length 1.
fn prefix_sums(layer: &[f32], n_proj: usize) -> Array2<f64> {
    let n_tokens = layer.len() / n_proj;
    let mut sums = Array2::zeros((n_tokens + 1, n_proj));
    for (i, h) in layer.chunks_exact(n_proj).enumerate() {
        let norm = h.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        for (j, &x) in h.iter().enumerate() {
            sums[(i + 1, j)] = sums[(i, j)] + f64::from(x) * scale;
        }
    }
    sums
}

fn layer_curvature(sums: &Array2<f64>, w: usize) -> Vec<f64> {
    let n_tokens = sums.nrows() - 1;
    let mut kappa = vec![0.0; n_tokens];
    for (i, kappa) in kappa.iter_mut().enumerate().take(n_tokens.saturating_sub(1)) {
        let (from, to) = ((i + 1).saturating_sub(w), (i + 1 + w).min(n_tokens));
        let (before, after) = ((i + 1 - from) as f64, (to - i - 1) as f64);
        let (mut dot, mut norm_l, mut norm_r) = (0.0, 0.0, 0.0);
        for j in 0..sums.ncols() {
            let h = sums[(i + 1, j)] - sums[(i, j)];
            let l = h - (sums[(i + 1, j)] - sums[(from, j)]) / before;
            let r = (sums[(to, j)] - sums[(i + 1, j)]) / after - h;
            dot += l * r;
            norm_l += l * l;
            norm_r += r * r;
        }
        // Prefix sums leave rounding noise where the states are equal; it has no direction.
        if norm_l > 1e-20 && norm_r > 1e-20 {
            *kappa = 1.0 - dot / (norm_l * norm_r).sqrt();
        }
    }
    kappa
}

/// Robust z-score: distance from the median in units of the scaled median absolute deviation (1.4826 MAD); 0 where that vanishes.
pub(super) fn robust_z(x: &[f32]) -> Vec<f64> {
    let median = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        match v.len() {
            0 => 0.0,
            n if n % 2 == 1 => v[n / 2],
            n => 0.5 * (v[n / 2 - 1] + v[n / 2]),
        }
    };
    let x: Vec<f64> = x.iter().map(|&x| if x.is_finite() { f64::from(x) } else { 0.0 }).collect();
    let centre = median(x.clone());
    let scale = 1.4826 * median(x.iter().map(|x| (x - centre).abs()).collect());
    x.iter().map(|x| if scale > 1e-12 { (x - centre) / scale } else { 0.0 }).collect()
}

/// Limits on the length of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub min: usize,
    pub max: usize,
    pub target: usize,
}

impl Lengths {
    /// What a slot that ends at `end` adds to the objective: `b - cost - ((length - target) / target)^2`, without `b - cost` at the end of the text.
    pub fn worth(&self, score: &[f64], cost: f64, length: usize, end: usize) -> f64 {
        let off = (length as f64 - self.target as f64) / self.target as f64;
        let boundary = if end < score.len() { score[end - 1] - cost } else { 0.0 };
        boundary - off * off
    }

    /// The ends of the slots whose summed [`Lengths::worth`] is largest, by dynamic programming over their ends.
    ///
    /// Shapes: `score: {n_tokens}`, `score[i]` for a boundary after token `i`. A text shorter than `min` is one slot.
    pub fn cut(&self, score: &[f64], cost: f64) -> Vec<usize> {
        let n = score.len();
        if n < 2 * self.min {
            return if n == 0 { Vec::new() } else { vec![n] };
        }
        let mut best = vec![(f64::NEG_INFINITY, 0); n + 1];
        best[0].0 = 0.0;
        for end in self.min..=n {
            for length in self.min..=self.max.min(end) {
                let total = best[end - length].0 + self.worth(score, cost, length, end);
                if total > best[end].0 {
                    best[end] = (total, length);
                }
            }
        }
        let mut ends = Vec::new();
        let mut end = n;
        while end > 0 {
            ends.push(end);
            end -= best[end].1.max(1);
        }
        ends.reverse();
        ends
    }

    /// [`Lengths::cut`] with the smallest boundary cost, found by bisection, at which the mean slot reaches the target.
    pub fn cut_to_target(&self, score: &[f64]) -> Vec<usize> {
        let n_target = score.len().div_ceil(self.target).max(1);
        let ends = self.cut(score, 0.0);
        if ends.len() <= n_target {
            return ends;
        }
        // Scores are finite, so some cost outweighs them all.
        let (mut low, mut high) = (0.0, 1.0);
        let mut found = self.cut(score, high);
        while found.len() > n_target && high < 1e12 {
            (low, high) = (high, 2.0 * high);
            found = self.cut(score, high);
        }
        for _ in 0..16 {
            let cost = 0.5 * (low + high);
            let ends = self.cut(score, cost);
            if ends.len() > n_target {
                low = cost;
            } else {
                high = cost;
                found = ends;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
