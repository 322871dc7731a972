//! The command line (last stage of the flow): llama.cpp's options and ours, from arguments to validated settings.
//!
//! `translate` (llama.cpp's spelling) -> clap (`parse`) -> [`low::LowArgs`] (what was typed) -> [`high::HighArgs`] (checked,
//! files read). One row in a table of `flags` is one option: parser, help and tests read the same rows.

pub mod bench;
pub mod config;
pub mod console;
pub mod device;
pub mod escape;
pub mod eval;
pub mod files;
pub mod flags;
pub mod help;
pub mod high;
pub mod input;
pub mod interrupt;
pub mod log_file;
pub mod low;
pub mod measure;
pub mod new_file;
pub mod parse;
pub mod perf;
pub mod perplexity;
pub mod process;
pub mod prompt_cache;
pub mod rpc_server;
pub mod run;
pub mod setup;
pub mod source;
mod translate;

pub use new_file::{write_file, NewFile};
