//! What the host has fetched of layers that it cannot address, so that a pass fetches each key and value once (stage 4).
//!
//! Rows stay in the type of the cache and are let go of when their layer has been rewritten. They are those of the tokens
//! since the last pass when the mirror was made; the cache must not be decoded into as long as one is in use.

use super::KvCache;
use crate::error::Result;
use crate::ggml::Tensor;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A layer, whether its keys or its values, and a head.
pub(super) type Part = (usize, bool, usize);

/// Copies of rows, by layer, keys or values, and head.
pub struct Mirror {
    n_tokens: usize,
    parts: Mutex<HashMap<Part, Arc<Vec<u8>>>>,
}

impl Mirror {
    /// An empty mirror of the tokens since the last pass.
    pub fn new(cache: &KvCache) -> Mirror {
        Mirror { n_tokens: cache.n_past() - cache.n_prompt(), parts: Mutex::default() }
    }

    /// The rows of a head in `t`, from its row `first_row` on, fetched unless they are here.
    pub(super) fn rows(&self, part: Part, t: &Tensor, first_row: usize) -> Result<Arc<Vec<u8>>> {
        let mut parts = self.parts.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(rows) = parts.get(&part) {
            return Ok(rows.clone());
        }
        let stride = t.ty().row_size(t.ne()[0]);
        let mut rows = vec![0u8; self.n_tokens * stride];
        t.read(first_row * stride, &mut rows)?;
        let rows = Arc::new(rows);
        parts.insert(part, rows.clone());
        Ok(rows)
    }

    /// Lets go of the rows of a layer.
    pub fn forget(&self, il: usize) {
        self.parts.lock().unwrap_or_else(|p| p.into_inner()).retain(|&(layer, ..), _| layer != il);
    }
}
