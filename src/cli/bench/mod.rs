//! gracekv-bench: reading and decoding speed in the form of llama-bench, and from a compressed cache.
//!
//! [`options`] reads the arguments ([`command`], [`range`]), [`measure`] runs the tests at one depth of the cache, [`table`]
//! prints them.

pub mod command;
pub mod measure;
pub mod options;
pub mod range;
pub mod table;

use self::measure::{Bench, Test};
use self::options::{Options, Request, Run};
use self::table::{Row, Table};
use super::console::{is_closed, Console};
use super::low::{LoadMode, LowArgs};
use super::{device, process, source};
use crate::error::{one_line, Error, Result};
use crate::gguf::Gguf;
use crate::model::{LoadOptions, Model};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Runs the program: results on standard output, an error in one line on standard error and exit code 1.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = process::start().and_then(|_| options::parse(args)).and_then(|request| match request {
        Request::Run(asked) => run(*asked).map(|()| 0),
        Request::Print(text) => Ok(process::print(&text)),
        Request::Devices(low) => device::list(&low.devices).map(|text| process::print(&text)),
    });
    let code = match result {
        // The reader of our output has gone: no failure of ours.
        Err(Error::Io { source, .. }) if is_closed(&source) => 0,
        Err(e) => process::fail(&e),
        Ok(code) => code,
    };
    ExitCode::from(u8::from(code != 0))
}

fn run(run: Run) -> Result<()> {
    crate::ggml::set_log(run.verbose);
    let all = &run.combinations;
    process::start_threads(all.iter().map(|o| o.threads.n_threads).max().unwrap_or(1))?;
    let model = load(run.low)?;
    let table = |out: Box<dyn Write>, format| Table::new(out, format, &model, all);
    let mut tables = vec![table(Box::new(io::stdout()), run.format)];
    tables.extend(run.format_err.map(|format| table(Box::new(io::stderr()), format)));
    let pace = Pace { delay: run.delay, progress: run.progress };
    for options in all {
        for &depth in &options.n_depth {
            measure(&model, options, depth, &pace, &mut |row| {
                tables.iter_mut().try_for_each(|table| table.row(row, options)).map_err(closed)
            })?;
        }
    }
    tables.iter_mut().try_for_each(Table::finish).map_err(closed)
}

fn closed(e: io::Error) -> Error {
    Error::io(Path::new("standard output"), e)
}

fn load(mut low: LowArgs) -> Result<Arc<Model>> {
    let mut console = Console::open(&low)?;
    low.warnings.iter().for_each(|warning| console.message(2, &format!("warning: {}", one_line(warning))));
    source::resolve(&mut low, &|name| std::env::var_os(name), &mut console)?;
    if let Some(numa) = low.numa {
        numa.init();
    }
    let path = low.model.clone().ok_or_else(|| Error::Usage("-m is required".to_owned()))?;
    let gguf = Gguf::open(&path)?;
    let options = LoadOptions {
        mmap: low.load_mode != LoadMode::Read,
        mlock: low.load_mode == LoadMode::Mlock,
        repack: low.repack,
        offload: device::offload(&low.devices, &gguf)?,
        ..LoadOptions::default()
    };
    Ok(Arc::new(Model::from_gguf(gguf, options)?))
}

/// What happens before every test.
struct Pace {
    delay: Duration,
    progress: bool,
}

impl Pace {
    fn before(&self, test: Test, depth: usize, kv_ratio: f64) {
        if self.progress {
            // Nobody is left to be told that standard error is closed.
            let _ = writeln!(io::stderr(), "gracekv-bench: {}, ratio {kv_ratio}", test.name(depth));
        }
        std::thread::sleep(self.delay);
    }
}

/// All tests of one combination at one depth.
fn measure(
    model: &Arc<Model>,
    options: &Options,
    depth: usize,
    pace: &Pace,
    on_row: &mut dyn FnMut(&Row) -> Result<()>,
) -> Result<()> {
    let mut bench = Bench::new(model, options, depth)?;
    let mut test = |bench: &mut Bench, test: Test, kv_ratio: f64, pass: Option<Duration>| {
        pace.before(test, depth, kv_ratio);
        let samples = bench.run(test)?;
        on_row(&Row { test, depth, samples, kv_ratio, kv_bytes: bench.kv_bytes(), pass })
    };
    for &n in options.n_prompt.iter().filter(|&&n| n > 0) {
        test(&mut bench, Test::Prompt(n), 1.0, None)?;
    }
    if options.n_gen.iter().any(|&n| n > 0) {
        for kv_ratio in options.ratios(depth) {
            let pass = bench.compress(kv_ratio)?.map(|c| c.pass);
            for &n in options.n_gen.iter().filter(|&&n| n > 0) {
                test(&mut bench, Test::Gen(n), kv_ratio, pass)?;
            }
        }
        bench.compress(1.0)?;
    }
    options.n_pg.iter().try_for_each(|&(n, n_gen)| test(&mut bench, Test::PromptGen(n, n_gen), 1.0, None))
}
