//! The arguments of gracekv-bench: llama-bench's spelling as far as it applies, read by clap.

use crate::cli::help;
use crate::cli::low::Devices;
use crate::compress::{by_name, MethodOptions, Named};
use crate::engine::FlashAttn;
use crate::error::{Error, Result};
use crate::ggml::{Type, MAX_THREADS};
use clap::{value_parser, Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::PathBuf;

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

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model file.
    pub model: PathBuf,
    /// Lengths of the prompts that are read.
    pub n_prompt: Vec<usize>,
    /// Numbers of tokens that are decoded one by one.
    pub n_gen: Vec<usize>,
    /// Tokens that are in the cache before.
    pub n_depth: Vec<usize>,
    /// Repetitions of every test.
    pub n_reps: usize,
    /// Threads.
    pub n_threads: usize,
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
    /// Which devices hold layers.
    pub devices: Devices,
    /// How results are printed.
    pub format: Format,
    /// Run every test once before it is measured.
    pub warmup: bool,
}

/// What the arguments ask for.
pub enum Request {
    /// A run.
    Run(Box<Options>),
    /// A text on standard output.
    Print(String),
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// [`Error::Usage`] in one line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Request> {
    let matches = match command().try_get_matches_from(args.into_iter().map(two_dashes)) {
        Ok(matches) => matches,
        Err(e) if !e.use_stderr() => return Ok(Request::Print(e.to_string())),
        Err(e) => return Err(Error::Usage(one_line(&e.to_string()))),
    };
    let list = |id| matches.get_many::<usize>(id).map_or_else(Vec::new, |v| v.copied().collect());
    let one = |id, default| matches.get_one::<usize>(id).copied().unwrap_or(default);
    let kv_method = matches.get_one::<String>("kv-method").map_or("gracekv", String::as_str);
    if kv_method == "list" {
        return Ok(Request::Print(help::methods()));
    }
    let o = Options {
        model: matches.get_one::<PathBuf>("model").cloned().ok_or_else(|| Error::Usage("-m is required".to_owned()))?,
        n_prompt: list("n-prompt"),
        n_gen: list("n-gen"),
        n_depth: list("n-depth"),
        n_reps: one("repetitions", 5),
        n_threads: one("threads", num_cpus::get_physical().min(MAX_THREADS)),
        n_batch: one("batch-size", 2048),
        n_ubatch: one("ubatch-size", 512),
        flash_attn: flash_attn(&matches),
        ty_k: cache_type(&matches, "cache-type-k")?,
        ty_v: cache_type(&matches, "cache-type-v")?,
        kv_ratio: matches.get_many::<f64>("kv-ratio").map_or_else(Vec::new, |v| v.copied().collect()),
        kv_method: by_name(kv_method, &MethodOptions::default())?.name,
        devices: devices(&matches)?,
        format: match matches.get_one::<String>("output").map(String::as_str) {
            Some("json") => Format::Json,
            Some("jsonl") => Format::Jsonl,
            Some("csv") => Format::Csv,
            _ => Format::Md,
        },
        warmup: !matches.get_flag("no-warmup"),
    };
    check(&o)?;
    Ok(Request::Run(Box::new(o)))
}

fn check(o: &Options) -> Result<()> {
    let usage = |text: &str| Err(Error::Usage(text.to_owned()));
    if o.n_reps == 0 || o.n_threads == 0 || o.n_batch == 0 || o.n_ubatch == 0 {
        return usage("-r, -t, -b and -ub must be at least 1");
    }
    if o.n_threads > MAX_THREADS {
        return usage(&format!("-t {}: ggml can use {MAX_THREADS} threads at most", o.n_threads));
    }
    if o.n_prompt.iter().chain(&o.n_gen).all(|&n| n == 0) {
        return usage("nothing to measure: -p and -n are both 0");
    }
    if let Some(bad) = o.kv_ratio.iter().find(|r| !(**r >= 1.0 && r.is_finite())) {
        return usage(&format!("--kv-ratio {bad}: the cache is made N times smaller, so N must be 1 or more"));
    }
    if o.kv_ratio.iter().any(|&r| r > 1.0) && o.n_depth.iter().all(|&d| d < shortest()) {
        return usage(&format!("--kv-ratio compresses the cache of -d tokens; give -d {} or more", shortest()));
    }
    Ok(())
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

fn command() -> Command {
    let number = || value_parser!(usize);
    let arg = |id: &'static str, default: &'static str, help: &'static str| {
        Arg::new(id).long(id).default_value(default).help(help)
    };
    let list = |a: Arg| a.value_delimiter(',').action(ArgAction::Append).value_parser(number()).value_name("N[,N]");
    Command::new("gracekv-bench")
        .about("Measures reading and decoding speed as llama-bench does; -ub, -fa, -ctk, -ctv, -ngl, -dev work with one dash too.")
        .no_binary_name(true)
        .args_override_self(true)
        .args([
            Arg::new("model")
                .short('m')
                .long("model")
                .value_name("FILE")
                .help("GGUF model")
                .value_parser(value_parser!(PathBuf)),
            list(arg("n-prompt", "512", "Tokens of the prompt; 0 = none").short('p')),
            list(arg("n-gen", "128", "Tokens that are decoded; 0 = none").short('n')),
            list(arg("n-depth", "0", "Tokens in the cache before").short('d')),
            arg("repetitions", "5", "Repetitions of every test").short('r').value_parser(number()).value_name("N"),
            Arg::new("threads")
                .short('t')
                .long("threads")
                .help("Threads [default: cores]")
                .value_parser(number())
                .value_name("N"),
            arg("batch-size", "2048", "Tokens between two reads of logits")
                .short('b')
                .value_parser(number())
                .value_name("N"),
            arg("ubatch-size", "512", "Tokens of one graph").visible_alias("ub").value_parser(number()).value_name("N"),
            arg("flash-attn", "auto", "Attention: ggml's fused, its matrix products, or the fastest")
                .visible_alias("fa")
                .value_parser(["0", "1", "auto", "off", "on", "-1"])
                .allow_hyphen_values(true),
            arg("cache-type-k", "f16", "Type of cached keys").visible_alias("ctk").value_name("TYPE"),
            arg("cache-type-v", "f16", "Type of cached values").visible_alias("ctv").value_name("TYPE"),
            arg("n-gpu-layers", "all", "Layers that devices hold: a number or all").visible_alias("ngl").value_name("N"),
            arg("device", "all", "Devices, with commas between them; none = the CPU alone").visible_alias("dev"),
            arg("rpc", "", "Servers whose devices are used, too: host:port,...").hide_default_value(true),
            arg("output", "md", "Form of the results").short('o').value_parser(["md", "json", "jsonl", "csv"]),
            Arg::new("no-warmup").long("no-warmup").action(ArgAction::SetTrue).help("Measure the first run too"),
            Arg::new("kv-ratio")
                .long("kv-ratio")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(value_parser!(f64))
                .value_name("N[,N]")
                .help("Also decode from the cache of -d tokens made N times smaller"),
            arg("kv-method", "gracekv", "By this method, with modifiers; 'list' prints them").value_name("NAME"),
        ])
}

