//! The arguments of gracekv-bench as clap reads them: llama-bench's names, those that are handed on to gracekv-run's own tables,
//! and those that are not built, each with the reason.

use super::range;
use crate::cli::flags;
use crate::error::{Error, Result};
use clap::{value_parser, Arg, ArgAction, Command};
use std::ffi::OsString;
use std::path::PathBuf;

/// Options that gracekv-run has under the same name: its tables say what their values are. Those of `0` or `1` have there a
/// spelling for each.
pub const SHARED: &[(&str, &str)] = &[
    ("n-gpu-layers", "--n-gpu-layers"),
    ("device", "--device"),
    ("rpc", "--rpc"),
    ("split-mode", "--split-mode"),
    ("main-gpu", "--main-gpu"),
    ("load-mode", "--load-mode"),
    ("numa", "--numa"),
    ("prio", "--prio"),
    ("poll", "--poll"),
    ("cpu-mask", "--cpu-mask"),
    ("cpu-strict", "--cpu-strict"),
    ("hf-repo", "--hf-repo"),
    ("hf-file", "--hf-file"),
    ("hf-token", "--hf-token"),
];

/// Options of `0` or `1`: name, short names, and gracekv-run's spellings for both values.
pub const SWITCHES: &[(&str, &[&str], [&str; 2])] = &[
    ("mmap", &["mmp"], ["--no-mmap", "--mmap"]),
    ("no-kv-offload", &["nkvo"], ["--kv-offload", "--no-kv-offload"]),
    ("repack", &[], ["--no-repack", "--repack"]),
];

/// Options of llama-bench that are not built, and why.
const REFUSED: &[(&[&str], &str)] = &[
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], "the layers of devices are set by -ngl"),
    (&["-ts", "--tensor-split"], "layers are divided by the free memory of devices"),
    (&["-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe"], "weights live with their layer"),
    (&["-nopo", "--no-op-offload"], "products are computed where their weights live or where ggml moves them"),
    (&["--no-host"], "weights of the CPU stay in the mapped file"),
    (&["-lzm", "--lazy-mode"], "tensors are read as -lm says"),
    (&["-embd", "--embeddings"], "embeddings are not implemented"),
];

/// The arguments as clap can read them: two dashes before long names, no options that are refused.
///
/// # Errors
/// [`Error::Usage`] for an option that is not built, or that is none.
pub fn prepare(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>> {
    let command = command();
    let is_long = |name: &str| {
        let is = |arg: &Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        };
        command.get_arguments().any(is) || name == "help"
    };
    let prepare = |arg: OsString| {
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else { return Ok(arg) };
        let name = text.trim_start_matches('-').split('=').next().unwrap_or_default().replace('_', "-");
        let spelling = format!("{}{name}", if text.starts_with("--") { "--" } else { "-" });
        if let Some((_, why)) = REFUSED.iter().find(|(names, _)| names.contains(&spelling.as_str())) {
            return Err(Error::Usage(format!("{spelling} is not supported: {why}")));
        }
        // One letter, and one with its value (`-p512`), is clap's; of a longer name it would make a row of letters.
        let is_word =
            name.len() > 1 && (text.starts_with("--") || name.bytes().take(2).all(|b| b.is_ascii_alphabetic()));
        match (is_word, is_long(&name)) {
            (true, true) => Ok(format!("--{name}{}", text.find('=').map_or("", |at| &text[at..])).into()),
            (true, false) => Err(Error::Usage(format!("unexpected argument '{text}' found; -h lists what there is"))),
            (false, _) => Ok(arg),
        }
    };
    args.into_iter().map(prepare).collect()
}

