//! Phi-1.5 and Phi-2: attention and feed-forward network side by side, partial rotation, biases everywhere.
//!
//! Source: llama.cpp `src/models/phi2.cpp`. A pass turns back the rotated part of a key; the rest has no position.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = phi2`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "phi2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.scale_queries();
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn = b.ffn(Gate::None)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::Gelu, parallel: true })
    }
}
