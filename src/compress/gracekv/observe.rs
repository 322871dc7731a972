//! What the probes of one head see over the full cache: the quantities that all steps are made of.
//!
//! For probe row q and token t: `s_qt = q.k_t`, `lz_q = logsumexp_t s_qt`, `a_qt = exp(s_qt - lz_q)`, `o_q = sum_t a_qt v_t`.
//! Weight `w_q = sh_q^2 * pw`: `sh_q` is the share of a probe's attention that falls on these tokens rather than on what else
//! it sees, the decoded tokens before a lookahead probe and the entries that earlier passes left; `pw` is 1, or [`super::Options::sample_weight`] for a sample, of which there
//! is one row in place of one for each query head of the group.
//! Observations of all heads are kept from the division of the budget to the plans, so they are stored in 16 bits.

use half::f16;
use half::slice::HalfFloatSliceExt;
use ndarray::{Array2, ArrayView2};

use crate::cache::product::times_rows;
use crate::cache::view::{Probe, ProbeKind, View};
use crate::compress::score::{matrix, Queries};
use crate::compress::vector;
use crate::error::Result;

/// Logarithm of the smallest probability: its square, times a weight, is still a normal number.
pub(super) const FLOOR: f32 = -36.0;
/// Rows that are read at a time.
const TILE: usize = 256;

/// The observation of one head, compact.
pub struct Observation {
    weight: Vec<f32>,
    lz: Vec<f32>,
    output: Vec<i16>,
    output_scale: Vec<f32>,
    output_square: f32,
    mass: Vec<u16>,
    error: Vec<u16>,
}

impl Observation {
    /// Lets all probes attend to KV head `g` of layer `il`; returns also the score of every token ([`Queries::largest`]).
    ///
    /// # Errors
    /// When the source cannot be read or the layer was not tapped.
    pub fn new(view: &View, il: usize, g: usize, sample_weight: f32) -> Result<(Self, Vec<f32>)> {
        let queries = Queries::load_all(view, il, g)?;
        let mut output = Array2::zeros((queries.rows.nrows(), view.head_dim_v));
        let lz = queries.log_sum_exp(view, il, g, Some(&mut output))?;
        let weight = weights(view, il, g, &queries, &lz, sample_weight)?;
        let output_norm: Vec<f32> = output.rows().into_iter().map(|o| o.dot(&o)).collect();

        let n_tokens = view.n_tokens;
        let (mut score, mut mass, mut error) = (vec![0.0; n_tokens], vec![0.0; n_tokens], vec![0.0; n_tokens]);
        let mut product = Array2::zeros((0, 0));
        queries.attend(view, (il, g), &lz, FLOOR, |first, a| {
            let tile = first..first + a.ncols();
            let mut values = vec![0.0; a.ncols() * view.head_dim_v];
            view.source.values(il, g, first, &mut values)?;
            let values = matrix(values, view.head_dim_v)?;
            let norm: Vec<f32> = values.rows().into_iter().map(|v| v.dot(&v)).collect();
            if product.dim() != a.dim() {
                product = Array2::zeros(a.dim());
            }
            times_rows(output.view(), values.view(), product.view_mut());
            for (q, (a, product)) in a.rows().into_iter().zip(product.rows()).enumerate() {
                if let (Some(a), Some(product)) = (a.as_slice(), product.as_slice()) {
                    let error = &mut error[tile.clone()];
                    vector::add_scaled(&mut mass[tile.clone()], weight[q], a);
                    vector::add_output_error(error, weight[q], a, &norm, output_norm[q], product);
                }
            }
            queries.largest(a, &mut score[tile]);
            Ok(())
        })?;
        let output_square = output_norm.iter().zip(&weight).map(|(o, w)| w * o).sum();
        let (output, output_scale) = to_i16(&output);
        // What is no number counts as nothing.
        let [mass, error] = [mass, error].map(|x| x.into_iter().map(|x| to_bf16(x.max(0.0))).collect());
        Ok((Observation { weight, lz, output, output_scale, output_square, mass, error }, score))
    }

