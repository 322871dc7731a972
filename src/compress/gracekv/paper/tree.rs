//! Prototype trees: one entry for an interval of tokens, and the best way to split it (stage 5, section "prototype tree" of arXiv 2608.07001).
//!
//! Nodes are contiguous in the tokens a head does not keep exactly. A node is evaluated only when it becomes a candidate. Its logits under the
//! probes cost `|I| * n_row * d` and are computed once, from the cache, for the node and all its possible children; storing them for all
//! nodes would take `n_row * n_tokens` floats a head. Beside that the sums over keys and values are free, so there are no prefix sums (ours).

use std::ops::Range;

use ndarray::{s, Array2};

use super::attention::matrix;
use super::distortion::{Gauge, Mass};
use super::flow::Head;
use super::rotation::Rotation;
use crate::cache::view::View;
use crate::error::Result;

/// One entry that stands for an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Prototype {
    /// The key, rotated to the rounded mean position.
    pub key: Vec<f32>,
    /// The value.
    pub value: Vec<f32>,
    /// `ln m`, added to the logit.
    pub ln_m: f32,
}

/// Mean position of ascending tokens, rounded half up: where their prototype stands.
pub(super) fn mean_position(tokens: &[u32]) -> u32 {
    let (sum, n) = (tokens.iter().map(|&t| u64::from(t)).sum::<u64>(), tokens.len().max(1) as u64);
    ((2 * sum + n) / (2 * n)) as u32
}

/// Tokens of one head with all that a node needs of them.
pub(super) struct Tokens<'a> {
    tokens: &'a [u32],
    keys: Array2<f32>,
    /// Keys rotated back to position 0.
    unrotated: Array2<f32>,
    values: Array2<f32>,
    relevance: Vec<f32>,
}

impl<'a> Tokens<'a> {
    /// Reads `tokens` (ascending, not empty) of a head from the cache.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn gather(view: &View, head: &Head, rotation: &Rotation, tokens: &'a [u32]) -> Result<Self> {
        let (first, last) = (tokens.first().copied().unwrap_or(0), tokens.last().copied().unwrap_or(0));
        let (first, n) = (first as usize, (last - first) as usize + 1);
        let mut k = vec![0.0; n * view.head_dim_k];
        let mut v = vec![0.0; n * view.head_dim_v];
        view.source.keys(head.il, head.g, first, &mut k)?;
        view.source.values(head.il, head.g, first, &mut v)?;
        let rows: Vec<usize> = tokens.iter().map(|&t| t as usize - first).collect();
        let keys = matrix(&k, view.head_dim_k)?.select(ndarray::Axis(0), &rows);
        let values = matrix(&v, view.head_dim_v)?.select(ndarray::Axis(0), &rows);
        let mut unrotated = keys.clone();
        for (mut row, &t) in unrotated.rows_mut().into_iter().zip(tokens) {
            row.as_slice_mut().into_iter().for_each(|k| rotation.unrotate(k, t));
        }
        let relevance = tokens.iter().map(|&t| head.relevance[t as usize]).collect();
        Ok(Tokens { tokens, keys, unrotated, values, relevance })
    }

    /// The root of an interval: `k~ = RoPE(mean(RoPE^-1(k_t, t)), round(mean t))`, `v~ = sum (R_t + beta) v_t / sum (R_t + beta)` with
    /// `beta = 0.1 mean R`, and `m = clamp(|I| c^2, 1, |I|)` with `c = |mean k0| / (mean |k0| + eps)`; m = 1 without `multiplicity`.
    pub fn root(&self, range: Range<usize>, rotation: &Rotation, multiplicity: bool) -> Prototype {
        let n = range.len() as f32;
        let beta = 0.1 * self.relevance[range.clone()].iter().sum::<f32>() / n;
        let total: f32 = self.relevance[range.clone()].iter().map(|r| r + beta).sum();
        let mut key = vec![0.0; self.unrotated.ncols()];
        let mut value = vec![0.0; self.values.ncols()];
        let mut norms = 0.0;
        for t in range.clone() {
            let k = self.unrotated.row(t);
            key.iter_mut().zip(&k).for_each(|(sum, x)| *sum += x / n);
            norms += k.dot(&k).sqrt() / n;
            // Without any relevance all values count alike.
            let weight = if total > 0.0 { (self.relevance[t] + beta) / total } else { 1.0 / n };
            value.iter_mut().zip(self.values.row(t)).for_each(|(sum, x)| *sum += weight * x);
        }
        let c = key.iter().map(|x| x * x).sum::<f32>().sqrt() / (norms + 1e-6);
        let m = if multiplicity { (n * c * c).clamp(1.0, n) } else { 1.0 };
        rotation.rotate(&mut key, mean_position(&self.tokens[range]));
        Prototype { key, value, ln_m: m.ln() }
    }
}

