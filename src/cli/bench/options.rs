//! The arguments of gracekv-bench: llama-bench's spelling as far as it applies, read by clap ([`super::command`]).

use super::command::{command, prepare, SHARED, SWITCHES};
use crate::cli::low::{LowArgs, Special};
use crate::cli::{help, parse};
use crate::compress::{by_name, MethodOptions, Named, MAX_RATIO};
use crate::engine::FlashAttn;
use crate::error::{Error, Result};
use crate::ggml::{ThreadParams, Type, MAX_THREADS};
use clap::ArgMatches;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table in Markdown.
    Md,
    /// One JSON array.
    Json,
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a head.
    Csv,
}

/// A run: what is measured with every combination of settings.
#[derive(Debug)]
pub struct Run {
    /// Where the model is, how it is read, and which devices hold layers.
    pub low: LowArgs,
    /// The combinations, in llama-bench's order.
    pub combinations: Vec<Options>,
    /// How results are printed on standard output.
    pub format: Format,
    /// How they are printed on standard error, if at all.
    pub format_err: Option<Format>,
    /// Time to wait before every test.
    pub delay: Duration,
    /// Say what is measured.
    pub progress: bool,
    /// Print ggml's messages.
    pub verbose: bool,
}

/// One combination of settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lengths of the prompts that are read.
    pub n_prompt: Vec<usize>,
    /// Numbers of tokens that are decoded one by one.
    pub n_gen: Vec<usize>,
    /// Tokens that are read, and decoded behind them.
    pub n_pg: Vec<(usize, usize)>,
    /// Tokens that are in the cache before.
    pub n_depth: Vec<usize>,
    /// Repetitions of every test.
    pub n_reps: usize,
    /// Threads and their placement.
    pub threads: ThreadParams,
    /// Tokens between two reads of logits.
    pub n_batch: usize,
    /// Tokens of one graph.
    pub n_ubatch: usize,
    /// How attention is computed.
    pub flash_attn: FlashAttn,
    /// Type of cached keys.
    pub ty_k: Type,
    /// Type of cached values.
    pub ty_v: Type,
    /// Ratios by which the cache is compressed before tokens are decoded; empty = never, and no columns about it.
    pub kv_ratio: Vec<f64>,
    /// Full name of the method by which it is compressed.
    pub kv_method: String,
    /// Run every test once before it is measured.
    pub warmup: bool,
}

/// What the arguments ask for.
pub enum Request {
    /// A run.
    Run(Box<Run>),
    /// A text on standard output.
    Print(String),
    /// The devices of these servers and of this machine.
    Devices(Box<LowArgs>),
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// [`Error::Usage`] in one line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request> {
    let matches = match command().try_get_matches_from(prepare(args)?) {
        Ok(matches) => matches,
        Err(e) if !e.use_stderr() => return Ok(Request::Print(e.to_string())),
        Err(e) => return Err(Error::Usage(one_line(&e.to_string()))),
    };
    let kv_method = matches.get_one::<String>("kv-method").map_or("gracekv", String::as_str);
    if matches.get_flag("version") {
        return Ok(Request::Print(help::version()));
    }
    if kv_method == "list" {
        return Ok(Request::Print(help::methods()));
    }
    let low = shared(&matches)?;
    if low.special == Some(Special::Devices) {
        return Ok(Request::Devices(Box::new(low)));
    }
    if low.model.is_none() && low.hf_repo.is_none() {
        return Err(Error::Usage("-m is required".to_owned()));
    }
    let run = Run {
        combinations: combinations(&matches, &low, by_name(kv_method, &MethodOptions::default())?.name)?,
        format: format(&matches, "output").unwrap_or(Format::Md),
        format_err: format(&matches, "output-err"),
        delay: Duration::from_secs(matches.get_one("delay").copied().unwrap_or(0)),
        progress: matches.get_flag("progress"),
        verbose: matches.get_flag("verbose"),
        low,
    };
    run.combinations.iter().try_for_each(check)?;
    Ok(Request::Run(Box::new(run)))
}

/// What gracekv-run's tables make of the options that it has, too.
fn shared(matches: &ArgMatches) -> Result<LowArgs> {
    let mut args: Vec<OsString> = Vec::new();
    if let Some(model) = matches.get_one::<std::path::PathBuf>("model") {
        args.extend([OsString::from("--model"), model.into()]);
    }
    // All layers go to devices unless the user says otherwise, as in llama-bench.
    if !matches.contains_id("n-gpu-layers") {
        args.extend(["--n-gpu-layers", "all"].map(OsString::from));
    }
    for &(id, spelling) in SHARED {
        if let Some(value) = matches.get_one::<String>(id) {
            // llama-bench divides devices by slashes.
            let value = if id == "device" { value.replace('/', ",") } else { value.clone() };
            args.extend([spelling.to_owned(), value].map(OsString::from));
        }
    }
    for (id, _, spellings) in SWITCHES {
        if let Some(value) = matches.get_one::<String>(id) {
            args.push(spellings[usize::from(value == "1")].into());
        }
    }
    let switches = ["offline", "list-devices"].into_iter().filter(|id| matches.get_flag(id));
    args.extend(switches.map(|id| OsString::from(format!("--{id}"))));
    parse::parse(args, &|_| None).map_err(|e| match e {
        Error::CommandLine { what, .. } => Error::Usage(what),
        e => e,
    })
}

