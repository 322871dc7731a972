//! Bounded little-endian input: every read is checked against the file's size before memory is reserved.
//!
//! Stage: gguf. Source: `struct gguf_reader` of ggml's gguf.cpp. Deviation: instead of limits per string and per array,
//! one limit of 1 GiB for everything before the tensor data, so that a sparse file cannot ask for more either.

use std::io::Read;
use std::path::Path;

use super::value::StrArray;
use crate::error::{Error, Result};

/// The most bytes before the tensor data; the largest vocabularies in use need about 20 MB.
const MAX_HEADER: u64 = 1 << 30;

/// The unread rest of one file's header.
pub(super) struct Source<'a, R> {
    path: &'a Path,
    input: R,
    at: u64,
    len: u64,
    /// What is being read, for messages: `key 'x'`, `tensor 'y'`.
    pub(super) item: String,
}

impl<'a, R: Read> Source<'a, R> {
    /// The file `path` of `len` bytes, which `input` reads from the start.
    pub(super) fn new(path: &'a Path, input: R, len: u64) -> Self {
        Source { path, input, at: 0, len, item: "header".into() }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Size of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of the file not yet read.
    pub(super) fn left(&self) -> u64 {
        self.len - self.at
    }

    /// An error of the item at byte `at`.
    pub(super) fn fail(&self, at: u64, what: impl std::fmt::Display) -> Error {
        let what = format!("{}: {what}", self.item);
        Error::Gguf { path: self.path.to_path_buf(), offset: Some(at), what }
    }

    /// `n` as a size in memory once the file is known to have that many more bytes.
    fn claim(&self, n: u64, field: &str) -> Result<usize> {
        if n > self.left() {
            return Err(self.fail(
                self.at,
                format_args!(
                    "{field} of {n} bytes, the file ends after {} more; it is truncated or damaged",
                    self.left()
                ),
            ));
        }
        if n > MAX_HEADER.saturating_sub(self.at) {
            return Err(
                self.fail(self.at, format_args!("{field} of {n} bytes, expected a header of at most {MAX_HEADER}"))
            );
        }
        Ok(n as usize)
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        self.input.read_exact(buf).map_err(|e| Error::io(self.path, e))?;
        self.at += buf.len() as u64;
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        self.claim(N as u64, field)?;
        let mut buf = [0; N];
        self.fill(&mut buf)?;
        Ok(buf)
    }

    /// The next 32-bit unsigned integer.
    pub(super) fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// The next 64-bit unsigned integer.
    pub(super) fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// The next string, length first.
    pub(super) fn string(&mut self, field: &str) -> Result<Vec<u8>> {
        let n = self.u64(field)?;
        let mut buf = vec![0; self.claim(n, field)?];
        self.fill(&mut buf)?;
        Ok(buf)
    }

    /// The next `n` numbers of `N` bytes each.
    pub(super) fn numbers<T, const N: usize>(&mut self, n: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let mut buf = vec![0; self.claim(n.saturating_mul(N as u64), "array")?];
        self.fill(&mut buf)?;
        Ok(buf.as_chunks().0.iter().map(|&bytes| from(bytes)).collect())
    }

    /// The next `n` strings.
    pub(super) fn strings(&mut self, n: u64) -> Result<StrArray> {
        self.claim(n.saturating_mul(8), "array")?;
        let mut strings = StrArray::with_capacity(n as usize);
        for _ in 0..n {
            let length = self.u64("string length")?;
            let length = self.claim(length, "string")?;
            self.fill(strings.grow(length))?;
        }
        Ok(strings)
    }
}
