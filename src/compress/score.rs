//! Attention of probe queries over the full cache: what every scoring method starts from (stage 5).
//!
//! Probes stand for queries that come after the prompt, so each sees every key: window probes are rotated from their own
//! position to `n_tokens`, `n_tokens + 1`, ..., samples to `n_tokens + 3j`, lookahead probes are there already.
//! Published baselines let them stay where they are, and see no later token.
//! Logits are products of matrices, for a tile of keys at a time: one pass finds each row's log-sum-exp, a second one visits
//! the probabilities.

use ndarray::{Array2, Axis};

use super::vector;
use crate::cache::product::{add_weighted_rows, times_rows};
use crate::cache::view::{Probe, ProbeKind, Sample, View};
use crate::error::{Error, Result};

/// Tokens of a tile: the probabilities of a few hundred probe rows over it stay in the second-level cache.
const TILE: usize = 256;
/// Logits further below the largest of their row do not differ from each other.
const FLOOR: f32 = -60.0;
/// Positions between two samples after the prompt.
const SAMPLE_STRIDE: usize = 3;

/// The probe queries that one (layer, KV head) answers.
pub struct Queries {
    /// Scaled by [`View::kq_scale`] and rotated behind the prompt; row = probe * n_group + query head of the group, and behind
    /// these one row per sample. Shapes: `{head_dim_k, n_probe * n_group + n_sample}`.
    pub rows: Array2<f32>,
    /// The probes, each of which has `n_group` rows.
    pub probes: Vec<Probe>,
    /// The samples.
    pub samples: Vec<Sample>,
    /// Whether probes stay at their own positions.
    in_place: bool,
    /// Query heads that share the KV head.
    pub n_group: usize,
}

impl Queries {
    /// The queries of the probes of these kinds for KV head `g` of layer `il`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the layer was not tapped or there is no such probe.
    pub fn load(view: &View, il: usize, g: usize, kinds: &[ProbeKind]) -> Result<Self> {
        Queries::load_some(view, il, g, (false, false), |_, probe| kinds.contains(&probe.kind))
    }

    /// The queries of all probes and samples.
    ///
    /// # Errors
    /// As [`Queries::load`].
    pub fn load_all(view: &View, il: usize, g: usize) -> Result<Self> {
        Queries::load_some(view, il, g, (false, true), |_, _| true)
    }

    /// Queries at their own positions: those of the last `n_window` tokens of the prompt, and of the lookahead where asked for.
    ///
    /// # Errors
    /// As [`Queries::load`].
    pub fn load_in_place(view: &View, il: usize, g: usize, n_window: usize, lookahead: bool) -> Result<Self> {
        let n_all = view.probes.list.iter().filter(|probe| probe.kind == ProbeKind::Window).count();
        Queries::load_some(view, il, g, (true, false), |nth, probe| match probe.kind {
            ProbeKind::Window => nth + n_window >= n_all,
            ProbeKind::Lookahead => lookahead,
        })
    }

    /// The queries of the probes that `wanted` picks, which is told the how manieth of its kind a probe is; with all samples or none.
    fn load_some(
        view: &View,
        il: usize,
        g: usize,
        (in_place, with_samples): (bool, bool),
        wanted: impl Fn(usize, &Probe) -> bool,
    ) -> Result<Self> {
        let (dim, n_group, list) = (view.head_dim_k, view.n_group(), &view.probes.list);
        let samples = if with_samples { view.probes.samples.clone() } else { Vec::new() };
        let check = |tapped: Option<&Vec<f32>>, n: usize, n_head: usize| {
            let (tapped, want) = (tapped.map_or(0, Vec::len), dim * n_head * n);
            let is_there = tapped == want;
            let shape = || {
                Error::shape(
                    format!("probe queries of layer {il}"),
                    format!("{want} values of {n} probes"),
                    tapped.to_string(),
                )
            };
            is_there.then_some(()).ok_or_else(shape)
        };
        check(view.probes.queries.get(il), list.len(), view.n_head)?;
        if with_samples {
            check(view.probes.sample_queries.get(il), samples.len(), view.n_head_kv)?;
        }
        let mut seen = [0usize; 2];
        let (mut probes, mut rows) = (Vec::new(), Vec::new());
        for (p, probe) in list.iter().enumerate() {
            let nth = seen[probe.kind as usize];
            seen[probe.kind as usize] += 1;
            if !wanted(nth, probe) {
                continue;
            }
            let to = match probe.kind {
                _ if in_place => probe.pos as usize,
                ProbeKind::Window => view.n_tokens + nth,
                ProbeKind::Lookahead => probe.pos as usize,
            };
            let first = rows.len();
            for h in g * n_group..(g + 1) * n_group {
                rows.extend(view.query(il, p, h).iter().map(|x| x * view.kq_scale));
            }
            if to != probe.pos as usize {
                view.rope[il].shift_all(&mut rows[first..], dim, to as f32 - probe.pos as f32);
            }
            probes.push(*probe);
        }
        for (nth, sample) in samples.iter().enumerate() {
            let first = rows.len();
            rows.extend(view.sample(il, nth, g).iter().map(|x| x * view.kq_scale));
            let to = view.n_tokens + SAMPLE_STRIDE * nth;
            view.rope[il].shift_all(&mut rows[first..], dim, to as f32 - sample.pos as f32);
        }
        if rows.is_empty() {
            return Err(Error::shape(format!("probes of layer {il}"), "some that the method scores by", "none"));
        }
        let rows = matrix(rows, dim)?;
        Ok(Queries { rows, probes, samples, in_place, n_group })
    }

