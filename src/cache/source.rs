//! Reading a cache from the host: what a compression method sees (`view::Source`). Tokens are counted from the last pass on.

use super::mirror::{Mirror, Part};
use super::{KvCache, Layout};
use crate::error::{Error, Result};
use crate::ggml::Tensor;

impl KvCache {
    /// Keys of a head, dequantised and as the model computed them. Shapes: `out: {head_dim_k, n}` for the tokens since the last pass
    /// from the `first` of them on.
    ///
    /// # Errors
    /// When the layer slides or the rows do not exist.
    pub fn read_keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.read_rows(None, (il, true, g), first, out)
    }

    /// Values of a head, as [`KvCache::read_keys`].
    ///
    /// # Errors
    /// When the layer slides or the rows do not exist.
    pub fn read_values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.read_rows(None, (il, false, g), first, out)
    }

    fn read_rows(&self, mirror: Option<&Mirror>, part: Part, first: usize, out: &mut [f32]) -> Result<()> {
        let (il, keys, g) = part;
        let layer = &self.layers[il];
        let (t, hadamard) = if keys { (&layer.k, &layer.hadamard_k) } else { (&layer.v, &layer.hadamard_v) };
        let dim = t.ne()[0];
        let n = out.len() / dim;
        let (base, n_held) = match &layer.layout {
            Layout::Dense if g < self.n_head_kv => (g * self.options.n_ctx, self.options.n_ctx),
            Layout::Pool(heads) if g < heads.len() => {
                let h = &heads[g];
                (h.row + h.n_entries, h.capacity - h.n_entries)
            }
            _ => (0, 0),
        };
        if first + n > n_held {
            return Err(Error::shape(
                format!("reading layer {il} of the cache"),
                "rows of a layer without a sliding window",
                format!("head {g}, tokens {first}+{n}"),
            ));
        }
        let stride = t.ty().row_size(dim);
        let rows = match mirror.filter(|_| t.host_bytes().is_none()) {
            Some(mirror) => Some(mirror.rows(part, t, base)?),
            None => None,
        };
        match rows.as_ref().and_then(|rows| rows.get(first * stride..(first + n) * stride)) {
            Some(bytes) if t.ty().to_f32(bytes, out) => {}
            _ => read(t, base + first, out)?,
        }
        hadamard.iter().for_each(|h| h.apply(out));
        Ok(())
    }

    /// Keys and biases of the entries that earlier passes left in a head. Shapes: `{head_dim_k, n}`, `{n}`.
    ///
    /// # Errors
    /// When the backend cannot be read.
    pub fn earlier(&self, il: usize, g: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let layer = &self.layers[il];
        let Layout::Pool(heads) = &layer.layout else { return Ok(Default::default()) };
        let h = &heads[g];
        let mut keys = vec![0.0; h.n_entries * self.head_dim_k];
        read(&layer.k, h.row, &mut keys)?;
        layer.hadamard_k.iter().for_each(|h| h.apply(&mut keys));
        let bias = layer.bias.get(h.row..h.row + h.n_entries);
        Ok((keys, bias.map_or_else(|| vec![0.0; h.n_entries], <[f32]>::to_vec)))
    }
}

impl Mirror {
    /// As [`KvCache::read_keys`], without fetching twice what the host cannot address.
    ///
    /// # Errors
    /// When the layer slides or the rows do not exist.
    pub fn read_keys(&self, cache: &KvCache, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        cache.read_rows(Some(self), (il, true, g), first, out)
    }

    /// As [`KvCache::read_values`], without fetching twice what the host cannot address.
    ///
    /// # Errors
    /// When the layer slides or the rows do not exist.
    pub fn read_values(&self, cache: &KvCache, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        cache.read_rows(Some(self), (il, false, g), first, out)
    }
}

/// Rows of a tensor, dequantised.
fn read(t: &Tensor, first: usize, out: &mut [f32]) -> Result<()> {
    let dim = t.ne()[0];
    let (n, stride) = (out.len() / dim, t.ty().row_size(dim));
    let at = first * stride;
    let converted = match t.host_bytes() {
        Some(bytes) => t.ty().to_f32(&bytes[at..at + n * stride], out),
        None => {
            let mut bytes = vec![0u8; n * stride];
            t.read(at, &mut bytes)?;
            t.ty().to_f32(&bytes, out)
        }
    };
    match converted {
        true => Ok(()),
        false => Err(Error::unsupported("KV cache type", t.ty().name())),
    }
}
