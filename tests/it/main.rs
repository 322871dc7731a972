//! Integration tests, one binary: each module is a subject.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

mod chat;
mod cli;
mod greedy;
mod sample;
mod tokenizer;
