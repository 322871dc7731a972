//! SmolLM3: llama's graph, every fourth layer without rotation.
//!
//! Source: llama.cpp `src/models/smollm3.cpp`. Keys of layers without rotation are the same at every position: a pass has
//! nothing to turn back there and compresses them like the others.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = smollm3`.
pub struct Arch;

/// Every so many layers one has no rotation.
const NO_ROPE_STEP: usize = 4;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "smollm3"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        hp.rope.iter_mut().skip(NO_ROPE_STEP - 1).step_by(NO_ROPE_STEP).for_each(|rope| rope.kind = RopeKind::None);
        hp.kq_scale = reader.f32("attention.scale")?.filter(|&s| s != 0.0).unwrap_or(hp.kq_scale);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        llama::Arch.weights(loader, hp)
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
