//! Llama and the many models of its shape (Mistral, SmolLM2, ..). Source: llama.cpp `src/models/llama.cpp`.

use super::{Architecture, Build, Hparams, Layer, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::{Error, Result};
use crate::ggml::Act;

/// `general.architecture = llama`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        if let Some(n) = reader.u32("expert_count")?.filter(|&n| n > 0) {
            return Err(Error::unsupported("model", format!("llama with {n} experts")));
        }
        reader.base(RopeKind::Normal)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let mut w = Weights::base(loader, hp)?;
        for (il, l) in w.layers.iter_mut().enumerate() {
            l.load_attn(loader, hp, il)?;
            l.load_ffn(loader, hp, il)?;
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
            let Some(cur) = b.attn(il, &q, &k, &v, &l)? else { return Ok(()) };
            let (cur, skip) = b.select_out(il, cur, inp)?;
            let ffn_inp = b.ctx.add(&cur, &skip)?.named(&format!("ffn_inp-{il}"));
            let x = b.rms_norm(&ffn_inp, b.need(&l.ffn_norm, "ffn_norm")?)?;
            inp = b.ctx.add(&b.ffn(&x, &l, Act::Silu)?, &ffn_inp)?;
            inp = b.layer_out(il, inp)?;
        }
        b.output(&inp)
    }
}
