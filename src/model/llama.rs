//! Llama and the many models of its shape: Mistral, SmolLM2, Yi, Mixtral with its experts, ..
//!
//! Source: llama.cpp `src/models/llama.cpp`. A pass turns keys back by the layer's rotation, divisors of frequencies included.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = llama`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Normal)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            match hp.routing.n_expert {
                0 => l.ffn = b.ffn(Gate::Own)?,
                _ => l.experts = b.experts()?,
            }
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
