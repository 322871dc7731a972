//! What the fuzz targets have in common: tiny models, a file for the input, and what counts as a finding.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/bench/robustness/shared.rs"]
pub mod shared;
#[allow(dead_code)]
#[path = "../../tests/it/support/mod.rs"]
mod support;

pub mod cached;

use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub use support::tiny;

/// Zeros that stand for the weights of a tiny model. Units: bytes.
pub const N_WEIGHTS: u64 = 1 << 20;

/// Prepares the process of a target.
///
/// libFuzzer ends the process at every panic. One within a library that gracekv turns into an error is none of a user's
/// business; one in gracekv's own code is a finding, on whatever thread and whoever catches it.
pub fn start() {
    gracekv::ggml::set_log(false);
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_foreign = panic.location().is_some_and(|at| at.file().contains("/registry/src/"));
        if is_foreign && std::thread::current().name() != Some("main") {
            return;
        }
        abort(panic);
    }));
}

/// A file that holds the input.
pub struct Input {
    path: PathBuf,
    _dir: TempDir,
}

impl Default for Input {
    fn default() -> Self {
        let dir = TempDir::new().unwrap();
        Input { path: dir.path().join("input"), _dir: dir }
    }
}

impl Input {
    /// The file with these bytes, and behind them as many zeros.
    pub fn write(&self, bytes: &[u8], n_zeros: u64) -> &Path {
        let mut file = std::fs::File::create(&self.path).unwrap();
        file.write_all(bytes).unwrap();
        file.set_len(bytes.len() as u64 + n_zeros).unwrap();
        &self.path
    }
}
