//! Reads the header of one GGUF file and checks that the tensor data it describes lies in the file.
//!
//! Stage: gguf. Source: `gguf_init_from_reader` of ggml's gguf.cpp and the format in gguf.h.
//! Deviations, all stricter: booleans are 0 or 1, keys and names are UTF-8 without NUL, alignment is at most 1 MiB,
//! no tensor is empty, and the data is checked against the file's size before anything is loaded.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::Path;

use super::source::Source;
use super::tensor_info::{check_name, check_shape, check_type, TensorInfo, MAX_DIMS};
use super::value::{shown, Array, Value, TYPE_NAMES};
use super::{check_key, Entry, Gguf, ALIGNMENT, ALIGNMENT_KEY};
use crate::error::{Error, Result};

/// A vocabulary is read in pieces of this size.
const BUFFER: usize = 1 << 20;
const MAX_ALIGNMENT: u32 = 1 << 20;
/// The smallest record of a key (length, one character, type, one byte) and of a tensor.
const MIN_KEY: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Reads one file, whether complete or one part of a split model.
pub(super) fn read_file(path: &Path) -> Result<Gguf> {
    let kind = fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if !kind.is_file() {
        let found = if kind.is_dir() { "a directory" } else { "not a regular file" };
        return Err(Error::gguf(path, format!("is {found}, expected a GGUF file")));
    }
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let len = file.metadata().map_err(|e| Error::io(path, e))?.len();
    parse(path, BufReader::with_capacity(BUFFER, file), len)
}

/// Reads the file `path` of `len` bytes from `input`.
pub(super) fn parse(path: &Path, input: impl Read, len: u64) -> Result<Gguf> {
    let mut src = Source::new(path, input, len);
    let (version, n_tensors, n_kv) = header(&mut src)?;
    let mut gguf = Gguf::new(path, version);
    for i in 0..n_kv {
        src.item = format!("key {i}");
        key_value(&mut src, &mut gguf)?;
    }
    let alignment = alignment(&mut src, &gguf)?;
    let mut names = HashSet::new();
    let mut next = 0;
    for i in 0..n_tensors {
        src.item = format!("tensor {i}");
        let start = src.at();
        let tensor = tensor_info(&mut src, alignment, &mut next)?;
        if !names.insert(tensor.name.clone()) {
            return Err(src.fail(start, "the name occurs twice"));
        }
        gguf.add_tensor(tensor);
    }
    place_data(&mut src, &mut gguf.tensors, alignment)?;
    Ok(gguf)
}

/// Version, number of tensors, number of keys.
fn header<R: Read>(src: &mut Source<R>) -> Result<(u32, u64, u64)> {
    if src.len() == 0 {
        return Err(src.fail(0, "the file is empty, expected a GGUF file"));
    }
    let magic: [u8; 4] = src.array("magic")?;
    if &magic != b"GGUF" {
        return Err(src.fail(
            0,
            format_args!(
                "not a GGUF file, it starts with {magic:02x?} \"{}\", expected \"GGUF\"",
                magic.escape_ascii()
            ),
        ));
    }
    let version = src.u32("version")?;
    match version {
        2 | 3 => {}
        _ if version.swap_bytes() <= 3 && version != 0 => {
            return Err(src.fail(4, "the file is big-endian, expected a little-endian one; convert it"))
        }
        1 => return Err(src.fail(4, "version is 1, expected 2 or 3; convert the model again")),
        _ => return Err(src.fail(4, format_args!("version is {version}, expected 2 or 3"))),
    }
    let n_tensors = src.u64("number of tensors")?;
    let n_kv = src.u64("number of keys")?;
    for (at, name, n, min) in [(8, "tensors", n_tensors, MIN_TENSOR), (16, "keys", n_kv, MIN_KEY)] {
        let max = src.left() / min;
        if n > max {
            return Err(src.fail(
                at,
                format_args!("number of {name} is {n}, a file of {} bytes has room for {max} at most", src.len()),
            ));
        }
    }
    Ok((version, n_tensors, n_kv))
}

/// Reads one key with its value into `gguf`.
fn key_value<R: Read>(src: &mut Source<R>, gguf: &mut Gguf) -> Result<()> {
    let offset = src.at();
    let key = check_key(src.string("key")?).map_err(|what| src.fail(offset, what))?;
    src.item = format!("key '{}'", shown(&key));
    if gguf.value(&key).is_some() {
        return Err(src.fail(offset, "the key occurs twice"));
    }
    let type_id = src.u32("value type")?;
    let value = value(src, type_id)?;
    gguf.insert(key, Entry { value, offset: Some(offset) });
    Ok(())
}

fn value<R: Read>(src: &mut Source<R>, type_id: u32) -> Result<Value> {
    const FIELD: &str = "value";
    let at = src.at();
    Ok(match type_id {
        0 => Value::U8(src.array(FIELD).map(u8::from_le_bytes)?),
        1 => Value::I8(src.array(FIELD).map(i8::from_le_bytes)?),
        2 => Value::U16(src.array(FIELD).map(u16::from_le_bytes)?),
        3 => Value::I16(src.array(FIELD).map(i16::from_le_bytes)?),
        4 => Value::U32(src.array(FIELD).map(u32::from_le_bytes)?),
        5 => Value::I32(src.array(FIELD).map(i32::from_le_bytes)?),
        6 => Value::F32(src.array(FIELD).map(f32::from_le_bytes)?),
        7 => Value::Bool(bools(src, 1)?[0]),
        8 => {
            Value::Str(String::from_utf8(src.string(FIELD)?).map_err(|_| src.fail(at, "the string is not UTF-8 text"))?)
        }
        9 => Value::Array(array(src)?),
        10 => Value::U64(src.array(FIELD).map(u64::from_le_bytes)?),
        11 => Value::I64(src.array(FIELD).map(i64::from_le_bytes)?),
        12 => Value::F64(src.array(FIELD).map(f64::from_le_bytes)?),
        _ => return Err(bad_type(src, "value", type_id)),
    })
}

