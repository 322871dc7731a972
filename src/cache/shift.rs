//! Context shift: tokens in the middle are dropped, and those behind them move to the positions that became free.
//!
//! Keys are rotated to their new positions (`llama_memory_seq_rm` and `llama_memory_seq_add` of llama.cpp, whose K-shift does
//! the same at the next decode); values are only moved. Quantised keys are dequantised, rotated and quantised again.

use super::hadamard::Hadamard;
use super::rope::Rope;
use super::{KvCache, LayerCache, Layout};
use crate::error::{Error, Result};
use crate::ggml::Tensor;

impl KvCache {
    /// Drops `n_discard` tokens from position `n_keep` on. `ropes`: one per layer.
    ///
    /// # Errors
    /// When a pass has run, or a sliding window would see tokens that its ring no longer holds; nothing has changed then.
    pub fn shift(&mut self, n_keep: usize, n_discard: usize, ropes: &[Rope]) -> Result<()> {
        let n_left = self.n_past.saturating_sub(n_keep + n_discard);
        if self.is_compressed() {
            return Err(Error::unsupported("context shift", "a compressed cache, which is compressed further instead"));
        }
        let ring = self.n_ring();
        let has_ring = self.layers.iter().any(|l| l.layout == Layout::Ring);
        // What the next token sees must lie behind the gap, unless the ring holds the whole context.
        if has_ring && ring < self.options.n_ctx && n_left + 1 < self.n_swa.min(self.n_past) {
            return Err(Error::unsupported(
                "context shift",
                format!("the {n_left} tokens that are left are fewer than the sliding window of {} sees", self.n_swa),
            ));
        }
        let rows = self.options.n_ctx;
        let mut ring_from = 0;
        for (layer, rope) in self.layers.iter().zip(ropes) {
            let (n_rows, n_held) = match layer.layout {
                Layout::Ring => (ring, ring.min(self.n_past)),
                _ => (rows, self.n_past),
            };
            let from = (n_keep + n_discard).max(self.n_past - n_held);
            let job = Job { n_rows, from, to: self.n_past, n_discard };
            for g in 0..self.n_head_kv {
                job.run(layer, g, rope)?;
            }
            if layer.layout == Layout::Ring && self.ring_from > 0 {
                ring_from = from.max(self.ring_from) - n_discard;
            }
        }
        self.ring_from = ring_from;
        self.n_past -= n_discard;
        Ok(())
    }
}

/// The tokens `from..to` of a layer whose token `p` has row `p % n_rows` of each head.
struct Job {
    n_rows: usize,
    from: usize,
    to: usize,
    n_discard: usize,
}

impl Job {
    fn run(&self, layer: &LayerCache, g: usize, rope: &Rope) -> Result<()> {
        let mut values = self.read(&layer.v, g)?;
        self.write(&layer.v, g, &mut values)?;
        let mut keys = self.read(&layer.k, g)?;
        self.rotate(&layer.k, &mut keys, rope, layer.hadamard_k.as_ref())?;
        self.write(&layer.k, g, &mut keys)
    }

    /// The rows of the tokens, in their order.
    fn read(&self, t: &Tensor, g: usize) -> Result<Vec<u8>> {
        let stride = t.ty().row_size(t.ne()[0]);
        let mut head = vec![0u8; self.n_rows * stride];
        t.read(g * self.n_rows * stride, &mut head)?;
        let row = |p: usize| &head[p % self.n_rows * stride..][..stride];
        Ok((self.from..self.to).flat_map(row).copied().collect())
    }

    fn rotate(&self, t: &Tensor, bytes: &mut [u8], rope: &Rope, hadamard: Option<&Hadamard>) -> Result<()> {
        let dim = t.ne()[0];
        let mut keys = vec![0.0f32; (self.to - self.from) * dim];
        let mut done = t.ty().to_f32(bytes, &mut keys);
        hadamard.iter().for_each(|h| h.apply(&mut keys));
        rope.shift_all(&mut keys, dim, -(self.n_discard as f32));
        hadamard.iter().for_each(|h| h.apply(&mut keys));
        done = done && t.ty().from_f32(&keys, dim, bytes);
        match done {
            true => Ok(()),
            false => Err(Error::unsupported("KV cache type for a context shift", t.ty().name())),
        }
    }

    fn write(&self, t: &Tensor, g: usize, rows: &mut [u8]) -> Result<()> {
        let stride = t.ty().row_size(t.ne()[0]);
        let mut first = self.from - self.n_discard;
        let mut rest = &rows[..];
        while !rest.is_empty() {
            // A run of rows up to where the ring starts again.
            let at = first % self.n_rows;
            let n = (self.n_rows - at).min(rest.len() / stride);
            let part;
            (part, rest) = rest.split_at(n * stride);
            t.write((g * self.n_rows + at) * stride, part)?;
            first += n;
        }
        Ok(())
    }
}
