//! One row of a GGUF tensor table, and ggml's tensor types with their block layout.
//!
//! Stage: gguf. Source: `type_traits` of ggml.c and the blocks of ggml-common.h, ggml 0.26 (type ids 0 to 42).
//! Deviation from llama.cpp: tensors without dimensions or without elements are refused.

/// The most dimensions a tensor has.
pub const MAX_DIMS: usize = 4;
/// The longest tensor name in bytes; ggml's buffer of 64 bytes ends in a NUL.
pub const MAX_NAME: usize = 63;

/// What a file says about one tensor.
///
/// Shapes: `ne` in ggml's order, innermost first, unused dimensions 1.
/// Units: `n_bytes` and `offset` in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, 1 to 63 bytes, unique in the model.
    pub name: String,
    /// Element type.
    pub ty: GgmlType,
    /// Elements per dimension.
    pub ne: [u64; MAX_DIMS],
    /// How many of the dimensions the file lists, 1 to 4.
    pub n_dims: u32,
    /// Size of the data without padding.
    pub n_bytes: u64,
    /// Index of the file that has the data, into [`Gguf::files`](super::Gguf::files).
    pub file: usize,
    /// Where the data starts in that file, from its first byte.
    pub offset: u64,
}

/// An element type of ggml that this version can store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType(u8);

/// Name, elements per block and bytes per block by type id; a removed type has no block and names its successor.
const TYPES: [(&str, u16, u16); 43] = [
    ("f32", 1, 4),
    ("f16", 1, 2),
    ("q4_0", 32, 18),
    ("q4_1", 32, 20),
    ("q4_2 (use q4_0)", 0, 0),
    ("q4_3 (use q4_1)", 0, 0),
    ("q5_0", 32, 22),
    ("q5_1", 32, 24),
    ("q8_0", 32, 34),
    ("q8_1", 32, 36),
    ("q2_K", 256, 84),
    ("q3_K", 256, 110),
    ("q4_K", 256, 144),
    ("q5_K", 256, 176),
    ("q6_K", 256, 210),
    ("q8_K", 256, 292),
    ("iq2_xxs", 256, 66),
    ("iq2_xs", 256, 74),
    ("iq3_xxs", 256, 98),
    ("iq1_s", 256, 50),
    ("iq4_nl", 32, 18),
    ("iq3_s", 256, 110),
    ("iq2_s", 256, 82),
    ("iq4_xs", 256, 136),
    ("i8", 1, 1),
    ("i16", 1, 2),
    ("i32", 1, 4),
    ("i64", 1, 8),
    ("f64", 1, 8),
    ("iq1_m", 256, 56),
    ("bf16", 1, 2),
    ("q4_0_4_4 (use q4_0)", 0, 0),
    ("q4_0_4_8 (use q4_0)", 0, 0),
    ("q4_0_8_8 (use q4_0)", 0, 0),
    ("tq1_0", 256, 54),
    ("tq2_0", 256, 66),
    ("iq4_nl_4_4 (use iq4_nl)", 0, 0),
    ("iq4_nl_4_8 (use iq4_nl)", 0, 0),
    ("iq4_nl_8_8 (use iq4_nl)", 0, 0),
    ("mxfp4", 32, 17),
    ("nvfp4", 64, 36),
    ("q1_0", 128, 18),
    ("q2_0", 64, 18),
];

#[rustfmt::skip]
#[allow(missing_docs)] // The names are ggml's.
impl GgmlType {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q4_0: Self = Self(2);
    pub const Q4_1: Self = Self(3);
    pub const Q5_0: Self = Self(6);
    pub const Q5_1: Self = Self(7);
    pub const Q8_0: Self = Self(8);
    pub const Q8_1: Self = Self(9);
    pub const Q2_K: Self = Self(10);
    pub const Q3_K: Self = Self(11);
    pub const Q4_K: Self = Self(12);
    pub const Q5_K: Self = Self(13);
    pub const Q6_K: Self = Self(14);
    pub const Q8_K: Self = Self(15);
    pub const IQ2_XXS: Self = Self(16);
    pub const IQ2_XS: Self = Self(17);
    pub const IQ3_XXS: Self = Self(18);
    pub const IQ1_S: Self = Self(19);
    pub const IQ4_NL: Self = Self(20);
    pub const IQ3_S: Self = Self(21);
    pub const IQ2_S: Self = Self(22);
    pub const IQ4_XS: Self = Self(23);
    pub const I8: Self = Self(24);
    pub const I16: Self = Self(25);
    pub const I32: Self = Self(26);
    pub const I64: Self = Self(27);
    pub const F64: Self = Self(28);
    pub const IQ1_M: Self = Self(29);
    pub const BF16: Self = Self(30);
    pub const TQ1_0: Self = Self(34);
    pub const TQ2_0: Self = Self(35);
    pub const MXFP4: Self = Self(39);
    pub const NVFP4: Self = Self(40);
    pub const Q1_0: Self = Self(41);
    pub const Q2_0: Self = Self(42);
}

