//! Phi-3, Phi-3.5 and Phi-4: q, k, v in one matrix, the gate in `ffn_up`, long-rope.
//!
//! Source: llama.cpp `src/models/phi3.cpp`; as there, no layer slides. Long-rope divides the frequencies by factors that depend
//! on the size of the context (`n_ctx`), never on the position, and scales magnitudes: a pass turns keys back by the same.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = phi3`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "phi3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.scale_queries();
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::plain(loader, hp, Gate::InUp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
