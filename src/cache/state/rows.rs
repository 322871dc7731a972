//! The rows of a cache that a state file holds: where they stand, and a cache made ready to take them.

use super::super::{KvCache, Layout, PoolHead};
use super::Held;
use crate::error::Result;
use crate::ggml::Chunk;

impl KvCache {
    /// Bytes of one row of keys or values.
    pub(super) fn row_bytes(&self, keys: bool) -> usize {
        match keys {
            true => self.options.ty_k.row_size(self.head_dim_k),
            false => self.options.ty_v.row_size(self.head_dim_v),
        }
    }

    /// Types of keys and values, for [`super::Identity::kv`].
    pub fn types(&self) -> String {
        format!("{} keys and {} values", self.options.ty_k, self.options.ty_v)
    }

    /// What a file has to hold of a layer.
    pub(super) fn held(&self, il: usize) -> Held {
        let layer = &self.layers[il];
        match &layer.layout {
            Layout::Dense => Held::Dense,
            Layout::Ring => {
                // Compressed tokens cannot be taken back, so the window is all that can be seen again.
                let reach = match self.is_compressed() {
                    true => self.n_swa + self.n_since(),
                    false => self.n_ring(),
                };
                Held::Ring((self.n_past - self.ring_from).min(reach))
            }
            Layout::Pool(heads) => {
                Held::Pool { entries: heads.iter().map(|h| h.n_entries).collect(), bias: !layer.bias.is_empty() }
            }
        }
    }

    /// The rows of a head that hold its tokens in order; of a sliding window the last `n`. A second chunk may be empty.
    pub(super) fn used(&self, il: usize, g: usize, held: &Held) -> [Chunk; 2] {
        let none = Chunk::default();
        match (&self.layers[il].layout, held) {
            (Layout::Ring, Held::Ring(n)) => {
                let (ring, base) = (self.n_ring(), g * self.n_ring());
                let from = (self.n_past - n) % ring;
                let first = (*n).min(ring - from);
                [Chunk { row: base + from, n: first }, Chunk { row: base, n: n - first }]
            }
            (Layout::Pool(heads), _) => [Chunk { row: heads[g].row, n: heads[g].n_entries + self.n_since() }, none],
            _ => [Chunk { row: g * self.options.n_ctx, n: self.n_past }, none],
        }
    }

    /// Makes an empty dense cache ready for the rows of a file: `n_tokens` tokens of which `n_compressed` are compressed.
    pub(super) fn prepare(&mut self, layers: &[Held], n_tokens: usize, n_compressed: usize, room: usize) -> Result<()> {
        let n_since = n_tokens - n_compressed;
        for (il, held) in layers.iter().enumerate() {
            let Held::Pool { entries, .. } = held else { continue };
            let mut row = 0;
            let head = |&n_entries: &usize| {
                let head = PoolHead { row, n_entries, capacity: n_entries + n_since + room };
                row += head.capacity;
                head
            };
            let heads: Vec<PoolHead> = entries.iter().map(head).collect();
            self.layers[il] = self.new_layer(il, row, Layout::Pool(heads), self.layers[il].home())?;
        }
        let kept = layers.iter().filter_map(|held| if let Held::Ring(n) = held { Some(*n) } else { None }).min();
        self.n_past = n_tokens;
        self.n_prompt = n_compressed;
        self.ring_from = n_tokens - kept.map_or(n_tokens, |n| n.min(self.n_ring()));
        self.version += 1;
        Ok(())
    }
}
