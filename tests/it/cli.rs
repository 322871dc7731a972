//! The command line: every option of llama.cpp is answered, values and errors as llama.cpp's, and our own options.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use gracekv::cli::flags::{self, Action};
use gracekv::cli::help;
use gracekv::cli::high::HighArgs;
use gracekv::cli::low::{Devices, KvSize, LoadMode, LowArgs, OnOffAuto, Source, Special, Variant};
use gracekv::cli::measure::{Given, COMPARE};
use gracekv::cli::parse::parse;
use gracekv::cli::setup;
use gracekv::compress::METHODS;
use gracekv::error::Result;
use gracekv::sample::SampleParams;

fn with_env(args: &[&str], env: &[(&str, &str)]) -> Result<LowArgs> {
    let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
    parse(args.iter().map(OsString::from), &lookup)
}

fn low(args: &[&str]) -> LowArgs {
    with_env(args, &[]).unwrap()
}

fn error(args: &[&str]) -> String {
    with_env(args, &[]).unwrap_err().to_string()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap()
}

#[test]
fn tables_are_sound() {
    let (mut spellings, mut ids, mut variables) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for flag in flags::all() {
        assert!(ids.insert(flag.id()), "two options are called {}", flag.id());
        assert!(flag.env.is_empty() || variables.insert(flag.env), "two options read {}", flag.env);
        for name in flag.names.iter().chain(flag.off) {
            assert!(spellings.insert(*name), "{name} stands in two rows");
        }
        let answered = matches!(flag.action, Action::NoEffect(_) | Action::Refused(_));
        assert_eq!(flag.help.is_empty(), answered, "{}: a help text, or a reason", flag.id());
        let is_switch = matches!(flag.action, Action::Switch(_));
        assert!(answered || flag.takes_value() != is_switch, "{}", flag.id());
        assert!(flag.off.is_empty() || !flag.takes_value(), "{}", flag.id());
    }
}

/// Every row is parsed by each of its spellings, and answers as its action says.
#[test]
fn every_row_is_reachable() {
    for flag in flags::all() {
        for name in flag.names.iter().chain(flag.off) {
            let is_off = flag.off.contains(name);
            let value = match flag.action {
                Action::Int(_) | Action::Float(_) => "1",
                Action::Choice(_) => "auto",
                _ => "8",
            };
            let args: Vec<&str> = if flag.takes_value() { vec![name, value] } else { vec![name] };
            match (flag.action, with_env(&args, &[])) {
                (Action::Refused(why), Err(e)) => assert!(e.to_string().contains(why) && e.to_string().contains(name)),
                (Action::Refused(_), Ok(low)) => assert!(is_off && low.warnings.is_empty(), "{name} was accepted"),
                (Action::NoEffect(why), Ok(low)) => assert_eq!(low.warnings, [format!("{name} has no effect: {why}")]),
                (Action::NoEffect(_), Err(e)) => panic!("{name}: {e}"),
                (_, Ok(low)) => assert!(low.given.contains(flag.id())),
                (_, Err(e)) => {
                    assert!(e.to_string().starts_with(&format!("error while handling argument \"{name}\": ")), "{e}")
                }
            }
        }
    }
}

#[test]
fn neutral_values_of_refused_options_are_accepted() {
    for flag in flags::all() {
        for value in flag.neutral {
            assert!(low(&[flag.names[0], value]).warnings.is_empty(), "{} {value}", flag.id());
        }
    }
    assert!(low(&["--grp-attn-n", "1.0"]).warnings.is_empty());
    let refused = error(&["--grp-attn-n", "2"]);
    assert!(refused.starts_with("error while handling argument \"--grp-attn-n\": not supported: "), "{refused}");
}

/// A command line of llama.cpp's own tests (`ci/run.sh`) with its meaning.
#[test]
fn a_line_of_llama_cpp() {
    let args = low(&[
        "-no-cnv",
        "--model",
        "m.gguf",
        "-ngl",
        "99",
        "-c",
        "1024",
        "-s",
        "1234",
        "-n",
        "64",
        "--ignore-eos",
        "-p",
        "I believe the meaning of life is",
    ]);
    let want = LowArgs {
        conversation: Some(false),
        model: Some("m.gguf".into()),
        devices: Devices { n_layers: 99, ..Devices::default() },
        n_ctx: 1024,
        sample: SampleParams { seed: 1234, ..SampleParams::default() },
        n_predict: 64,
        ignore_eos: true,
        prompt: Some(Source::Text("I believe the meaning of life is".into())),
        given: args.given.clone(),
        typed: args.given.clone(),
        ..LowArgs::default()
    };
    assert_eq!(args, want);
    assert_eq!(args.given.len(), 8);
    assert_eq!(low(&[]), LowArgs::default());
}