/// What clap knows.
pub fn command() -> Command {
    let number = || value_parser!(usize);
    let arg = |id: &'static str, default: &'static str, help: &'static str| {
        Arg::new(id).long(id).default_value(default).help(help)
    };
    let list = |a: Arg| a.action(ArgAction::Append).value_parser(range::numbers).value_name("N[,N]");
    let types = |a: Arg| a.action(ArgAction::Append).value_delimiter(',').value_name("TYPE[,TYPE]");
    let switch = |id: &'static str, help: &'static str| Arg::new(id).long(id).action(ArgAction::SetTrue).help(help);
    let formats = ["md", "json", "jsonl", "csv"];
    Command::new("gracekv-bench")
        .about("Measures reading and decoding speed as llama-bench does. Long names work with one dash, too; lists may hold ranges: first-last, first-last+step, first-last*factor.")
        .no_binary_name(true)
        .disable_version_flag(true)
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
            Arg::new("pg")
                .long("pg")
                .action(ArgAction::Append)
                .value_name("PP,TG")
                .value_parser(pair)
                .help("Also read a prompt and decode behind it, timed as one"),
            list(arg("n-depth", "0", "Tokens in the cache before").short('d')),
            arg("repetitions", "5", "Repetitions of every test").short('r').value_parser(number()).value_name("N"),
            list(Arg::new("threads").short('t').long("threads").help("Threads [default: cores]")),
            list(arg("batch-size", "2048", "Tokens between two reads of logits").short('b')),
            list(arg("ubatch-size", "512", "Tokens of one graph").visible_alias("ub")),
            arg("flash-attn", "auto", "Attention: ggml's fused, its matrix products, or the fastest")
                .visible_alias("fa")
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(["0", "1", "auto", "off", "on", "-1"])
                .allow_hyphen_values(true),
            types(arg("cache-type-k", "f16", "Type of cached keys").visible_alias("ctk")),
            types(arg("cache-type-v", "f16", "Type of cached values").visible_alias("ctv")),
            arg("output", "md", "Form of the results on standard output").short('o').value_parser(formats),
            Arg::new("output-err").long("output-err").visible_alias("oe").value_parser(formats).help("Form of the results on standard error, too [default: none]"),
            switch("no-warmup", "Measure the first run too"),
            arg("delay", "0", "Seconds to wait before every test").value_parser(value_parser!(u64)).value_name("N"),
            switch("progress", "Say on standard error what is measured"),
            switch("verbose", "Print ggml's messages").short('v'),
            switch("version", "Print version and build"),
            switch("list-devices", "List the devices other than the CPU"),
            switch("offline", "Take models of -hf from the cache alone"),
            Arg::new("kv-ratio")
                .long("kv-ratio")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(value_parser!(f64))
                .value_name("N[,N]")
                .help("Also decode from the cache of -d tokens made N times smaller"),
            arg("kv-method", "gracekv", "By this method, with modifiers; 'list' prints them").value_name("NAME"),
        ])
        .args(SHARED.iter().map(|&(id, spelling)| shared(id, spelling)))
        .args(SWITCHES.iter().map(|&(id, short, [off, on])| {
            let help = format!("As gracekv-run's {off} or {on}");
            Arg::new(id).long(id).visible_aliases(short.iter().copied()).value_parser(["0", "1"]).help(help)
        }))
}

/// An option of gracekv-run, with its other spellings and its help.
fn shared(id: &'static str, spelling: &'static str) -> Arg {
    let arg = Arg::new(id).long(id).allow_hyphen_values(true);
    let Some((flag, _)) = flags::find(spelling) else { return arg };
    let others = flag.names.iter().map(|name| name.trim_start_matches('-')).filter(|name| *name != id);
    let (letters, words): (Vec<&str>, Vec<&str>) = others.partition(|name| name.len() == 1);
    // Layers go to devices here, where gracekv-run sees what fits.
    let help =
        flag.help.replace("(default: auto)", if id == "n-gpu-layers" { "(default: all)" } else { "(default: auto)" });
    let arg = arg.visible_aliases(words).value_name(flag.hint.trim_matches(['<', '>'])).help(help);
    letters.iter().filter_map(|letter| letter.chars().next()).fold(arg, Arg::short)
}

/// Two numbers with a comma between them.
fn pair(text: &str) -> std::result::Result<(usize, usize), String> {
    let numbers = text.split_once(',').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers
        .filter(|(a, b)| a + b > 0)
        .ok_or_else(|| format!("'{text}' is not tokens to read and to decode, as in 512,128"))
}
