//! `gracekv-perplexity`: llama-perplexity's options and numbers, and the same for every method and ratio side by side.
//!
//! Source of options and output: llama.cpp `tools/perplexity/perplexity.cpp`. Deviations: what goes wrong is exit code 1, there 0;
//! where -f is given beside --kl-divergence, it must be the text of the base file, there it is not read.

use super::console::{self, Console};
use super::high::HighArgs;
use super::measure::{self, Given, Own, Progress, Tool, COMPARE};
use super::setup::{self, Loaded};
use super::NewFile;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::eval::base::{Base, Writer};
use crate::eval::kl::Scored;
use crate::eval::perplexity::{self, Batches, Passage, Perplexity};
use crate::eval::report::{self, Summary};
use crate::eval::{divergence, plot};
use std::ffi::OsString;
use std::io::{Stderr, Stdout, Write};
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
        names: &["--kl-divergence-base", "--save-all-logits"],
        hint: "FNAME",
        help: "write the log-probabilities of all scored tokens to this file",
    },
    Own {
        names: &["--kl-divergence"],
        hint: "",
        help: "or read it, its text included, and print how far this model is from it",
    },
    Own {
        names: &["--skip"],
        hint: "N",
        help: "give the mean divergence also for tokens after the first N (default: 32)",
    },
    Own {
        names: &["--ppl-output-type"],
        hint: "<0|1>",
        help: "running values one behind the other, or one a line with the mean negative log-likelihood (default: 0)",
    },
    Own { names: &["--perplexity", "--ppl"], hint: "", help: "accepted: it is what this program does" },
    Own { names: &["--csv"], hint: "FILE", help: "write the results as CSV" },
    Own { names: &["--plot"], hint: "FILE", help: "draw perplexity and divergence over the ratio (SVG)" },
];

const TASK: &str = "only perplexity and divergence are computed";

/// Options of llama-perplexity that are not built.
const REFUSED: &[Own] = &[
    Own { names: &["--ppl-stride"], hint: "N", help: "chunks do not overlap" },
    Own { names: &["--hellaswag"], hint: "", help: TASK },
    Own { names: &["--hellaswag-tasks"], hint: "N", help: TASK },
    Own { names: &["--winogrande"], hint: "", help: TASK },
    Own { names: &["--winogrande-tasks"], hint: "N", help: TASK },
    Own { names: &["--multiple-choice"], hint: "", help: TASK },
    Own { names: &["--multiple-choice-tasks"], hint: "N", help: TASK },
];

const TOOL: Tool = Tool {
    about: "\
usage: gracekv-perplexity -m model.gguf -f text [options]

Perplexity as llama-perplexity computes it. With --kv-ratio, what compression costs: the first half of each chunk
is read once, compressed by every method to every ratio, and the second half is scored from what is left.

  gracekv-perplexity -m model.gguf -f wiki.test.raw -c 512
  gracekv-perplexity -m model.gguf -f wiki.test.raw -c 4096 --chunks 4 --kv-ratio 4,16,64 --kv-method gracekv,topk
  gracekv-perplexity -m model-f16.gguf -f wiki.test.raw --kl-divergence-base logits.bin
  gracekv-perplexity -m model-q4.gguf --kl-divergence-base logits.bin --kl-divergence
  gracekv-perplexity -m model.gguf -f a.txt -f b.txt --prefix 2000 --continuation 256 --kv-ratio 16
",
    tables: &[OWN, COMPARE],
    refused: REFUSED,
    also: &[],
    run,
};

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    TOOL.main(args)
}

type Terminal = Console<Stdout, Stderr>;

const PLAIN: &str = "perplexity: calculating perplexity";

fn run(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Terminal) -> Result<()> {
    let compares = !given.list("--kv-ratio").is_empty();
    let has = |name: &str| given.last(name).is_some();
    if let Some(name) = ["--json", "--csv", "--plot"].into_iter().find(|&name| !compares && has(name)) {
        return usage(format!("{name} takes the results of a comparison; give its ratios with --kv-ratio"));
    }
    let base = given.last("--kl-divergence-base").map(Path::new);
    match (base, has("--kl-divergence")) {
        (None, true) => usage("--kl-divergence needs the file to compare with: --kl-divergence-base FNAME"),
        (Some(_), _) if compares || has("--prefix") => {
            usage("--kl-divergence-base goes with the chunks of one text, not with --kv-ratio or --prefix")
        }
        (Some(base), true) => diverge(given, args, loaded, console, base),
        _ if compares => compare(given, args, loaded, console),
        _ => plain(given, args, loaded, console, base),
    }
}

fn usage(text: impl std::fmt::Display) -> Result<()> {
    Err(Error::Usage(format!("error: {text}")))
}

