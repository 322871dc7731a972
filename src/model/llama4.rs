//! Llama 4: experts whose inputs are weighed, normalised rotated heads, every fourth layer without rotation.
//!
//! Source: llama.cpp `src/models/llama4.cpp`. There, rotated layers see their own chunk of 8192 tokens only. Contexts here end
//! with the first chunk, where that is all there is; longer ones are refused. Keys are normalised after they are rotated, which
//! a rotation does not change: a pass turns them back as in llama, and leaves unrotated ones as they are.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Gating, Hparams, Loader, Reader, Temperature, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = llama4`.
pub struct Arch;

/// Tokens of a chunk.
const N_CHUNK: usize = 8192;
/// Every so many layers one has no rotation.
const NO_ROPE_STEP: usize = 4;
/// Experts of Maverick, which does not normalise its heads.
const N_EXPERT_MAVERICK: usize = 128;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "llama4"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.kq_scale = reader.f32("attention.scale")?.filter(|&s| s != 0.0).unwrap_or(hp.kq_scale);
        hp.qk_norm_rotated = hp.routing.n_expert != N_EXPERT_MAVERICK;
        let r = &mut hp.routing;
        r.require(reader)?;
        (r.gating, r.normalise, r.weigh_inputs, r.n_ff_shared) = (Gating::Sigmoid, false, true, r.n_ff);
        // A window of 0 says that all layers are rotated and see everything.
        if reader.u32("attention.sliding_window")? != Some(0) {
            hp.n_pos_max = N_CHUNK;
            hp.rope.iter_mut().skip(NO_ROPE_STEP - 1).step_by(NO_ROPE_STEP).for_each(|r| r.kind = RopeKind::None);
            hp.temperature =
                Some(Temperature { scale: 0.1, length: N_CHUNK as f32, offset: 1.0, unrotated_only: true });
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let step = loader.reader().within("interleave_moe_layer_step", 0, 512)?;
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            match step > 0 && (b.il + 1).is_multiple_of(step) {
                true => l.experts = b.experts()?,
                false => l.ffn = b.ffn(Gate::Own)?,
            }
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
