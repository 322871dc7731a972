//! Options of the samplers and of the grammar.

use std::ffi::OsString;

use gracekv::cli::high::HighArgs;
use gracekv::cli::low::{Constraint, LowArgs, Source};
use gracekv::cli::parse::parse;
use gracekv::error::Result;
use gracekv::sample::{self, SampleParams};

fn parsed(args: &[&str]) -> Result<LowArgs> {
    parse(["-m", "m.gguf"].iter().chain(args).map(OsString::from), &|_| None)
}

fn low(args: &[&str]) -> LowArgs {
    parsed(args).unwrap()
}

fn error(args: &[&str]) -> String {
    parsed(args).unwrap_err().to_string()
}

fn high(args: &[&str]) -> Result<HighArgs> {
    HighArgs::new(low(args))
}

#[test]
fn samplers_and_their_order() {
    let sample = |args: &[&str]| low(args).sample;
    assert_eq!(sample(&["--samplers", "top-k;temp"]).samplers, ["top_k", "temperature"]);
    assert_eq!(sample(&["--sampling-seq", "kta"]).samplers, ["top_k", "temperature", "adaptive_p"]);
    let args = low(&["--samplers", "top_k;tfs_z"]);
    assert_eq!(
        (args.sample.samplers, args.warnings),
        (vec!["top_k"], vec!["unable to match sampler by name 'tfs_z'".into()])
    );
    assert!(error(&["--samplers", "infill"]).contains("the infill sampler is not supported"));
    let all = sample(&[
        "--top-nsigma",
        "1.5",
        "--typical",
        "0.9",
        "--xtc-probability",
        "0.5",
        "--xtc-threshold",
        "0.2",
        "--dynatemp-range",
        "0.3",
        "--dynatemp-exp",
        "1.2",
        "--mirostat",
        "2",
        "--mirostat-lr",
        "0.2",
        "--mirostat-ent",
        "4",
        "--adaptive-target",
        "0.4",
        "--adaptive-decay",
        "0.8",
        "--dry-multiplier",
        "0.8",
        "--dry-base",
        "2",
        "--dry-allowed-length",
        "3",
        "--dry-penalty-last-n",
        "9",
    ]);
    let want = SampleParams {
        top_n_sigma: 1.5,
        typ_p: 0.9,
        xtc_probability: 0.5,
        xtc_threshold: 0.2,
        dynatemp_range: 0.3,
        dynatemp_exponent: 1.2,
        mirostat: 2,
        mirostat_eta: 0.2,
        mirostat_tau: 4.0,
        adaptive_target: 0.4,
        adaptive_decay: 0.8,
        dry_multiplier: 0.8,
        dry_base: 2.0,
        dry_allowed_length: 3,
        dry_penalty_last_n: 9,
        ..SampleParams::default()
    };
    assert_eq!(all, want);
    assert!(error(&["--mirostat", "3"]).contains("it can be 0, 1 or 2"));
    assert!(error(&["--dry-penalty-last-n", "-1"]).contains("invalid dry-penalty-last-n = -1"));
    assert_eq!(low(&["--dry-base", "0.5"]).sample.dry_base, 1.75);
}

#[test]
fn sequence_breakers_replace_the_default_ones() {
    let breakers = |args: &[&str]| high(args).unwrap().dry_breakers;
    assert_eq!(breakers(&[]), [b"\n".to_vec(), b":".to_vec(), b"\"".to_vec(), b"*".to_vec()]);
    assert_eq!(
        breakers(&["--dry-sequence-breaker", r"\t", "--dry-sequence-breaker", "x"]),
        [b"\t".to_vec(), b"x".to_vec()]
    );
    assert!(breakers(&["--dry-sequence-breaker", "x", "--dry-sequence-breaker", "none"]).is_empty());
}

#[test]
fn the_last_grammar_or_schema_counts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.gbnf").to_str().unwrap().to_owned();
    std::fs::write(&file, "root ::= \"a\"\n").unwrap();
    let constraint = |args: &[&str]| high(args).unwrap().constraint;
    let gbnf = |source: &str, text: &str| Some(sample::Constraint::Gbnf { source: source.into(), text: text.into() });
    assert_eq!(constraint(&[]), None);
    assert_eq!(constraint(&["--grammar", ""]), None);
    assert_eq!(constraint(&["--grammar", "root ::= \"\\n\""]), gbnf("--grammar", "root ::= \"\\n\""));
    assert_eq!(constraint(&["--grammar-file", &file]), gbnf(&file, "root ::= \"a\"\n"));
    let schema = sample::Constraint::JsonSchema { source: "--json-schema".into(), text: "{}".into() };
    assert_eq!(constraint(&["--grammar-file", &file, "-j", "{}"]), Some(schema));
    let args = low(&["-jf", "s.json", "--grammar", "x"]);
    assert_eq!(args.constraint, Some(Constraint::Gbnf(Source::Text("x".into()))));
    assert_eq!(args.warnings, ["a grammar and a JSON schema exclude each other: the last one is used"]);
    let missing = high(&["--grammar-file", "missing.gbnf"]).unwrap_err().to_string();
    assert!(missing.starts_with("--grammar-file missing.gbnf: "), "{missing}");
}
