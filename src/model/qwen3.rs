//! Qwen3: llama's graph with normalised queries and keys, and paired halves in the rotation. Source: llama.cpp `src/models/qwen3.cpp`.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

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
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            b.head_norms(l, false, true)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.ffn = b.ffn(Gate::Own)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
