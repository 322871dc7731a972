//! Qwen3 with experts: normalised queries and keys, weights of the chosen experts normalised.
//!
//! Source: llama.cpp `src/models/qwen3moe.cpp`. A pass touches attention only; experts do not matter to it.

use super::blocks::Decoder;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = qwen3moe`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "qwen3moe"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.routing.require(reader)?;
        reader.divide_width(&mut hp.routing);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.head_norms(l, false, true)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.experts = b.experts()?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