    /// Attention mass that the probes give to `tokens`, between 0 and 1.
    pub fn mass_of(&self, tokens: &[u32]) -> f64 {
        tokens.iter().map(|&t| f64::from(from_bf16(self.mass[t as usize]))).sum::<f64>().min(1.0)
    }

    /// `sum_q w_q |o_q|^2`.
    pub fn output_square(&self) -> f32 {
        self.output_square
    }

    /// How many tokens, and how many of `some`, have an error that is enough; `is_enough` holds from some error on.
    pub fn count_errors(&self, some: &[u32], is_enough: impl Fn(f32) -> bool) -> [usize; 2] {
        // Numbers as they are stored have the order of what they stand for.
        let (mut least, mut enough) = (0, to_bf16(f32::INFINITY) + 1);
        while least < enough {
            let middle = least + (enough - least) / 2;
            match is_enough(from_bf16(middle)) {
                true => enough = middle,
                false => least = middle + 1,
            }
        }
        let n_all = self.error.iter().filter(|&&error| error >= least).count();
        [n_all, some.iter().filter(|&&t| self.error[t as usize] >= least).count()]
    }

    /// [`Head::error`] of a token.
    pub fn error_of(&self, token: u32) -> f32 {
        from_bf16(self.error[token as usize])
    }
}

/// `w_q`, summing to 1.
fn weights(view: &View, il: usize, g: usize, queries: &Queries, lz: &[f32], sample_weight: f32) -> Result<Vec<f32>> {
    let own = own_attention(view, il, g, queries);
    let earlier = earlier_attention(view, il, g, queries)?;
    let mut weight: Vec<f32> = (0..lz.len())
        .map(|row| {
            let (probe, head) = queries.source_of(row);
            let sink = view.sinks.get(il).and_then(|s| s.get(g * queries.n_group + head));
            let sink = sink.map_or(0.0, |sink| (sink - lz[row]).exp());
            let share = 1.0 / (1.0 + (own[row] - lz[row]).exp() + (earlier[row] - lz[row]).exp() + sink);
            share * share * if probe.is_none() { sample_weight * queries.n_group as f32 } else { 1.0 }
        })
        .collect();
    let total: f32 = weight.iter().sum();
    let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
    weight.iter_mut().for_each(|w| *w *= scale);
    Ok(weight)
}

/// Log-sum-exp of each query row over what earlier passes left; -inf where that is nothing.
fn earlier_attention(view: &View, il: usize, g: usize, queries: &Queries) -> Result<Vec<f32>> {
    let (keys, bias) = view.source.earlier(il, g)?;
    let row = |q: &[f32]| {
        let mut logits: Vec<f32> = keys.chunks_exact(view.head_dim_k).map(|k| vector::dot(q, k)).collect();
        if logits.is_empty() {
            return f32::NEG_INFINITY;
        }
        vector::softcap(&mut logits, view.logit_softcap);
        logits.iter_mut().zip(&bias).for_each(|(l, b)| *l += b);
        vector::softmax(&mut logits, FLOOR)
    };
    Ok(queries.rows.rows().into_iter().map(|q| row(q.to_slice().unwrap_or(&[]))).collect())
}

/// Log-sum-exp of each query row over the decoded tokens that a lookahead probe sees besides the prompt; -inf for other probes.
fn own_attention(view: &View, il: usize, g: usize, queries: &Queries) -> Vec<f32> {
    let dim = view.head_dim_k;
    let keys = view.probes.lookahead_keys.get(il).map_or(&[][..], Vec::as_slice);
    let key = |u: usize| keys.get((u * view.n_head_kv + g) * dim..(u * view.n_head_kv + g + 1) * dim);
    let row = |(row, q): (usize, &[f32])| {
        let (Some(Probe { kind: ProbeKind::Lookahead, pos }), _) = queries.source_of(row) else {
            return f32::NEG_INFINITY;
        };
        let n_seen = (pos as usize + 1).saturating_sub(view.n_tokens);
        let mut logits: Vec<f32> = (0..n_seen).map_while(key).map(|k| vector::dot(q, k)).collect();
        if logits.is_empty() {
            return f32::NEG_INFINITY;
        }
        vector::softcap(&mut logits, view.logit_softcap);
        vector::softmax(&mut logits, FLOOR)
    };
    queries.rows.rows().into_iter().map(|q| q.to_slice().unwrap_or(&[])).enumerate().map(row).collect()
}

