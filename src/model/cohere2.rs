//! Command R7B and A: command-r's block; three of four layers slide and rotate, the fourth sees all and does not rotate.
//!
//! Source: llama.cpp `src/models/cohere2.cpp`. So what a pass compresses are keys without positions: nothing is turned back.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = cohere2`.
pub struct Arch;

/// Every fourth layer sees the whole context.
const SWA_PATTERN: u32 = 4;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "cohere2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.logit_scale = reader.f32("logit_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
        reader.sliding_window(&mut hp, SWA_PATTERN)?;
        let global = hp.rope.iter_mut().zip(&hp.swa).filter(|(_, &swa)| !swa);
        global.for_each(|(rope, _)| rope.kind = RopeKind::None);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn = b.ffn(Gate::Own)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, parallel: true, ..Decoder::default() })
    }
}