impl GgmlType {
    /// Every storable type, by id.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        (0..TYPES.len() as u32).filter_map(Self::from_id)
    }

    /// The type with ggml's `id`, `None` for an unknown or removed one.
    pub fn from_id(id: u32) -> Option<Self> {
        let (_, block_size, _) = TYPES.get(id as usize)?;
        (*block_size > 0).then_some(Self(id as u8))
    }

    /// ggml's number of the type.
    pub fn id(self) -> u32 {
        self.0.into()
    }

    /// ggml's name of the type, for example `q4_K`.
    pub fn name(self) -> &'static str {
        TYPES[self.0 as usize].0
    }

    /// Elements per block, 1 for the types that are not quantised.
    pub fn block_size(self) -> u64 {
        TYPES[self.0 as usize].1.into()
    }

    /// Bytes per block.
    pub fn type_size(self) -> u64 {
        TYPES[self.0 as usize].2.into()
    }

    /// Bytes of a tensor, `None` where that is beyond 64 bits or a row is not a whole number of blocks.
    pub fn n_bytes(self, ne: &[u64; MAX_DIMS]) -> Option<u64> {
        if !ne[0].is_multiple_of(self.block_size()) {
            return None;
        }
        let row = (ne[0] / self.block_size()).checked_mul(self.type_size())?;
        ne[1..].iter().try_fold(row, |n, &dim| n.checked_mul(dim))
    }
}

impl std::fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The type with ggml's `id`, or what is wrong with it.
pub(super) fn check_type(id: u32) -> Result<GgmlType, String> {
    GgmlType::from_id(id).ok_or_else(|| match TYPES.get(id as usize) {
        Some((removed, ..)) => {
            format!("type {id} was removed from ggml: {removed}; quantise the model again")
        }
        None => format!("type is {id}, expected 0 to {}", TYPES.len() - 1),
    })
}

/// `name` as text, or what is wrong with it.
pub(super) fn check_name(name: Vec<u8>) -> Result<String, String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("name has {} bytes, expected 1 to {MAX_NAME}", name.len()));
    }
    match String::from_utf8(name) {
        Ok(name) if !name.contains('\0') => Ok(name),
        _ => Err("name is not UTF-8 text or has a NUL byte".into()),
    }
}

/// The padded shape and the number of bytes for the dimensions `dims`, or what is wrong with them.
///
/// Element counts stay within `i64` because ggml counts with that type; sizes in bytes leave room for padding in it.
pub(super) fn check_shape(ty: GgmlType, dims: &[u64]) -> Result<([u64; MAX_DIMS], u64), String> {
    if dims.is_empty() || dims.len() > MAX_DIMS {
        return Err(format!("has {} dimensions, expected 1 to {MAX_DIMS}", dims.len()));
    }
    let mut ne = [1; MAX_DIMS];
    ne[..dims.len()].copy_from_slice(dims);
    if ne.contains(&0) {
        return Err(format!("shape is {dims:?}, expected no dimension of 0"));
    }
    let elements = ne.iter().try_fold(1i64, |n, &dim| n.checked_mul(i64::try_from(dim).ok()?));
    if elements.is_none() {
        return Err(format!("shape is {dims:?}, expected fewer than 2^63 elements"));
    }
    if !ne[0].is_multiple_of(ty.block_size()) {
        return Err(format!(
            "has rows of {} elements, expected a multiple of {} for type {}",
            ne[0],
            ty.block_size(),
            ty.name()
        ));
    }
    match ty.n_bytes(&ne) {
        Some(n_bytes) if n_bytes < 1 << 62 => Ok((ne, n_bytes)),
        _ => Err(format!("shape is {dims:?} of {}, its size in bytes overflows", ty.name())),
    }
}
