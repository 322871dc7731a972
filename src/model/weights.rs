//! Weights: from the mapped file to tensors, each checked against the shape its architecture expects (stage 3 of the flow).
//!
//! A weight stays in the mapped file unless it is a device's (`offload`), or its type multiplies faster from one of the CPU's
//! extra buffer types (`placement`).

use super::check;
use super::hparams::Hparams;
use super::offload::Offload;
use super::placement::Placement;
use super::rotation::RopeOptions;
use crate::error::{Error, Result};
use crate::ggml::{Buffer, BufferType, Context, Mmap, Tensor, Type};
use crate::gguf::{Gguf, TensorInfo};
use std::collections::HashMap;
use std::sync::Arc;

/// Tensors of one layer; `None` where the architecture has none. Names as in llama.cpp (`llama_layer`).
#[derive(Clone, Default)]
#[allow(missing_docs)]
pub struct Layer {
    pub attn_norm: Option<Tensor>,
    pub wq: Option<Tensor>,
    pub wk: Option<Tensor>,
    pub wv: Option<Tensor>,
    pub wo: Option<Tensor>,
    pub bq: Option<Tensor>,
    pub bk: Option<Tensor>,
    pub bv: Option<Tensor>,
    pub bo: Option<Tensor>,
    pub attn_q_norm: Option<Tensor>,
    pub attn_k_norm: Option<Tensor>,
    pub attn_post_norm: Option<Tensor>,
    pub ffn_norm: Option<Tensor>,
    pub ffn_gate: Option<Tensor>,
    pub ffn_up: Option<Tensor>,
    pub ffn_down: Option<Tensor>,
    pub ffn_gate_b: Option<Tensor>,
    pub ffn_up_b: Option<Tensor>,
    pub ffn_down_b: Option<Tensor>,
    pub ffn_post_norm: Option<Tensor>,
}

/// All tensors of a model.
#[derive(Clone)]
pub struct Weights {
    /// Token embeddings. Shapes: `{n_embd, n_vocab}`.
    pub tok_embd: Tensor,
    /// Final normalisation. Shapes: `{n_embd}`.
    pub output_norm: Tensor,
    /// Output matrix, the token embeddings where they are tied. Shapes: `{n_embd, n_vocab}`.
    pub output: Tensor,
    /// Frequency divisors of the rotation. Shapes: `{n_rot / 2}`.
    pub rope_freqs: Option<Tensor>,
    /// One per layer.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// What every decoder has outside its layers; the layers are empty. Tied embeddings serve as output matrix.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn base(loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let table = [hp.n_embd, hp.n_vocab];
        let output = match loader.optional("output.weight", &table)? {
            Some(t) => t,
            None => loader.tied_output(&table)?,
        };
        let n_rot = hp.rope.first().map_or(0, |r| r.n_rot);
        Ok(Weights {
            tok_embd: loader.tensor("token_embd.weight", &table)?,
            output_norm: loader.tensor("output_norm.weight", &[hp.n_embd])?,
            output,
            rope_freqs: loader.optional("rope_freqs.weight", &[n_rot / 2])?,
            layers: vec![Layer::default(); hp.n_layer],
        })
    }
}

