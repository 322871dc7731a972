//! StableLM: layer normalisation, partial rotation; the 12B model normalises each head and has its blocks side by side.
//!
//! Source: llama.cpp `src/models/stablelm.cpp`. A pass turns back the rotated part of a key; the rest has no position.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = stablelm`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "stablelm"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        reader.base(RopeKind::Neox)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.head_norms(l, true, false)?;
            l.ffn_norm = b.optional_norm("ffn_norm")?;
            l.ffn = b.ffn(Gate::Own)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        // Without a norm of its own the feed-forward network reads what attention reads.
        let parallel = b.layer(0).ffn_norm.is_none();
        b.decoder(Decoder { norm: NormKind::Layer, parallel, ..Decoder::default() })
    }
}
