//! GLM-4-0414: partial rotation, biases on q, k, v, norms before and after each block, the gate in `ffn_up`.
//!
//! Source: llama.cpp `src/models/glm4.cpp`. A pass turns back the rotated part of a key; the rest has no position.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::{Error, Result};

/// `general.architecture = glm4`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "glm4"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        if reader.has("rope.dimension_sections") {
            return Err(Error::unsupported("model", "glm4 for images (rope.dimension_sections)"));
        }
        reader.base(RopeKind::Normal)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.attn_post_norm = b.norm("post_attention_norm")?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.ffn = b.ffn(Gate::InUp)?;
            l.ffn_post_norm = b.norm("post_ffw_norm")?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
