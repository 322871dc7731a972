//! Masks for ggml's attention operations: f16, 0 where a token sees an entry, a bias for prototypes, -inf elsewhere.
//!
//! The attention kernel of `ggml::attention` needs none; these serve batches over a dense cache and devices.

use super::{KvCache, Layout};
use crate::ggml::Type;

/// Entries by which what a graph reads grows, so that its shapes seldom change: devices keep a captured graph, and the fast
/// paths of CUDA's flash attention want it.
pub(super) const STEP: usize = 256;
const SEEN: u16 = 0;
/// Minus infinity as f16.
const HIDDEN: u16 = 0xfc00;

impl KvCache {
    /// Entries a mask covers for a batch that ends before position `end`: a multiple of 256, so that shapes seldom change.
    pub fn n_kv(&self, end: usize) -> usize {
        end.next_multiple_of(STEP).min(self.options.n_ctx)
    }

    /// The same for a sliding-window layer, whose rows are used from the first on until the ring is full.
    pub fn n_kv_ring(&self, end: usize) -> usize {
        end.next_multiple_of(STEP).min(self.n_ring())
    }

    /// Causal mask of a dense layer. Shapes: `{n_kv, pos.len()}`.
    pub fn mask_dense(&self, pos: &[u32], n_kv: usize) -> Vec<u16> {
        let mut out = vec![HIDDEN; n_kv * pos.len()];
        for (row, &p) in out.chunks_exact_mut(n_kv).zip(pos) {
            row[..=p as usize].fill(SEEN);
        }
        out
    }

    /// Negated distances where a token sees an entry: what ALiBi's slopes are multiplied with. Shapes: `{n_kv, pos.len()}`.
    pub fn mask_alibi(&self, pos: &[u32], n_kv: usize) -> Vec<u16> {
        let mut out = vec![HIDDEN; n_kv * pos.len()];
        for (row, &p) in out.chunks_exact_mut(n_kv).zip(pos) {
            let distances: Vec<f32> = (0..=p).map(|t| t as f32 - p as f32).collect();
            let mut bytes = vec![0u8; distances.len() * 2];
            if Type::F16.from_f32(&distances, distances.len(), &mut bytes) {
                row.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(x, b)| *x = u16::from_le_bytes([b[0], b[1]]));
            }
        }
        out
    }

    /// Mask of a sliding-window layer after the batch was stored. Shapes: `{n_kv_ring, pos.len()}`.
    pub fn mask_ring(&self, pos: &[u32], n_kv_ring: usize) -> Vec<u16> {
        let ring = self.n_ring();
        let mut out = vec![HIDDEN; n_kv_ring * pos.len()];
        for (row, &p) in out.chunks_exact_mut(n_kv_ring).zip(pos) {
            let p = p as usize;
            for seen in (p + 1).saturating_sub(self.n_swa)..=p {
                row[seen % ring] = SEEN;
            }
        }
        out
    }

    /// Mask of one head of a pool for `n_tokens` tokens from `n_past` on. Shapes: `{n_view, n_tokens}`.
    pub fn mask_pool(&self, il: usize, g: usize, n_tokens: usize, n_view: usize) -> Vec<u16> {
        let layer = &self.layers[il];
        let Layout::Pool(heads) = &layer.layout else { return Vec::new() };
        let (row, n) = (heads[g].row, self.n_entries(il, g));
        let mut first = vec![SEEN; n];
        if let Some(bias) = layer.bias.get(row..row + heads[g].n_entries) {
            let mut bytes = vec![0u8; bias.len() * 2];
            if Type::F16.from_f32(bias, bias.len(), &mut bytes) {
                for (f, b) in first.iter_mut().zip(bytes.chunks_exact(2)) {
                    *f = u16::from_le_bytes([b[0], b[1]]);
                }
            }
        }
        let mut out = vec![HIDDEN; n_view * n_tokens];
        for (j, line) in out.chunks_exact_mut(n_view).enumerate() {
            line[..n].copy_from_slice(&first);
            line[n..=n + j].fill(SEEN);
        }
        out
    }

    /// Rows of a view of one head of a pool for `n_tokens` more tokens: a multiple of 256 where the pool is long enough.
    pub fn n_view(&self, il: usize, g: usize, n_tokens: usize) -> usize {
        let Layout::Pool(heads) = &self.layers[il].layout else { return 0 };
        (self.n_entries(il, g) + n_tokens).next_multiple_of(STEP).min(self.layers[il].n_rows() - heads[g].row)
    }
}
