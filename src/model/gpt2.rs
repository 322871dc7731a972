//! GPT-2: learned positions, added to the embeddings; no rotation.
//!
//! Source: llama.cpp `src/models/gpt2.cpp`. A context can be no longer than the table of positions. Positions are in what the
//! first layer reads, not in the keys: a pass has nothing to turn back.

use super::blocks::{Decoder, NormKind};
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gpt2`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gpt2"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::None)?;
        hp.n_pos_max = hp.n_ctx_train;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        let mut w = Weights::plain(loader, hp, Gate::None)?;
        w.pos_embd = Some(loader.tensor("position_embd.weight", &[hp.n_embd, hp.n_ctx_train])?);
        Ok(w)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { norm: NormKind::Layer, act: Act::Gelu, ..Decoder::default() })
    }
}
