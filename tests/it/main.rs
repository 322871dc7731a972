//! Integration tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod chat;
mod cli;
mod sample;
