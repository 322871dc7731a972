//! A file of a model: mapped where its weights stay in it, read where they are copied (stage 3 of the flow).
//!
//! What is copied is not mapped, so that no weight is in memory twice while a model loads. Source: `load_all_data` of
//! llama-model-loader.cpp, which copies from the mapping where there is one.

use crate::error::{Error, Result};
use crate::ggml::{Mmap, Tensor};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// What is read at a time into memory that takes a tensor in pieces. Units: bytes.
const PIECE: usize = 1 << 20;

/// An open file with weights.
pub(super) struct WeightFile<'a> {
    path: &'a Path,
    file: File,
    map: Option<Arc<Mmap>>,
}

impl<'a> WeightFile<'a> {
    /// Opens the file.
    pub(super) fn open(path: &'a Path) -> Result<WeightFile<'a>> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        Ok(WeightFile { path, file, map: None })
    }

    /// Its path.
    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| Error::io(self.path, e))
    }

    /// Its mapping, made when first asked for.
    pub(super) fn map(&mut self) -> Result<Arc<Mmap>> {
        let map = match self.map.take() {
            Some(map) => map,
            None => Arc::new(Mmap::open(self.path)?),
        };
        Ok(self.map.insert(map).clone())
    }

    /// Reads the weights of `t` from byte `offset` on into its memory, which takes them `whole` or in pieces; `buffer` is
    /// for what lies between, and can serve the next tensor.
    pub(super) fn read(&mut self, t: &Tensor, offset: u64, whole: bool, buffer: &mut Vec<u8>) -> Result<()> {
        let failed = |e| Error::io(self.path, e);
        let n_bytes = t.n_bytes();
        let piece = if whole { n_bytes } else { PIECE.min(n_bytes) };
        if buffer.len() < piece {
            buffer.resize(piece, 0);
        }
        self.file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        for start in (0..n_bytes).step_by(piece) {
            let part = &mut buffer[..piece.min(n_bytes - start)];
            self.file.read_exact(part).map_err(failed)?;
            t.write(start, part)?;
        }
        Ok(())
    }
}
