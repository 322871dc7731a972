//! Gemma 3: sliding-window layers with a rotation base of their own, normalised queries and keys, normalisation after each block.
//!
//! Source: llama.cpp `src/models/gemma3.cpp`. A pass leaves the layers that slide alone: they hold their window only.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gemma3`.
pub struct Arch;

/// Every sixth layer sees the whole context.
const SWA_PATTERN: u32 = 6;
/// Layers of the 27B model, whose attention scale is that of its width, not of its heads.
const N_LAYER_27B: usize = 62;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.embd_scale = (hp.n_embd as f32).sqrt();
        hp.final_softcap = reader.f32("final_logit_softcapping")?.unwrap_or(0.0);
        let width = if hp.n_layer == N_LAYER_27B { hp.n_embd / hp.n_head } else { hp.head_dim_k };
        (hp.q_scale, hp.kq_scale) = (1.0 / (width as f32).sqrt(), 1.0);
        reader.sliding_window(&mut hp, SWA_PATTERN)?;
        let base = reader.f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
        for (rope, _) in hp.rope.iter_mut().zip(&hp.swa).filter(|(_, &swa)| swa) {
            rope.freq_base = base;
            rope.freq_scale = 1.0;
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.head_norms(l, false, true)?;
            l.attn_post_norm = b.norm("post_attention_norm")?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.ffn = b.ffn(Gate::Own)?;
            l.ffn_post_norm = b.norm("post_ffw_norm")?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { act: Act::Gelu, ..Decoder::default() })
    }
}
