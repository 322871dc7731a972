//! Integration tests, one binary: each module is a subject.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

mod architecture;
mod bindings;
mod chat;
mod cli;
mod engine;
mod errors;
mod eval;
mod ggml;
mod greedy;
mod pass;
mod sample;
mod tokenizer;