    /// The queries of all probes, which show what the answer reads; of the samples when there are none.
    ///
    /// # Errors
    /// As [`Queries::load`].
    pub fn load_answering(view: &View, il: usize, g: usize) -> Result<Self> {
        Queries::load_some(view, il, g, (false, view.probes.list.is_empty()), |_, _| true)
    }

    /// The probe of a row, unless it is a sample's, and its query head of the group.
    pub fn source_of(&self, row: usize) -> (Option<Probe>, usize) {
        match self.probes.get(row / self.n_group) {
            Some(probe) => (Some(*probe), row % self.n_group),
            None => (None, self.samples[row - self.probes.len() * self.n_group].head as usize),
        }
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

/// Reads a head tile by tile and multiplies the queries with its keys.
struct Tiles<'a> {
    queries: &'a Queries,
    view: &'a View<'a>,
    il: usize,
    g: usize,
    keys: Array2<f32>,
    logits: Array2<f32>,
}

impl<'a> Tiles<'a> {
    fn new(queries: &'a Queries, view: &'a View, il: usize, g: usize) -> Self {
        let n = TILE.min(view.n_tokens);
        let (keys, logits) = (Array2::zeros((n, view.head_dim_k)), Array2::zeros((queries.rows.nrows(), n)));
        Tiles { queries, view, il, g, keys, logits }
    }

    /// Capped logits of all rows on the tile that begins with token `first`. Shapes: `{n_tile, n_row}`.
    fn logits(&mut self, first: usize) -> Result<&mut Array2<f32>> {
        let n = TILE.min(self.view.n_tokens - first);
        if n < self.keys.nrows() {
            self.keys = Array2::zeros((n, self.view.head_dim_k));
            self.logits = Array2::zeros((self.queries.rows.nrows(), n));
        }
        if let Some(keys) = self.keys.as_slice_mut() {
            self.view.source.keys(self.il, self.g, first, keys)?;
        }
        times_rows(self.queries.rows.view(), self.keys.view(), self.logits.view_mut());
        if let Some(logits) = self.logits.as_slice_mut() {
            vector::softcap(logits, self.view.logit_softcap);
        }
        if self.queries.in_place {
            for (probe, mut group) in
                self.queries.probes.iter().zip(self.logits.axis_chunks_iter_mut(Axis(0), self.queries.n_group))
            {
                let n_seen = (probe.pos as usize + 1).saturating_sub(first).min(n);
                group.slice_axis_mut(Axis(1), (n_seen..n).into()).fill(f32::MIN);
            }
        }
        Ok(&mut self.logits)
    }
}

impl Queries {
    /// Log-sum-exp of each row's logits over all tokens; adds the attention outputs to `outputs`, which must be zero.
    ///
    /// Shapes: `outputs: {head_dim_v, n_row}`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn log_sum_exp(
        &self,
        view: &View,
        il: usize,
        g: usize,
        mut outputs: Option<&mut Array2<f32>>,
    ) -> Result<Vec<f32>> {
        let n_row = self.rows.nrows();
        let (mut max, mut sum) = (vec![f32::MIN; n_row], vec![0.0; n_row]);
        let mut tiles = Tiles::new(self, view, il, g);
        for first in (0..view.n_tokens).step_by(TILE) {
            let logits = tiles.logits(first)?;
            // A new maximum rescales what was summed so far (as FlashAttention, arXiv 2205.14135, does).
            for (row, mut logits) in logits.rows_mut().into_iter().enumerate() {
                let Some(logits) = logits.as_slice_mut() else { continue };
                let (before, (now, tile_sum)) = (max[row], vector::exp_running(logits, max[row], FLOOR));
                let scale = (before - now).exp();
                (max[row], sum[row]) = (now, sum[row] * scale + tile_sum);
                if let (Some(outputs), true) = (outputs.as_deref_mut(), scale < 1.0) {
                    outputs.row_mut(row).map_inplace(|o| *o *= scale);
                }
            }
            if let Some(outputs) = outputs.as_deref_mut() {
                let mut values = vec![0.0; logits.ncols() * view.head_dim_v];
                view.source.values(il, g, first, &mut values)?;
                add_weighted_rows(logits.view(), matrix(values, view.head_dim_v)?.view(), outputs.view_mut());
            }
        }
        if let Some(outputs) = outputs {
            outputs.rows_mut().into_iter().zip(&sum).for_each(|(mut o, s)| o /= *s);
        }
        Ok(max.iter().zip(&sum).map(|(m, s)| m + s.ln()).collect())
    }

