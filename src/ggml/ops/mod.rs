//! The operations the model graphs use: each checks shapes and types, because ggml aborts on wrong ones, then calls ggml.
//!
//! One function per ggml function; `C equivalent` names it. Shapes are ggml `ne` order, innermost first.

mod attention;
mod experts;

pub use attention::{Logits, RopeParams};

use super::context::Context;
use super::dtype::Type;
use super::sys;
use super::tensor::Tensor;
use crate::error::{Error, Result};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x * sigmoid(x)`.
    Silu,
    /// ggml's tanh form of GELU.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`; has no gated form.
    ReluSqr,
    /// gpt-oss: `x sigmoid(1.702 x) (1 + y)`, `x` at most 7, `y` within 7; has only a gated form.
    SwigluOai,
}

fn require(ok: bool, op: &'static str, want: &str, tensors: &[&Tensor]) -> Result<()> {
    match ok {
        true => Ok(()),
        false => {
            let got: Vec<String> = tensors.iter().map(|t| format!("{t:?}")).collect();
            Err(Error::shape(op, want, got.join(" and ")))
        }
    }
}

/// Whether `b` can be repeated to the shape of `a`.
fn repeats(a: &Tensor, b: &Tensor) -> bool {
    a.ne().iter().zip(b.ne()).all(|(&n, m)| m > 0 && n % m == 0)
}

fn is_f32(t: &Tensor) -> bool {
    t.ty() == Type::F32
}

/// `f32`, the elements of a row without gaps.
fn is_rows(t: &Tensor) -> bool {
    is_f32(t) && t.nb()[0] == 4
}

/// Whether ggml multiplies and attends with numbers of this type.
fn is_number(ty: Type) -> bool {
    ty.multiplies()
}

