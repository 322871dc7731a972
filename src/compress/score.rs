//! Attention of probe queries over the full cache: what every scoring method starts from (stage 5).
//!
//! Probes stand for queries that come after the prompt, so each sees every key: window probes are rotated from their own
//! position to `n_tokens`, `n_tokens + 1`, ..., sampled ones to `n_tokens + 3j`, lookahead probes are there already.
//! Logits are products of matrices; a block of query rows over all keys is in memory at a time, normalised in log space.

use std::ops::Range;

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, ArrayView2, ArrayViewMut2, Axis};

use super::vector;
use crate::cache::view::{Probe, ProbeKind, View};
use crate::error::{Error, Result};

/// Size a block of attention rows aims at: it stays in the second-level cache.
const BLOCK_BYTES: usize = 3 << 19;
/// Fewest rows of a block: with fewer, packing the keys would cost more than multiplying them.
const MIN_ROWS: usize = 24;
/// Logits further below the largest of their row do not differ from each other.
const FLOOR: f32 = -60.0;
/// Positions between two sampled probes after the prompt.
const SAMPLE_STRIDE: usize = 3;

/// The probe queries that one (layer, KV head) answers.
pub struct Queries {
    /// Scaled by [`View::kq_scale`] and rotated behind the prompt; row = probe * n_group + query head of the group.
    /// Shapes: `{head_dim_k, n_probe * n_group}`.
    pub rows: Array2<f32>,
    /// The probes, each of which has `n_group` rows.
    pub probes: Vec<Probe>,
    /// Query heads that share the KV head.
    pub n_group: usize,
}

impl Queries {
    /// The queries of the probes of these kinds for KV head `g` of layer `il`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the layer was not tapped or there is no such probe.
    pub fn load(view: &View, il: usize, g: usize, kinds: &[ProbeKind]) -> Result<Self> {
        let (dim, n_group, list) = (view.head_dim_k, view.n_group(), &view.probes.list);
        let tapped = view.probes.queries.get(il).map_or(0, Vec::len);
        if tapped != dim * view.n_head * list.len() {
            return Err(Error::shape(
                format!("probe queries of layer {il}"),
                format!("{} values of {} probes", dim * view.n_head * list.len(), list.len()),
                format!("{tapped}"),
            ));
        }
        let mut seen = [0usize; 3];
        let (mut probes, mut rows) = (Vec::new(), Vec::new());
        for (p, probe) in list.iter().enumerate().filter(|(_, probe)| kinds.contains(&probe.kind)) {
            let nth = seen[probe.kind as usize];
            seen[probe.kind as usize] += 1;
            let to = match probe.kind {
                ProbeKind::Window => view.n_tokens + nth,
                ProbeKind::Sample => view.n_tokens + SAMPLE_STRIDE * nth,
                ProbeKind::Lookahead => probe.pos as usize,
            };
            for h in g * n_group..(g + 1) * n_group {
                let first = rows.len();
                rows.extend(view.query(il, p, h).iter().map(|x| x * view.kq_scale));
                if to != probe.pos as usize {
                    view.rope[il].shift(&mut rows[first..], probe.pos as f32, to as f32);
                }
            }
            probes.push(*probe);
        }
        if probes.is_empty() {
            return Err(Error::shape(format!("probes of layer {il}"), format!("some of {kinds:?}"), "none"));
        }
        let rows = matrix(rows, dim)?;
        Ok(Queries { rows, probes, n_group })
    }

    /// [`Queries::load`] of window and lookahead probes, which show what the answer reads; of all probes when there are none.
    ///
    /// # Errors
    /// As [`Queries::load`].
    pub fn load_answering(view: &View, il: usize, g: usize) -> Result<Self> {
        let answering = [ProbeKind::Window, ProbeKind::Lookahead];
        if view.probes.list.iter().any(|probe| answering.contains(&probe.kind)) {
            return Queries::load(view, il, g, &answering);
        }
        Queries::load(view, il, g, &[ProbeKind::Sample])
    }
}

