//! Gemma 2: soft-capped logits, in attention and at the end; every other layer slides; normalisation after each block.
//!
//! Source: llama.cpp `src/models/gemma2.cpp`. In a pass the multiplicity of an entry is added after the cap, to what the cap
//! leaves of its logit, and fits are made to capped logits. The layers that slide are left alone.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gemma2`.
pub struct Arch;

/// Tokens that a sliding layer sees where the file does not say.
const N_SWA: usize = 4096;
/// Every second layer sees the whole context.
const SWA_PATTERN: u32 = 2;
/// Caps where the file does not say. Source: llama.cpp `llama_hparams`.
const ATTN_SOFTCAP: f32 = 50.0;
const FINAL_SOFTCAP: f32 = 30.0;
/// Layers of the 27B model, whose attention scale is that of its width, not of its heads.
const N_LAYER_27B: usize = 46;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gemma2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.embd_scale = (hp.n_embd as f32).sqrt();
        hp.attn_softcap = reader.f32("attn_logit_softcapping")?.unwrap_or(ATTN_SOFTCAP);
        hp.final_softcap = reader.f32("final_logit_softcapping")?.unwrap_or(FINAL_SOFTCAP);
        let width = if hp.n_layer == N_LAYER_27B { hp.n_embd / hp.n_head } else { hp.head_dim_k };
        (hp.q_scale, hp.kq_scale) = (1.0 / (width as f32).sqrt(), 1.0);
        hp.n_swa = N_SWA;
        reader.sliding_window(&mut hp, SWA_PATTERN)?;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
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
