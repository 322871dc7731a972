//! Hands out the tensors of a model file, each checked against the shape that its architecture expects (stage 3 of the flow).
//!
//! A weight stays in the mapped file unless it is a device's (`offload`), or its type multiplies faster from one of the CPU's
//! extra buffer types (`placement`).

use super::check;
use super::hparams::Reader;
use super::offload::Offload;
use super::placement::Placement;
use super::rotation::RopeOptions;
use super::weight_file::WeightFile;
use super::weights::{Linear, Norm};
use crate::error::{Error, Result};
use crate::ggml::{Buffer, BufferType, Context, Tensor, Type};
use crate::gguf::{Gguf, TensorInfo};
use std::collections::HashMap;

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
    files: Vec<WeightFile<'a>>,
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
    /// Each with its file and where it starts there.
    tensors: Vec<(Tensor, usize, u64)>,
}

impl<'a> Loader<'a> {
    /// Opens all files of a model.
    ///
    /// # Errors
    /// When a file cannot be opened or mapped, or ends before its tensors do.
    pub fn new(gguf: &'a Gguf, options: LoadOptions) -> Result<Loader<'a>> {
        let mut files = gguf.files().iter().map(|p| WeightFile::open(p)).collect::<Result<Vec<_>>>()?;
        let sizes = files.iter().map(WeightFile::size).collect::<Result<Vec<_>>>()?;
        for info in gguf.tensors() {
            let (end, size) = (info.offset.checked_add(info.n_bytes), sizes[info.file]);
            if end.is_none_or(|end| end > size) {
                return Err(Error::gguf(
                    files[info.file].path(),
                    format!("tensor '{}' ends at byte {end:?}, the file has {size}", info.name),
                ));
            }
        }
        if options.check_tensors {
            check::check_finite(gguf)?;
        }
        if options.mlock {
            for file in &mut files {
                file.map()?.lock()?;
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

    /// A matrix (several behind each other where `ne` has three numbers), and scale and bias beside it, which may be missing.
    ///
    /// # Errors
    /// As [`Loader::tensor`].
    pub fn linear(&mut self, name: &str, ne: &[usize]) -> Result<Linear> {
        let w = self.tensor(&format!("{name}.weight"), ne)?;
        let scale = self.optional(&format!("{name}.scale"), &[ne.get(2).copied().unwrap_or(1)])?;
        Ok(Linear { w, scale, b: self.optional(&format!("{name}.bias"), &ne[1..])? })
    }

    /// A normalisation and the bias beside it, which may be missing.
    ///
    /// # Errors
    /// As [`Loader::tensor`].
    pub fn norm(&mut self, name: &str, ne: &[usize]) -> Result<Norm> {
        let w = self.tensor(&format!("{name}.weight"), ne)?;
        Ok(Norm { w, b: self.optional(&format!("{name}.bias"), ne)? })
    }

    /// A reader of the metadata, for numbers that only the tensors depend on.
    pub fn reader(&self) -> Reader<'a> {
        Reader::new(self.gguf, self.options.rope)
    }

    /// Whether the files have a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
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
        let ty = Type::from_id(info.ty.id()).filter(|ty| ty.multiplies()).ok_or_else(|| {
            let what = format!("tensor '{name}' is of type {}, which holds no weights", info.ty.name());
            Error::gguf(&self.gguf.files()[info.file], what)
        })?;
        let home = if use_ == Use::TiedOutput { "output.weight" } else { name };
        let device = self.options.offload.choose(home, ty, ne);
        // Experts are multiplied by another operation, which the extra types do not all have.
        let repacked = || if use_ == Use::Rows || ne.len() != 2 { None } else { self.placement.choose(ty, ne) };
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
                let buffer = Buffer::from_mmap(self.files[info.file].map()?)?;
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
        slot.tensors.push((t.clone(), info.file, info.offset));
        Ok(t)
    }

    /// Fills the tensors that have memory of their own, and tells by which choice they have it.
    ///
    /// # Errors
    /// When the memory cannot be had, or a file cannot be read.
    pub fn finish(mut self) -> Result<Placement> {
        let mut buffer = Vec::new();
        for copied in self.copied.into_values() {
            copied.ctx.allocate(copied.buft)?;
            copied.ctx.set_weights();
            // Memory that the host cannot address may change the layout of a tensor, and takes it whole.
            let whole = !copied.buft.is_host();
            for (t, file, offset) in copied.tensors {
                self.files[file].read(&t, offset, whole, &mut buffer)?;
            }
        }
        Ok(self.placement)
    }
}
