//! gpt-oss: attention sinks, every other layer slides, experts in MXFP4 with biases and a clipped gate.
//!
//! Source: llama.cpp `src/models/openai-moe.cpp`. A sink is a logit that only the denominator of the softmax has. It stays
//! there in a pass: entries keep their sums of exponentials, the sink its own, and where a probe gives much to the sink, the
//! fit counts that probe less. The layers that slide are left alone.

use super::blocks::Decoder;
use super::{Architecture, Build, Gating, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gpt-oss`.
pub struct Arch;

/// Every second layer sees the whole context.
const SWA_PATTERN: u32 = 2;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gpt-oss"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.routing.require(reader)?;
        (hp.routing.gating, hp.routing.normalise) = (Gating::SoftmaxOfChosen, false);
        reader.sliding_window(&mut hp, SWA_PATTERN)?;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.attn_sinks = b.sinks()?;
            l.ffn_norm = b.norm("post_attention_norm")?;
            l.experts = b.experts()?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { act: Act::SwigluOai, ..Decoder::default() })
    }
}