/// Rows as 16-bit integers with a scale each.
fn to_i16(x: &Array2<f32>) -> (Vec<i16>, Vec<f32>) {
    let largest = |row: ndarray::ArrayView1<f32>| row.fold(0.0f32, |m, x| m.max(x.abs()));
    let scale: Vec<f32> = x.rows().into_iter().map(|row| largest(row) / f32::from(i16::MAX)).collect();
    let rows = x
        .rows()
        .into_iter()
        .zip(&scale)
        .flat_map(|(row, &s)| row.to_vec().into_iter().map(move |x| (x / s).round() as i16));
    (rows.collect(), scale)
}

/// The upper half of a positive number, rounded.
fn to_bf16(x: f32) -> u16 {
    (x.to_bits().saturating_add(0x8000) >> 16) as u16
}

fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Rows in half precision: as exact as most caches hold them, and half as large while a head is planned.
#[derive(Default)]
pub struct Rows {
    data: Vec<f16>,
    dim: usize,
}

impl Rows {
    /// `n_tokens` rows of length `dim`; `read(first, out)` fills the rows from `first` on.
    ///
    /// # Errors
    /// When `read` fails.
    pub fn read(n_tokens: usize, dim: usize, mut read: impl FnMut(usize, &mut [f32]) -> Result<()>) -> Result<Self> {
        let (mut data, mut tile) = (vec![f16::ZERO; n_tokens * dim], vec![0.0; TILE * dim]);
        for (i, data) in data.chunks_mut(tile.len().max(1)).enumerate() {
            let tile = &mut tile[..data.len()];
            read(i * TILE, tile)?;
            data.convert_from_f32_slice(tile);
        }
        Ok(Rows { data, dim })
    }

    /// Length of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The rows of `tokens`. Shapes: `{dim, tokens.len()}`.
    pub fn of(&self, tokens: &[u32]) -> Array2<f32> {
        self.of_and(tokens, &[])
    }

    /// The rows of `tokens`, and `more` rows behind them. Shapes: `more: {dim, n}`, result: `{dim, tokens.len() + n}`.
    pub fn of_and(&self, tokens: &[u32], more: &[f32]) -> Array2<f32> {
        let mut out = Array2::zeros((tokens.len() + more.len() / self.dim.max(1), self.dim));
        out.iter_mut().skip(tokens.len() * self.dim).zip(more).for_each(|(x, y)| *x = *y);
        // Most tokens have their neighbours beside them.
        let mut to = out.as_slice_mut().unwrap_or_default();
        for run in tokens.chunk_by(|a, b| a + 1 == *b) {
            let (row, rest) = to.split_at_mut(run.len() * self.dim);
            vector::widen(&self.data[run[0] as usize * self.dim..][..row.len()], row);
            to = rest;
        }
        out
    }
}

/// One head with its keys, values and observation, ready to be merged.
pub struct Head {
    /// Shapes: `{head_dim_k, n_tokens}`.
    pub keys: Rows,
    /// Shapes: `{head_dim_v, n_tokens}`.
    pub values: Rows,
    /// Scaled queries behind the prompt. Shapes: `{head_dim_k, n_row}`.
    pub queries: Array2<f32>,
    /// Probes, each of which has a row for every query head of the group; all other rows are samples.
    pub n_probe: usize,
    /// Logit soft-cap, 0 = none.
    pub softcap: f32,
    /// `w_q`, summing to 1. Shapes: `{n_row}`.
    pub weight: Vec<f32>,
    /// `lz_q`. Shapes: `{n_row}`.
    pub lz: Vec<f32>,
    /// `o_q`. Shapes: `{head_dim_v, n_row}`.
    pub output: Array2<f32>,
    /// `r_t = sum_q w_q a_qt`. Shapes: `{n_tokens}`.
    pub mass: Vec<f32>,
    /// `sum_q w_q a_qt^2 |v_t - o_q|^2`: what the output loses without the token. Shapes: `{n_tokens}`.
    pub error: Vec<f32>,
}