macro_rules! binary {
    ($(#[$doc:meta])* $name:ident, $c:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When `b` cannot be repeated to the shape of `a`, or either is not rows of `f32`.
        pub fn $name(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
            let ok = repeats(a, b) && is_rows(a) && is_rows(b);
            require(ok, stringify!($name), "f32 rows, the second operand repeatable to the first", &[a, b])?;
            // SAFETY: shapes were checked; operands are alive.
            self.build(&[a, b], |ctx| unsafe { sys::$c(ctx, a.raw(), b.raw()) })
        }
    };
}

macro_rules! unary {
    ($(#[$doc:meta])* $name:ident, $c:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When `a` is not contiguous `f32`.
        pub fn $name(&self, a: &Tensor) -> Result<Tensor> {
            require(is_rows(a), stringify!($name), "f32 rows", &[a])?;
            // SAFETY: the type was checked; the operand is alive.
            self.build(&[a], |ctx| unsafe { sys::$c(ctx, a.raw()) })
        }
    };
}

/// Constants of [`Act::SwigluOai`]. Source: llama.cpp `build_moe_ffn`.
const OAI_ALPHA: f32 = 1.702;
const OAI_LIMIT: f32 = 7.0;

impl Context {
    binary!(
        /// `a + b`. C equivalent: `ggml_add`.
        add, ggml_add
    );
    binary!(
        /// `a * b`, element by element. C equivalent: `ggml_mul`.
        mul, ggml_mul
    );
    binary!(
        /// `a / b`, element by element. C equivalent: `ggml_div`.
        div, ggml_div
    );
    unary!(
        /// Hyperbolic tangent. C equivalent: `ggml_tanh`.
        tanh, ggml_tanh
    );
    unary!(
        /// The square of each element. C equivalent: `ggml_sqr`.
        sqr, ggml_sqr
    );
    unary!(
        /// `1 / (1 + exp(-x))`. C equivalent: `ggml_sigmoid`.
        sigmoid, ggml_sigmoid
    );

    /// `s * a`. C equivalent: `ggml_scale`.
    ///
    /// # Errors
    /// When `a` is not equally spaced rows of `f32`.
    pub fn scale(&self, a: &Tensor, s: f32) -> Result<Tensor> {
        let (n, nb) = (a.ne(), a.nb());
        let ok = is_rows(a) && nb[2] == nb[1] * n[1] && nb[3] == nb[2] * n[2];
        require(ok, "scale", "equally spaced f32 rows", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_scale(ctx, a.raw(), s) })
    }

    /// Applies an activation. C equivalent: `ggml_silu`, `ggml_gelu`, `ggml_relu`, `ggml_sqr`.
    ///
    /// # Errors
    /// When `a` is not contiguous `f32`.
    pub fn act(&self, a: &Tensor, act: Act) -> Result<Tensor> {
        let ok = is_f32(a) && a.is_contiguous() && act != Act::SwigluOai;
        require(ok, "activation", "contiguous f32 and an activation without gate", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        let y = self.build(&[a], |ctx| unsafe {
            match act {
                Act::Silu => sys::ggml_silu(ctx, a.raw()),
                Act::Gelu => sys::ggml_gelu(ctx, a.raw()),
                Act::Relu | Act::ReluSqr => sys::ggml_relu(ctx, a.raw()),
                Act::SwigluOai => std::ptr::null_mut(),
            }
        })?;
        match act {
            Act::ReluSqr => self.sqr(&y),
            _ => Ok(y),
        }
    }

    /// `act(gate) * up`. C equivalent: `ggml_swiglu_split`, `ggml_geglu_split`, `ggml_reglu_split`, `ggml_swiglu_oai`.
    ///
    /// # Errors
    /// When the shapes differ or are not contiguous `f32`, or the activation has no gated form.
    pub fn glu(&self, gate: &Tensor, up: &Tensor, act: Act) -> Result<Tensor> {
        let same = gate.ne() == up.ne() && gate.nb() == up.nb();
        let ok = same && is_f32(gate) && is_f32(up) && gate.is_contiguous() && act != Act::ReluSqr;
        require(ok, "gated activation", "two contiguous f32 tensors of one shape", &[gate, up])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[gate, up], |ctx| unsafe {
            match act {
                Act::Silu => sys::ggml_swiglu_split(ctx, gate.raw(), up.raw()),
                Act::Gelu => sys::ggml_geglu_split(ctx, gate.raw(), up.raw()),
                Act::Relu => sys::ggml_reglu_split(ctx, gate.raw(), up.raw()),
                Act::SwigluOai => sys::ggml_swiglu_oai(ctx, gate.raw(), up.raw(), OAI_ALPHA, OAI_LIMIT),
                Act::ReluSqr => std::ptr::null_mut(),
            }
        })
    }

    /// `act(a[..n]) * a[n..]` of rows of `2 n`. C equivalent: `ggml_swiglu`, `ggml_geglu`.
    ///
    /// # Errors
    /// When the rows are odd or not contiguous `f32`, or the activation is neither of the two.
    pub fn glu_halves(&self, a: &Tensor, act: Act) -> Result<Tensor> {
        let ok = is_f32(a) && a.is_contiguous() && a.ne()[0].is_multiple_of(2) && matches!(act, Act::Silu | Act::Gelu);
        require(ok, "gated activation", "contiguous f32 rows of two halves", &[a])?;
        // SAFETY: the shape was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe {
            match act {
                Act::Gelu => sys::ggml_geglu(ctx, a.raw()),
                _ => sys::ggml_swiglu(ctx, a.raw()),
            }
        })
    }

    /// Root-mean-square normalisation over dimension 0. C equivalent: `ggml_rms_norm`.
    ///
    /// # Errors
    /// When `a` is not `f32` rows.
    pub fn rms_norm(&self, a: &Tensor, eps: f32) -> Result<Tensor> {
        require(is_rows(a) && eps >= 0.0, "rms_norm", "f32 rows", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_rms_norm(ctx, a.raw(), eps) })
    }

    /// Layer normalisation over dimension 0. C equivalent: `ggml_norm`.
    ///
    /// # Errors
    /// When `a` is not `f32` rows.
    pub fn norm(&self, a: &Tensor, eps: f32) -> Result<Tensor> {
        require(is_rows(a) && eps >= 0.0, "norm", "f32 rows", &[a])?;
        // SAFETY: the type was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_norm(ctx, a.raw(), eps) })
    }

    /// Matrix product. C equivalent: `ggml_mul_mat`.
    ///
    /// Shapes: `a: {n, m, x, y}`, `b: {n, t, x', y'} f32` with `x' % x == 0`; result `{m, t, x', y'} f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn mul_mat(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (p, q) = (a.ne(), b.ne());
        let ok = p[0] == q[0]
            && q[2] % p[2] == 0
            && q[3] % p[3] == 0
            && a.nb()[0] == a.ty().type_size()
            && a.nb()[1] >= a.nb()[0]
            && is_number(a.ty())
            && is_rows(b);
        require(ok, "mul_mat", "equal first dimensions and an f32 second operand", &[a, b])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b], |ctx| unsafe { sys::ggml_mul_mat(ctx, a.raw(), b.raw()) })
    }

    /// Multiplies each block of `x` with a Walsh-Hadamard matrix, which ggml may do without reading it. C equivalent:
    /// `ggml_mul_mat` with `GGML_HINT_SRC0_IS_HADAMARD`.
    ///
    /// Shapes: `h: {n, n}`, `n` a power of two, `x: {d, y, z}` with `d % n == 0`; result as `x`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn hadamard(&self, h: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (n, ne) = (h.ne()[0], x.ne());
        let ok = n.is_power_of_two() && h.ne() == [n, n, 1, 1] && ne[0] % n == 0 && ne[3] == 1 && x.is_contiguous();
        require(ok, "hadamard", "whole blocks of a power of two", &[h, x])?;
        let y = self.mul_mat(h, &self.reshape(x, &[n, x.n_elements() / n])?)?;
        // SAFETY: the tensor is a fresh product of this context.
        unsafe { sys::ggml_mul_mat_set_hint(y.raw(), sys::GGML_HINT_SRC0_IS_HADAMARD) };
        self.reshape(&y, &ne[..3])
    }

    /// Sum over rows of `a` times elements of `b`: `out[i, j] = sum_t a[i, t] * b[j, t]`. C equivalent: `ggml_out_prod`.
    ///
    /// Shapes: `a: {n, t, x, y} f32`, `b: {m, t, x, y} f32`; result `{n, m, x, y} f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn out_prod(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let ok = a.ne()[1..] == b.ne()[1..] && is_rows(a) && is_rows(b) && a.nb()[1] >= a.nb()[0];
        require(ok, "out_prod", "f32 rows, all dimensions but the first equal", &[a, b])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b], |ctx| unsafe { sys::ggml_out_prod(ctx, a.raw(), b.raw()) })
    }

    /// Rows of `a` picked by `ids`. C equivalent: `ggml_get_rows`.
    ///
    /// Shapes: `a: {n, m}`, `ids: {t} i32`; result `{n, t} f32`. The ids must be below `m` when the graph runs.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn get_rows(&self, a: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let matrix = a.ne()[2..] == [1, 1] && a.nb()[0] == a.ty().type_size() && is_number(a.ty());
        let ok = matrix && ids.ty() == Type::I32 && ids.n_elements() == ids.ne()[0];
        require(ok, "get_rows", "a matrix and a vector of i32", &[a, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, ids], |ctx| unsafe { sys::ggml_get_rows(ctx, a.raw(), ids.raw()) })
    }

    /// Writes rows of `b` to the rows `ids` of `a`, converting to its type; the result is a view of `a`. C equivalent: `ggml_set_rows`.
    ///
    /// Shapes: `a: {n, m}`, `b: {n, t} f32`, `ids: {t} i64`. The ids must be below `m` when the graph runs.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn set_rows(&self, a: &Tensor, b: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (p, q, i) = (a.ne(), b.ne(), ids.ne());
        let flat = p[2..] == [1, 1] && q[2..] == [1, 1] && i[1..] == [1, 1, 1];
        let matrix = flat && a.nb()[0] == a.ty().type_size() && is_number(a.ty());
        let ok = matrix && p[0] == q[0] && q[1] == i[0] && is_rows(b) && ids.ty() == Type::I64;
        require(ok, "set_rows", "a matrix, f32 rows of its length and one i64 id per row", &[a, b, ids])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b, ids], |ctx| unsafe { sys::ggml_set_rows(ctx, a.raw(), b.raw(), ids.raw()) })
    }

    /// The same data in another shape. C equivalent: `ggml_reshape_2d`, `ggml_reshape_3d`, `ggml_reshape_4d`.
    ///
    /// # Errors
    /// When the number of elements differs or `a` is not contiguous.
    pub fn reshape(&self, a: &Tensor, ne: &[usize]) -> Result<Tensor> {
        let ok = a.is_contiguous() && matches!(ne.len(), 2..=4) && ne.iter().product::<usize>() == a.n_elements();
        require(ok, "reshape", &format!("contiguous data of shape {ne:?}"), &[a])?;
        // SAFETY: the number of elements was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe {
            match *ne {
                [x, y] => sys::ggml_reshape_2d(ctx, a.raw(), x as i64, y as i64),
                [x, y, z] => sys::ggml_reshape_3d(ctx, a.raw(), x as i64, y as i64, z as i64),
                [x, y, z, w] => sys::ggml_reshape_4d(ctx, a.raw(), x as i64, y as i64, z as i64, w as i64),
                _ => std::ptr::null_mut(),
            }
        })
    }

    /// A window into `a`. C equivalent: `ggml_view_4d`.
    ///
    /// Shapes: `ne`; Units: `nb[0..3]` are the strides of dimensions 1 to 3 and `offset` the start, all in bytes.
    ///
    /// # Errors
    /// When the window would reach outside `a`.
    pub fn view(&self, a: &Tensor, ne: [usize; 4], nb: [usize; 3], offset: usize) -> Result<Tensor> {
        let mut end = offset.checked_add(a.ty().row_size(ne[0]));
        for (n, stride) in ne[1..].iter().zip(nb) {
            end = end.and_then(|e| e.checked_add((n.max(&1) - 1).checked_mul(stride)?));
        }
        let ok = !ne.contains(&0) && ne[0].is_multiple_of(a.ty().block_size()) && end.is_some_and(|e| e <= a.n_bytes());
        require(ok, "view", &format!("{ne:?} at byte {offset} inside the tensor"), &[a])?;
        let n = ne.map(|n| n as i64);
        // SAFETY: the window lies inside the source; the operand is alive.
        self.build(&[a], |ctx| unsafe {
            sys::ggml_view_4d(ctx, a.raw(), n[0], n[1], n[2], n[3], nb[0], nb[1], nb[2], offset)
        })
    }

    /// Reorders dimensions without moving data: dimension `i` of `a` becomes dimension `axes[i]`. C equivalent: `ggml_permute`.
    ///
    /// # Errors
    /// When `axes` is not a permutation of 0 to 3.
    pub fn permute(&self, a: &Tensor, axes: [usize; 4]) -> Result<Tensor> {
        let mut sorted = axes;
        sorted.sort_unstable();
        require(sorted == [0, 1, 2, 3], "permute", "a permutation of 0 to 3", &[a])?;
        let x = axes.map(|i| i as i32);
        // SAFETY: the axes were checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_permute(ctx, a.raw(), x[0], x[1], x[2], x[3]) })
    }

    /// A contiguous copy. C equivalent: `ggml_cont`.
    ///
    /// # Errors
    /// When blocks of a quantised `a` are not whole.
    pub fn cont(&self, a: &Tensor) -> Result<Tensor> {
        require(!a.ty().is_quantized() || a.nb()[0] == a.ty().type_size(), "cont", "whole blocks", &[a])?;
        // SAFETY: the layout was checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_cont(ctx, a.raw()) })
    }

    /// A copy in another type. C equivalent: `ggml_cast`.
    ///
    /// # Errors
    /// When ggml has no conversion, or rows are no multiple of the type's block size.
    pub fn cast(&self, a: &Tensor, ty: Type) -> Result<Tensor> {
        let from = a.ty() == ty || [Type::F32, Type::F16, Type::BF16].contains(&a.ty()) || ty == Type::F32;
        let ok = a.ne()[0].is_multiple_of(ty.block_size())
            && is_number(a.ty())
            && is_number(ty)
            && from
            && a.is_contiguous();
        require(ok, "cast", &format!("contiguous data that converts to {ty}"), &[a])?;
        // SAFETY: types and layout were checked; the operand is alive.
        self.build(&[a], |ctx| unsafe { sys::ggml_cast(ctx, a.raw(), ty.0) })
    }

    /// `a` and `b` one after the other along `dim`. C equivalent: `ggml_concat`.
    ///
    /// # Errors
    /// When types or the other dimensions differ.
    pub fn concat(&self, a: &Tensor, b: &Tensor, dim: usize) -> Result<Tensor> {
        let same = (0..4).all(|d| d == dim || a.ne()[d] == b.ne()[d]);
        let ok = dim < 4 && same && a.ty() == b.ty() && !a.ty().is_quantized();
        require(ok, "concat", "equal types, not quantised, and equal other dimensions", &[a, b])?;
        // SAFETY: shapes and types were checked; operands are alive.
        self.build(&[a, b], |ctx| unsafe { sys::ggml_concat(ctx, a.raw(), b.raw(), dim as i32) })
    }
}
