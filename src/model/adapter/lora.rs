//! Low-rank adapters: `W x + s B (A x)` for every weight `W` that has a pair, `s = scale * alpha / rank`.
//!
//! Source: LoRA (arXiv 2106.09685); llama.cpp `src/llama-adapter.cpp`, `build_lora_mm` and `build_inp_embd`.
//! Deviations: an adapter of token embeddings changes the embeddings only where the output matrix is tied to them (llama.cpp
//! aborts); adapters that begin at a token of the prompt (aLoRA) are refused.

use crate::error::{Error, Result};
use crate::ggml::{BufferType, Context, Mmap, Tensor, Type};
use crate::gguf::{Gguf, TensorInfo};
use crate::model::Model;
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3Default;

/// The tensor whose rows are read, not multiplied.
const TOKEN_EMBD: &str = "token_embd.weight";

/// A loaded adapter.
#[derive(Clone)]
pub struct Lora {
    pairs: BTreeMap<String, Pair>,
    digest: u64,
}

/// The two factors of one weight.
#[derive(Clone)]
pub struct Pair {
    /// Shapes: `{n_in, rank}`; of token embeddings `{rank, n_vocab}`.
    pub a: Tensor,
    /// Shapes: `{rank, n_out}`; of token embeddings `{rank, n_embd}`.
    pub b: Tensor,
    /// Factor on the product.
    pub scale: f32,
}

impl Lora {
    /// Reads the adapter at `path` for `model`.
    pub(super) fn load(model: &Model, path: &Path, scale: f32) -> Result<Lora> {
        let gguf = Gguf::open(path)?;
        let alpha = check_metadata(&gguf, model)?;
        let mut found: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
        for t in gguf.tensors() {
            let (name, side) = match (t.name.strip_suffix(".lora_a"), t.name.strip_suffix(".lora_b")) {
                (Some(name), _) => (name, 0),
                (_, Some(name)) => (name, 1),
                // Trained norms beside an adapter are left out, as in llama.cpp.
                _ if t.name.ends_with("_norm.weight") => continue,
                _ => return Err(bad(&gguf, format!("tensor '{}' is neither a .lora_a nor a .lora_b", t.name))),
            };
            found.entry(name).or_default()[side] = Some(t);
        }
        if found.is_empty() {
            return Err(bad(&gguf, "the adapter has no tensors"));
        }
        let ctx = Context::new(found.len() * 2 + 2, 0)?;
        let (mut pairs, mut data) = (BTreeMap::new(), Vec::new());
        for (name, sides) in found {
            let [Some(a), Some(b)] = sides else {
                return Err(bad(&gguf, format!("the pair of '{name}' lacks its .lora_a or .lora_b")));
            };
            check_shapes(&gguf, model, name, a, b)?;
            let tensor = |info: &TensorInfo| -> Result<Tensor> {
                let ty = Type::from_id(info.ty.id()).filter(|ty| ty.multiplies()).ok_or_else(|| {
                    let what = format!("tensor '{}' is of type {}", info.name, info.ty.name());
                    bad(&gguf, what + ", which holds no weights")
                })?;
                Ok(ctx.tensor(ty, &[info.ne[0] as usize, info.ne[1] as usize])?.named(&info.name))
            };
            let rank = b.ne[0] as f32;
            let scale = if alpha == 0.0 { scale } else { scale * alpha / rank };
            let pair = Pair { a: tensor(a)?, b: tensor(b)?, scale };
            data.extend([(pair.a.clone(), a), (pair.b.clone(), b)]);
            pairs.insert(name.to_owned(), pair);
        }
        ctx.allocate(BufferType::cpu())?;
        ctx.set_weights();
        let maps = gguf.files().iter().map(|p| Mmap::open(p)).collect::<Result<Vec<_>>>()?;
        let mut hash = Xxh3Default::new();
        hash.update(&[scale.to_le_bytes(), alpha.to_le_bytes()].concat());
        for (t, info) in data {
            let bytes = maps[info.file].bytes();
            let end = info.offset.saturating_add(info.n_bytes) as usize;
            let bytes =
                bytes.get(info.offset as usize..end).ok_or_else(|| bad(&gguf, "the file has become shorter"))?;
            hash.update(info.name.as_bytes());
            hash.update(bytes);
            t.write(0, bytes)?;
        }
        Ok(Lora { pairs, digest: hash.digest() })
    }

