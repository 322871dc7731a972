//! Granite with experts, some with a shared one: granite's scales and llama's graph.
//!
//! Source: llama.cpp `src/models/granite-moe.cpp`. A pass touches attention only; experts do not matter to it.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = granitemoe`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "granitemoe"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        reader.granite_scales(&mut hp)?;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        llama::Arch.weights(loader, hp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