#[test]
fn spelling_rules() {
    assert_eq!(low(&["--ctx_size", "7"]).n_ctx, 7);
    assert_eq!(low(&["--ctx-size=7"]).n_ctx, 7);
    assert_eq!(low(&["-n", "-1"]).n_predict, -1);
    assert_eq!(low(&["--n_predict", "-2"]).n_predict, -2);
    assert_eq!(low(&["-p", "-n"]).prompt, Some(Source::Text("-n".into())));
    assert_eq!(low(&["-p", ""]).prompt, Some(Source::Text(String::new())));
    assert_eq!(low(&["--prompt=a_b=c"]).prompt, Some(Source::Text("a_b=c".into())));
    assert_eq!(low(&["-s", "-1"]).sample.seed, u32::MAX);
    assert_eq!(low(&["-s", "4294967295"]).sample.seed, u32::MAX);
    assert_eq!(low(&["--temp", "-3"]).sample.temperature, 0.0);
    for (args, flash_attn, rest) in [
        (&["-fa", "-p", "x"] as &[&str], OnOffAuto::On, true),
        (&["-fa", "off", "-p", "x"], OnOffAuto::Off, true),
        (&["-fa", "0"], OnOffAuto::Off, false),
        (&["-fa", "auto"], OnOffAuto::Auto, false),
        (&["--flash-attn=enabled"], OnOffAuto::On, false),
        (&["-fa"], OnOffAuto::On, false),
    ] {
        let args = low(args);
        assert_eq!((args.flash_attn, args.prompt.is_some()), (flash_attn, rest));
    }
    assert_eq!(low(&["--color"]).color, OnOffAuto::On);
    assert!(!low(&["-e", "--no-escape"]).escape);
    assert!(low(&["--no-escape", "--escape"]).escape);
    assert_eq!(low(&["-f", "a", "-p", "b"]).prompt, Some(Source::Text("b".into())));
    assert_eq!(low(&["-p", "b", "-f", "a"]).prompt, Some(Source::File("a".into())));
    assert_eq!(low(&["-r", "a", "-r", "b"]).reverse_prompts, ["a", "b"]);
    assert_eq!(
        low(&["-l", "15043+1", "-l", "7-0.5", "-l", "3-inf"]).sample.logit_bias,
        [(15043, 1.0), (7, -0.5), (3, f32::NEG_INFINITY)]
    );
    assert_eq!(low(&["--no-mmap"]).load_mode, LoadMode::Read);
    assert_eq!(low(&["-lm", "mmap+mlock"]).load_mode, LoadMode::Mlock);
    assert_eq!(low(&["--memory-f32"]).cache_type_v, "f32");
    assert_eq!(low(&["-C", "5", "-Cr", "4-5"]).placement.cpu_mask, [true, false, true, false, true, true]);
    assert_eq!(low(&["-v"]).verbosity, i32::MAX);
    assert!(low(&["-v", "--log-disable"]).verbosity < 0);
}

#[test]
fn repeats_warn_and_the_last_value_wins() {
    let args = low(&["-n", "1", "--predict", "2", "-r", "a", "-r", "b"]);
    assert_eq!(args.n_predict, 2);
    assert_eq!(args.warnings, ["argument '--predict' specified multiple times, only the last value is used"]);
}

