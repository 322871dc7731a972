//! GPT-NeoX and Pythia: one matrix for q, k, v, partial rotation, blocks side by side or one after the other.
//!
//! Source: llama.cpp `src/models/gptneox.cpp`. A pass turns back the rotated part of a key; the rest has no position.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gptneox`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gptneox"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.parallel = reader.flag("use_parallel_residual")?.unwrap_or(true);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::plain(loader, hp, Gate::None)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::Gelu, parallel: b.model.hp.parallel })
    }
}
