//! Granite 3 and 4 without recurrent layers: llama's graph with scales on embeddings, residuals, attention and logits.
//!
//! Source: llama.cpp `src/models/granite.cpp`. Models without positions (`rope.scaling.finetuned` false) have nothing to turn back.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = granite`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "granite"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        reader.granite_scales(&mut hp)?;
        if reader.flag("rope.scaling.finetuned")? == Some(false) {
            hp.rope.iter_mut().for_each(|rope| rope.kind = RopeKind::None);
        }
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        llama::Arch.weights(loader, hp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