#[test]
fn errors_are_worded_as_in_llama_cpp() {
    assert_eq!(error(&["--nonsense", "1"]), "error: invalid argument: --nonsense");
    assert_eq!(error(&["model.gguf"]), "error: invalid argument: model.gguf");
    assert_eq!(error(&["--kv-ration", "1"]), "error: invalid argument: --kv-ration\ndid you mean --kv-ratio?");
    assert_eq!(error(&["--escape=on"]), "error: invalid argument: --escape=on\ndid you mean --escape?");
    assert_eq!(first_line(&error(&["-n"])), "error while handling argument \"-n\": expected value for argument");
    let text = error(&["-n", "x"]);
    assert_eq!(
        text,
        "error while handling argument \"-n\": 'x': invalid digit found in string\n\nusage:\n\
         -n,    --predict, --n-predict N         tokens to generate; -1 = no limit, -2 = until the context is full;\n\
         \x20                                       when a script talks, what it says counts, too, as in llama-completion\n\
         \x20                                       (default: -1)\n\
         \x20                                       (env: LLAMA_ARG_N_PREDICT)\n\n\
         to show complete usage, run with -h"
    );
    for (args, want) in [
        (&["-c", "-5"] as &[&str], "error while handling argument \"-c\": -5 is out of range"),
        (&["-n", "1", "-n", "9999999999999"], "error while handling argument \"-n\": 9999999999999 is out of range"),
        (&["-ub", "0"], "error while handling argument \"-ub\": 0 is out of range"),
        (&["--top-p", "nan"], "error while handling argument \"--top-p\": NaN is not a finite number"),
        (&["--repeat-penalty", "0"], "error while handling argument \"--repeat-penalty\": repeat-penalty must be finite and greater than 0"),
        (&["--repeat-last-n", "-1"], "error while handling argument \"--repeat-last-n\": invalid repeat-last-n = -1"),
        (&["-l", "5"], "error while handling argument \"-l\": invalid input format"),
        (&["-l", "5+inf"], "error while handling argument \"-l\": invalid input format"),
        (&["-ctk", "q9"], "error while handling argument \"-ctk\": 'q9' is unknown; it can be f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"),
        (&["--flash-attn=x"], "error while handling argument \"--flash-attn\": unknown value 'x'; it can be on, off or auto"),
        (&["--prio", "9"], "error while handling argument \"--prio\": invalid value"),
        (&["-Cr", "9-3"], "error while handling argument \"-Cr\": invalid range"),
        (&["-dr", "gemma3"], "error while handling argument \"-dr\": not supported: models are not fetched from Docker registries; use -hf or -mu"),
        (&["--reasoning-budget", "9"], "error while handling argument \"--reasoning-budget\": not supported: thoughts can be switched off by 0, but not cut after some tokens"),
        (&["--chat-template-kwargs", "[1]"], "error while handling argument \"--chat-template-kwargs\": '[1]' is no JSON object: invalid type: sequence, expected a map at line 1 column 0"),
    ] {
        assert_eq!(first_line(&error(args)), want);
    }
    assert!(low(&["--context-shift"]).context_shift && !low(&["--context-shift", "--no-context-shift"]).context_shift);
}

#[test]
fn the_environment_comes_first() {
    let both = |args: &[&str], env: &[(&str, &str)]| with_env(args, env).unwrap();
    assert_eq!(both(&[], &[("LLAMA_ARG_CTX_SIZE", "99")]).n_ctx, 99);
    let args = both(&["-c", "7"], &[("LLAMA_ARG_CTX_SIZE", "99")]);
    assert_eq!(args.n_ctx, 7);
    assert_eq!(
        args.warnings,
        ["LLAMA_ARG_CTX_SIZE environment variable is set, but will be overwritten by command line argument -c"]
    );
    assert!(!both(&[], &[("LLAMA_ARG_PERF", "off")]).perf);
    assert!(!both(&[], &[("LLAMA_ARG_NO_PERF", "anything")]).perf);
    assert!(both(&[], &[("LLAMA_ARG_PERF", "1")]).perf);
    assert_eq!(both(&[], &[("LLAMA_ARG_FLASH_ATTN", "false")]).flash_attn, OnOffAuto::Off);
    assert_eq!(both(&[], &[("GRACEKV_ARG_KV_RATIO", "8")]).kv_size, KvSize::Ratio(8.0));
    let args = both(&["--kv-budget", "64"], &[("GRACEKV_ARG_KV_RATIO", "8")]);
    assert_eq!(args.kv_size, KvSize::Tokens(64));
    assert_eq!(args.warnings.len(), 1);
    assert_eq!(
        both(&[], &[("LLAMA_ARG_DOCKER_REPO", "a/b")]).warnings,
        ["environment variable LLAMA_ARG_DOCKER_REPO is ignored: models are not fetched from Docker registries; use -hf or -mu"]
    );
    assert_eq!(both(&[], &[("HF_TOKEN", "hf_x")]).hf_token.unwrap(), "hf_x");
    let text = with_env(&[], &[("LLAMA_ARG_CTX_SIZE", "x")]).unwrap_err().to_string();
    assert!(text.starts_with("error while handling environment variable \"LLAMA_ARG_CTX_SIZE\": 'x': "), "{text}");
    assert!(with_env(&[], &[("LLAMA_ARG_PERF", "maybe")]).is_err());
}

