//! What the probes of one head see over the full cache: the quantities that steps 3 to 5 are made of.
//!
//! For probe row q and token t: `s_qt = q.k_t`, `lz_q = logsumexp_t s_qt`, `a_qt = exp(s_qt - lz_q)`, `o_q = sum_t a_qt v_t`.
//! Weight `w_q = sh_q^2 * pw`: `sh_q` is the share of a lookahead probe's attention that falls on the prompt rather than on
//! the decoded tokens before it (1 for other probes), `pw` is 1, or [`super::Options::sample_weight`] for sampled probes.

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2, Axis};

use crate::cache::view::{ProbeKind, View};
use crate::compress::score::{attend, matrix, Queries};
use crate::compress::vector;
use crate::error::Result;

/// As in [`vector::softmax`]: the square of the smallest probability, times a weight, is still a normal number.
const FLOOR: f32 = -26.0;

/// One head, its probes, and the attention of these over it.
pub struct Head {
    /// Shapes: `{head_dim_k, n_tokens}`.
    pub keys: Array2<f32>,
    /// Shapes: `{head_dim_v, n_tokens}`.
    pub values: Array2<f32>,
    /// Scaled queries behind the prompt. Shapes: `{head_dim_k, n_row}`.
    pub queries: Array2<f32>,
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
    /// Reads KV head `g` of layer `il` and lets all probes attend to it.
    ///
    /// # Errors
    /// When the source cannot be read or the layer was not tapped.
    pub fn observe(view: &View, il: usize, g: usize, sample_weight: f32) -> Result<Self> {
        let queries = Queries::load(view, il, g, &[ProbeKind::Window, ProbeKind::Sample, ProbeKind::Lookahead])?;
        let own = own_attention(view, il, g, &queries);
        let keys = matrix(view.keys(il, g)?, view.head_dim_k)?;
        let values = matrix(view.values(il, g)?, view.head_dim_v)?;
        let (n_row, n_tokens) = (queries.rows.nrows(), keys.nrows());
        let norm: Vec<f32> = values.rows().into_iter().map(|v| v.dot(&v)).collect();

        let (mut weight, mut all_lz) = (vec![0.0; n_row], vec![0.0; n_row]);
        let (mut mass, mut error) = (vec![0.0; n_tokens], vec![0.0; n_tokens]);
        let mut output = Array2::zeros((n_row, view.head_dim_v));
        let mut product = Array2::zeros((0, 0));
        attend(queries.rows.view(), queries.n_group, keys.view(), view.logit_softcap, FLOOR, |rows, a, lz| {
            let mut o = output.slice_mut(s![rows.clone(), ..]);
            general_mat_mul(1.0, &a, &values, 0.0, &mut o);
            if product.dim() != a.dim() {
                product = Array2::zeros(a.dim());
            }
            general_mat_mul(1.0, &o, &values.t(), 0.0, &mut product);
            for (i, row) in rows.enumerate() {
                let kind = queries.probes[row / queries.n_group].kind;
                let share = 1.0 / (1.0 + (own[row] - lz[i]).exp());
                let w = share * share * if kind == ProbeKind::Sample { sample_weight } else { 1.0 };
                (weight[row], all_lz[row]) = (w, lz[i]);
                let (o, a, product) = (o.row(i), a.row(i), product.row(i));
                if let (Some(a), Some(product)) = (a.as_slice(), product.as_slice()) {
                    vector::add_scaled(&mut mass, w, a);
                    vector::add_output_error(&mut error, w, a, &norm, o.dot(&o), product);
                }
            }
        });
        let total: f32 = weight.iter().sum();
        let scale = if total > 0.0 { 1.0 / total } else { 0.0 };
        [&mut weight, &mut mass, &mut error].into_iter().flatten().for_each(|x| *x *= scale);
        let (queries, softcap) = (queries.rows, view.logit_softcap);
        Ok(Head { keys, values, queries, softcap, weight, lz: all_lz, output, mass, error })
    }

    /// Capped logits of `tokens`. Shapes: `{n_row, tokens.len()}`.
    pub fn logits(&self, tokens: &[u32]) -> Array2<f32> {
        let at: Vec<usize> = tokens.iter().map(|&t| t as usize).collect();
        let mut logits = self.keys.select(Axis(0), &at).dot(&self.queries.t());
        logits.as_slice_mut().into_iter().for_each(|x| vector::softcap(x, self.softcap));
        logits
    }

    /// The rows of `matrix` (keys or values) of `tokens`, one after the other.
    pub fn rows(&self, matrix: &Array2<f32>, tokens: &[u32]) -> Vec<f32> {
        tokens.iter().flat_map(|&t| matrix.row(t as usize)).copied().collect()
    }
}

/// Log-sum-exp of each query row over the decoded tokens that a lookahead probe sees besides the prompt; -inf for other probes.
fn own_attention(view: &View, il: usize, g: usize, queries: &Queries) -> Vec<f32> {
    let dim = view.head_dim_k;
    let keys = view.probes.lookahead_keys.get(il).map_or(&[][..], Vec::as_slice);
    let key = |u: usize| keys.get((u * view.n_head_kv + g) * dim..(u * view.n_head_kv + g + 1) * dim);
    let row = |(row, q): (usize, &[f32])| {
        let probe = queries.probes[row / queries.n_group];
        if probe.kind != ProbeKind::Lookahead {
            return f32::NEG_INFINITY;
        }
        let n_seen = (probe.pos as usize + 1).saturating_sub(view.n_tokens);
        let mut logits: Vec<f32> = (0..n_seen).map_while(key).map(|k| vector::dot(q, k)).collect();
        vector::softcap(&mut logits, view.logit_softcap);
        if logits.is_empty() {
            return f32::NEG_INFINITY;
        }
        vector::softmax(&mut logits, FLOOR)
    };
    queries.rows.rows().into_iter().map(|q| q.to_slice().unwrap_or(&[])).enumerate().map(row).collect()
}
