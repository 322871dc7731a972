//! The parts that architectures are made of: normalisation, projections, rotation, attention, feed-forward, output.
//!
//! Tensors are named as llama.cpp names them (`Qcur-3`), so that dumps of both programs can be compared.
//! Source: llama.cpp `src/llama-graph.cpp` (`build_norm`, `build_qkv`, `build_attn`, `build_ffn`).

use super::graph::{Attention, Build, Home};
use super::weights::Layer;
use crate::cache::hadamard::Hadamard;
use crate::cache::rope::{Rope, RopeKind};
use crate::cache::{Layout, PoolHead};
use crate::error::{Error, Result};
use crate::ggml::{Act, Ragged, RopeParams, Tensor};

/// Rows of a cache tensor: one run per head, all of one length.
#[derive(Clone, Copy)]
struct Runs {
    /// First row of the first run.
    first: usize,
    /// Runs.
    n_head: usize,
    /// Rows from one run to the next.
    stride: usize,
    /// Rows of a run that are read.
    n_kv: usize,
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
    pub fn need<'t>(&self, t: &'t Option<Tensor>, name: &str) -> Result<&'t Tensor> {
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
        let scale = self.model.hp.embd_scale;
        let x = if scale == 1.0 { x } else { self.ctx.scale(&x, scale)? };
        Ok(x.named("inp_embd"))
    }

    /// Root-mean-square normalisation with a weight.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn rms_norm(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        self.ctx.mul(&self.ctx.rms_norm(x, self.model.hp.norm_eps)?, w)
    }

    /// `w x`, with what adapters add to the weight. Every product with a weight of the model goes through here.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn mul(&self, w: &Tensor, x: &Tensor) -> Result<Tensor> {
        let mut y = self.ctx.mul_mat(w, x)?;
        for lora in &self.model.adapters.loras {
            // Tied embeddings keep their name as output matrix; an adapter of embeddings does not change that.
            if let Some(pair) = lora.pair(&w.name()).filter(|_| w.name() != "token_embd.weight") {
                let low = self.ctx.mul_mat(&pair.a, x)?;
                y = self.ctx.add(&y, &self.ctx.scale(&self.ctx.mul_mat(&pair.b, &low)?, pair.scale)?)?;
            }
        }
        Ok(y)
    }

    /// `w x + b`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn linear(&self, w: &Tensor, x: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let y = self.mul(w, x)?;
        match b {
            Some(b) => self.ctx.add(&y, b),
            None => Ok(y),
        }
    }

    /// Queries, keys and values, not rotated. Shapes: `{head_dim, n_head or n_head_kv, n_tokens}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn qkv(&self, x: &Tensor, l: &Layer) -> Result<(Tensor, Tensor, Tensor)> {
        let (hp, n) = (&self.model.hp, self.spec.n_tokens);
        let q = self.linear(self.need(&l.wq, "attn_q")?, x, l.bq.as_ref())?;
        let k = self.linear(self.need(&l.wk, "attn_k")?, x, l.bk.as_ref())?;
        let v = self.linear(self.need(&l.wv, "attn_v")?, x, l.bv.as_ref())?;
        Ok((
            self.ctx.reshape(&q, &[hp.head_dim_k, hp.n_head, n])?,
            self.ctx.reshape(&k, &[hp.head_dim_k, hp.n_head_kv, n])?,
            self.ctx.reshape(&v, &[hp.head_dim_v, hp.n_head_kv, n])?,
        ))
    }

    /// Normalises queries and keys over each head, where the layer has weights for that.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn qk_norm(&self, q: Tensor, k: Tensor, l: &Layer) -> Result<(Tensor, Tensor)> {
        let norm = |x: Tensor, w: &Option<Tensor>| match w {
            Some(w) => self.rms_norm(&x, w),
            None => Ok(x),
        };
        Ok((norm(q, &l.attn_q_norm)?, norm(k, &l.attn_k_norm)?))
    }

    /// Rotates heads to the positions of the batch. Shapes: `x: {head_dim, n_heads, n_tokens}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn rope(&self, x: &Tensor, il: usize) -> Result<Tensor> {
        let rope = &self.model.hp.rope[il];
        if rope.kind == RopeKind::None {
            return Ok(x.clone());
        }
        self.ctx.rope(x, &self.inputs.pos, self.model.weights.rope_freqs.as_ref(), &rope_params(rope))
    }

    /// Stores keys and values, then attends and projects. Shapes: `q, k, v` as [`Build::qkv`], rotated; result `{n_embd, n_tokens}`.
    ///
    /// `None` when this is the last layer and no logits are wanted: only the cache was.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn attn(&mut self, il: usize, q: &Tensor, k: &Tensor, v: &Tensor, l: &Layer) -> Result<Option<Tensor>> {
        let hp = &self.model.hp;
        let (n, g) = (self.spec.n_tokens, hp.n_head_kv);
        self.tap_queries(il, q)?;
        let layer = &self.cache.layers[il];
        let (hadamard_k, hadamard_v) = (layer.hadamard_k.as_ref(), layer.hadamard_v.as_ref());
        let (q, k, v) = (&self.spread(q, hadamard_k)?, self.spread(k, hadamard_k)?, self.spread(v, hadamard_v)?);
        let (home, at) = self.home(il)?;
        let rows = self.ctx.view(&home.rows, [g * n, 1, 1, 1], [g * n * 8; 3], at * g * n * 8)?;
        let k = self.ctx.set_rows(&layer.k, &self.ctx.reshape(&k, &[hp.head_dim_k, g * n])?, &rows)?;
        let v = self.ctx.set_rows(&layer.v, &self.ctx.reshape(&v, &[hp.head_dim_v, g * n])?, &rows)?;
        self.graph.expand(&k)?;
        self.graph.expand(&v)?;
        self.tap_attention_mass(il, q, &k)?;
        if il + 1 == hp.n_layer && self.spec.n_out == 0 {
            return Ok(None);
        }
        let all = |stride, n_kv| Runs { first: 0, n_head: g, stride, n_kv };
        let n_ctx = self.cache.options().n_ctx;
        let attention = self.spec.attention_of(layer);
        let out = match (attention, &layer.layout) {
            (Attention::Kernel, layout) => {
                let n_entries = if *layout == Layout::Ring { self.cache.n_ring() } else { n_ctx };
                let (scale, softcap, spans) = (hp.kq_scale, hp.attn_softcap, &layer.spans);
                self.ctx.ragged_attn(q, &k, &v, &Ragged { n_head_kv: g, n_entries, scale, softcap, spans })?
            }
            (_, Layout::Dense) => {
                self.attend_rows(il, q, &k, &v, all(n_ctx, self.spec.n_kv), self.inputs.mask_dense.as_ref())?
            }
            (_, Layout::Ring) => {
                let runs = all(self.cache.n_ring(), self.spec.n_kv_ring);
                self.attend_rows(il, q, &k, &v, runs, self.inputs.mask_ring.as_ref())?
            }
            (_, Layout::Pool(heads)) => self.attend_pool(il, q, &k, &v, heads)?,
        };
        let out = self.spread(&out, hadamard_v)?;
        let out = self.ctx.reshape(&out, &[hp.head_dim_v * hp.n_head, n])?.named(&format!("kqv_out-{il}"));
        Ok(Some(self.linear(self.need(&l.wo, "attn_output")?, &out, l.bo.as_ref())?))
    }

    /// The inputs of a layer's kind of memory, and the place of the layer in them.
    fn home(&self, il: usize) -> Result<(&Home, usize)> {
        let found = self.inputs.homes.iter().find_map(|h| Some((h, h.layers.iter().position(|&l| l == il)?)));
        found.ok_or_else(|| Error::ggml("a layer without inputs"))
    }

    /// The transform of a quantised cache, which is its own inverse.
    fn spread(&self, x: &Tensor, hadamard: Option<&Hadamard>) -> Result<Tensor> {
        match hadamard {
            Some(h) => self.ctx.hadamard(&h.matrix, x),
            None => Ok(x.clone()),
        }
    }

    /// Attention of all heads over equal runs of rows. Result `{dv, n_head, n_tokens}`.
    fn attend_rows(
        &self,
        il: usize,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        runs: Runs,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (hp, ctx) = (&self.model.hp, &self.ctx);
        let mask = mask.ok_or_else(|| Error::ggml("a mask is missing"))?;
        let v = self.rows(v, runs)?;
        if self.spec.attention != Attention::Explicit {
            let (q, k) = (ctx.permute(q, [0, 2, 1, 3])?, self.rows(k, runs)?);
            return self.beside_cache(il, ctx.flash_attn(&q, &k, &v, mask, hp.kq_scale, hp.attn_softcap)?);
        }
        let p = self.probabilities(q, k, runs, mask)?;
        let vt = self.beside_cache(il, ctx.cont(&ctx.permute(&v, [1, 0, 2, 3])?)?)?;
        let out = self.beside_cache(il, ctx.mul_mat(&vt, &p)?)?;
        ctx.cont(&ctx.permute(&out, [0, 2, 1, 3])?)
    }

    /// Computed where the cache of the layer is: with `-nkvo` a device would otherwise fetch it for every token.
    fn beside_cache(&self, il: usize, t: Tensor) -> Result<Tensor> {
        self.ctx.pin(&t, self.cache.layers[il].buffer_type());
        Ok(t)
    }

    /// The rows of a cache tensor that each head reads. Result `{head_dim, n_kv, n_head}`.
    fn rows(&self, t: &Tensor, runs: Runs) -> Result<Tensor> {
        let (row, Runs { first, n_head, stride, n_kv }) = (t.nb()[1], runs);
        self.ctx.view(t, [t.ne()[0], n_kv, n_head, 1], [row, stride * row, n_head * stride * row], first * row)
    }

    /// Softmax of the logits of all heads. Result `{n_kv, n_tokens, n_head}`.
    fn probabilities(&self, q: &Tensor, k: &Tensor, runs: Runs, mask: &Tensor) -> Result<Tensor> {
        let (hp, ctx) = (&self.model.hp, &self.ctx);
        let kq = ctx.mul_mat(&self.rows(k, runs)?, &ctx.permute(q, [0, 2, 1, 3])?)?;
        let (kq, scale) = match hp.attn_softcap {
            0.0 => (kq, hp.kq_scale),
            cap => (ctx.scale(&ctx.tanh(&ctx.scale(&kq, hp.kq_scale / cap)?)?, cap)?, 1.0),
        };
        ctx.soft_max(&kq, mask, scale)
    }

    /// Attention over a ragged pool by ggml's operations, one KV head at a time. Result `{dv, n_head, n_tokens}`.
    fn attend_pool(&self, il: usize, q: &Tensor, k: &Tensor, v: &Tensor, heads: &[PoolHead]) -> Result<Tensor> {
        let (r, ctx) = (self.model.hp.n_group(), &self.ctx);
        let mut all: Option<Tensor> = None;
        let (home, _) = self.home(il)?;
        let n = self.spec.n_tokens;
        let before = home.layers.iter().take_while(|&&l| l != il).flat_map(|&l| self.spec.views(self.cache, l));
        let mut at = before.sum::<usize>() * n * 2;
        for (g, (head, n_view)) in heads.iter().zip(self.spec.views(self.cache, il)).enumerate() {
            let mask = home.mask_pool.as_ref().ok_or_else(|| Error::ggml("a mask is missing"))?;
            let mask = ctx.view(mask, [n_view, n, 1, 1], [n_view * 2, n_view * n * 2, n_view * n * 2], at)?;
            at += n_view * n * 2;
            let group =
                ctx.view(q, [q.ne()[0], r, q.ne()[2], 1], [q.nb()[1], q.nb()[2], q.nb()[3]], g * r * q.nb()[1])?;
            let runs = Runs { first: head.row, n_head: 1, stride: n_view, n_kv: n_view };
            let out = self.attend_rows(il, &group, k, v, runs, Some(&mask))?;
            all = Some(match all {
                Some(a) => ctx.concat(&a, &out, 1)?,
                None => out,
            });
        }
        all.ok_or_else(|| Error::ggml("a layer without heads"))
    }

    /// Keeps the queries of the tapped tokens readable.
    fn tap_queries(&mut self, il: usize, q: &Tensor) -> Result<()> {
        if self.spec.n_tap == 0 || self.model.hp.swa[il] {
            return Ok(());
        }
        let flat = self.ctx.reshape(q, &[q.ne()[0] * q.ne()[1], q.ne()[2]])?;
        let taps = match &self.inputs.tap_ids {
            Some(ids) => self.ctx.get_rows(&flat, ids)?,
            None => self.ctx.cont(&flat)?,
        };
        let taps = taps.named(&format!("tap_q-{il}")).output();
        self.graph.expand(&taps)?;
        self.outputs.queries.push((il, taps));
        Ok(())
    }

    /// Keeps the attention readable that each entry of a layer gets from the batch, summed over the query heads of a group.
    ///
    /// The probabilities are computed beside the layer's own attention, whatever way that goes: a run that records them gives
    /// the very numbers of one that does not.
    fn tap_attention_mass(&mut self, il: usize, q: &Tensor, k: &Tensor) -> Result<()> {
        let (Some(ones), Some(mask)) = (&self.inputs.ones, &self.inputs.mask_dense) else { return Ok(()) };
        if self.cache.layers[il].layout != Layout::Dense {
            return Ok(());
        }
        let runs = Runs {
            first: 0,
            n_head: self.model.hp.n_head_kv,
            stride: self.cache.options().n_ctx,
            n_kv: self.spec.n_kv,
        };
        let p = self.probabilities(q, k, runs, mask)?;
        let p = self.ctx.reshape(&p, &[runs.n_kv, ones.ne()[1], runs.n_head])?;
        let mass = self.ctx.out_prod(&p, ones)?.named(&format!("tap_mass-{il}")).output();
        self.graph.expand(&mass)?;
        self.outputs.attention_mass.push((il, mass));
        Ok(())
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
    pub fn select_out(&self, il: usize, cur: Tensor, skip: Tensor) -> Result<(Tensor, Tensor)> {
        match &self.inputs.out_ids {
            Some(ids) if il + 1 == self.model.hp.n_layer => {
                Ok((self.ctx.get_rows(&cur, ids)?, self.ctx.get_rows(&skip, ids)?))
            }
            _ => Ok((cur, skip)),
        }
    }

    /// Gated feed-forward network. Shapes: `{n_embd, n}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn ffn(&self, x: &Tensor, l: &Layer, act: Act) -> Result<Tensor> {
        let up = self.linear(self.need(&l.ffn_up, "ffn_up")?, x, l.ffn_up_b.as_ref())?;
        let gate = self.linear(self.need(&l.ffn_gate, "ffn_gate")?, x, l.ffn_gate_b.as_ref())?;
        self.linear(self.need(&l.ffn_down, "ffn_down")?, &self.ctx.glu(&gate, &up, act)?, l.ffn_down_b.as_ref())
    }

    /// Final normalisation and output matrix. Shapes: `x: {n_embd, n_out}`; the result is `{n_vocab, n_out}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn output(&mut self, x: &Tensor) -> Result<()> {
        let w = &self.model.weights;
        let x = self.rms_norm(x, &w.output_norm)?.named("result_norm");
        let mut logits = self.mul(&w.output, &x)?;
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
