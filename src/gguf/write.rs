//! Writes GGUF files, v3: quantised copies of a model and the small models of tests.
//!
//! Stage: beside the flow. Source: the format in ggml's gguf.h. The tensors are asked for one at a time, so a copy
//! needs memory for one of them; the file appears under its name only when it is complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::tensor_info::{check_name, check_shape, GgmlType, TensorInfo};
use super::value::{Array, Value};
use super::{check_key, ALIGNMENT, ALIGNMENT_KEY};
use crate::error::{Error, Result};

/// The header of a file to be written.
#[derive(Debug, Default)]
pub struct Writer {
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) tensors: Vec<TensorInfo>,
}

impl Writer {
    /// A file without metadata and tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Sets `key` to `value`; a value set before is replaced in its place.
    ///
    /// # Errors
    /// The key is empty, too long or has a NUL byte, or an alignment is not a power of two in 32 bits.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<()> {
        let (key, value) = (check_key(key.into()).map_err(Error::Usage)?, value.into());
        if key == ALIGNMENT_KEY && !matches!(value, Value::U32(n) if n.is_power_of_two()) {
            return Err(Error::Usage(format!("key '{key}' is {value}, expected u32, a power of two")));
        }
        match self.metadata.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key, value)),
        }
        Ok(())
    }

    /// Appends a tensor.
    ///
    /// Shapes: `ne` in ggml's order, 1 to 4 dimensions.
    ///
    /// # Errors
    /// The name is taken or not valid, or the shape is empty, too large or not whole blocks of `ty`.
    pub fn add_tensor(&mut self, name: &str, ty: GgmlType, ne: &[u64]) -> Result<()> {
        let bad = |what| Error::Usage(format!("tensor '{name}': {what}"));
        let checked = check_name(name.into()).map_err(bad)?;
        if self.tensors.iter().any(|t| t.name == name) {
            return Err(bad("the name is taken".into()));
        }
        let (padded, n_bytes) = check_shape(ty, ne).map_err(bad)?;
        let n_dims = ne.len() as u32;
        self.tensors.push(TensorInfo { name: checked, ty, ne: padded, n_dims, n_bytes, file: 0, offset: 0 });
        Ok(())
    }

    /// Writes the file; `data` gives the bytes of each tensor when its turn comes.
    ///
    /// # Errors
    /// The file cannot be written, `data` fails, or it gives another number of bytes than the shape needs.
    pub fn write<B: AsRef<[u8]>>(&self, path: &Path, data: impl FnMut(&TensorInfo) -> Result<B>) -> Result<()> {
        let temporary = temporary(path);
        let written =
            self.write_to(&temporary, data).and_then(|()| fs::rename(&temporary, path).map_err(|e| Error::io(path, e)));
        if written.is_err() {
            // The first error is the one to report; the file may not even exist.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn write_to<B: AsRef<[u8]>>(&self, path: &Path, mut data: impl FnMut(&TensorInfo) -> Result<B>) -> Result<()> {
        let io = |e| Error::io(path, e);
        let alignment = self.alignment();
        let (header, tensors) = self.header(alignment);
        let mut out = BufWriter::new(File::create(path).map_err(io)?);
        out.write_all(&header).map_err(io)?;
        for t in &tensors {
            let bytes = data(t)?;
            let bytes = bytes.as_ref();
            if bytes.len() as u64 != t.n_bytes {
                return Err(Error::shape(&t.name, format!("{} bytes", t.n_bytes), format!("{} bytes", bytes.len())));
            }
            out.write_all(bytes).map_err(io)?;
            pad(&mut out, t.n_bytes, alignment).map_err(io)?;
        }
        let file = out.into_inner().map_err(|e| io(e.into_error()))?;
        file.sync_all().map_err(io)
    }

    fn alignment(&self) -> u64 {
        match self.metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
            Some((_, Value::U32(n))) => (*n).into(),
            _ => ALIGNMENT.into(),
        }
    }

    /// Everything before the data, padded, and the tensors with their place in the file.
    fn header(&self, alignment: u64) -> (Vec<u8>, Vec<TensorInfo>) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut out, key.as_bytes());
            out.extend(value.type_id().to_le_bytes());
            put_value(&mut out, value);
        }
        let mut next = 0u64;
        let mut placed = self.tensors.clone();
        for t in &mut placed {
            put_str(&mut out, t.name.as_bytes());
            out.extend(t.n_dims.to_le_bytes());
            t.ne[..t.n_dims as usize].iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(t.ty.id().to_le_bytes());
            out.extend(next.to_le_bytes());
            t.offset = next;
            next = next.saturating_add(t.n_bytes.next_multiple_of(alignment));
        }
        if !placed.is_empty() {
            out.resize(out.len().next_multiple_of(alignment as usize), 0);
        }
        placed.iter_mut().for_each(|t| t.offset = t.offset.saturating_add(out.len() as u64));
        (out, placed)
    }
}

fn put_str(out: &mut Vec<u8>, s: &[u8]) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

pub(super) fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::Str(v) => put_str(out, v.as_bytes()),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
        Array::Str(v) => v.iter().for_each(|s| put_str(out, s)),
        Array::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}

fn pad(out: &mut impl Write, n: u64, alignment: u64) -> std::io::Result<()> {
    let missing = n.next_multiple_of(alignment) - n;
    out.write_all(&vec![0; missing as usize])
}

/// A name beside `path` that no other process uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    name.into()
}
