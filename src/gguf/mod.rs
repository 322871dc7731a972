//! Reads GGUF model files, v2 and v3, little-endian: metadata and the tensor table, from one file or all its splits.
//!
//! Stage: gguf -> tokenizer -> model graph. Source: ggml's gguf.h and gguf.cpp, llama.cpp's llama-model-loader.cpp.
//! Not on gguf-rs 0.1.8: wrong byte sizes for BF16, IQ4_NL and MXFP4, no type above 39 and a panic on id 40,
//! lossy UTF-8, arrays cut by default, duplicates kept. Files are read, not mapped: no `unsafe`, no SIGBUS.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

mod digest;
mod get;
mod read;
mod source;
mod split;
mod tensor_info;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use tensor_info::{GgmlType, TensorInfo};
pub use value::{Array, StrArray, Value};
pub use write::Writer;

const ARCHITECTURE_KEY: &str = "general.architecture";
const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of tensor data where the file names none.
const ALIGNMENT: u32 = 32;
/// The longest key in bytes, by the format's specification.
const MAX_KEY: usize = 65535;

/// Metadata and tensor table of one model.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    files: Vec<PathBuf>,
    version: u32,
    /// In the order of the file.
    metadata: Vec<(String, Entry)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
}

/// A value and where its key stands in the file.
#[derive(Debug)]
struct Entry {
    value: Value,
    offset: Option<u64>,
}

impl Gguf {
    /// Reads and checks the headers of the model at `path`, which is its only file or the first of its splits.
    ///
    /// # Errors
    /// The file cannot be read, is no GGUF file or is damaged, has no architecture, or a split is missing.
    pub fn open(path: &Path) -> Result<Gguf> {
        let mut gguf = read::read_file(path)?;
        split::follow(&mut gguf)?;
        if gguf.require_str(ARCHITECTURE_KEY)?.is_empty() {
            return Err(Error::gguf(path, format!("key '{ARCHITECTURE_KEY}' is empty")));
        }
        Ok(gguf)
    }

    /// Checks the header of one file, whether complete or one part of a split, and that the data it describes lies in the file.
    ///
    /// # Errors
    /// The file cannot be read, is no GGUF file or is damaged.
    pub fn check_file(path: &Path) -> Result<()> {
        read::read_file(path).map(drop)
    }

    fn new(path: &Path, version: u32) -> Gguf {
        Gguf {
            path: path.to_path_buf(),
            files: vec![path.to_path_buf()],
            version,
            metadata: Vec::new(),
            key_index: HashMap::new(),
            tensors: Vec::new(),
            tensor_index: HashMap::new(),
        }
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All files of the model in the order of their parts.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The model's architecture as the file spells it, for example `llama`.
    pub fn architecture(&self) -> &str {
        match self.value(ARCHITECTURE_KEY) {
            Some(Value::Str(name)) => name,
            _ => "",
        }
    }

    /// The key of the architecture's hyperparameter `suffix`: `block_count` gives `llama.block_count`.
    pub fn arch_key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture())
    }

    /// The tensors of all files in order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index.get(name).map(|&i| &self.tensors[i])
    }

    /// The metadata in the order of the file, values set later last.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, entry)| (key.as_str(), &entry.value))
    }

    /// The value of `key`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Sets `key` to `value` in place of what the file says, if anything.
    ///
    /// # Errors
    /// The key is not valid, or it describes the files themselves.
    pub fn set_override(&mut self, key: &str, value: Value) -> Result<()> {
        let key = check_key(key.into()).map_err(Error::Usage)?;
        if [ARCHITECTURE_KEY, ALIGNMENT_KEY].contains(&key.as_str()) || key.starts_with("split.") {
            return Err(Error::Usage(format!("key '{key}' describes the file itself and cannot be overridden")));
        }
        self.insert(key, Entry { value, offset: None });
        Ok(())
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.key_index.get(key).map(|&i| &self.metadata[i].1)
    }

    fn insert(&mut self, key: String, entry: Entry) {
        match self.key_index.get(&key) {
            Some(&i) => self.metadata[i].1 = entry,
            None => {
                self.key_index.insert(key.clone(), self.metadata.len());
                self.metadata.push((key, entry));
            }
        }
    }

    fn add_tensor(&mut self, tensor: TensorInfo) {
        self.tensor_index.insert(tensor.name.clone(), self.tensors.len());
        self.tensors.push(tensor);
    }
}

/// `key` as text, or what is wrong with it.
fn check_key(key: Vec<u8>) -> std::result::Result<String, String> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(format!("key has {} bytes, expected 1 to {MAX_KEY}", key.len()));
    }
    match String::from_utf8(key) {
        Ok(key) if !key.contains('\0') => Ok(key),
        _ => Err("key is not UTF-8 text or has a NUL byte".into()),
    }
}
