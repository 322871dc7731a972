//! StarCoder2: layer normalisation, biases everywhere, no gate. Source: llama.cpp `src/models/starcoder2.cpp`.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = starcoder2`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "starcoder2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::plain(loader, hp, Gate::None)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::Gelu, ..Decoder::default() })
    }
}