/// llama.cpp's long options with one dash (`-ub`), which clap would take for a row of short ones.
fn two_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some("-ub" | "-fa" | "-ctk" | "-ctv" | "-ngl" | "-dev") => format!("-{}", arg.to_string_lossy()).into(),
        _ => arg,
    }
}

/// clap's message without its word `error:` and the usage.
fn one_line(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or(text);
    first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn flash_attn(matches: &ArgMatches) -> FlashAttn {
    match matches.get_one::<String>("flash-attn").map(String::as_str) {
        Some("0" | "off") => FlashAttn::Off,
        Some("1" | "on") => FlashAttn::On,
        _ => FlashAttn::Auto,
    }
}

fn devices(matches: &ArgMatches) -> Result<Devices> {
    let text = |id| matches.get_one::<String>(id).map_or("", String::as_str);
    let list = |id| text(id).split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect();
    let n_layers = match text("n-gpu-layers") {
        "all" => -2,
        n => n.parse().map_err(|_| Error::Usage(format!("-ngl {n}: it must be a number or all")))?,
    };
    let names = (text("device") != "all").then(|| list("device"));
    Ok(Devices { n_layers, names, rpc: list("rpc"), ..Devices::default() })
}

fn cache_type(matches: &ArgMatches, id: &str) -> Result<Type> {
    const KNOWN: [Type; 9] =
        [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0, Type::Q4_1, Type::IQ4_NL, Type::Q5_0, Type::Q5_1];
    let name = matches.get_one::<String>(id).map_or("f16", String::as_str);
    KNOWN.into_iter().find(|t| t.name() == name).ok_or_else(|| {
        let names = KNOWN.map(Type::name).join(", ");
        Error::Usage(format!("--{id} {name}: unknown type; it can be {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &str) -> Result<Box<Options>> {
        match parse(args.split(' ').map(OsString::from))? {
            Request::Run(options) => Ok(options),
            Request::Print(text) => panic!("{text}"),
        }
    }

    #[test]
    fn llama_bench_s_spelling_is_understood() {
        let o = run("-m x.gguf -p 0 -n 32,64 -n 128 -d 0,4096 -r 1 -t 2 -ub 256 -b 1024 -fa 0 -ctk q8_0 -ctv f16 -o jsonl --no-warmup").unwrap();
        assert_eq!((o.n_prompt, o.n_gen, o.n_depth), (vec![0], vec![32, 64, 128], vec![0, 4096]));
        assert_eq!((o.n_reps, o.n_threads, o.n_ubatch, o.n_batch), (1, 2, 256, 1024));
        assert_eq!(
            (o.flash_attn, o.ty_k, o.ty_v, o.format, o.warmup),
            (FlashAttn::Off, Type::Q8_0, Type::F16, Format::Jsonl, false)
        );
        let o = run("-m x.gguf -ngl 7 -dev none").unwrap();
        assert_eq!((o.devices.n_layers, o.devices.names), (7, Some(vec!["none".to_owned()])));
        let o = run("-m x.gguf").unwrap();
        assert_eq!((o.devices.n_layers, o.devices.names), (-2, None));
        assert_eq!((o.n_prompt, o.n_gen, o.n_depth, o.kv_ratio), (vec![512], vec![128], vec![0], vec![]));
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for args in [
            "-p 1",
            "-m x --bogus",
            "-m x -r 0",
            "-m x -p 0 -n 0",
            "-m x -fa 2",
            "-m x -ctk q9",
            "-m x -n a",
            "-m x -ngl some",
            "-m x -d 512 --kv-ratio 0.5",
            "-m x --kv-ratio 8",
        ] {
            let Err(e) = run(args) else { panic!("{args} was accepted") };
            assert_eq!(e.to_string().lines().count(), 1, "{args}: {e}");
        }
    }
}
