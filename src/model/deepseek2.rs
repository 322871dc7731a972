//! DeepSeek-V2, V3, R1 and relatives: multi-head latent attention, shared and chosen experts, choice among groups.
//!
//! Source: llama.cpp `src/models/deepseek2.cpp`. The cache holds one latent key and value per layer, the rotated part of the key
//! first. A pass compresses this one head: the rotated part is turned back, an entry's multiplicity counts for all query heads.
//! Files from before `attn_k_b` and `attn_v_b` are refused.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Gating, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::{Error, Result};

/// `general.architecture = deepseek2`.
pub struct Arch;

/// `expert_gating_func` of a sigmoid.
const SIGMOID: u32 = 2;
/// What the files have multiplied the weight of YaRN's magnitude by.
const LOG_MUL_UNIT: f32 = 0.1;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "deepseek2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        if !reader.has("attention.key_length_mla") {
            return Err(Error::unsupported("model", "deepseek2 without attention.key_length_mla; convert it again"));
        }
        let mut hp = reader.base(RopeKind::Normal)?;
        let [dk, _] = head_dim(reader)?;
        let n_rot = hp.rope.first().map_or(0, |rope| rope.n_rot);
        if hp.n_head_kv != 1 || hp.head_dim_k != hp.head_dim_v + n_rot || dk <= n_rot {
            return Err(reader.bad("attention.key_length", "does not fit a latent and a rotated part"));
        }
        let r = &mut hp.routing;
        r.require(reader)?;
        r.n_ff_shared = r.n_ff * reader.within("expert_shared_count", 0, 64)?;
        r.scale = reader.f32("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
        r.normalise = reader.flag("expert_weights_norm")?.unwrap_or(false);
        if reader.u32("expert_gating_func")? == Some(SIGMOID) {
            r.gating = Gating::Sigmoid;
        }
        let log_mul = reader.f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0) / LOG_MUL_UNIT;
        for rope in hp.rope.iter_mut().filter(|rope| rope.ext_factor != 0.0 && log_mul != 0.0) {
            rope.attn_factor /= 1.0 + (0.1 * rope.freq_scale.recip().ln()).max(0.0);
        }
        if let Some(rope) = hp.rope.first() {
            // The magnitude of YaRN belongs to the whole product, of which only a part is rotated.
            let stretch = 0.1 * rope.freq_scale.recip().ln();
            let magnitude = rope.attn_factor * (1.0 + stretch) * (1.0 + log_mul * stretch);
            hp.kq_scale = magnitude * magnitude / (dk as f32).sqrt();
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let reader = loader.reader();
        let (head_dim, n_lora_q) = (head_dim(&reader)?, reader.u32("attention.q_lora_rank")?.unwrap_or(0) as usize);
        let n_dense = reader.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.latent_attn(l, head_dim, n_lora_q)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            match b.il < n_dense {
                true => l.ffn = b.ffn(Gate::Own)?,
                false => l.experts = b.experts()?,
            }
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}

/// Lengths of a head's key and value behind the latent.
fn head_dim(reader: &Reader) -> Result<[usize; 2]> {
    Ok([
        reader.within("attention.key_length_mla", 2, 1 << 16)?,
        reader.within("attention.value_length_mla", 1, 1 << 16)?,
    ])
}
