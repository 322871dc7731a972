//! OLMoE: queries and keys normalised over all heads, weights of experts not normalised.
//!
//! Source: llama.cpp `src/models/olmoe.cpp`. A pass touches attention only; experts do not matter to it.

use super::blocks::Decoder;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = olmoe`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "olmoe"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.routing.require(reader)?;
        hp.routing.normalise = false;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.row_norms(l)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.experts = b.experts()?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
