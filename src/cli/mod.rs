//! The command line (last stage of the flow): llama.cpp's options and ours, from arguments to validated settings.
//!
//! `translate` (llama.cpp's spelling) -> clap (`parse`) -> [`low::LowArgs`] (what was typed) -> [`high::HighArgs`] (checked,
//! files read). One row in a table of `flags` is one option: parser, help and tests read the same rows.

pub mod bench;
pub mod console;
pub mod escape;
pub mod eval;
pub mod flags;
pub mod help;
pub mod high;
pub mod interrupt;
pub mod low;
pub mod measure;
pub mod parse;
pub mod perf;
pub mod perplexity;
pub mod run;
pub mod setup;
mod translate;

use crate::error::{Error, Result};
use std::io::Write;
use std::path::Path;

/// Writes a file so that it is either the old one or the whole new one: a temporary name beside it, sync, rename.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|e| {
        // The temporary file is of no use to anybody; that it cannot be removed is no second error.
        let _ = std::fs::remove_file(&temporary);
        Error::io(path, e)
    })
}
