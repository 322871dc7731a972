//! Operations of attention: rotation, softmax with soft-cap partners, sinks and ALiBi, fused attention.

use super::{is_f32, is_number, is_rows, require};
use crate::error::Result;
use crate::ggml::context::Context;
use crate::ggml::dtype::Type;
use crate::ggml::sys;
use crate::ggml::tensor::Tensor;

/// Parameters of `ggml_rope_ext`, without the positions.
#[derive(Clone, Debug)]
pub struct RopeParams {
    /// Pairs `(i, i + n_rot/2)` instead of `(2i, 2i+1)`.
    pub neox: bool,
    /// Rotated components.
    pub n_rot: usize,
    /// Trained context, for YaRN.
    pub n_ctx_orig: usize,
    /// Frequency base.
    pub freq_base: f32,
    /// Position scale.
    pub freq_scale: f32,
    /// YaRN extrapolation mix.
    pub ext_factor: f32,
    /// YaRN magnitude.
    pub attn_factor: f32,
    /// YaRN bound.
    pub beta_fast: f32,
    /// YaRN bound.
    pub beta_slow: f32,
}

/// How logits become probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Logits<'a> {
    /// Factor on `q.k`.
    pub scale: f32,
    /// Soft cap, 0 = none; [`Context::flash_attn`] alone applies it.
    pub softcap: f32,
    /// Largest slope of ALiBi's biases, 0 = none; the mask then holds the negated distances.
    pub max_bias: f32,
    /// A logit per query head that only the denominator has. Shapes: `{n_head} f32`.
    pub sinks: Option<&'a Tensor>,
}

impl Logits<'_> {
    fn sinks_fit(&self, n_head: usize) -> bool {
        self.sinks.is_none_or(|s| is_f32(s) && s.is_contiguous() && s.ne() == [n_head, 1, 1, 1])
    }
}

impl Context {
    /// Rotary position embedding. C equivalent: `ggml_rope_ext`.
    ///
    /// Shapes: `a: {head_dim, n_head, n_tokens} f32`, `pos: {n_tokens} i32`, `factors: {>= n_rot / 2} f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn rope(&self, a: &Tensor, pos: &Tensor, factors: Option<&Tensor>, p: &RopeParams) -> Result<Tensor> {
        let ok = is_rows(a)
            && a.ne()[3] == 1
            && pos.ty() == Type::I32
            && pos.ne() == [a.ne()[2], 1, 1, 1]
            && p.n_rot.is_multiple_of(2)
            && p.n_rot <= a.ne()[0];
        require(
            ok,
            "rope",
            "f32 heads, one i32 position per token and an even n_rot of at most the head size",
            &[a, pos],
        )?;
        if let Some(f) = factors {
            require(is_f32(f) && f.ne()[0] >= p.n_rot / 2, "rope factors", "f32, n_rot / 2 of them", &[f])?;
        }
        let mode = if p.neox { sys::GGML_ROPE_TYPE_NEOX } else { sys::GGML_ROPE_TYPE_NORMAL } as i32;
        let raw_factors = factors.map_or(std::ptr::null_mut(), Tensor::raw);
        let sources: Vec<&Tensor> = [a, pos].into_iter().chain(factors).collect();
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&sources, |ctx| unsafe {
            sys::ggml_rope_ext(
                ctx,
                a.raw(),
                pos.raw(),
                raw_factors,
                p.n_rot as i32,
                mode,
                p.n_ctx_orig as i32,
                p.freq_base,
                p.freq_scale,
                p.ext_factor,
                p.attn_factor,
                p.beta_fast,
                p.beta_slow,
            )
        })
    }

    /// `softmax(scale * a + mask)` over dimension 0. C equivalent: `ggml_soft_max_ext`, `ggml_soft_max_add_sinks`.
    ///
    /// Shapes: `a: {n, t, h} f32`, `mask: {n, >= t} f16 or f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn soft_max(&self, a: &Tensor, mask: &Tensor, l: Logits) -> Result<Tensor> {
        let (n, m) = (a.ne(), mask.ne());
        let ok = is_f32(a)
            && a.is_contiguous()
            && mask.is_contiguous()
            && [Type::F16, Type::F32].contains(&mask.ty())
            && m[0] == n[0]
            && m[1] >= n[1]
            && n[2] % m[2] == 0
            && n[3] % m[3] == 0
            && l.sinks_fit(n[2]);
        require(ok, "soft_max", "contiguous f32, a mask of its shape and a sink per head", &[a, mask])?;
        let sources: Vec<&Tensor> = [a, mask].into_iter().chain(l.sinks).collect();
        self.build(&sources, |ctx| {
            // SAFETY: shapes and types were checked; operands are alive.
            unsafe {
                let p = sys::ggml_soft_max_ext(ctx, a.raw(), mask.raw(), l.scale, l.max_bias);
                sys::ggml_soft_max_add_sinks(p, l.sinks.map_or(std::ptr::null_mut(), Tensor::raw));
                p
            }
        })
    }

    /// Fused attention. C equivalent: `ggml_flash_attn_ext` with f32 accumulation, `ggml_flash_attn_ext_add_sinks`.
    ///
    /// Shapes: `q: {d, t, h, s} f32`, `k: {d, n, h', s}`, `v: {dv, n, h', s}`, `mask: {n, >= t, 1 or h, 1 or s} f16`; result `{dv, h, t, s} f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn flash_attn(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor, l: Logits) -> Result<Tensor> {
        let (nq, nk, nv, nm) = (q.ne(), k.ne(), v.ne(), mask.ne());
        let rows = q.nb()[0] == 4 && k.nb()[0] == k.ty().type_size() && v.nb()[0] == v.ty().type_size();
        let shapes = nq[0] == nk[0] && nk[1] == nv[1] && nk[2..] == nv[2..] && nq[2] % nk[2] == 0 && nq[3] == nk[3];
        let masked = mask.ty() == Type::F16
            && mask.is_contiguous()
            && nm[0] == nk[1]
            && nm[1] >= nq[1]
            && nq[2] % nm[2] == 0
            && nq[3] % nm[3] == 0
            && l.sinks_fit(nq[2]);
        let numbers = is_f32(q) && is_number(k.ty()) && is_number(v.ty());
        require(
            numbers && rows && shapes && masked,
            "flash_attn",
            "queries, keys, values and an f16 mask that fit together",
            &[q, k, v, mask],
        )?;
        let sources: Vec<&Tensor> = [q, k, v, mask].into_iter().chain(l.sinks).collect();
        let out = self.build(&sources, |ctx| {
            let (q, k, v, mask) = (q.raw(), k.raw(), v.raw(), mask.raw());
            // SAFETY: shapes and types were checked; operands are alive.
            unsafe {
                let out = sys::ggml_flash_attn_ext(ctx, q, k, v, mask, l.scale, l.max_bias, l.softcap);
                sys::ggml_flash_attn_ext_add_sinks(out, l.sinks.map_or(std::ptr::null_mut(), Tensor::raw));
                out
            }
        })?;
        // SAFETY: the tensor is the flash-attention node just made.
        unsafe { sys::ggml_flash_attn_ext_set_prec(out.raw(), sys::GGML_PREC_F32) };
        Ok(out)
    }
}
