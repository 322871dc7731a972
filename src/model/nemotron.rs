//! Nemotron-4 and Minitron: layer normalisation, squared ReLU without gate, partial rotation.
//!
//! Source: llama.cpp `src/models/nemotron.cpp`. A pass turns back the rotated part of a key; the rest has no position.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = nemotron`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "nemotron"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::plain(loader, hp, Gate::None)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::ReluSqr, ..Decoder::default() })
    }
}