impl Head {
    /// Reads KV head `g` of layer `il`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn load(view: &View, il: usize, g: usize, seen: &Observation) -> Result<Self> {
        let wide = |x: &[u16]| x.iter().map(|&x| from_bf16(x)).collect();
        let output = seen.output.chunks(view.head_dim_v.max(1)).zip(&seen.output_scale);
        let output = output.flat_map(|(row, &scale)| row.iter().map(move |&x| f32::from(x) * scale)).collect();
        let queries = Queries::load_all(view, il, g)?;
        Ok(Head {
            keys: Rows::read(view.n_tokens, view.head_dim_k, |first, out| view.source.keys(il, g, first, out))?,
            values: Rows::read(view.n_tokens, view.head_dim_v, |first, out| view.source.values(il, g, first, out))?,
            n_probe: queries.probes.len(),
            queries: queries.rows,
            softcap: view.logit_softcap,
            weight: seen.weight.clone(),
            lz: seen.lz.clone(),
            output: matrix(output, view.head_dim_v)?,
            mass: wide(&seen.mass),
            error: wide(&seen.error),
        })
    }

    /// Capped logits of rows of keys. Shapes: `keys: {head_dim_k, n}`, result: `{n_row, n}`.
    pub fn logits(&self, keys: ArrayView2<f32>) -> Array2<f32> {
        let mut logits = Array2::zeros((keys.nrows(), self.queries.nrows()));
        times_rows(keys, self.queries.view(), logits.view_mut());
        logits.as_slice_mut().into_iter().for_each(|x| vector::softcap(x, self.softcap));
        logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::memory::Memory;
    use crate::cache::view::Source;

    /// A cache with one earlier entry, whose logit is the same for every query.
    struct WithEarlier<'a>(&'a Memory, f32);

    impl Source for WithEarlier<'_> {
        fn keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
            self.0.keys(il, g, first, out)
        }
        fn values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
            self.0.values(il, g, first, out)
        }
        fn earlier(&self, _il: usize, _g: usize) -> Result<(Vec<f32>, Vec<f32>)> {
            Ok((vec![0.0; self.0.head_dim_k], vec![self.1]))
        }
        fn output_weight(&self, il: usize, h: usize) -> Result<Vec<f32>> {
            self.0.output_weight(il, h)
        }
        fn queries_of(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
            self.0.queries_of(tokens)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs more tokens than Miri has time for")]
    fn a_probe_that_reads_earlier_entries_has_less_of_a_say() {
        let memory = Memory::random(1, 1, 4, 2, 16, 64, [8, 4, 6]);
        let seen = |source: &dyn Source| {
            let view = View { source, ..memory.view() };
            Observation::new(&view, 0, 0, 0.5).unwrap().0
        };
        let plain = seen(&memory);
        assert_eq!(seen(&WithEarlier(&memory, -1e4)).weight, plain.weight);
        let b = plain.lz[0];
        let with = seen(&WithEarlier(&memory, b));
        // Rows of window probes see nothing else: their weights are the squares of their shares.
        let share = |row: usize| 1.0 / (1.0 + (b - plain.lz[row]).exp());
        for row in 1..8 * 2 {
            let want = (share(row) / share(0)).powi(2);
            let found = with.weight[row] / with.weight[0];
            assert!((found / want - 1.0).abs() < 1e-4, "row {row}: {found} {want}");
        }
    }
}
