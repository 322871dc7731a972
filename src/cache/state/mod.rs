//! A cache in a file (`--prompt-cache`): the tokens that were read, what each layer holds of them, and logits to go on from.
//!
//! Little-endian: magic, version and length of the header; the header as JSON; tokens (`u32`); logits of each mark (`f32`); per
//! layer the rows in use of every head, keys then values, in the types of the cache, and biases (`f32`); XXH3-64 of all before.
//! The sizes follow from the header and the model. Their sum must be the size of the file before anything is allocated, so that
//! no number of a file can ask for more memory than the file itself has bytes.
//! A sliding window is stored by position, a dense layer without its free rows: context and batch size may be others later.

mod read;
mod rows;
#[cfg(test)]
mod tests;
mod write;

pub use read::StateFile;

use super::{KvCache, Layout};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

const MAGIC: [u8; 8] = *b"gracekv\n";
const VERSION: u32 = 2;
/// Magic, version and length of the header.
const N_PRELUDE: u64 = 16;
const N_CHECKSUM: u64 = 8;
/// A header has a few numbers per KV head.
const MAX_HEADER: u64 = 1 << 24;

/// What a state belongs to: it fits no other model, cache or compression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Fingerprint of the model with its adapters.
    pub model: String,
    /// Types of keys and values.
    pub kv: String,
    /// Settings of the compression; `none` without.
    pub compression: String,
}

/// The logits after the first `n_tokens` tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Tokens before.
    pub n_tokens: usize,
    /// Shapes: `{n_vocab}`.
    pub logits: Vec<f32>,
}

/// A state without its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// What it belongs to.
    pub identity: Identity,
    /// How the tokens after `n_given` were chosen; empty when they are not to be expected again.
    pub sampling: String,
    /// The first tokens, which were given; the others are an answer.
    pub n_given: usize,
    /// The first tokens that a run without a prompt goes on from: those that were given, and with `--prompt-cache-all` the answer.
    pub n_whole: usize,
    /// Every token in the cache.
    pub tokens: Vec<u32>,
    /// Logits at some of the tokens.
    pub marks: Vec<Mark>,
}

/// The header of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    identity: Identity,
    sampling: String,
    n_given: usize,
    n_whole: usize,
    n_tokens: usize,
    /// Tokens that the pools of the layers stand for; 0 = not compressed.
    n_compressed: usize,
    n_vocab: usize,
    marks: Vec<usize>,
    layers: Vec<Held>,
}

/// What a layer holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Held {
    /// All tokens.
    Dense,
    /// This many of the last tokens.
    Ring(usize),
    /// These entries of each head, with biases or without, and all tokens since.
    Pool { entries: Vec<usize>, bias: bool },
}

impl State {
    /// The logits after exactly the first `n` tokens, where they were kept.
    pub fn logits_after(&self, n: usize) -> Option<&[f32]> {
        self.marks.iter().find(|m| m.n_tokens == n).map(|m| &m.logits[..])
    }
}

impl Identity {
    /// The error for a file of another model, cache or compression than this one.
    fn check(&self, path: &Path, found: &Identity) -> Result<()> {
        let why = if self.model != found.model {
            "it is of another model, or of this one with other adapters or overrides".to_string()
        } else if self.kv != found.kv {
            format!("it holds {}, this run {}", found.kv, self.kv)
        } else if self.compression != found.compression {
            format!("it was made with compression '{}', this run has '{}'", found.compression, self.compression)
        } else {
            return Ok(());
        };
        Err(unusable(path, why))
    }
}

/// The error for a file that cannot be used.
fn unusable(path: &Path, why: impl Into<String>) -> Error {
    Error::State { path: path.to_path_buf(), what: why.into() }
}

impl Header {
    /// Checks every number against the cache it is for.
    fn check(&self, cache: &KvCache, n_vocab: usize) -> std::result::Result<(), String> {
        let n = self.n_tokens;
        let is_ordered = self.n_given <= self.n_whole && self.n_whole <= n && self.n_compressed <= n;
        if n == 0 || !is_ordered || self.n_vocab != n_vocab {
            return Err("its numbers of tokens contradict each other".into());
        }
        // Positions may go beyond the context once a pass has run.
        if n > cache.options.n_ctx && self.n_compressed == 0 {
            return Err(format!("it holds {n} tokens, the context {}; use -c {n} or more", cache.options.n_ctx));
        }
        if self.marks.len() > 3 || self.marks.iter().any(|&m| m == 0 || m > n) {
            return Err("its logits are of no token".into());
        }
        if self.layers.len() != cache.layers.len() {
            return Err(format!("it has {} layers, the model {}", self.layers.len(), cache.layers.len()));
        }
        for (il, (held, layer)) in self.layers.iter().zip(&cache.layers).enumerate() {
            let fits = match held {
                Held::Dense => layer.layout == Layout::Dense,
                Held::Ring(kept) => {
                    layer.layout == Layout::Ring && *kept <= n && *kept >= n.min(cache.n_swa.saturating_sub(1))
                }
                Held::Pool { entries, .. } => {
                    layer.layout == Layout::Dense
                        && self.n_compressed > 0
                        && entries.len() == cache.n_head_kv
                        && entries.iter().all(|&e| 0 < e && e <= self.n_compressed)
                }
            };
            if !fits {
                return Err(format!("what it says about layer {il} does not fit the model"));
            }
        }
        let is_pool = |held: &Held| matches!(held, Held::Pool { .. });
        match self.layers.iter().any(is_pool) == (self.n_compressed > 0) {
            true => Ok(()),
            false => Err("its numbers of tokens contradict each other".into()),
        }
    }

    /// Bytes between the header and the checksum; `None` when they are more than a number can say.
    fn n_bytes(&self, cache: &KvCache) -> Option<u64> {
        let row = (cache.row_bytes(true) + cache.row_bytes(false)) as u64;
        let n_since = self.n_tokens.checked_sub(self.n_compressed)? as u64;
        let heads = cache.n_head_kv as u64;
        let mut sum = (self.n_tokens as u64).checked_mul(4)?;
        sum = sum.checked_add((self.marks.len() as u64).checked_mul(self.n_vocab as u64)?.checked_mul(4)?)?;
        for held in &self.layers {
            let (rows, n_bias) = match held {
                Held::Dense => ((self.n_tokens as u64).checked_mul(heads)?, 0),
                Held::Ring(n) => ((*n as u64).checked_mul(heads)?, 0),
                Held::Pool { entries, bias } => {
                    let n = entries.iter().try_fold(0u64, |sum, &e| sum.checked_add(e as u64))?;
                    (n.checked_add(n_since.checked_mul(heads)?)?, if *bias { n } else { 0 })
                }
            };
            sum = sum.checked_add(rows.checked_mul(row)?)?.checked_add(n_bias.checked_mul(4)?)?;
        }
        Some(sum)
    }
}
