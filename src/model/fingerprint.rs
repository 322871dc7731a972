//! A short name for what a model computes, for states that only fit the very same one.

use super::Model;
use crate::error::Result;
use crate::ggml::Mmap;
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of each tensor that are looked at: fine-tuned copies of a model differ in nothing but their weights.
const N_SAMPLED: usize = 256;

impl Model {
    /// XXH3-64 of metadata, tensor table, the first bytes of every tensor, the rotation and the adapters, in hexadecimal.
    ///
    /// # Errors
    /// When a file of the model cannot be opened again.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hash = Xxh3Default::new();
        hash.update(&self.gguf.digest().to_le_bytes());
        for (i, path) in self.gguf.files().iter().enumerate() {
            let map = Mmap::open(path)?;
            for t in self.gguf.tensors().iter().filter(|t| t.file == i) {
                let n = (t.n_bytes as usize).min(N_SAMPLED);
                let sample = map.bytes().get(t.offset as usize..).and_then(|rest| rest.get(..n));
                hash.update(sample.unwrap_or_default());
            }
        }
        // What the command line changes about the rotation is in no file.
        hash.update(format!("{:?}", self.hp.rope).as_bytes());
        self.adapters.loras.iter().for_each(|lora| hash.update(&lora.digest().to_le_bytes()));
        hash.update(&self.adapters.control.digest().to_le_bytes());
        Ok(format!("{:016x}", hash.digest()))
    }
}
