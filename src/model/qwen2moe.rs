//! Qwen1.5-MoE and Qwen2-MoE: weights of experts not normalised, and a shared expert with a gate of its own.
//!
//! Source: llama.cpp `src/models/qwen2moe.cpp`. A pass touches attention only; experts do not matter to it.

use super::blocks::Decoder;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = qwen2moe`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "qwen2moe"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.routing.require(reader)?;
        reader.divide_width(&mut hp.routing);
        hp.routing.normalise = false;
        if hp.routing.n_ff_shared == 0 {
            hp.routing.n_ff_shared = hp.n_ff;
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.experts = b.experts()?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
