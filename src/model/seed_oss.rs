//! Seed-OSS: llama's graph with biases on q, k, v and another name for the second norm. Source: llama.cpp `src/models/seed-oss.cpp`.

use super::blocks::Decoder;
use super::weights::Gate;
use super::{Architecture, Build, Hparams, Loader, Reader, Weights};
use crate::cache::rope::RopeKind;
use crate::error::Result;

/// `general.architecture = seed_oss`.
pub struct Arch;

impl Architecture for Arch {
    fn name(&self) -> &'static str {
        "seed_oss"
    }

    fn hparams(&self, reader: &Reader) -> Result<Hparams> {
        let mut hp = reader.base(RopeKind::Neox)?;
        hp.kq_scale = reader.f32("attention.scale")?.filter(|&s| s != 0.0).unwrap_or(hp.kq_scale);
        Ok(hp)
    }

    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn_norm = b.norm("post_attention_norm")?;
            l.ffn = b.ffn(Gate::Own)?;
            Ok(())
        })
    }

    fn graph(&self, b: &mut Build) -> Result<()> {
        b.decoder(Decoder::default())
    }
}
