//! gracekv-bench: reading and decoding speed in the form of llama-bench, and from a compressed cache.
//!
//! [`options`] reads the arguments, [`measure`] runs the tests at one depth of the cache, [`table`] prints them.

pub mod measure;
pub mod options;
pub mod table;

use self::measure::{Bench, Test};
use self::options::{Options, Request};
use self::table::{Row, Table};
use super::console::is_closed;
use super::process;
use crate::cli::device;
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::model::{LoadOptions, Model};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs the program: results on standard output, an error in one line on standard error and exit code 1.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = process::start().and_then(|_| options::parse(args)).and_then(|request| match request {
        Request::Run(options) => run(&options).map(|()| 0),
        Request::Print(text) => Ok(process::print(&text)),
    });
    let code = match result {
        // The reader of our output has gone: no failure of ours.
        Err(Error::Io { source, .. }) if is_closed(&source) => 0,
        Err(e) => process::fail(&e),
        Ok(code) => code,
    };
    ExitCode::from(u8::from(code != 0))
}

fn run(options: &Options) -> Result<()> {
    crate::ggml::set_log(false);
    process::start_threads(options.n_threads)?;
    let gguf = Gguf::open(&options.model)?;
    let offload = device::offload(&options.devices, &gguf)?;
    let model = Arc::new(Model::from_gguf(gguf, LoadOptions { offload, ..LoadOptions::default() })?);
    let mut table = Table::new(io::stdout().lock(), &model, options);
    for &depth in &options.n_depth {
        let mut bench = Bench::new(&model, options, depth)?;
        for &n in options.n_prompt.iter().filter(|&&n| n > 0) {
            let test = Test::Prompt(n);
            let samples = bench.run(test)?;
            print(&mut table, &Row { test, depth, samples, kv_ratio: 1.0, kv_bytes: bench.kv_bytes(), pass: None })?;
        }
        if options.n_gen.iter().all(|&n| n == 0) {
            continue;
        }
        for kv_ratio in options.ratios(depth) {
            let pass = bench.compress(kv_ratio)?.map(|c| c.pass);
            for &n in options.n_gen.iter().filter(|&&n| n > 0) {
                let test = Test::Gen(n);
                let samples = bench.run(test)?;
                print(&mut table, &Row { test, depth, samples, kv_ratio, kv_bytes: bench.kv_bytes(), pass })?;
            }
        }
    }
    table.finish().map_err(|e| Error::io(Path::new("standard output"), e))
}

fn print(table: &mut Table<impl io::Write>, row: &Row) -> Result<()> {
    table.row(row).map_err(|e| Error::io(Path::new("standard output"), e))
}