/// Every method and ratio side by side.
fn compare(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Terminal) -> Result<()> {
    let cases = given.cases(args)?;
    let passages = passages(given, args, loaded)?;
    let n_skip = n_skip(given, &passages)?;
    let create = |name: &str| given.last(name).map(|path| NewFile::create(Path::new(path))).transpose();
    let (json, csv, svg) = (create("--json")?, create("--csv")?, create("--plot")?);
    // The lookahead follows the context before the text does.
    let room = |p: &Passage| p.tokens.len().max(p.n_prompt + args.low.kv_lookahead);
    let n_ctx = passages.iter().map(room).max().unwrap_or(0);
    let mut engine = begin(args, loaded, console, PLAIN, &passages, n_ctx)?;
    let progress = Progress::start();
    let setting = measure::setting(args, loaded);
    let kl = |scored: &Vec<Scored>| format!("{:.4}", Summary::of(scored.iter().filter(|s| s.index >= n_skip)).kl_mean);
    let outcomes = perplexity::compare(&mut engine, &passages, &cases, &setting, |event| {
        progress.hear(console, &event, &|i| format!("{}, KL", passages[i].name), &kl);
        Ok(())
    })?;
    console.clear_progress();
    out(console, &report::perplexity_table(&outcomes, n_skip).to_string())?;
    if let Some(file) = json {
        let names: Vec<String> = passages.iter().map(|p| p.name.clone()).collect();
        let json = report::perplexity_json(&outcomes, &names, n_skip);
        file.save(|file| writeln!(file, "{json:#}"))?;
    }
    if let Some(file) = csv {
        file.save(|file| report::perplexity_csv(file, &outcomes, n_skip))?;
    }
    if let Some(file) = svg {
        let svg = plot::svg(&report::perplexity_charts(&outcomes))?;
        file.save(|file| file.write_all(svg.as_bytes()))?;
    }
    Ok(())
}

/// Tokens after which the divergence is reported once more; some must be left.
fn n_skip(given: &Given, passages: &[Passage]) -> Result<usize> {
    let n_scored = passages.iter().map(Passage::n_scored).max().unwrap_or(0);
    match given.number("--skip")? {
        Some(n) if n > n_scored => Err(Error::Usage(format!(
            "error: --skip {n} leaves nothing to report: {n_scored} tokens of each continuation are scored"
        ))),
        Some(n) => Ok(n),
        None if n_scored < DEFAULT_SKIP => Ok(n_scored / 2),
        None => Ok(DEFAULT_SKIP),
    }
}

/// Running values on standard output, the result on standard error, as llama-perplexity; all logits to `base` where it is given.
fn plain(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Terminal, base: Option<&Path>) -> Result<()> {
    let form = Form::new(given)?;
    console.message(3, "perplexity: tokenizing the input ..");
    let start = Instant::now();
    let passages = passages(given, args, loaded)?;
    console.message(3, &format!("perplexity: tokenization took {:.3} ms", start.elapsed().as_secs_f64() * 1e3));
    let n_ctx = passages.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    let mut base = base.map(|path| start_base(given, loaded, path, n_ctx, passages.len())).transpose()?;
    let mut engine = begin(args, loaded, console, PLAIN, &passages, n_ctx)?;
    let start = Instant::now();
    let keep = |logits: &[f32]| match &mut base {
        Some((path, writer)) => writer.push(logits).map_err(|e| Error::io(path, e)),
        None => Ok(()),
    };
    let total = perplexity::run(&mut engine, &passages, batches(args), keep, |i, so_far| {
        if i == 0 {
            time_left(console, "perplexity", start, passages.len());
        }
        out(console, &form.line(i, n_ctx, batches(args).n_seq(n_ctx), so_far))
    })?;
    out(console, "\n")?;
    console.message(3, &format!("Final estimate: PPL = {:.4} +/- {:.5}", total.value(), total.error()));
    base.map_or(Ok(()), |(_, writer)| writer.into_inner().finish())
}

/// `--ppl-output-type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Row,
    Lines,
}

impl Form {
    fn new(given: &Given) -> Result<Form> {
        match given.number("--ppl-output-type")? {
            None | Some(0) => Ok(Form::Row),
            Some(1) => Ok(Form::Lines),
            Some(n) => Err(Error::Usage(format!("error: --ppl-output-type {n}: it can be 0 or 1"))),
        }
    }

    /// What is printed after chunk `i`; a line begins with the first token of the batch that the chunk is read in.
    fn line(self, i: usize, n_ctx: usize, n_seq: usize, so_far: &Perplexity) -> String {
        let value = so_far.value();
        match self {
            Form::Row => format!("[{}]{value:.4},", i + 1),
            Form::Lines => {
                let (mean, error) = so_far.nll();
                format!("{:8}  {value:.4}  {mean:.6}  {error:.6}\n", i / n_seq * n_seq * n_ctx)
            }
        }
    }
}

type BaseWriter<'a> = (&'a Path, Writer<NewFile>);

/// The base file of the first `n_chunk` chunks, without their log-probabilities.
fn start_base<'a>(
    given: &Given,
    loaded: &Loaded,
    path: &'a Path,
    n_ctx: usize,
    n_chunk: usize,
) -> Result<BaseWriter<'a>> {
    let tokens = tokens(loaded, one_file(given)?)?;
    let writer = Writer::new(NewFile::create(path)?, n_ctx, loaded.model.hp.n_vocab, &tokens[..n_ctx * n_chunk]);
    Ok((path, writer.map_err(|e| Error::io(path, e))?))
}