/// Every combination of the lists, in the order of llama-bench's loops.
fn combinations(matches: &ArgMatches, low: &LowArgs, kv_method: String) -> Result<Vec<Options>> {
    let lists = |id| matches.get_many::<Vec<usize>>(id).into_iter().flatten().flatten().copied().collect::<Vec<_>>();
    let words = |id| matches.get_many::<String>(id).into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    let types = |id| words(id).into_iter().map(|name| cache_type(name, id)).collect::<Result<Vec<_>>>();
    let kv_ratio: Vec<f64> = matches.get_many("kv-ratio").into_iter().flatten().copied().collect();
    let mut n_threads = lists("threads");
    if n_threads.is_empty() {
        n_threads.push(num_cpus::get_physical().min(MAX_THREADS));
    }
    let (n_prompt, n_gen, n_depth) = (lists("n-prompt"), lists("n-gen"), lists("n-depth"));
    let n_pg: Vec<(usize, usize)> = matches.get_many("pg").into_iter().flatten().copied().collect();
    let place = &low.placement;
    let threads = |n_threads| ThreadParams {
        n_threads,
        poll: place.poll,
        priority: place.priority,
        cpu_mask: place.cpu_mask.clone(),
        strict_cpu: place.strict,
    };
    let (types_k, types_v) = (types("cache-type-k")?, types("cache-type-v")?);
    let mut all = Vec::new();
    for n_batch in lists("batch-size") {
        for n_ubatch in lists("ubatch-size") {
            for &ty_k in &types_k {
                for &ty_v in &types_v {
                    for fa in words("flash-attn") {
                        all.extend(n_threads.iter().map(|&n| Options {
                            n_prompt: n_prompt.clone(),
                            n_gen: n_gen.clone(),
                            n_pg: n_pg.clone(),
                            n_depth: n_depth.clone(),
                            n_reps: matches.get_one("repetitions").copied().unwrap_or(5),
                            threads: threads(n),
                            n_batch,
                            n_ubatch,
                            flash_attn: flash_attn(fa),
                            ty_k,
                            ty_v,
                            kv_ratio: kv_ratio.clone(),
                            kv_method: kv_method.clone(),
                            warmup: !matches.get_flag("no-warmup"),
                        }));
                    }
                }
            }
        }
    }
    Ok(all)
}

fn check(o: &Options) -> Result<()> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    if o.n_reps == 0 || o.threads.n_threads == 0 || o.n_batch == 0 || o.n_ubatch == 0 {
        return usage("-r, -t, -b and -ub must be at least 1");
    }
    if o.threads.n_threads > MAX_THREADS {
        return usage(&format!("-t {}: ggml can use {MAX_THREADS} threads at most", o.threads.n_threads));
    }
    if o.n_prompt.iter().chain(&o.n_gen).all(|&n| n == 0) && o.n_pg.is_empty() {
        return usage("nothing to measure: -p and -n are both 0, and there is no -pg");
    }
    if o.kv_ratio.iter().any(|r| !(1.0..=MAX_RATIO).contains(r)) {
        return usage(&format!("--kv-ratio: the cache is made N times smaller, so N is from 1 to {MAX_RATIO:e}"));
    }
    let compressed: BTreeSet<usize> = o.n_depth.iter().copied().filter(|&d| d >= shortest()).collect();
    let largest = o.kv_ratio.iter().copied().fold(1.0, f64::max);
    match compressed.first() {
        None if largest > 1.0 => {
            usage(&format!("--kv-ratio compresses the cache of -d tokens; give -d {} or more", shortest()))
        }
        Some(&d) if largest > d as f64 => {
            usage(&format!("--kv-ratio {largest} leaves less than one entry per head of -d {d} tokens"))
        }
        _ => Ok(()),
    }
}

/// Tokens from which on a cache is compressed.
fn shortest() -> usize {
    crate::pass::PassOptions::default().n_min_tokens
}

impl Options {
    /// The ratios to measure at a depth; shorter caches are left as they are.
    pub fn ratios(&self, depth: usize) -> Vec<f64> {
        match depth < shortest() || self.kv_ratio.is_empty() {
            true => vec![1.0],
            false => self.kv_ratio.clone(),
        }
    }

    /// The method by which the cache is compressed.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is none of this name.
    pub fn method(&self) -> Result<Named> {
        by_name(&self.kv_method, &MethodOptions::default())
    }
}

/// clap's message without its word `error:` and the usage.
fn one_line(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or(text);
    first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn format(matches: &ArgMatches, id: &str) -> Option<Format> {
    match matches.get_one::<String>(id)?.as_str() {
        "json" => Some(Format::Json),
        "jsonl" => Some(Format::Jsonl),
        "csv" => Some(Format::Csv),
        _ => Some(Format::Md),
    }
}

fn flash_attn(word: &str) -> FlashAttn {
    match word {
        "0" | "off" => FlashAttn::Off,
        "1" | "on" => FlashAttn::On,
        _ => FlashAttn::Auto,
    }
}

fn cache_type(name: &str, id: &str) -> Result<Type> {
    const KNOWN: [Type; 9] =
        [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0, Type::Q4_1, Type::IQ4_NL, Type::Q5_0, Type::Q5_1];
    KNOWN.into_iter().find(|t| t.name() == name).ok_or_else(|| {
        let names = KNOWN.map(Type::name).join(", ");
        Error::Usage(format!("--{id} {name}: unknown type; it can be {names}"))
    })
}

#[cfg(test)]
mod tests;