fn array<R: Read>(src: &mut Source<R>) -> Result<Array> {
    let type_id = src.u32("element type")?;
    if type_id == 9 {
        return Err(src.fail(src.at() - 4, "arrays of arrays are not supported"));
    }
    if type_id as usize >= TYPE_NAMES.len() {
        return Err(bad_type(src, "element", type_id));
    }
    let n = src.u64("number of elements")?;
    Ok(match type_id {
        0 => Array::U8(src.numbers(n, u8::from_le_bytes)?),
        1 => Array::I8(src.numbers(n, i8::from_le_bytes)?),
        2 => Array::U16(src.numbers(n, u16::from_le_bytes)?),
        3 => Array::I16(src.numbers(n, i16::from_le_bytes)?),
        4 => Array::U32(src.numbers(n, u32::from_le_bytes)?),
        5 => Array::I32(src.numbers(n, i32::from_le_bytes)?),
        6 => Array::F32(src.numbers(n, f32::from_le_bytes)?),
        7 => Array::Bool(bools(src, n)?),
        8 => Array::Str(src.strings(n)?),
        10 => Array::U64(src.numbers(n, u64::from_le_bytes)?),
        11 => Array::I64(src.numbers(n, i64::from_le_bytes)?),
        _ => Array::F64(src.numbers(n, f64::from_le_bytes)?),
    })
}

fn bools<R: Read>(src: &mut Source<R>, n: u64) -> Result<Vec<bool>> {
    let start = src.at();
    let bytes = src.numbers(n, u8::from_le_bytes)?;
    match bytes.iter().position(|&b| b > 1) {
        Some(i) => Err(src.fail(start + i as u64, format_args!("bool is {}, expected 0 or 1", bytes[i]))),
        None => Ok(bytes.into_iter().map(|b| b == 1).collect()),
    }
}

fn bad_type<R: Read>(src: &Source<R>, field: &str, type_id: u32) -> Error {
    src.fail(src.at() - 4, format_args!("{field} type is {type_id}, expected 0 to {}", TYPE_NAMES.len() - 1))
}

/// The file's `general.alignment` or the default.
fn alignment<R: Read>(src: &mut Source<R>, gguf: &Gguf) -> Result<u64> {
    let Some(entry) = gguf.entry(ALIGNMENT_KEY) else { return Ok(ALIGNMENT.into()) };
    match entry.value {
        Value::U32(n) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n.into()),
        ref found => {
            src.item = format!("key '{ALIGNMENT_KEY}'");
            let at = entry.offset.unwrap_or_default();
            Err(src.fail(at, format_args!("is {found}, expected u32, a power of two up to {MAX_ALIGNMENT}")))
        }
    }
}

/// Reads one row of the tensor table, whose data must start at `next`; `next` becomes its padded end.
///
/// Like llama.cpp this accepts only data without gaps. `offset` still counts from the start of the data.
fn tensor_info<R: Read>(src: &mut Source<R>, alignment: u64, next: &mut u64) -> Result<TensorInfo> {
    let start = src.at();
    let name = check_name(src.string("name")?).map_err(|what| src.fail(start, what))?;
    src.item = format!("tensor '{}'", shown(&name));

    let shape_at = src.at();
    let n_dims = src.u32("number of dimensions")?;
    if n_dims == 0 || n_dims as usize > MAX_DIMS {
        return Err(src.fail(shape_at, format_args!("has {n_dims} dimensions, expected 1 to {MAX_DIMS}")));
    }
    let mut dims = [0; MAX_DIMS];
    let dims = &mut dims[..n_dims as usize];
    for dim in dims.iter_mut() {
        *dim = src.u64("dimension")?;
    }
    let type_at = src.at();
    let ty = check_type(src.u32("type")?).map_err(|what| src.fail(type_at, what))?;
    let (ne, n_bytes) = check_shape(ty, dims).map_err(|what| src.fail(shape_at, what))?;

    let offset_at = src.at();
    let offset = src.u64("data offset")?;
    if offset != *next {
        let what = format!("data offset is {offset}, expected {next} (no gaps, aligned to {alignment})");
        return Err(src.fail(offset_at, what));
    }
    match n_bytes.checked_next_multiple_of(alignment).and_then(|n| n.checked_add(offset)) {
        Some(end) if end < 1 << 63 => *next = end,
        _ => return Err(src.fail(shape_at, format_args!("{n_bytes} bytes at data offset {offset} end beyond 2^63"))),
    }
    Ok(TensorInfo { name, ty, ne, n_dims, n_bytes, file: 0, offset })
}

/// Makes the offsets absolute and checks that the data is in the file; padding after the last tensor may be missing.
fn place_data<R: Read>(src: &mut Source<R>, tensors: &mut [TensorInfo], alignment: u64) -> Result<()> {
    let start = src.at().next_multiple_of(alignment);
    for t in tensors.iter_mut() {
        t.offset += start;
    }
    let end = tensors.last().map_or(0, |t| t.offset + t.n_bytes);
    if end > src.len() {
        src.item = "tensor data".into();
        let what =
            format!("the file has {} bytes, expected at least {end}; it is truncated, fetch it again", src.len());
        return Err(src.fail(start, what));
    }
    Ok(())
}
