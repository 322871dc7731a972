//! Attention: projections, normalised heads, rotation, the ways to attend, and what is recorded on the way.
//!
//! Source: llama.cpp `src/llama-graph.cpp` (`build_qkv`, `build_attn`, `build_attn_mha`).

use super::super::graph::{Attention, Build, Home};
use super::super::weights::{Layer, Linear, Norm};
use super::{rope_params, NormKind};
use crate::cache::hadamard::Hadamard;
use crate::cache::rope::RopeKind;
use crate::cache::{Layout, PoolHead};
use crate::error::{Error, Result};
use crate::ggml::{Logits, Ragged, Tensor};

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

/// What meets the logits of a product of queries and keys.
#[derive(Clone, Copy)]
struct Beside<'t> {
    /// Added to them.
    mask: Option<&'t Tensor>,
    /// Logits that only the denominator has, one per query head.
    sinks: Option<&'t Tensor>,
}

impl Build<'_> {
    /// Queries, keys and values, normalised but not rotated. Shapes: `{head_dim, n_head or n_head_kv, n_tokens}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn qkv(&self, x: &Tensor, l: &Layer, kind: NormKind) -> Result<(Tensor, Tensor, Tensor)> {
        let hp = &self.model.hp;
        let q = [hp.head_dim_k, hp.n_head];
        let (k, v) = ([hp.head_dim_k, hp.n_head_kv], [hp.head_dim_v, hp.n_head_kv]);
        let (xq, xk, xv) = match &l.wqkv {
            Some(w) => {
                let (all, nq, nk) = (self.linear(w, x)?, q[0] * q[1], k[0] * k[1]);
                let part = |first: usize, n: usize| {
                    let nb = all.nb();
                    self.ctx.cont(&self.ctx.view(&all, [n, all.ne()[1], 1, 1], [nb[1], nb[2], nb[3]], first * nb[0])?)
                };
                (part(0, nq)?, part(nq, nk)?, part(nq + nk, v[0] * v[1])?)
            }
            None => {
                let project = |w: &Option<Linear>, name: &str| self.linear(self.need(w, name)?, x);
                (project(&l.wq, "attn_q")?, project(&l.wk, "attn_k")?, project(&l.wv, "attn_v")?)
            }
        };
        Ok((
            self.heads(xq, q, kind, &l.attn_q_norm)?,
            self.heads(xk, k, kind, &l.attn_k_norm)?,
            self.heads(xv, v, kind, &None)?,
        ))
    }

    /// Rows as heads, normalised over the row or over each head as the weight is long. Shapes: `x: {dim * n, n_tokens}`.
    fn heads(&self, x: Tensor, [dim, n]: [usize; 2], kind: NormKind, norm: &Option<Norm>) -> Result<Tensor> {
        let shape = [dim, n, x.ne()[1]];
        match norm {
            Some(norm) if norm.w.ne()[0] == dim => self.norm(kind, &self.ctx.reshape(&x, &shape)?, norm),
            norm => self.ctx.reshape(&self.optional_norm(kind, x, norm)?, &shape),
        }
    }

    /// Queries and keys as they meet: rotated, scaled.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn rotated(&self, il: usize, q: &Tensor, k: &Tensor) -> Result<(Tensor, Tensor)> {
        let hp = &self.model.hp;
        let is_rotated = hp.rope[il].kind != RopeKind::None;
        let rotate = |x: &Tensor| match hp.qk_norm_rotated && is_rotated {
            true => self.ctx.rms_norm(&self.rope(x, il)?, hp.norm_eps),
            false => self.rope(x, il),
        };
        let (q, k) = (rotate(q)?, rotate(k)?.named(&format!("Kcur-{il}")));
        let q = self.tempered(il, self.scale(q, hp.q_scale)?)?;
        Ok((q.named(&format!("Qcur-{il}")), k))
    }

    /// Queries by the factors of their positions, where the layer has any.
    pub(super) fn tempered(&self, il: usize, q: Tensor) -> Result<Tensor> {
        let hp = &self.model.hp;
        let is_rotated = hp.rope[il].kind != RopeKind::None;
        match (&hp.temperature, &self.inputs.q_scale) {
            (Some(t), Some(scale)) if !(t.unrotated_only && is_rotated) => self.ctx.mul(&q, scale),
            _ => Ok(q),
        }
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
        self.ctx.rope(x, &self.inputs.pos, self.model.rope_freqs(self.cache.options().n_ctx), &rope_params(rope))
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
        self.tap_attention_mass(il, q, &k, l.attn_sinks.as_ref())?;
        if il + 1 == hp.n_layer && self.spec.n_out == 0 {
            return Ok(None);
        }
        let all = |stride, n_kv| Runs { first: 0, n_head: g, stride, n_kv };
        let n_ctx = self.cache.options().n_ctx;
        let sinks = l.attn_sinks.as_ref();
        let out = match (self.spec.attention_of(layer), &layer.layout) {
            (Attention::Kernel, layout) => {
                let n_entries = if *layout == Layout::Ring { self.cache.n_ring() } else { n_ctx };
                let (scale, softcap, spans) = (hp.kq_scale, hp.attn_softcap, &layer.spans);
                self.ctx.ragged_attn(q, &k, &v, &Ragged { n_head_kv: g, n_entries, scale, softcap, spans, sinks })?
            }
            (_, Layout::Dense) => self.attend_rows(
                il,
                q,
                &k,
                &v,
                all(n_ctx, self.spec.n_kv),
                Beside { mask: self.inputs.mask_dense.as_ref(), sinks },
            )?,
            (_, Layout::Ring) => {
                let runs = all(self.cache.n_ring(), self.spec.n_kv_ring);
                self.attend_rows(il, q, &k, &v, runs, Beside { mask: self.inputs.mask_ring.as_ref(), sinks })?
            }
            (_, Layout::Pool(heads)) => self.attend_pool(il, q, &k, &v, heads, sinks)?,
        };
        let out = self.spread(&out, hadamard_v)?;
        let out = match &l.latent {
            Some(latent) => self.latent_values(&out, latent)?,
            None => out,
        };
        let out = self.ctx.reshape(&out, &[out.ne()[0] * hp.n_head, n])?.named(&format!("kqv_out-{il}"));
        Ok(Some(self.linear(self.need(&l.wo, "attn_output")?, &out)?))
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
    fn attend_rows(&self, il: usize, q: &Tensor, k: &Tensor, v: &Tensor, runs: Runs, beside: Beside) -> Result<Tensor> {
        let (hp, ctx) = (&self.model.hp, &self.ctx);
        let (mask, sinks) = (beside.mask.ok_or_else(|| Error::ggml("a mask is missing"))?, beside.sinks);
        let v = self.rows(v, runs)?;
        if self.spec.attention != Attention::Explicit {
            let (q, k) = (ctx.permute(q, [0, 2, 1, 3])?, self.rows(k, runs)?);
            let max_bias = hp.alibi_max_bias;
            let logits = Logits { scale: hp.kq_scale, softcap: hp.attn_softcap, max_bias, sinks };
            return self.beside_cache(il, ctx.flash_attn(&q, &k, &v, mask, logits)?);
        }
        let p = self.probabilities(q, k, runs, mask, sinks)?;
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
    fn probabilities(
        &self,
        q: &Tensor,
        k: &Tensor,
        runs: Runs,
        mask: &Tensor,
        sinks: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (hp, ctx) = (&self.model.hp, &self.ctx);
        let kq = ctx.mul_mat(&self.rows(k, runs)?, &ctx.permute(q, [0, 2, 1, 3])?)?;
        let (kq, scale) = match hp.attn_softcap {
            0.0 => (kq, hp.kq_scale),
            cap => (ctx.scale(&ctx.tanh(&ctx.scale(&kq, hp.kq_scale / cap)?)?, cap)?, 1.0),
        };
        ctx.soft_max(&kq, mask, Logits { scale, softcap: 0.0, max_bias: hp.alibi_max_bias, sinks })
    }

    /// Attention over a ragged pool by ggml's operations, one KV head at a time. Result `{dv, n_head, n_tokens}`.
    fn attend_pool(
        &self,
        il: usize,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        heads: &[PoolHead],
        sinks: Option<&Tensor>,
    ) -> Result<Tensor> {
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
            // A sink per query head of the group.
            let own = sinks.map(|s| ctx.view(s, [r, 1, 1, 1], [r * s.nb()[0]; 3], g * r * s.nb()[0])).transpose()?;
            let out = self.attend_rows(il, &group, k, v, runs, Beside { mask: Some(&mask), sinks: own.as_ref() })?;
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
    fn tap_attention_mass(&mut self, il: usize, q: &Tensor, k: &Tensor, sinks: Option<&Tensor>) -> Result<()> {
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
        let p = self.probabilities(q, k, runs, mask, sinks)?;
        let p = self.ctx.reshape(&p, &[runs.n_kv, ones.ne()[1], runs.n_head])?;
        let mass = self.ctx.out_prod(&p, ones)?.named(&format!("tap_mass-{il}")).output();
        self.graph.expand(&mass)?;
        self.outputs.attention_mass.push((il, mass));
        Ok(())
    }
}