    /// Calls `visit(first, a)` for one tile of tokens after the other with the probabilities of all rows, given their `lz`.
    ///
    /// Probabilities below `e^floor` count as that. Shapes: `a: {n_tile, n_row}`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn attend(
        &self,
        view: &View,
        (il, g): (usize, usize),
        lz: &[f32],
        floor: f32,
        mut visit: impl FnMut(usize, &mut Array2<f32>) -> Result<()>,
    ) -> Result<()> {
        let mut tiles = Tiles::new(self, view, il, g);
        for first in (0..view.n_tokens).step_by(TILE) {
            let a = tiles.logits(first)?;
            for (mut row, &lz) in a.rows_mut().into_iter().zip(lz) {
                row.as_slice_mut().into_iter().for_each(|row| vector::exp_minus(row, lz, floor));
            }
            visit(first, a)?;
        }
        Ok(())
    }

    /// The largest probability, averaged over the query heads of the group, that a probe gives each token of the tile; or that
    /// any sample gives it when there are only samples. Uses up `a`.
    ///
    /// Shapes: `a: {n_tile, n_row}`, `out: {n_tile}`.
    pub fn largest(&self, a: &mut Array2<f32>, out: &mut [f32]) {
        let (n_group, n_row) = match self.probes.len() {
            0 => (self.samples.len(), 1),
            n => (n, self.n_group),
        };
        out.fill(0.0);
        for mut group in a.axis_chunks_iter_mut(Axis(0), n_row).take(n_group) {
            let (mut sum, rest) = group.view_mut().split_at(Axis(0), 1);
            if let Some(sum) = sum.as_slice_mut() {
                rest.rows()
                    .into_iter()
                    .filter_map(|row| row.to_slice())
                    .for_each(|row| vector::add_scaled(sum, 1.0, row));
                vector::max_into(out, sum);
            }
        }
        out.iter_mut().for_each(|x| *x /= n_row as f32);
    }

    /// The mean probability that all queries give each token of a head.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn mean_of_all(&self, view: &View, il: usize, g: usize) -> Result<Vec<f32>> {
        let lz = self.log_sum_exp(view, il, g, None)?;
        let mut score = vec![0.0; view.n_tokens];
        self.attend(view, (il, g), &lz, FLOOR, |first, a| {
            let score = &mut score[first..first + a.ncols()];
            a.rows().into_iter().filter_map(|row| row.to_slice()).for_each(|row| vector::add_scaled(score, 1.0, row));
            Ok(())
        })?;
        score.iter_mut().for_each(|s| *s /= self.rows.nrows() as f32);
        Ok(score)
    }

    /// [`Queries::largest`] of every token of a head.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn largest_of_all(&self, view: &View, il: usize, g: usize) -> Result<Vec<f32>> {
        let lz = self.log_sum_exp(view, il, g, None)?;
        let mut score = vec![0.0; view.n_tokens];
        self.attend(view, (il, g), &lz, FLOOR, |first, a| {
            let n = a.ncols();
            self.largest(a, &mut score[first..first + n]);
            Ok(())
        })?;
        Ok(score)
    }
}
