//! The parts that architectures are made of: embeddings, normalisation, projections, attention, feed-forward, output.
//!
//! Tensors are named as llama.cpp names them (`Qcur-3`), so that dumps of both programs can be compared.
//! Source: llama.cpp `src/llama-graph.cpp` (`build_norm`, `build_qkv`, `build_attn`, `build_ffn`).

mod attention;
mod decoder;
mod ffn;
pub(super) mod latent;

pub use decoder::Decoder;

use super::graph::Build;
use super::weights::{Layer, Linear, Norm};
use crate::cache::rope::{Rope, RopeKind};
use crate::error::{Error, Result};
use crate::ggml::{RopeParams, Tensor};

/// What is divided by in a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// The root mean square.
    Rms,
    /// The standard deviation, after the mean was taken off.
    Layer,
}

impl Build<'_> {
    /// The layer's tensors.
    pub fn layer(&self, il: usize) -> Layer {
        self.model.weights.layers[il].clone()
    }

    /// A weight the architecture's `weights` has set.
    ///
    /// # Errors
    /// When it is not set, which is a bug of the architecture's file.
    pub fn need<'t, T>(&self, t: &'t Option<T>, name: &str) -> Result<&'t T> {
        t.as_ref().ok_or_else(|| {
            Error::ggml(format!("weight {name} of architecture {} is not loaded", self.model.arch().name()))
        })
    }

    /// Embeddings of the batch, scaled. Shapes: `{n_embd, n_tokens}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn embed(&mut self) -> Result<Tensor> {
        let mut x = self.ctx.get_rows(&self.model.weights.tok_embd, &self.inputs.tokens)?;
        for pair in self.model.adapters.loras.iter().filter_map(|lora| lora.pair("token_embd.weight")) {
            let a = self.ctx.get_rows(&pair.a, &self.inputs.tokens)?;
            x = self.ctx.add(&x, &self.ctx.scale(&self.ctx.mul_mat(&pair.b, &a)?, pair.scale)?)?;
        }
        let x = self.scale(x, self.model.hp.embd_scale)?;
        let x = match &self.model.weights.pos_embd {
            Some(w) => self.ctx.add(&x, &self.ctx.get_rows(w, &self.inputs.pos)?)?,
            None => x,
        };
        Ok(x.named("inp_embd"))
    }

    /// Normalisation over dimension 0.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn norm(&self, kind: NormKind, x: &Tensor, norm: &Norm) -> Result<Tensor> {
        let eps = self.model.hp.norm_eps;
        let x = match kind {
            NormKind::Rms => self.ctx.rms_norm(x, eps)?,
            NormKind::Layer => self.ctx.norm(x, eps)?,
        };
        let x = self.ctx.mul(&x, &norm.w)?;
        match &norm.b {
            Some(b) => self.ctx.add(&x, b),
            None => Ok(x),
        }
    }

    /// Normalisation where the layer has one, else `x` itself.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn optional_norm(&self, kind: NormKind, x: Tensor, norm: &Option<Norm>) -> Result<Tensor> {
        match norm {
            Some(norm) => self.norm(kind, &x, norm),
            None => Ok(x),
        }
    }

    /// `w x`, with what adapters add to the weight. Every product with a weight of the model goes through here.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn mul(&self, w: &Tensor, x: &Tensor) -> Result<Tensor> {
        let order = self.model.placement.sum_order(w.ty(), &w.ne()[..2]);
        let ours = self.ctx.quantized_mul_mat(w, x, order, &mut self.quantized.borrow_mut())?;
        let mut y = ours.map_or_else(|| self.ctx.mul_mat(w, x), Ok)?;
        for lora in &self.model.adapters.loras {
            // Tied embeddings keep their name as output matrix; an adapter of embeddings does not change that.
            if let Some(pair) = lora.pair(&w.name()).filter(|_| w.name() != "token_embd.weight") {
                let low = self.ctx.mul_mat(&pair.a, x)?;
                y = self.ctx.add(&y, &self.ctx.scale(&self.ctx.mul_mat(&pair.b, &low)?, pair.scale)?)?;
            }
        }
        Ok(y)
    }

    /// `s w x + b`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn linear(&self, l: &Linear, x: &Tensor) -> Result<Tensor> {
        let mut y = self.mul(&l.w, x)?;
        if let Some(scale) = &l.scale {
            y = self.ctx.mul(&y, scale)?;
        }
        match &l.b {
            Some(b) => self.ctx.add(&y, b),
            None => Ok(y),
        }
    }

    /// `s x`; nothing is done where `s` is 1.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn scale(&self, x: Tensor, s: f32) -> Result<Tensor> {
        match s == 1.0 {
            true => Ok(x),
            false => self.ctx.scale(&x, s),
        }
    }

    /// The output of a layer: adds the direction of a control vector and keeps the projected state readable where that is asked
    /// for. Shapes: `x: {n_embd, n_tokens}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn layer_out(&mut self, il: usize, x: Tensor) -> Result<Tensor> {
        let x = match self.model.adapters.control.direction(il) {
            Some(direction) => self.ctx.add(&x, direction)?,
            None => x,
        };
        let x = x.named(&format!("l_out-{il}"));
        if let Some(projection) = self.projection.filter(|_| self.spec.hidden.contains(&il)) {
            let p = self.ctx.mul_mat(projection, &x)?.named(&format!("tap_h-{il}")).output();
            self.graph.expand(&p)?;
            self.outputs.hidden.push((il, p));
        }
        Ok(x)
    }

    /// In the last layer, goes on with the tokens whose logits are wanted. Shapes: `{n_embd, n_tokens}` to `{n_embd, n_out}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn select_out(&self, il: usize, x: Tensor) -> Result<Tensor> {
        match &self.inputs.out_ids {
            Some(ids) if il + 1 == self.model.hp.n_layer => self.ctx.get_rows(&x, ids),
            _ => Ok(x),
        }
    }

    /// Final normalisation and output matrix. Shapes: `x: {n_embd, n_out}`; the result is `{n_vocab, n_out}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn output(&mut self, x: &Tensor, kind: NormKind) -> Result<()> {
        let w = &self.model.weights;
        let x = self.norm(kind, x, &w.output_norm)?.named("result_norm");
        let mut logits = self.scale(self.linear(&w.output, &x)?, self.model.hp.logit_scale)?;
        let cap = self.model.hp.final_softcap;
        if cap > 0.0 {
            logits = self.ctx.scale(&self.ctx.tanh(&self.ctx.scale(&logits, 1.0 / cap)?)?, cap)?;
        }
        let logits = logits.named("result_output").output();
        self.graph.expand(&logits)?;
        self.outputs.logits = Some(logits);
        Ok(())
    }
}

/// ggml's parameters for a rotation; positions and frequency divisors are tensors of the graph.
pub fn rope_params(rope: &Rope) -> RopeParams {
    RopeParams {
        neox: rope.kind == RopeKind::Neox,
        n_rot: rope.n_rot,
        n_ctx_orig: rope.n_ctx_orig,
        freq_base: rope.freq_base,
        freq_scale: rope.freq_scale,
        ext_factor: rope.ext_factor,
        attn_factor: rope.attn_factor,
        beta_fast: rope.beta_fast,
        beta_slow: rope.beta_slow,
    }
}