impl Layer {
    /// Normalisation, projections and their optional biases.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load_attn(&mut self, loader: &mut Loader, hp: &Hparams, il: usize) -> Result<()> {
        let (nq, nk, nv) = (hp.head_dim_k * hp.n_head, hp.head_dim_k * hp.n_head_kv, hp.head_dim_v * hp.n_head_kv);
        let (n_embd, n_out) = (hp.n_embd, hp.head_dim_v * hp.n_head);
        let name = |what: &str| format!("blk.{il}.{what}");
        self.attn_norm = Some(loader.tensor(&name("attn_norm.weight"), &[n_embd])?);
        self.wq = Some(loader.tensor(&name("attn_q.weight"), &[n_embd, nq])?);
        self.wk = Some(loader.tensor(&name("attn_k.weight"), &[n_embd, nk])?);
        self.wv = Some(loader.tensor(&name("attn_v.weight"), &[n_embd, nv])?);
        self.wo = Some(loader.tensor(&name("attn_output.weight"), &[n_out, n_embd])?);
        self.bq = loader.optional(&name("attn_q.bias"), &[nq])?;
        self.bk = loader.optional(&name("attn_k.bias"), &[nk])?;
        self.bv = loader.optional(&name("attn_v.bias"), &[nv])?;
        self.bo = loader.optional(&name("attn_output.bias"), &[n_embd])?;
        Ok(())
    }

    /// Normalisation of queries and keys, over a head.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load_qk_norm(&mut self, loader: &mut Loader, hp: &Hparams, il: usize) -> Result<()> {
        self.attn_q_norm = Some(loader.tensor(&format!("blk.{il}.attn_q_norm.weight"), &[hp.head_dim_k])?);
        self.attn_k_norm = Some(loader.tensor(&format!("blk.{il}.attn_k_norm.weight"), &[hp.head_dim_k])?);
        Ok(())
    }

    /// Gated feed-forward network with its normalisation and optional biases.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load_ffn(&mut self, loader: &mut Loader, hp: &Hparams, il: usize) -> Result<()> {
        let (n_embd, n_ff) = (hp.n_embd, hp.n_ff);
        let name = |what: &str| format!("blk.{il}.{what}");
        self.ffn_norm = Some(loader.tensor(&name("ffn_norm.weight"), &[n_embd])?);
        self.ffn_gate = Some(loader.tensor(&name("ffn_gate.weight"), &[n_embd, n_ff])?);
        self.ffn_up = Some(loader.tensor(&name("ffn_up.weight"), &[n_embd, n_ff])?);
        self.ffn_down = Some(loader.tensor(&name("ffn_down.weight"), &[n_ff, n_embd])?);
        self.ffn_gate_b = loader.optional(&name("ffn_gate.bias"), &[n_ff])?;
        self.ffn_up_b = loader.optional(&name("ffn_up.bias"), &[n_ff])?;
        self.ffn_down_b = loader.optional(&name("ffn_down.bias"), &[n_embd])?;
        Ok(())
    }
}

/// How the files get into memory.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Map the file instead of reading it.
    pub mmap: bool,
    /// Keep the mapped file in memory.
    pub mlock: bool,
    /// Use the CPU's extra buffer types where they are faster.
    pub repack: bool,
    /// Look at every value of every tensor and refuse those that are not finite.
    pub check_tensors: bool,
    /// What is changed about the rotation.
    pub rope: RopeOptions,
    /// Which layers leave the CPU.
    pub offload: Offload,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            mmap: true,
            mlock: false,
            repack: true,
            check_tensors: false,
            rope: RopeOptions::default(),
            offload: Offload::default(),
        }
    }
}

/// Hands out tensors and remembers where their bytes have to go.
pub struct Loader<'a> {
    gguf: &'a Gguf,
    files: Vec<Arc<Mmap>>,
    options: LoadOptions,
    placement: Placement,
    mapped: Vec<Option<Context>>,
    copied: HashMap<&'static str, Copied>,
    by_name: HashMap<(String, Use), Tensor>,
}

/// What a weight is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Use {
    /// Read row by row (embeddings), which the extra buffer types cannot do.
    Rows,
    /// Multiplied with.
    Product,
    /// Embeddings, multiplied with as output matrix.
    TiedOutput,
}

/// Tensors that get memory of their own.
struct Copied {
    ctx: Context,
    buft: BufferType,
    tensors: Vec<(Tensor, usize, usize)>,
}

