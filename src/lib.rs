//! llama.cpp-compatible inference that compresses the KV cache between prefill and decode (GraceKV, arXiv 2608.07001).
//!
//! The modules in the order of the data: a [`gguf`] file (from the disk or the [`hub`]) gives a [`tokenizer`] and a [`model`]; an [`engine`] runs batches of
//! tokens through it into a [`cache`]; [`compress`] plans what the cache keeps and [`pass`] carries that out; [`sample`] picks
//! tokens; [`session`] is the whole story, and [`eval`] measures it. [`ggml`] is the floor under it, and the only folder with `unsafe`.
//!
//! Shapes are written in ggml's `ne` order, innermost dimension first: `{head_dim, n_tokens}`.

#![deny(unsafe_code, missing_docs)]

pub mod cache;
pub mod cli;
pub mod compress;
pub mod engine;
pub mod error;
pub mod eval;
pub mod ggml;
pub mod gguf;
pub mod hub;
pub mod model;
pub mod pass;
pub mod report;
pub mod sample;
pub mod session;
pub mod tokenizer;
