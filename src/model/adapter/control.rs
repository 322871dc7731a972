//! Control vectors: a direction is added to the output of a layer.
//!
//! Source: representation engineering (arXiv 2310.01405); llama.cpp `common_control_vector_load`, `llama_adapter_cvec`.

use crate::error::{Error, Result};
use crate::ggml::{BufferType, Context, Mmap, Tensor, Type};
use crate::gguf::{GgmlType, Gguf};
use std::ops::RangeInclusive;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Directions in memory, by layer.
#[derive(Clone, Default)]
pub struct Control {
    /// Shapes: `{n_embd}`.
    layers: Vec<Option<Tensor>>,
    digest: u64,
}

impl Control {
    /// What is added behind layer `il`.
    pub fn direction(&self, il: usize) -> Option<&Tensor> {
        self.layers.get(il)?.as_ref()
    }

    /// A number for all directions; 0 without any.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

/// The sum of control vectors.
pub struct Directions {
    layers: Vec<Option<Vec<f32>>>,
    n_embd: usize,
}

impl Directions {
    /// No direction for any layer.
    pub fn new(n_layer: usize, n_embd: usize) -> Self {
        Directions { layers: vec![None; n_layer], n_embd }
    }

    /// Adds `scale` times the directions of a file: tensors `direction.1`, `direction.2`, .. for the layers of these numbers.
    ///
    /// # Errors
    /// When a tensor is something else, or does not fit the model.
    pub fn add_file(&mut self, path: &Path, scale: f32) -> Result<()> {
        let gguf = Gguf::open(path)?;
        let bad = |what: String| Error::gguf(path, what);
        if gguf.tensors().is_empty() {
            return Err(bad("the control vector has no directions".into()));
        }
        let maps = gguf.files().iter().map(|p| Mmap::open(p)).collect::<Result<Vec<_>>>()?;
        for t in gguf.tensors() {
            let il = t.name.strip_prefix("direction.").and_then(|n| n.parse::<usize>().ok());
            let n_layer = self.layers.len();
            let Some(il) = il.filter(|il| (1..n_layer).contains(il)) else {
                return Err(bad(format!("tensor '{}' is none of direction.1 to direction.{}", t.name, n_layer - 1)));
            };
            if t.ty != GgmlType::F32 || t.n_dims != 1 || t.ne[0] != self.n_embd as u64 {
                return Err(bad(format!(
                    "tensor '{}' is {:?} {}, expected [{}] f32; the control vector is of another model",
                    t.name,
                    &t.ne[..t.n_dims as usize],
                    t.ty.name(),
                    self.n_embd
                )));
            }
            let end = t.offset.saturating_add(t.n_bytes) as usize;
            let bytes = maps[t.file].bytes().get(t.offset as usize..end);
            let bytes = bytes.ok_or_else(|| bad("the file has become shorter".into()))?;
            let sum = self.layers[il].get_or_insert_with(|| vec![0.0; self.n_embd]);
            for (x, b) in sum.iter_mut().zip(bytes.chunks_exact(4)) {
                *x += scale * f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Ok(())
    }

    /// The directions of the layers in `range`, where the graph finds them.
    pub(super) fn into_control(self, range: RangeInclusive<usize>) -> Result<Control> {
        let ctx = Context::new(self.layers.len() + 2, 0)?;
        let mut layers = vec![None; self.layers.len()];
        let (mut all, mut data) = (Vec::new(), Vec::new());
        for (il, direction) in self.layers.into_iter().enumerate() {
            let Some(direction) = direction.filter(|_| range.contains(&il)) else { continue };
            let bytes: Vec<u8> = direction.iter().flat_map(|x| x.to_le_bytes()).collect();
            let t = ctx.tensor(Type::F32, &[self.n_embd])?.named(&format!("control-{il}"));
            all.extend((il as u64).to_le_bytes());
            all.extend(&bytes);
            data.push((t.clone(), bytes));
            layers[il] = Some(t);
        }
        if data.is_empty() {
            return Ok(Control::default());
        }
        ctx.allocate(BufferType::cpu())?;
        for (t, bytes) in data {
            t.write(0, &bytes)?;
        }
        Ok(Control { layers, digest: xxh3_64(&all) })
    }
}