/// How a node is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// Two halves at the point of highest curvature.
    Halves,
    /// The most valuable token, and what is left on either side.
    TakeOut,
}

/// The best split of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Split {
    pub form: Form,
    /// The children, contiguous, as ranges within the node.
    pub children: Vec<Range<usize>>,
    /// Sum of the children's distortions.
    pub distortion: f64,
}

impl Split {
    /// Entries it adds.
    pub fn cost(&self) -> usize {
        self.children.len() - 1
    }
}

/// A node under the probes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evaluation {
    /// `D_drop`.
    pub dropped: f64,
    /// `D`; 0 for a single token.
    pub distortion: f64,
    /// The split with the larger gain per added entry; none for a single token.
    pub split: Option<Split>,
}

/// The point inside a node with the highest curvature between neighbours, nearest to the middle on ties.
pub(super) fn halving_point(tokens: &[u32], curvature: &[f32]) -> usize {
    let (n, kappa) = (tokens.len(), |i: usize| curvature[tokens[i - 1] as usize]);
    let better =
        |a: usize, b: usize| kappa(a).total_cmp(&kappa(b)).then((2 * b).abs_diff(n).cmp(&(2 * a).abs_diff(n))).is_gt();
    (2..n).fold(1, |best, i| if better(i, best) { i } else { best })
}

/// `(D_drop, D, best split)` of the node that consists of all of `tokens`.
pub(super) fn evaluate(
    tokens: &Tokens,
    gauge: &Gauge,
    rotation: &Rotation,
    curvature: &[f32],
    multiplicity: bool,
) -> Evaluation {
    let n = tokens.tokens.len();
    let valuable = (1..n).fold(0, |best, i| if tokens.relevance[i] > tokens.relevance[best] { i } else { best });
    let half = if n > 1 { halving_point(tokens.tokens, curvature) } else { n };
    let parts = Parts::new(tokens, gauge, [half, valuable, valuable + 1]);
    let distortion = |range: Range<usize>| match range.len() {
        0 | 1 => 0.0,
        _ => gauge.distortion(&parts.mass(range.clone()), &tokens.root(range, rotation, multiplicity)),
    };
    let split = |form: Form, cuts: &[usize]| {
        let children: Vec<Range<usize>> = cuts.windows(2).map(|w| w[0]..w[1]).filter(|r| !r.is_empty()).collect();
        Split { form, distortion: children.iter().map(|r| distortion(r.clone())).sum(), children }
    };
    let own = distortion(0..n);
    let gain = |s: &Split| (own - s.distortion) / s.cost() as f64;
    let best = (n > 1).then(|| {
        let halves = split(Form::Halves, &[0, half, n]);
        let take_out = split(Form::TakeOut, &[0, valuable, valuable + 1, n]);
        if gain(&take_out) > gain(&halves) {
            take_out
        } else {
            halves
        }
    });
    Evaluation { dropped: gauge.dropped(&parts.mass(0..n)), distortion: own, split: best }
}

/// The masses of the pieces between all cuts that the possible children need.
struct Parts {
    cuts: Vec<usize>,
    masses: Vec<Mass>,
}

impl Parts {
    fn new(tokens: &Tokens, gauge: &Gauge, inner: [usize; 3]) -> Self {
        let n = tokens.tokens.len();
        let mut cuts: Vec<usize> = inner.into_iter().chain([0, n]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let logits = gauge.logits(tokens.keys.view());
        let piece = |w: &[usize]| Mass::new(logits.slice(s![.., w[0]..w[1]]), tokens.values.slice(s![w[0]..w[1], ..]));
        let masses = cuts.windows(2).map(piece).collect();
        Parts { cuts, masses }
    }

    /// The mass of a range that starts and ends at cuts.
    fn mass(&self, range: Range<usize>) -> Mass {
        let inside = self.cuts.windows(2).zip(&self.masses).filter(|(w, _)| range.start <= w[0] && w[1] <= range.end);
        let mut masses = inside.map(|(_, mass)| mass);
        let first = masses.next().unwrap_or(&self.masses[0]).clone();
        masses.fold(first, |sum, mass| sum.union(mass))
    }
}

#[cfg(test)]
mod tests;
