//! Gemma: scaled embeddings, a GELU gate, heads wider than the model. Source: llama.cpp `src/models/gemma.cpp`.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;
use crate::ggml::Act;

/// `general.architecture = gemma`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "gemma"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.embd_scale = (hp.n_embd as f32).sqrt();
        hp.scale_queries();
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::plain(loader, hp, Gate::Own)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder { act: Act::Gelu, ..Decoder::default() })
    }
}
