//! Gemma 3: sliding-window layers with a rotation base of their own, normalised queries and keys, normalisation after each block.
//!
//! Source: llama.cpp `src/models/gemma3.cpp`.

use super::{Architecture, Build, Hparams, Layer, Loader, Reader, Weights};
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
        let mut w = Weights::base(loader, hp)?;
        for (il, l) in w.layers.iter_mut().enumerate() {
            l.load_attn(loader, hp, il)?;
            l.load_qk_norm(loader, hp, il)?;
            l.load_ffn(loader, hp, il)?;
            l.attn_post_norm = Some(loader.tensor(&format!("blk.{il}.post_attention_norm.weight"), &[hp.n_embd])?);
            l.ffn_post_norm = Some(loader.tensor(&format!("blk.{il}.post_ffw_norm.weight"), &[hp.n_embd])?);
        }
        Ok(w)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        let mut inp = b.embed()?;
        for il in 0..b.model.hp.n_layer {
            let l: Layer = b.layer(il);
            let x = b.rms_norm(&inp, b.need(&l.attn_norm, "attn_norm")?)?;
            let (q, k, v) = b.qkv(&x, &l)?;
            let (q, k) = b.qk_norm(q, k, &l)?;
            let (q, k) = (b.rope(&q, il)?.named(&format!("Qcur-{il}")), b.rope(&k, il)?.named(&format!("Kcur-{il}")));
            let q = b.ctx.scale(&q, b.model.hp.q_scale)?;
            let Some(cur) = b.attn(il, &q, &k, &v, &l)? else { return Ok(()) };
            let (cur, skip) = b.select_out(il, cur, inp)?;
            let cur = b.rms_norm(&cur, b.need(&l.attn_post_norm, "post_attention_norm")?)?;
            let sa_out = b.ctx.add(&cur, &skip)?.named(&format!("sa_out-{il}"));
            let x = b.rms_norm(&sa_out, b.need(&l.ffn_norm, "ffn_norm")?)?;
            let x = b.rms_norm(&b.ffn(&x, &l, Act::Gelu)?, b.need(&l.ffn_post_norm, "post_ffw_norm")?)?;
            inp = b.ctx.add(&x, &sa_out)?;
            inp = b.layer_out(il, inp)?;
        }
        b.output(&inp)
    }
}
