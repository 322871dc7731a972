//! Reading a dense cache from the host: what a compression method sees (`view::Source`).

use super::{KvCache, Layout};
use crate::error::{Error, Result};
use crate::ggml::Tensor;

impl KvCache {
    /// Keys of a head of a dense layer, dequantised. Shapes: `out: {head_dim_k, n}` for the tokens from `first` on.
    ///
    /// # Errors
    /// When the layer is not dense or the rows do not exist.
    pub fn read_keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.read_rows(il, &self.layers[il].k, g, first, out)
    }

    /// Values of a head of a dense layer, as [`KvCache::read_keys`].
    ///
    /// # Errors
    /// When the layer is not dense or the rows do not exist.
    pub fn read_values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.read_rows(il, &self.layers[il].v, g, first, out)
    }

    fn read_rows(&self, il: usize, t: &Tensor, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        let dim = t.ne()[0];
        let n = out.len() / dim;
        if self.layers[il].layout != Layout::Dense || g >= self.n_head_kv || first + n > self.options.n_ctx {
            return Err(Error::shape(
                format!("reading layer {il} of the cache"),
                "rows of a dense layer",
                format!("head {g}, tokens {first}+{n}"),
            ));
        }
        let stride = t.ty().row_size(dim);
        let at = (g * self.options.n_ctx + first) * stride;
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
}
