//! Qwen3: llama's graph with normalised queries and keys, and paired halves in the rotation. Source: llama.cpp `src/models/qwen3.cpp`.

use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = qwen3`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let mut w = llama::Arch.weights(loader, hp)?;
        for (il, l) in w.layers.iter_mut().enumerate() {
            l.load_qk_norm(loader, hp, il)?;
        }
        Ok(w)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        llama::Arch.graph(b)
    }
}
