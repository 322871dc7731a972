//! Baichuan and Baichuan 2: llama's graph, with a rotation (7B) or ALiBi's biases (13B).
//!
//! Source: llama.cpp `src/models/baichuan.cpp`; ALiBi is arXiv 2108.12409. A pass is refused under ALiBi: an entry's bias grows
//! with its distance, and one that stands for many tokens has no distance.

use super::blocks::Decoder;
use super::{llama, Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::{Error, Result};

/// `general.architecture = baichuan`.
pub struct Arch;

/// Layers of the two models; llama.cpp, too, tells them apart by this number.
const N_LAYER_7B: usize = 32;
const N_LAYER_13B: usize = 40;
/// Largest slope of the biases.
const MAX_BIAS: f32 = 8.0;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "baichuan"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Normal)?;
        match hp.n_layer {
            N_LAYER_7B => {}
            N_LAYER_13B => {
                hp.alibi_max_bias = MAX_BIAS;
                hp.rope.iter_mut().for_each(|rope| rope.kind = RopeKind::None);
            }
            n => return Err(Error::unsupported("model", format!("baichuan of {n} layers; 7B has 32, 13B has 40"))),
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
