//! Qwen3: normalised queries and keys. Source: llama.cpp `src/models/qwen3.cpp`.

use super::{Architecture, Build, Hparams, Layer, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = qwen3`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let mut w = Weights::base(loader, hp)?;
        for (il, l) in w.layers.iter_mut().enumerate() {
            l.load_attn(loader, hp, il)?;
            l.load_qk_norm(loader, hp, il)?;
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
            let q = b.rms_norm(&q, b.need(&l.attn_q_norm, "attn_q_norm")?)?;
            let k = b.rms_norm(&k, b.need(&l.attn_k_norm, "attn_k_norm")?)?;
            let (q, k) = (b.rope(&q, il)?.named(&format!("Qcur-{il}")), b.rope(&k, il)?.named(&format!("Kcur-{il}")));
            let Some(cur) = b.attn(il, &q, &k, &v, &l)? else { return Ok(()) };
            let (cur, skip) = b.select_out(il, cur, inp)?;
            let ffn_inp = b.ctx.add(&cur, &skip)?.named(&format!("ffn_inp-{il}"));
            let x = b.rms_norm(&ffn_inp, b.need(&l.ffn_norm, "ffn_norm")?)?;
            inp = b.ctx.add(&b.ffn(&x, &l, Act::Silu)?, &ffn_inp)?.named(&format!("l_out-{il}"));
            b.tap_hidden(il, &inp)?;
        }
        b.output(&inp)
    }
}
