//! The frame that decoders share: attention and feed-forward network around a residual stream.
//!
//! What a layer has (norms before or after, biases, sinks, experts, a latent) is known from its tensors; what tensors cannot
//! tell, [`Decoder`] and the hyperparameters say.

use super::super::graph::Build;
use super::super::weights::Layer;
use super::NormKind;
use crate::error::Result;
use crate::ggml::{Act, Tensor};

/// What the tensors of a decoder do not tell.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// Normalisations.
    pub norm: NormKind,
    /// Activation of the feed-forward network.
    pub act: Act,
    /// Whether the feed-forward network reads what attention reads, not what it leaves.
    pub parallel: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { norm: NormKind::Rms, act: Act::Silu, parallel: false }
    }
}

impl Build<'_> {
    /// The whole graph.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn decoder(&mut self, d: Decoder) -> Result<()> {
        let scale = self.model.hp.residual_scale;
        let mut inp = self.embed()?;
        for il in 0..self.model.hp.n_layer {
            let l = self.layer(il);
            let normed = self.optional_norm(d.norm, inp.clone(), &l.attn_norm)?;
            let x = match &l.attn_norm_2 {
                Some(norm) => self.norm(d.norm, &inp, norm)?,
                None => normed.clone(),
            };
            let Some(cur) = self.self_attention(il, &x, &l, d.norm)? else { return Ok(()) };
            let (cur, skip) = (self.select_out(il, cur)?, self.select_out(il, inp)?);
            let cur = self.scale(self.optional_norm(d.norm, cur, &l.attn_post_norm)?, scale)?;
            inp = if d.parallel {
                let x = match &l.ffn_norm {
                    Some(norm) => self.norm(d.norm, &skip, norm)?,
                    None => self.select_out(il, normed)?,
                };
                let y = self.network(&x, &l, d)?;
                self.ctx.add(&self.ctx.add(&y, &skip)?, &cur)?
            } else {
                let stream = self.ctx.add(&cur, &skip)?.named(&format!("ffn_inp-{il}"));
                let x = self.optional_norm(d.norm, stream.clone(), &l.ffn_norm)?;
                let y = self.network(&x, &l, d)?;
                self.ctx.add(&y, &stream)?
            };
            inp = self.layer_out(il, inp)?;
        }
        self.output(&inp, d.norm)
    }

    /// Attention of a layer; `None` when only its cache was wanted.
    fn self_attention(&mut self, il: usize, x: &Tensor, l: &Layer, kind: NormKind) -> Result<Option<Tensor>> {
        let (q, k, v) = match &l.latent {
            Some(latent) => self.latent_qkv(il, x, latent)?,
            None => {
                let (q, k, v) = self.qkv(x, l, kind)?;
                let (q, k) = self.rotated(il, &q, &k)?;
                (q, k, v)
            }
        };
        self.attn(il, &q, &k, &v, l)
    }

    /// What the feed-forward network adds.
    fn network(&mut self, x: &Tensor, l: &Layer, d: Decoder) -> Result<Tensor> {
        let y = self.feed_forward(x, l, d.act)?;
        self.scale(self.optional_norm(d.norm, y, &l.ffn_post_norm)?, self.model.hp.residual_scale)
    }
}
