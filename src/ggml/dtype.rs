//! Tensor types, with the sizes ggml itself reports.

use super::sys;
use std::ffi::CStr;

/// A ggml tensor type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub(super) sys::ggml_type);

#[allow(missing_docs)]
impl Type {
    pub const F32: Type = Type(sys::GGML_TYPE_F32);
    pub const F16: Type = Type(sys::GGML_TYPE_F16);
    pub const BF16: Type = Type(sys::GGML_TYPE_BF16);
    pub const Q4_0: Type = Type(sys::GGML_TYPE_Q4_0);
    pub const Q4_1: Type = Type(sys::GGML_TYPE_Q4_1);
    pub const Q5_0: Type = Type(sys::GGML_TYPE_Q5_0);
    pub const Q5_1: Type = Type(sys::GGML_TYPE_Q5_1);
    pub const Q8_0: Type = Type(sys::GGML_TYPE_Q8_0);
    pub const Q8_1: Type = Type(sys::GGML_TYPE_Q8_1);
    pub const Q4_K: Type = Type(sys::GGML_TYPE_Q4_K);
    pub const Q6_K: Type = Type(sys::GGML_TYPE_Q6_K);
    pub const IQ4_NL: Type = Type(sys::GGML_TYPE_IQ4_NL);
    pub const I32: Type = Type(sys::GGML_TYPE_I32);
    pub const I64: Type = Type(sys::GGML_TYPE_I64);
}

impl Type {
    /// The type with this id in a GGUF file, if this ggml knows it.
    pub fn from_id(id: u32) -> Option<Type> {
        let known = id < sys::GGML_TYPE_COUNT;
        let ty = Type(id as sys::ggml_type);
        (known && ty.block_size() > 0 && ty.type_size() > 0).then_some(ty)
    }

    /// ggml's name, for example `q4_K`.
    pub fn name(self) -> &'static str {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction; the name is a static string.
        unsafe { CStr::from_ptr(sys::ggml_type_name(self.0)) }.to_str().unwrap_or("?")
    }

    /// Elements per block.
    pub fn block_size(self) -> usize {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction.
        unsafe { sys::ggml_blck_size(self.0) as usize }
    }

    /// Bytes per block.
    pub fn type_size(self) -> usize {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction.
        unsafe { sys::ggml_type_size(self.0) }
    }

    /// Bytes of a row of `n` elements; `n` must be a multiple of the block size.
    pub fn row_size(self, n: usize) -> usize {
        n / self.block_size() * self.type_size()
    }

    /// Whether elements are stored in blocks.
    pub fn is_quantized(self) -> bool {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction.
        unsafe { sys::ggml_is_quantized(self.0) }
    }

    /// Whether the CPU multiplies matrices of this type; types of activations inside ggml are none of weights.
    pub fn multiplies(self) -> bool {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction; both tables are static.
        unsafe {
            let (traits, cpu) = (sys::ggml_get_type_traits(self.0), sys::ggml_get_type_traits_cpu(self.0));
            (*cpu).vec_dot.is_some() && (self == Type::F32 || (*traits).to_float.is_some())
        }
    }

    /// The type that activations are quantised to before they meet weights of this type on the CPU.
    pub fn activations(self) -> Type {
        // SAFETY: ids are below GGML_TYPE_COUNT by construction; the table is static.
        Type(unsafe { (*sys::ggml_get_type_traits_cpu(self.0)).vec_dot_type })
    }

    /// Turns a row of activations, `f32` as bytes, into this type as the CPU backend does. Returns false when it does not.
    ///
    /// # Panics
    /// When the sizes do not fit together.
    pub(super) fn quantize_activations(self, x: &[u8], out: &mut [u8]) -> bool {
        let n = x.len() / 4;
        assert!(
            n.is_multiple_of(self.block_size()) && out.len() == self.row_size(n) && x.as_ptr().align_offset(4) == 0
        );
        // SAFETY: sizes and alignment were checked.
        unsafe {
            let Some(convert) = (*sys::ggml_get_type_traits_cpu(self.0)).from_float else { return false };
            convert(x.as_ptr().cast(), out.as_mut_ptr().cast(), n as i64);
        }
        true
    }

    /// Turns rows of this type into `f32`. Returns false when ggml has no conversion for the type.
    ///
    /// # Panics
    /// When `src` does not hold exactly `dst.len()` elements.
    pub fn to_f32(self, src: &[u8], dst: &mut [f32]) -> bool {
        assert_eq!(dst.len() % self.block_size(), 0);
        assert_eq!(src.len(), self.row_size(dst.len()));
        if self == Type::F32 {
            for (d, s) in dst.iter_mut().zip(src.chunks_exact(4)) {
                *d = f32::from_le_bytes([s[0], s[1], s[2], s[3]]);
            }
            return true;
        }
        // SAFETY: source and destination sizes were checked above; `src` of f16 and quantised rows may be unaligned
        // for u16 only when the caller cut a byte slice oddly, which the assertion below excludes.
        unsafe {
            if self == Type::F16 && src.as_ptr().align_offset(2) == 0 {
                // The CPU backend fills its conversion table when it is registered.
                static REGISTERED: std::sync::Once = std::sync::Once::new();
                REGISTERED.call_once(|| {
                    sys::ggml_backend_cpu_reg();
                });
                sys::ggml_cpu_fp16_to_fp32(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len() as i64);
                return true;
            }
            match (*sys::ggml_get_type_traits(self.0)).to_float {
                Some(convert) => {
                    convert(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len() as i64);
                    true
                }
                None => false,
            }
        }
    }

    /// Turns `f32` rows of `n_per_row` elements into this type. Returns false when ggml cannot (or only with an importance matrix).
    ///
    /// # Panics
    /// When the sizes do not fit together.
    pub fn from_f32(self, src: &[f32], n_per_row: usize, dst: &mut [u8]) -> bool {
        // SAFETY: the function only reads a number.
        !unsafe { sys::ggml_quantize_requires_imatrix(self.0) } && self.quantize(src, n_per_row, None, dst)
    }

    /// The same with the importance of each place in a row. Returns false when ggml cannot.
    ///
    /// # Panics
    /// When the sizes do not fit together.
    pub fn quantize(self, src: &[f32], n_per_row: usize, importance: Option<&[f32]>, dst: &mut [u8]) -> bool {
        assert!(importance.is_none_or(|i| i.len() == n_per_row));
        assert!(n_per_row > 0 && src.len().is_multiple_of(n_per_row) && n_per_row.is_multiple_of(self.block_size()));
        assert_eq!(dst.len(), self.row_size(src.len()));
        if self == Type::F32 {
            for (d, s) in dst.chunks_exact_mut(4).zip(src) {
                d.copy_from_slice(&s.to_le_bytes());
            }
            return true;
        }
        // SAFETY: the function only reads a number.
        let needs_importance = unsafe { sys::ggml_quantize_requires_imatrix(self.0) };
        if !self.multiplies() || (importance.is_none() && needs_importance) {
            return false;
        }
        // SAFETY: ggml converts to every type that it multiplies; sizes were checked above, and exactly row_size(src.len())
        // bytes are written.
        unsafe {
            let n_rows = (src.len() / n_per_row) as i64;
            sys::ggml_quantize_chunk(
                self.0,
                src.as_ptr(),
                dst.as_mut_ptr().cast(),
                0,
                n_rows,
                n_per_row as i64,
                importance.map_or(std::ptr::null(), <[f32]>::as_ptr),
            ) == dst.len()
        }
    }
}

impl std::fmt::Debug for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
