//! Command R, R+ and Aya: attention and feed-forward network side by side, scaled logits; R+ normalises queries and keys.
//!
//! Source: llama.cpp `src/models/command-r.cpp`.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = command-r`.
pub struct Arch;

/// Layers from which on a model is R+.
const N_LAYER_PLUS: usize = 64;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "command-r"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.logit_scale = reader.f32("logit_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.head_norms(l, true, hp.n_layer >= N_LAYER_PLUS)?;
            l.ffn = b.ffn(Gate::Own)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, parallel: true, ..Decoder::default() })
    }
}