#[test]
fn the_chat_template_is_told_about_reasoning() {
    let told = |args: &[&str]| serde_json::Value::from(low(args).template_variables).to_string();
    assert_eq!(told(&["-rea", "off"]), r#"{"enable_thinking":false}"#);
    assert_eq!(told(&["--reasoning", "auto", "--reasoning-budget", "-1", "--reasoning-effort", "default"]), "{}");
    assert_eq!(told(&["--reasoning-budget", "0"]), r#"{"enable_thinking":false}"#);
    let args = ["--chat-template-kwargs", r#"{"a": [1], "b": "x"}"#, "--chat-template-kwargs", r#"{"b": null}"#];
    assert_eq!(told(&args), r#"{"a":[1],"b":null}"#);
    assert!(told(&["--reasoning-effort", "high"]).contains(r#""reasoning_effort":"high""#));
    assert!(told(&["--no-reasoning-preserve"]).contains(r#""clear_thinking":true"#));
    let deprecated = low(&["--chat-template-kwargs", r#"{"enable_thinking": true}"#]).warnings;
    assert!(deprecated[0].contains("Use --reasoning on / --reasoning off instead."), "{deprecated:?}");
    let jinja = |args: &[&str]| low(args).jinja;
    assert_eq!(
        (jinja(&[]), jinja(&["--no-jinja"]), jinja(&["--no-jinja", "--jinja"])),
        (None, Some(false), Some(true))
    );
    assert!(low(&["--reasoning-format", "auto"]).warnings.is_empty());
}

#[test]
fn compression_options() {
    let args = low(&[
        "--kv-ratio",
        "32",
        "--kv-lookahead",
        "0",
        "--kv-variant",
        "paper",
        "--kv-recent",
        "8",
        "--kv-report",
        "r.json",
        "--kv-force",
    ]);
    assert_eq!((args.kv_size, args.kv_lookahead, args.kv_variant), (KvSize::Ratio(32.0), 0, Variant::Paper));
    assert_eq!((args.kv_window, args.kv_report, args.kv_force), (Some(8), Some(PathBuf::from("r.json")), true));
    assert_eq!(low(&["--kv-compression-ratio", "0.75"]).kv_size, KvSize::Ratio(4.0));
    assert_eq!(low(&["--kv-budget", "64"]).kv_size, KvSize::Tokens(64));
    assert_eq!(low(&["--kv-method", "list"]).special, Some(Special::Methods));
    assert_eq!(
        first_line(&error(&["--kv-ratio", "0.25"])),
        "error while handling argument \"--kv-ratio\": 0.25 looks like a fraction, but --kv-ratio is how many times smaller \
         the cache becomes; to keep 0.25 of it use --kv-ratio 4, to remove 0.25 of it use --kv-compression-ratio 0.25"
    );
    assert_eq!(
        first_line(&error(&["--kv-compression-ratio", "32"])),
        "error while handling argument \"--kv-compression-ratio\": 32 is not a fraction that can be removed; to make the \
         cache 32 times smaller use --kv-ratio 32"
    );
    for bad in ["0", "-2", "nan", "inf"] {
        assert!(error(&["--kv-ratio", bad]).contains("is not a number of at least 1"), "{bad}");
    }
    for (flag, bad) in [
        ("--kv-compression-ratio", "1"),
        ("--kv-budget", "0"),
        ("--kv-prototypes", "1.5"),
        ("--kv-floor", "-1"),
        ("--kv-variant", "x"),
    ] {
        assert!(error(&[flag, bad]).starts_with(&format!("error while handling argument \"{flag}\"")), "{flag}");
    }
    assert_eq!(
        error(&["--kv-ratio", "4", "--kv-compression-ratio", "0.5"]),
        "error: these arguments exclude each other: --kv-ratio, --kv-compression-ratio"
    );
}

#[test]
fn questions_about_the_program() {
    assert_eq!(low(&["-h", "--version"]).special, Some(Special::Help));
    assert_eq!(low(&["--version"]).special, Some(Special::Version));
    assert_eq!(low(&["-cl"]).special, Some(Special::CacheList));
    assert_eq!(low(&["--completion-bash"]).special, Some(Special::CompletionBash));
    assert!(help::version().starts_with("version: "));
}

#[test]
fn the_list_of_methods_has_every_method_and_its_modifiers_below_it() {
    let list = help::methods();
    let mut lines = list.lines();
    let mut next = |name: &str, about: &str| {
        let line = lines.next().unwrap();
        assert!(line.starts_with(&format!("{name} ")) && line.ends_with(about), "{line}");
        assert!(line.chars().count() <= 125, "{line}");
    };
    for method in METHODS {
        next(method.name, method.about);
        method.modifiers.iter().for_each(|m| next(&format!("  +{}", m.name), m.about));
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn every_program_prints_the_same_list() {
    for program in [
        env!("CARGO_BIN_EXE_gracekv-run"),
        env!("CARGO_BIN_EXE_gracekv-perplexity"),
        env!("CARGO_BIN_EXE_gracekv-eval"),
        env!("CARGO_BIN_EXE_gracekv-bench"),
    ] {
        let output = std::process::Command::new(program).args(["--kv-method", "list"]).output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), help::methods()));
    }
}

#[test]
fn comparisons_take_lists_of_methods() {
    let names = |variant: &str, methods: &[&str]| -> Result<Vec<String>> {
        let args = ["--kv-ratio", "8"].iter().chain(methods).map(OsString::from);
        let cases = Given::separate(args, &[COMPARE])?.cases(&high(&["--kv-variant", variant])?)?;
        Ok(cases.into_iter().map(|case| case.method.name).collect())
    };
    let all: Vec<&str> = METHODS.iter().map(|m| m.name).filter(|name| *name != "none").collect();
    assert_eq!(names("fitted", &[]).unwrap(), ["gracekv"]);
    assert_eq!(names("paper", &[]).unwrap(), ["gracekv+paper"]);
    assert_eq!(names("fitted", &["--kv-method", "all"]).unwrap(), all);
    let with = [&all[..], &["gracekv+paper+no_hops"]].concat();
    assert_eq!(names("fitted", &["--kv-method", "all,gracekv+no_hops+paper,topk"]).unwrap(), with);
    assert_eq!(names("paper", &["--kv-method", "topk,gracekv"]).unwrap(), ["topk", "gracekv+paper"]);
    let wrong = names("fitted", &["--kv-method", "topk,gracekv+zip"]).unwrap_err().to_string();
    assert!(wrong.starts_with("method 'gracekv' has no modifier 'zip'"), "{wrong}");
}

#[test]
fn a_method_has_one_full_name() {
    let name = |args: &[&str]| high(args).unwrap().low.kv_method;
    assert_eq!(name(&[]), "gracekv");
    for args in [&["--kv-variant", "paper"][..], &["--kv-method", "gracekv+paper"]] {
        assert_eq!(name(args), "gracekv+paper");
        assert_eq!(name(&[args, &["--kv-variant", "paper"]].concat()), "gracekv+paper");
    }
    let other = high(&["--kv-method", "topk", "--kv-variant", "paper"]).unwrap().low;
    assert_eq!(other.kv_method, "topk");
    assert_eq!(other.warnings, ["--kv-variant is of gracekv and has no effect on --kv-method topk"]);
}

/// A directory that is removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gracekv-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn high(args: &[&str]) -> Result<HighArgs> {
    let args: Vec<&str> = ["-m", "m.gguf"].iter().chain(args).copied().collect();
    HighArgs::new(low(&args))
}

#[test]
fn prompts_are_read_and_unescaped() {
    let dir = TempDir::new("prompts");
    let file = dir.file("a.txt", b"one\\n\ntwo\n\n");
    let prompt = |args: &[&str]| high(args).unwrap().prompt.unwrap();
    assert_eq!(prompt(&["-p", r"a\nb\x41"]), "a\nbA");
    assert_eq!(prompt(&["-p", r"a\nb", "--no-escape"]), r"a\nb");
    assert_eq!(prompt(&["-f", &file]), "one\n\ntwo\n");
    assert_eq!(prompt(&["-bf", &file]), "one\n\ntwo\n\n");
    let args = high(&["-sys", r"s\n", "-r", r"x\n"]).unwrap();
    assert_eq!(
        (args.system_prompt.unwrap(), args.reverse_prompts, args.prompt),
        (r"s\n".into(), vec!["x\n".into()], None)
    );
    let wrong = |args: &[&str]| high(args).unwrap_err().to_string();
    let bad = dir.file("bad.txt", b"ab\xff");
    assert_eq!(prompt(&["-f", &bad]), "ab\u{fffd}", "as llama.cpp's byte-level tokenizers");
    assert_eq!(high(&["-f", &bad]).unwrap().prompt_bytes.unwrap(), b"ab\xff");
    let nul = dir.file("nul.txt", b"a\0b");
    assert_eq!(wrong(&["-f", &nul]), format!("{nul}: the prompt has a NUL at byte 1"));
    assert_eq!(prompt(&["-p", r"a\xe2\x82b"]), "a\u{fffd}\u{fffd}b");
    assert_eq!(prompt(&["-sys", "s", "-p", "\u{20ac}"]), "\u{20ac}");
    assert_eq!(high(&["-p", "\u{20ac}"]).unwrap().prompt_bytes, None);
    let missing = dir.0.join("missing.txt");
    assert!(wrong(&["-f", missing.to_str().unwrap()]).contains("missing.txt: "));
    assert!(wrong(&["-f", dir.0.to_str().unwrap()]).contains("directory"));
}

#[test]
fn settings_are_checked_and_completed() {
    assert_eq!(HighArgs::new(low(&[])).unwrap_err().to_string(), "error: --model is required");
    let unknown = high(&["--kv-method", "zip"]).unwrap_err().to_string();
    assert!(unknown.starts_with("unknown compression method 'zip'; there are gracekv, topk"), "{unknown}");
    let args = high(&["-c", "3", "-b", "100", "-t", "3", "-ngl", "all"]).unwrap();
    assert_eq!((args.low.n_ctx, args.low.n_ubatch, args.n_threads, args.n_threads_batch), (8, 100, 3, 3));
    let n_expected = if cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan")) { 1 } else { 2 };
    assert_eq!(args.low.warnings.len(), n_expected);
    assert!(high(&["-ngl", "0"]).unwrap().low.warnings.is_empty());
    let args = high(&["-t", "2", "-tb", "0"]).unwrap();
    assert_eq!(args.n_threads, 2);
    assert!(args.n_threads_batch >= 1 && high(&[]).unwrap().n_threads >= 1);
}

#[test]
fn the_pass_runs_when_it_makes_something_smaller() {
    let runs = |args: &[&str], n| setup::asked_pass(&high(args).unwrap()).is_some_and(|pass| pass.applies(n));
    assert!(!runs(&[], 5000));
    assert!(runs(&["--kv-force"], 5));
    assert!(runs(&["--kv-ratio", "2"], 128));
    assert!(!runs(&["--kv-ratio", "2"], 127));
    assert!(runs(&["--kv-ratio", "2", "--kv-min-tokens", "0"], 5));
    assert!(!runs(&["--kv-ratio", "2", "--kv-method", "none"], 5000));
    assert!(runs(&["--kv-budget", "64"], 500) && !runs(&["--kv-budget", "500"], 500));
}

/// The options of most command lines that are seen in public do something.
#[test]
fn common_options_are_effective() {
    let common = "-h --version -m -p -f -n -c -b -ub -t -s --temp --top-k --top-p --min-p --repeat-penalty -fa -ctk -ctv -e -cnv -st -sys \
                  --display-prompt --warmup -r --ignore-eos --samplers --grammar -j --mirostat -co -lm -ngl -hf -hff -hft -mu --offline --jinja --chat-template --chat-template-file --log-disable -v";
    for name in common.split_whitespace() {
        let (flag, _) = flags::find(name).unwrap();
        assert!(!matches!(flag.action, Action::NoEffect(_) | Action::Refused(_)), "{name}");
    }
}
