//! InternLM2: llama's graph. Source: llama.cpp `src/models/internlm2.cpp`.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = internlm2`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "internlm2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Normal)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        llama::Arch.weights(loader, hp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