    /// The factors for a weight.
    pub fn pair(&self, weight: &str) -> Option<&Pair> {
        self.pairs.get(weight)
    }

    /// Weights that are changed.
    pub fn n_weights(&self) -> usize {
        self.pairs.len()
    }

    /// A number for what the adapter computes.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Adds the product of the factors to a weight in `f32`. Shapes: `w: {n_in, n_out}`.
    ///
    /// # Errors
    /// When the factors cannot be read.
    pub fn merge_into(&self, weight: &str, w: &mut [f32]) -> Result<()> {
        let Some(pair) = self.pairs.get(weight) else { return Ok(()) };
        let (a, b) = (floats(&pair.a)?, floats(&pair.b)?);
        let ([n_in, rank], is_embd) = ([pair.a.ne()[0], pair.b.ne()[0]], weight == TOKEN_EMBD);
        if is_embd {
            // Every row of the table is a token: its factors are one row of `a` and all of `b`.
            let n_embd = pair.b.ne()[1];
            for (row, a) in w.chunks_exact_mut(n_embd).zip(a.chunks_exact(rank)) {
                for (x, b) in row.iter_mut().zip(b.chunks_exact(rank)) {
                    *x += pair.scale * a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
                }
            }
            return Ok(());
        }
        for (row, b) in w.chunks_exact_mut(n_in).zip(b.chunks_exact(rank)) {
            for (a, b) in a.chunks_exact(n_in).zip(b) {
                row.iter_mut().zip(a).for_each(|(x, a)| *x += pair.scale * b * a);
            }
        }
        Ok(())
    }
}

/// Checks what the file says about itself; gives `adapter.lora.alpha`, 0 when it says none.
fn check_metadata(gguf: &Gguf, model: &Model) -> Result<f32> {
    let found = |key: &str| -> Result<String> { Ok(gguf.str(key)?.unwrap_or("missing").to_owned()) };
    for (key, want) in
        [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", model.gguf.architecture())]
    {
        let got = found(key)?;
        if got != want {
            return Err(bad(gguf, format!("{key} is '{got}', a LoRA adapter for this model has '{want}'")));
        }
    }
    if gguf.value("adapter.alora.invocation_tokens").is_some() {
        return Err(Error::unsupported("adapter", "one that begins at invocation tokens (aLoRA)"));
    }
    match gguf.f32("adapter.lora.alpha")?.unwrap_or(0.0) {
        alpha if alpha.is_finite() => Ok(alpha),
        alpha => Err(bad(gguf, format!("adapter.lora.alpha is {alpha}"))),
    }
}

/// Checks a pair against the weight that it changes.
fn check_shapes(gguf: &Gguf, model: &Model, name: &str, a: &TensorInfo, b: &TensorInfo) -> Result<()> {
    let Some(base) = model.gguf.tensor(name) else {
        return Err(bad(gguf, format!("the model has no tensor '{name}'; the adapter is of another one")));
    };
    let two = |t: &TensorInfo| t.ne[2..] == [1, 1];
    let fits = match name == TOKEN_EMBD {
        true => base.ne[0] == b.ne[1] && base.ne[1] == a.ne[1] && a.ne[0] == b.ne[0],
        false => base.ne[0] == a.ne[0] && base.ne[1] == b.ne[1] && a.ne[1] == b.ne[0],
    };
    if base.n_dims != 2 || !two(base) || !two(a) || !two(b) || !fits {
        return Err(bad(
            gguf,
            format!(
                "'{name}' is {:?} in the model, the adapter's factors are {:?} and {:?}; it is of another model",
                &base.ne[..2],
                &a.ne[..2],
                &b.ne[..2]
            ),
        ));
    }
    Ok(())
}

fn bad(gguf: &Gguf, what: impl Into<String>) -> Error {
    Error::gguf(gguf.path(), what)
}

/// All elements of a tensor in memory.
fn floats(t: &Tensor) -> Result<Vec<f32>> {
    let mut bytes = vec![0u8; t.n_bytes()];
    t.read(0, &mut bytes)?;
    let mut out = vec![0.0; t.n_elements()];
    match t.ty().to_f32(&bytes, &mut out) {
        true => Ok(out),
        false => Err(Error::unsupported("tensor type", t.ty().name())),
    }
}