/// How far the model is from a base file: llama-perplexity's table.
fn diverge(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Terminal, path: &Path) -> Result<()> {
    let mut base = Base::open(path, loaded.model.hp.n_vocab)?;
    let n_ctx = base.n_ctx();
    base.keep(n_chunk(given)?.unwrap_or(usize::MAX));
    let refuse = |what: String| Err(Error::Context { what: format!("{}: {what}", path.display()) });
    if (1..n_ctx).contains(&args.low.n_ctx) {
        return refuse(format!("it has chunks of {n_ctx} tokens, the context {}; increase it with -c", args.low.n_ctx));
    }
    if given.last("-f").is_some() {
        let file = one_file(given)?;
        if !tokens(loaded, file)?.starts_with(base.tokens()) {
            return refuse(format!("its text is not that of {}; without -f its own is read", file.to_string_lossy()));
        }
    }
    let passages = base.passages(None);
    let mut engine = begin(args, loaded, console, "kl_divergence: computing", &passages, n_ctx)?;
    let start = Instant::now();
    let scored = divergence::run(&mut engine, &mut base, bos(loaded), batches(args), |i, scored| {
        if i == 0 {
            time_left(console, "kl_divergence", start, passages.len());
            out(console, divergence::HEAD)?;
        }
        out(console, &divergence::running(i + 1, scored))
    })?;
    let statistics = divergence::statistics(&scored);
    if statistics.trim().is_empty() {
        let n = scored.len();
        console.message(2, &format!("warning: {n} scored tokens are too few for statistics"));
    }
    out(console, &statistics)
}

fn batches(args: &HighArgs) -> Batches {
    Batches { n_batch: args.low.n_batch, n_ubatch: args.low.n_ubatch }
}

fn begin(
    args: &HighArgs,
    loaded: &Loaded,
    console: &mut Terminal,
    what: &str,
    passages: &[Passage],
    n_ctx: usize,
) -> Result<Engine> {
    let engine = Engine::new(loaded.model.clone(), setup::engine_options(args, n_ctx)?)?;
    let longest = passages.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    let (n, n_batch, n_seq) = (passages.len(), args.low.n_batch, batches(args).n_seq(longest));
    console.message(3, &format!("{what} over {n} chunks, n_ctx={longest}, batch_size={n_batch}, n_seq={n_seq}"));
    Ok(engine)
}

fn time_left(console: &mut Terminal, what: &str, start: Instant, n: usize) {
    let seconds = start.elapsed().as_secs_f64();
    let text = format!("{what}: {seconds:.2} seconds per pass - ETA {:.2} minutes", seconds * n as f64 / 60.0);
    console.message(3, &text);
}

fn out(console: &mut Terminal, text: &str) -> Result<()> {
    console::out(console.write(text.as_bytes()))
}

fn bos(loaded: &Loaded) -> Option<u32> {
    loaded.tokenizer.bos().filter(|_| loaded.tokenizer.add_bos())
}

fn tokens(loaded: &Loaded, file: &OsString) -> Result<Vec<u32>> {
    let path = Path::new(file);
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    // llama.cpp drops one line break at the end of a file.
    loaded.tokenizer.encode_bytes(text.strip_suffix(b"\n").unwrap_or(&text), true, false)
}

fn one_file(given: &Given) -> Result<&OsString> {
    let files: Vec<&OsString> = given.all("-f").collect();
    match files[..] {
        [file] => Ok(file),
        _ => Err(Error::Usage(format!(
            "error: one text is needed (-f), {} are given; with --prefix there may be several",
            files.len()
        ))),
    }
}

fn passages(given: &Given, args: &HighArgs, loaded: &Loaded) -> Result<Vec<Passage>> {
    if let Some(n_prefix) = given.number("--prefix")? {
        if given.last("-f").is_none() {
            one_file(given)?;
        }
        let n_continuation = given.number("--continuation")?.unwrap_or(256);
        let name = |file: &OsString| Path::new(file).file_name().unwrap_or(file).to_string_lossy().into_owned();
        let read = |file| perplexity::beginning(&name(file), &tokens(loaded, file)?, n_prefix, n_continuation);
        return given.all("-f").map(read).collect();
    }
    let n_ctx = match args.low.n_ctx {
        0 if args.low.given.contains("ctx-size") => loaded.model.hp.n_ctx_train,
        0 => DEFAULT_CTX,
        n => n,
    };
    perplexity::chunks(&tokens(loaded, one_file(given)?)?, n_ctx, n_chunk(given)?, bos(loaded))
}

/// `--chunks`; `None` = all.
fn n_chunk(given: &Given) -> Result<Option<usize>> {
    match given.number::<i64>("--chunks")? {
        Some(0) => Err(Error::Usage("error: --chunks 0 leaves nothing to read; -1 is all".into())),
        n => Ok(n.and_then(|n| usize::try_from(n).ok())),
    }
}
