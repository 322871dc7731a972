//! Operations of expert routing: scores, choice, products with the chosen experts' matrices.

use super::{is_f32, is_number, is_rows, require};
use crate::error::Result;
use crate::ggml::context::Context;
use crate::ggml::dtype::Type;
use crate::ggml::sys;
use crate::ggml::tensor::Tensor;

impl Context {
    /// Softmax over dimension 0. C equivalent: `ggml_soft_max`.
    ///
    /// # Errors
    /// When `a` is not contiguous `f32`.
    pub fn soft_max_rows(&self, a: &Tensor) -> Result<Tensor> {
        require(is_f32(a) && a.is_contiguous(), "soft_max", "contiguous f32", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_soft_max(ctx, a.raw()) })
    }

    /// Sum of each row. C equivalent: `ggml_sum_rows`. Shapes: `a: {n, x, y, z}`; result `{1, x, y, z}`.
    ///
    /// # Errors
    /// When `a` is not `f32` rows.
    pub fn sum_rows(&self, a: &Tensor) -> Result<Tensor> {
        require(is_rows(a), "sum_rows", "f32 rows", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_sum_rows(ctx, a.raw()) })
    }

    /// Elements limited to `low ..= high`. C equivalent: `ggml_clamp`.
    ///
    /// # Errors
    /// When `a` is not `f32` rows.
    pub fn clamp(&self, a: &Tensor, low: f32, high: f32) -> Result<Tensor> {
        require(is_rows(a) && low <= high, "clamp", "f32 rows and ordered bounds", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_clamp(ctx, a.raw(), low, high) })
    }

    /// Every element replaced by `x`. C equivalent: `ggml_fill`.
    ///
    /// # Errors
    /// When `a` is not contiguous `f32`.
    pub fn fill(&self, a: &Tensor, x: f32) -> Result<Tensor> {
        require(is_f32(a) && a.is_contiguous(), "fill", "contiguous f32", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_fill(ctx, a.raw(), x) })
    }

    /// `a` repeated to a larger shape. C equivalent: `ggml_repeat_4d`.
    ///
    /// # Errors
    /// When `ne` is no multiple of the shape of `a`.
    pub fn repeat(&self, a: &Tensor, ne: [usize; 4]) -> Result<Tensor> {
        let ok = is_rows(a) && a.ne().iter().zip(ne).all(|(&have, want)| have > 0 && want % have == 0);
        require(ok, "repeat", &format!("f32 rows that repeat to {ne:?}"), &[a])?;
        let n = ne.map(|n| n as i64);
        // SAFETY: shapes were checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_repeat_4d(ctx, a.raw(), n[0], n[1], n[2], n[3]) })
    }

    /// Places of the `k` largest elements of each row, largest first. C equivalent: `ggml_argsort_top_k`.
    ///
    /// Shapes: `a: {n, x, y, z} f32`; result `{k, x, y, z} i32`.
    ///
    /// # Errors
    /// When `k` is larger than a row.
    pub fn top_k(&self, a: &Tensor, k: usize) -> Result<Tensor> {
        require(is_rows(a) && (1..=a.ne()[0]).contains(&k), "top_k", &format!("f32 rows of at least {k}"), &[a])?;
        // SAFETY: shapes were checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_argsort_top_k(ctx, a.raw(), k as i32) })
    }

    /// Rows of each matrix of `a`, picked by a list of its own. C equivalent: `ggml_get_rows`.
    ///
    /// Shapes: `a: {n, m, x, y} f32`, `ids: {t, x, y} i32`; result `{n, t, x, y} f32`. The ids must be below `m`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn gather(&self, a: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (p, i) = (a.ne(), ids.ne());
        let ok = is_rows(a) && ids.ty() == Type::I32 && p[2] == i[1] && p[3] == i[2] && i[3] == 1;
        require(ok, "gather", "f32 rows and a list of i32 per matrix", &[a, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, ids], |ctx| unsafe { sys::ggml_get_rows(ctx, a.raw(), ids.raw()) })
    }

    /// The inverse of [`Context::gather`]: writes rows of `b` to the rows `ids` of each matrix of `a`. C equivalent: `ggml_set_rows`.
    ///
    /// Shapes: `a: {n, m, x} f32`, `b: {n, t, x} f32`, `ids: {t, x} i32`. The ids must be below `m`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn scatter(&self, a: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (p, q, i) = (a.ne(), b.ne(), ids.ne());
        let fit = p[0] == q[0] && p[2] == q[2] && [p[3], q[3], i[2], i[3]] == [1; 4] && q[1] == i[0] && q[2] == i[1];
        let ok = fit && is_rows(a) && is_rows(b) && ids.ty() == Type::I32;
        require(ok, "scatter", "f32 rows and a list of i32 per matrix", &[a, b, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b, ids], |ctx| unsafe { sys::ggml_set_rows(ctx, a.raw(), b.raw(), ids.raw()) })
    }

    /// Products with the matrices that `ids` picks for each token. C equivalent: `ggml_mul_mat_id`.
    ///
    /// Shapes: `w: {n, m, n_expert}`, `b: {n, 1 or n_used, n_tokens} f32`, `ids: {n_used, n_tokens} i32`;
    /// result `{m, n_used, n_tokens} f32`. The ids must be below `n_expert`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn mul_mat_id(&self, w: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (p, q, i) = (w.ne(), b.ne(), ids.ne());
        let flat = [p[3], q[3], i[2], i[3]] == [1; 4] && w.nb()[0] == w.ty().type_size() && w.nb()[1] >= w.nb()[0];
        let fit = p[0] == q[0] && i[1] == q[2] && i[0] % q[1] == 0;
        let ok = flat && fit && is_number(w.ty()) && is_rows(b) && ids.ty() == Type::I32;
        require(ok, "mul_mat_id", "matrices, f32 rows and a list of i32 per token", &[w, b, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[w, b, ids], |ctx| unsafe { sys::ggml_mul_mat_id(ctx, w.raw(), b.raw(), ids.raw()) })
    }

    /// Adds the bias that `ids` picks for each row. C equivalent: `ggml_add_id`.
    ///
    /// Shapes: `a: {m, n_used, n_tokens} f32`, `b: {m, n_expert} f32`, `ids: {n_used, n_tokens} i32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn add_id(&self, a: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (p, q, i) = (a.ne(), b.ne(), ids.ne());
        let fit = p[0] == q[0] && p[1] == i[0] && p[2] == i[1] && [p[3], q[2], q[3], i[2], i[3]] == [1; 5];
        let ok = fit && is_rows(a) && is_rows(b) && ids.ty() == Type::I32;
        require(ok, "add_id", "f32 rows, biases and a list of i32 per token", &[a, b, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b, ids], |ctx| unsafe { sys::ggml_add_id(ctx, a.raw(), b.raw(), ids.raw()) })
    }
}
