//! `gracekv-perplexity`: llama-perplexity's options and numbers, and the same for every method and ratio side by side.
//!
//! Source of options and output: llama.cpp `tools/perplexity/perplexity.cpp`. Deviation: too little text is exit code 1, there 0.

use super::console::Console;
use super::high::HighArgs;
use super::measure::{self, Given, Own, Progress, Tool, COMPARE};
use super::setup::{self, Loaded};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::eval::kl::Scored;
use crate::eval::perplexity::{self, Passage};
use crate::eval::report::{self, Summary};
use std::ffi::OsString;
use std::io::{Stderr, Stdout};
use std::path::Path;
use std::time::Instant;

/// Context of llama-perplexity when none is asked for.
const DEFAULT_CTX: usize = 512;
/// Tokens of a continuation after which the divergence is reported once more: as many as the lookahead has.
const DEFAULT_SKIP: usize = 32;

const OWN: &[Own] = &[
    Own { names: &["-f", "--file"], hint: "FNAME", help: "text; with --prefix it may be given several times" },
    Own { names: &["--chunks"], hint: "N", help: "chunks of the text to read; -1 = all (default: -1)" },
    Own { names: &["--prefix"], hint: "N", help: "instead of chunks, read the first N tokens of each file as context" },
    Own { names: &["--continuation"], hint: "M", help: "and score the M tokens that follow them (default: 256)" },
    Own {
        names: &["--skip"],
        hint: "N",
        help: "give the mean divergence also for tokens after the first N (default: 32)",
    },
];

const TOOL: Tool = Tool {
    about: "\
usage: gracekv-perplexity -m model.gguf -f text [options]

Perplexity as llama-perplexity computes it. With --kv-ratio, what compression costs: the first half of each chunk
is read once, compressed by every method to every ratio, and the second half is scored from what is left.

  gracekv-perplexity -m model.gguf -f wiki.test.raw -c 512
  gracekv-perplexity -m model.gguf -f wiki.test.raw -c 4096 --chunks 4 --kv-ratio 4,16,64 --kv-method gracekv,topk
  gracekv-perplexity -m model.gguf -f a.txt -f b.txt --prefix 2000 --continuation 256 --kv-ratio 16
",
    tables: &[OWN, COMPARE],
    run,
};

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    TOOL.main(args)
}

fn run(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Console<Stdout, Stderr>) -> Result<()> {
    let cases = given.cases(args)?;
    let passages = passages(given, args, loaded)?;
    let longest = passages.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    // The lookahead follows the context before the text does.
    let with_lookahead = passages.iter().map(|p| p.n_prompt + args.low.kv_lookahead).max().unwrap_or(0);
    let n_ctx = if cases.is_empty() { longest } else { longest.max(with_lookahead) };
    let mut engine = Engine::new(loaded.model.clone(), setup::engine_options(args, n_ctx)?)?;
    console.message(
        3,
        &format!(
            "perplexity: calculating perplexity over {} chunks, n_ctx={longest}, batch_size={}, n_seq=1",
            passages.len(),
            args.low.n_batch
        ),
    );
    if cases.is_empty() {
        return plain(&mut engine, &passages, console);
    }
    let n_skip = given.number("--skip")?.unwrap_or(DEFAULT_SKIP);
    let progress = Progress::start();
    let setting = measure::setting(args, loaded);
    let kl = |scored: &Vec<Scored>| format!("{:.4}", Summary::of(scored.iter().filter(|s| s.index >= n_skip)).kl_mean);
    let outcomes = perplexity::compare(&mut engine, &passages, &cases, &setting, |event| {
        progress.hear(console, &event, &|i| format!("{}, KL", passages[i].name), &kl);
        Ok(())
    })?;
    console.clear_progress();
    print!("{}", report::perplexity_table(&outcomes, n_skip));
    if let Some(path) = given.last("--json") {
        let names: Vec<String> = passages.iter().map(|p| p.name.clone()).collect();
        let json = report::perplexity_json(&outcomes, &names, n_skip);
        super::write_file(Path::new(path), format!("{json:#}\n").as_bytes())?;
    }
    Ok(())
}

/// Running values on standard output, the result on standard error, as llama-perplexity.
fn plain(engine: &mut Engine, passages: &[Passage], console: &mut Console<Stdout, Stderr>) -> Result<()> {
    let start = Instant::now();
    let out = |console: &mut Console<Stdout, Stderr>, text: &str| {
        console.write(text.as_bytes()).map_err(|e| Error::io("standard output", e))
    };
    let total = perplexity::run(engine, passages, |i, so_far| {
        if i == 0 {
            let seconds = start.elapsed().as_secs_f64();
            console.message(
                3,
                &format!(
                    "perplexity: {seconds:.2} seconds per pass - ETA {:.2} minutes",
                    seconds * passages.len() as f64 / 60.0
                ),
            );
        }
        out(console, &format!("[{}]{:.4},", i + 1, so_far.value()))
    })?;
    out(console, "\n")?;
    console.message(3, &format!("Final estimate: PPL = {:.4} +/- {:.5}", total.value(), total.error()));
    Ok(())
}

fn passages(given: &Given, args: &HighArgs, loaded: &Loaded) -> Result<Vec<Passage>> {
    let files: Vec<&OsString> = given.all("-f").collect();
    let t = &loaded.tokenizer;
    let read = |file: &OsString| {
        let path = Path::new(file);
        let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        // llama.cpp drops one line break at the end of a file.
        t.encode_bytes(text.strip_suffix(b"\n").unwrap_or(&text), true, false)
    };
    if let Some(n_prefix) = given.number("--prefix")? {
        let n_continuation = given.number("--continuation")?.unwrap_or(256);
        let name = |file: &OsString| Path::new(file).file_name().unwrap_or(file).to_string_lossy().into_owned();
        return files
            .iter()
            .map(|file| perplexity::beginning(&name(file), &read(file)?, n_prefix, n_continuation))
            .collect();
    }
    let [file] = files[..] else {
        return Err(Error::Usage(format!(
            "error: one text is needed (-f), {} are given; with --prefix there may be several",
            files.len()
        )));
    };
    let n_ctx = match args.low.n_ctx {
        0 if args.low.given.contains("ctx-size") => loaded.model.hp.n_ctx_train,
        0 => DEFAULT_CTX,
        n => n,
    };
    let n_chunk = given.number::<i64>("--chunks")?.and_then(|n| usize::try_from(n).ok());
    perplexity::chunks(&read(file)?, n_ctx, n_chunk, t.bos().filter(|_| t.add_bos()))
}
