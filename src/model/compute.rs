//! How large compute buffers become, from the numbers of a model alone: an upper bound, so that a run that would end for lack of
//! memory in the middle of a prompt is refused before anything is allocated (stage 3 of the flow).
//!
//! llama.cpp lets ggml lay out its largest graph instead (`graph_reserve`), which takes weights and a cache that exist already.

use super::Hparams;
use crate::cache::CacheOptions;

/// Rows of a batch's hidden states that exist at the same time: the stream, its normalised copy, and what is added to it.
const N_STREAM: usize = 4;
/// Queries, keys and values each exist twice: as projected and as rotated.
const N_COPY: usize = 2;
/// Products of a feed-forward network: gate, up, and what the activation makes of them.
const N_FFN: usize = 3;
/// What operations need beside their results (rows in the types of weights, work of threads), and rounding.
const SLACK: f64 = 1.25;
const F32: usize = 4;
const F16: usize = 2;

/// Bytes of the compute buffers when a context of these sizes is full. `explicit` is attention by matrix products, or its
/// probabilities being recorded; `n_out`, the rows of logits of a batch.
pub fn compute_bytes(hp: &Hparams, cache: &CacheOptions, explicit: bool, n_out: usize) -> u64 {
    let n = cache.n_ubatch.clamp(1, cache.n_ctx.max(1));
    let r = &hp.routing;
    let heads = hp.n_head * (hp.head_dim_k + hp.head_dim_v) + hp.n_head_kv * (hp.head_dim_k + hp.head_dim_v);
    let experts = r.n_used * (N_FFN * r.n_ff + 2 * hp.n_embd) + 4 * r.n_expert + N_FFN * r.n_ff_shared;
    let row = N_STREAM * hp.n_embd + N_COPY * heads + (N_FFN * hp.n_ff).max(experts);
    let n_kv = cache.n_ctx;
    let n_ring = if hp.swa.contains(&true) { n_kv.min(hp.n_swa + 2 * n) } else { 0 };
    // A mask for whole contexts and one for windows, each on the host as well.
    let masks = 2 * (n_kv + n_ring) * F16;
    let logits = if explicit { 2 * n_kv * hp.n_head * F32 } else { 0 };
    // The values of one layer, turned.
    let values = if explicit { n_kv * hp.n_head_kv * hp.head_dim_v * F32 } else { 0 };
    let bytes = n as f64 * (row * F32 + masks + logits) as f64 + (values + 2 * n_out * hp.n_vocab * F32) as f64;
    (bytes * SLACK) as u64 + (1 << 20)
}
