//! OLMo 2 and 3: normalisation after each block instead of before, queries and keys normalised over all heads; OLMo 3 slides.
//!
//! Source: llama.cpp `src/models/olmo2.cpp`. Layers that slide rotate without YaRN, and a pass leaves them alone.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = olmo2`.
pub struct Arch;

/// Every fourth layer of OLMo 3 sees the whole context.
const SWA_PATTERN: u32 = 4;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "olmo2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        reader.sliding_window(&mut hp, SWA_PATTERN)?;
        for (rope, _) in hp.rope.iter_mut().zip(&hp.swa).filter(|(_, &swa)| swa) {
            (rope.freq_scale, rope.ext_factor, rope.attn_factor) = (1.0, 0.0, 1.0);
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            b.attn(l)?;
            b.row_norms(l)?;
            l.attn_post_norm = b.norm("post_attention_norm")?;
            l.ffn = b.ffn(Gate::Own)?;
            l.ffn_post_norm = b.norm("post_ffw_norm")?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
