//! Falcon: one matrix for q, k, v, blocks side by side; the 40B model has a norm for each of them.
//!
//! Source: llama.cpp `src/models/falcon.cpp`.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = falcon`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "falcon"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            l.attn_norm_2 = b.optional_norm("attn_norm_2")?;
            b.attn(l)?;
            l.ffn = b.ffn(Gate::None)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::Gelu, parallel: true })
    }
}
