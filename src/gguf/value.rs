//! Metadata values of a GGUF file and the conversions that readers of a model need.
//!
//! Stage: gguf. Source: `enum gguf_type` of gguf.h.
//! A single string is UTF-8, anything else is refused. The strings of an array are bytes: vocabularies in use have
//! tokens that are no valid UTF-8. They lie in one buffer, since a vocabulary has up to a million of them.

use std::fmt;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the types of GGUF.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array; GGUF arrays here are not nested, as in llama.cpp.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the types of GGUF.
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(StrArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// An array of byte strings in one buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StrArray {
    bytes: Vec<u8>,
    /// Where each string ends in `bytes`; it starts where the one before ends.
    ends: Vec<usize>,
}

impl StrArray {
    /// An empty array with room for `n` strings.
    pub(super) fn with_capacity(n: usize) -> Self {
        StrArray { bytes: Vec::new(), ends: Vec::with_capacity(n) }
    }

    /// Appends a string of `n` zero bytes and returns it for filling.
    pub(super) fn grow(&mut self, n: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + n, 0);
        self.ends.push(self.bytes.len());
        &mut self.bytes[start..]
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.bytes[std::mem::replace(&mut start, end)..end])
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StrArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = StrArray::default();
        for s in strings {
            array.grow(s.as_ref().len()).copy_from_slice(s.as_ref());
        }
        array
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// GGUF's name of the element type.
    pub fn type_name(&self) -> &'static str {
        TYPE_NAMES[self.type_id() as usize]
    }

    /// GGUF's number of the element type.
    pub(super) fn type_id(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::Str(_) => 8,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }

    /// The elements as integers, `None` for another element type.
    pub(super) fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        Some(match self {
            Array::U8(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::I8(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::U16(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::I16(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::U32(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::I32(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::U64(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::I64(v) => Box::new(v.iter().map(|&x| x.into())),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Str(_) => return None,
        })
    }
}

/// GGUF's names of the value types by id, as llama.cpp prints them.
pub(super) const TYPE_NAMES: [&str; 13] =
    ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"];

impl Value {
    /// GGUF's number of the type.
    pub(super) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Str(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// The value as an integer, `None` for another type.
    pub(crate) fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::Str(_) | Value::Array(_) => return None,
        })
    }
}

/// Type and value in one line, long ones cut.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = TYPE_NAMES[self.type_id() as usize];
        match self {
            Value::Array(a) => write!(f, "{name}[{},{}]", a.type_name(), a.len()),
            Value::Str(s) => write!(f, "{name} '{}'", shown(s)),
            Value::Bool(v) => write!(f, "{name} {v}"),
            Value::F32(v) => write!(f, "{name} {v}"),
            Value::F64(v) => write!(f, "{name} {v}"),
            _ => write!(f, "{name} {}", self.integer().unwrap_or_default()),
        }
    }
}

/// Text of a file for a message: control characters escaped, cut after 80 characters.
pub(super) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        out.push_str("...");
    }
    out
}

macro_rules! from {
    ($($variant:ident: $ty:ty),*) => {$(
        impl From<$ty> for Value {
            fn from(v: $ty) -> Self {
                Value::$variant(v)
            }
        }
    )*};
}
from!(U32: u32, I32: i32, U64: u64, F32: f32, Bool: bool, Str: String, Array: Array);

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Str(v.into())
    }
}
