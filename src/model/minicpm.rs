//! MiniCPM: granite's graph with its own constants where the file has no scales. Source: llama.cpp `src/models/minicpm.cpp`.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = minicpm`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "minicpm"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.embd_scale = 12.0;
        hp.residual_scale = 1.4 / (hp.n_layer as f32).sqrt();
        hp.logit_scale = hp.n_embd as f32 / 256.0;
        reader.granite_scales(&mut hp)?;
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        llama::Arch.weights(loader, hp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