/// `data` as a matrix with rows of length `dim`.
///
/// # Errors
/// [`Error::Shape`] when it does not divide.
pub fn matrix(data: Vec<f32>, dim: usize) -> Result<Array2<f32>> {
    let len = data.len();
    Array2::from_shape_vec((len / dim.max(1), dim), data)
        .map_err(|_| Error::shape("rows of a head", format!("a multiple of {dim}"), len.to_string()))
}

/// Calls `visit(rows, a, lz)` for one block of query rows after the other.
///
/// `a` holds their attention probabilities over all keys, `lz` the log-sum-exp of each row; a block never divides a group
/// of `n_group` rows. `floor` as in [`vector::softmax`].
/// Shapes: `queries: {head_dim_k, n_row}`, `keys: {head_dim_k, n_tokens}`, `a: {n_tokens, rows.len()}`.
pub fn attend(
    queries: ArrayView2<f32>,
    n_group: usize,
    keys: ArrayView2<f32>,
    cap: f32,
    floor: f32,
    mut visit: impl FnMut(Range<usize>, ArrayViewMut2<f32>, &[f32]),
) {
    let n_tokens = keys.nrows();
    let fitting = (BLOCK_BYTES / (4 * n_tokens.max(1))).max(MIN_ROWS);
    let n_rows = (fitting / n_group * n_group).max(n_group).min(queries.nrows());
    let mut a = Array2::zeros((n_rows, n_tokens));
    let mut lz = vec![0.0; n_rows];
    for first in (0..queries.nrows()).step_by(n_rows.max(1)) {
        let rows = first..queries.nrows().min(first + n_rows);
        let mut a = a.slice_mut(s![..rows.len(), ..]);
        general_mat_mul(1.0, &queries.slice(s![rows.clone(), ..]), &keys.t(), 0.0, &mut a);
        for (row, lz) in a.axis_iter_mut(Axis(0)).zip(&mut lz) {
            if let Some(row) = row.into_slice() {
                vector::softcap(row, cap);
                *lz = vector::softmax(row, floor);
            }
        }
        visit(rows.clone(), a, &lz[..rows.len()]);
    }
}

/// What each token of a head is worth to its probes: the largest attention probability, averaged over the query heads of
/// the group, that a window or lookahead probe gives it; and the mean probability over all probes.
pub struct TokenScore {
    /// Largest probability. Shapes: `{n_tokens}`.
    pub max: Vec<f32>,
    /// Mean probability; sums to 1. Shapes: `{n_tokens}`.
    pub mean: Vec<f32>,
}

impl TokenScore {
    /// Reads the keys of KV head `g` of layer `il` and scores every token.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn new(view: &View, il: usize, g: usize, queries: &Queries) -> Result<Self> {
        let keys = matrix(view.keys(il, g)?, view.head_dim_k)?;
        let n_group = queries.n_group;
        let only_samples = queries.probes.iter().all(|probe| probe.kind == ProbeKind::Sample);
        let mut score = TokenScore { max: vec![0.0; view.n_tokens], mean: vec![0.0; view.n_tokens] };
        attend(queries.rows.view(), n_group, keys.view(), view.logit_softcap, FLOOR, |rows, mut a, _| {
            for (p, mut group) in a.axis_chunks_iter_mut(Axis(0), n_group).enumerate() {
                let (mut first, rest) = group.view_mut().split_at(Axis(0), 1);
                let Some(sum) = first.as_slice_mut() else { continue };
                for row in rest.rows() {
                    row.as_slice().into_iter().for_each(|row| vector::add_scaled(sum, 1.0, row));
                }
                vector::add_scaled(&mut score.mean, 1.0, sum);
                if only_samples || queries.probes[rows.start / n_group + p].kind != ProbeKind::Sample {
                    vector::max_into(&mut score.max, sum);
                }
            }
        });
        score.max.iter_mut().for_each(|x| *x /= n_group as f32);
        score.mean.iter_mut().for_each(|x| *x /= queries.rows.nrows() as f32);
        Ok(score)
    }
}
