//! Mistral Small 3.1 and Ministral 3: llama's graph, YaRN, and queries that grow with their position.
//!
//! Source: llama.cpp `src/models/mistral3.cpp`. The growth is on the query, so a key is turned back as in llama, and an entry's
//! multiplicity means the same at every position.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Temperature, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = mistral3`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "mistral3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.kq_scale = reader.f32("attention.scale")?.filter(|&s| s != 0.0).unwrap_or(hp.kq_scale);
        reader.yarn_of_file(&mut hp)?;
        if let Some(scale) = reader.f32("attention.temperature_scale")?.filter(|&s| s != 0.0) {
            let length = hp.rope.first().map_or(1, |rope| rope.n_ctx_orig).max(1) as f32;
            hp.temperature = Some(Temperature { scale, length, offset: 0.0, unrotated_only: false });
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