impl<'a> Loader<'a> {
    /// Opens all files of a model.
    ///
    /// # Errors
    /// When a file cannot be mapped.
    pub fn new(gguf: &'a Gguf, options: LoadOptions) -> Result<Loader<'a>> {
        let files = gguf.files().iter().map(|p| Mmap::open(p).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        for (info, file) in gguf.tensors().iter().map(|t| (t, &files[t.file])) {
            let end = info.offset.checked_add(info.n_bytes);
            if end.is_none_or(|end| end > file.bytes().len() as u64) {
                return Err(Error::gguf(
                    file.path(),
                    format!("tensor '{}' ends at byte {end:?}, the file has {}", info.name, file.bytes().len()),
                ));
            }
        }
        if options.check_tensors {
            check::check_finite(gguf, &files)?;
        }
        if options.mlock {
            for file in &files {
                file.lock()?;
            }
        }
        let mapped = vec![None; files.len()];
        let placement = Placement::new(options.repack);
        Ok(Loader { gguf, files, options, placement, mapped, copied: HashMap::new(), by_name: HashMap::new() })
    }

    /// A tensor that must exist and have this shape. Shapes: `ne`, innermost first.
    ///
    /// # Errors
    /// [`Error::Gguf`] naming the tensor when it is missing, [`Error::Shape`] when its shape differs.
    pub fn tensor(&mut self, name: &str, ne: &[usize]) -> Result<Tensor> {
        match self.optional(name, ne)? {
            Some(t) => Ok(t),
            None => Err(Error::gguf(self.gguf.path(), format!("tensor '{name}' is missing"))),
        }
    }

    /// A tensor that may be missing.
    ///
    /// # Errors
    /// When it exists with another shape.
    pub fn optional(&mut self, name: &str, ne: &[usize]) -> Result<Option<Tensor>> {
        self.fetch(name, ne, if name.ends_with("_embd.weight") { Use::Rows } else { Use::Product })
    }

    /// The token embeddings once more, as output matrix: that use may ask for another kind of memory.
    ///
    /// # Errors
    /// As [`Loader::tensor`].
    pub fn tied_output(&mut self, ne: &[usize]) -> Result<Tensor> {
        let name = "token_embd.weight";
        match self.fetch(name, ne, Use::TiedOutput)? {
            Some(t) => Ok(t),
            None => Err(Error::gguf(self.gguf.path(), format!("tensor '{name}' is missing"))),
        }
    }

    fn fetch(&mut self, name: &str, ne: &[usize], use_: Use) -> Result<Option<Tensor>> {
        if let Some(t) = self.by_name.get(&(name.to_owned(), use_)) {
            return Ok(Some(t.clone()));
        }
        let Some(info) = self.gguf.tensor(name) else { return Ok(None) };
        let mut want = [1u64; 4];
        for (slot, &n) in want.iter_mut().zip(ne) {
            *slot = n as u64;
        }
        if info.ne != want {
            return Err(Error::shape(
                format!("{}: tensor '{name}'", self.gguf.path().display()),
                format!("{want:?}"),
                format!("{:?}", info.ne),
            ));
        }
        let ty = Type::from_id(info.ty.id())
            .ok_or_else(|| Error::unsupported("tensor type", format!("{} of tensor '{name}'", info.ty.name())))?;
        let home = if use_ == Use::TiedOutput { "output.weight" } else { name };
        let device = self.options.offload.choose(home, ty, ne);
        let repacked = || if use_ == Use::Rows || ne.len() < 2 { None } else { self.placement.choose(ty, ne) };
        let buft = device.or_else(repacked);
        if use_ == Use::TiedOutput && buft.is_none() {
            return self.fetch(name, ne, Use::Rows);
        }
        let t = match buft {
            Some(buft) => self.copy(info, ty, ne, buft)?,
            None if self.options.mmap && info.offset % BufferType::cpu().alignment() as u64 == 0 => {
                self.map(info, ty, ne)?
            }
            None => self.copy(info, ty, ne, BufferType::cpu())?,
        };
        self.by_name.insert((name.to_owned(), use_), t.clone());
        Ok(Some(t))
    }

    fn map(&mut self, info: &TensorInfo, ty: Type, ne: &[usize]) -> Result<Tensor> {
        let slot = &mut self.mapped[info.file];
        let ctx = match slot {
            Some(ctx) => ctx.clone(),
            None => {
                let ctx = Context::new(self.gguf.tensors().len() * 2 + 8, 0)?;
                let buffer = Buffer::from_mmap(self.files[info.file].clone())?;
                buffer.set_weights();
                ctx.own_buffer(buffer);
                slot.insert(ctx).clone()
            }
        };
        let t = ctx.tensor(ty, ne)?.named(&info.name);
        ctx.place(&t, 0, info.offset as usize)?;
        Ok(t)
    }

    fn copy(&mut self, info: &TensorInfo, ty: Type, ne: &[usize], buft: BufferType) -> Result<Tensor> {
        let n = self.gguf.tensors().len() * 2 + 8;
        let slot = match self.copied.entry(buft.name()) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(Copied { ctx: Context::new(n, 0)?, buft, tensors: Vec::new() })
            }
        };
        let t = slot.ctx.tensor(ty, ne)?.named(&info.name);
        slot.tensors.push((t.clone(), info.file, info.offset as usize));
        Ok(t)
    }

    /// Fills the tensors that have memory of their own.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn finish(self) -> Result<()> {
        for copied in self.copied.into_values() {
            copied.ctx.allocate(copied.buft)?;
            copied.ctx.set_weights();
            for (t, file, offset) in copied.tensors {
                t.write(0, &self.files[file].bytes()[offset..offset + t.n_bytes()])?;
            }
        }
        Ok(())
    }
}
