//! Integration tests, one binary: each module is a subject.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

mod adapters;
mod architecture;
mod attention_mass;
mod bindings;
mod changes;
mod chat;
mod cli;
mod command_lines;
mod conversation;
mod devices;
mod engine;
mod errors;
mod eval;
mod ggml;
mod grammar;
mod greedy;
mod hub;
mod kv_types;
mod methods;
mod models;
mod options;
mod pass;
mod perplexity;
mod pre_tokenizers;
mod prompt_cache;
mod robustness;
mod sample;
mod sampling_options;
mod tasks;
mod templates;
mod tokenizer;
mod turns;
mod weight_types;
