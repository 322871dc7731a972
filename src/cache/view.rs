//! The read-only host view of a filled KV cache that a compression method works on (stage 4 of the flow).
//!
//! Pure Rust over `f32`: no ggml type appears here, so methods are tested on plain vectors and run under Miri.
//! Layers are numbered as in the model (`il`); only the layers in [`View::layers`] may be compressed
//! (sliding-window layers already hold a bounded cache and stay as they are).

use super::rope::Rope;
use crate::error::{Error, Result};

/// Where a view takes keys, values and weights from: the real cache, or vectors in a test.
pub trait Source: Sync {
    /// Writes the keys of KV head `g` of layer `il`, as cached (rotated), dequantised.
    ///
    /// Shapes: `out: {head_dim_k, n_tokens}`, for the tokens `first..first + out.len() / head_dim_k`.
    ///
    /// # Errors
    /// When the backend cannot be read.
    fn keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()>;

    /// Writes the values of KV head `g` of layer `il`. Shapes: `out: {head_dim_v, n_tokens}`, as [`Source::keys`].
    ///
    /// # Errors
    /// When the backend cannot be read.
    fn values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()>;

    /// Keys, as cached, and biases of the entries of a head that stand before the view's tokens: what earlier passes left.
    ///
    /// Shapes: `{head_dim_k, n}`, `{n}`.
    ///
    /// # Errors
    /// When the backend cannot be read.
    fn earlier(&self, _il: usize, _g: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok(Default::default())
    }

    /// The slice of the attention output matrix that query head `h` of layer `il` feeds.
    ///
    /// Shapes: `{n_embd, head_dim_v}` (column `d` is what one unit of output component `d` adds to the residual stream).
    ///
    /// # Errors
    /// When the weights cannot be read.
    fn output_weight(&self, il: usize, h: usize) -> Result<Vec<f32>>;

    /// Attention queries of `tokens` of the prompt, decoded again at their own positions against the full cache.
    ///
    /// Shapes: per layer of the model `{head_dim_k, n_head, tokens.len()}`, rotated, unscaled.
    ///
    /// # Errors
    /// When the source cannot decode (a saved cache without its model).
    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>>;
}

/// What a probe query is (which part of the text it stands for).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// One of the last queries of the prompt.
    Window,
    /// A query of a token decoded from the full cache after the prompt: it shows what the answer reads.
    Lookahead,
}

/// One probe: all its queries share kind and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What the probe stands for.
    pub kind: ProbeKind,
    /// The position its cached queries are rotated to.
    pub pos: u32,
}

/// A query from the middle of the prompt: it stands for what later text may read.
///
/// One head of each group is kept, in turn: for the same work and memory many places of the text say far more about what comes
/// than all heads at few (`tests/bench/runs/2026-12-01-samples.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The position its cached queries are rotated to.
    pub pos: u32,
    /// Which query head of every group it is.
    pub head: u32,
}

/// The queries that were tapped during prefill and lookahead.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// One entry per probe, in the order of the queries: window (ascending), lookahead (ascending).
    pub list: Vec<Probe>,
    /// Per layer of the model `{head_dim_k, n_head, n_probe}`, rotated to [`Probe::pos`], unscaled; empty where the layer was not tapped.
    pub queries: Vec<Vec<f32>>,
    /// One entry per sample, ascending.
    pub samples: Vec<Sample>,
    /// Per layer of the model `{head_dim_k, n_head_kv, n_sample}`, as `queries`.
    pub sample_queries: Vec<Vec<f32>>,
    /// Keys of the lookahead tokens, per layer `{head_dim_k, n_head_kv, n_lookahead}`, rotated; the share of attention that
    /// falls on the context is measured against them.
    pub lookahead_keys: Vec<Vec<f32>>,
}

/// Hidden states at sampled layers, projected to few dimensions (the cosine between them is all the slots need).
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// Per sampled layer `{n_proj, n_tokens}`.
    pub layers: Vec<Vec<f32>>,
    /// Dimensions of the projection.
    pub n_proj: usize,
}

/// A filled KV cache, seen from the host.
pub struct View<'a> {
    /// Where keys and values come from.
    pub source: &'a dyn Source,
    /// Number of layers of the model.
    pub n_layer: usize,
    /// Layers that may be compressed, ascending.
    pub layers: &'a [usize],
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_head_kv: usize,
    /// Length of a key.
    pub head_dim_k: usize,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Tokens to be compressed; entry `t` of every head is the token at position `t`, counted from the first of them. Positions
    /// of probes count from there, too: a rotation of both by the same angle changes no product.
    pub n_tokens: usize,
    /// Factor on `q.k` before the softmax (1/sqrt(d) in most models).
    pub kq_scale: f32,
    /// Logit soft-cap of the attention, 0 = none (`cap * tanh(s / cap)`).
    pub logit_softcap: f32,
    /// Logits that only the denominator of the softmax has, by layer and query head; empty where a layer has none.
    pub sinks: &'a [Vec<f32>],
    /// How the model rotates each layer, indexed by `il`.
    pub rope: &'a [Rope],
    /// Tapped queries.
    pub probes: &'a Probes,
    /// Projected hidden states; empty unless the method asked for them.
    pub hidden: &'a Hidden,
    /// Per layer of the model `{n_tokens, n_head_kv}`: the probabilities that all queries of the prompt gave to each token, summed
    /// over the query heads of the group; empty unless the method asked for it.
    pub attention_mass: &'a [Vec<f32>],
    /// Surprisal of each prompt token in nats; empty unless the method asked for it.
    pub surprisal: &'a [f32],
}

impl View<'_> {
    /// Query heads that share one KV head.
    pub fn n_group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// All keys of a head. Shapes: `{head_dim_k, n_tokens}`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn keys(&self, il: usize, g: usize) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.head_dim_k * self.n_tokens];
        self.source.keys(il, g, 0, &mut out)?;
        Ok(out)
    }

    /// All values of a head. Shapes: `{head_dim_v, n_tokens}`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn values(&self, il: usize, g: usize) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.head_dim_v * self.n_tokens];
        self.source.values(il, g, 0, &mut out)?;
        Ok(out)
    }

    /// What all queries of the prompt gave to each token of a head. Shapes: `{n_tokens}`.
    ///
    /// # Errors
    /// [`Error::Shape`] when it was not recorded.
    pub fn mass(&self, il: usize, g: usize) -> Result<&[f32]> {
        let recorded = self.attention_mass.get(il).map_or(&[][..], Vec::as_slice);
        recorded.get(g * self.n_tokens..(g + 1) * self.n_tokens).ok_or_else(|| {
            let want = format!("{} heads of {} tokens", self.n_head_kv, self.n_tokens);
            Error::shape(format!("attention mass of layer {il}"), want, format!("{} values", recorded.len()))
        })
    }

    /// The query of probe `p` and query head `h` in layer `il`. Shapes: `{head_dim_k}`.
    pub fn query(&self, il: usize, p: usize, h: usize) -> &[f32] {
        let at = (p * self.n_head + h) * self.head_dim_k;
        &self.probes.queries[il][at..at + self.head_dim_k]
    }

    /// The query of sample `s` for KV head `g` of layer `il`. Shapes: `{head_dim_k}`.
    pub fn sample(&self, il: usize, s: usize, g: usize) -> &[f32] {
        let at = (s * self.n_head_kv + g) * self.head_dim_k;
        &self.probes.sample_queries[il][at..at + self.head_dim_k]
    }
}
