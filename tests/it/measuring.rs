//! The programs that measure, on tiny models: what they do with options that are not theirs, that answers of another setup are
//! not taken for this one's, that nothing to measure is an error, and that files are checked before anything is measured.

use std::path::Path;
use std::process::{Command, Stdio};

use gracekv::cli::flags::{self, in_measurement, Action, Use};
use gracekv::cli::low::LowArgs;
use gracekv::cli::parse::parse_measuring;
use gracekv::gguf::Gguf;
use tempfile::TempDir;

use crate::support::tiny;

const EVAL: &str = env!("CARGO_BIN_EXE_gracekv-eval");
const PERPLEXITY: &str = env!("CARGO_BIN_EXE_gracekv-perplexity");
const BENCH: &str = env!("CARGO_BIN_EXE_gracekv-bench");

/// Exit code, standard output and standard error of a program in a folder that holds `model.gguf`.
fn run(dir: &TempDir, program: &str, args: &str) -> (Option<i32>, String, String) {
    let output = Command::new(program)
        .current_dir(dir.path())
        .args(["-m", "model.gguf", "-t", "1"])
        .args(args.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The one error line of a run that fails and prints nothing; it is short, whatever was typed.
fn error(dir: &TempDir, program: &str, args: &str) -> String {
    let (code, out, err) = run(dir, program, args);
    assert!(code == Some(1) && out.is_empty() && !err.contains("panicked"), "{args}: {code:?} {out} {err}");
    let lines: Vec<&str> = err.lines().filter(|l| l.starts_with("error")).collect();
    assert!(lines.len() == 1 && err.lines().last() == Some(lines[0]) && lines[0].len() < 400, "{args}: {err}");
    lines[0].to_owned()
}

fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(tiny::path("llama"), dir.path().join("model.gguf")).unwrap();
    let text: String = (0..60).map(|i| format!("Line {i} of {} says {}.\n", i * 7 % 13, i * i)).collect();
    std::fs::write(dir.path().join("text"), text).unwrap();
    dir
}

/// Whatever gracekv-run has is obeyed here, or answered by a line that names it.
#[test]
fn no_option_of_gracekv_run_is_ignored_in_silence() {
    let mut n = 0;
    for flag in flags::all().filter(|f| !matches!(f.action, Action::NoEffect(_) | Action::Refused(_))) {
        for spelling in flag.names.iter().chain(flag.off) {
            let value = if flag.takes_two() { &["abc", "abc"][..] } else { &["abc"][..] };
            let value = if flag.takes_value() && !matches!(flag.action, Action::Choice(_)) { value } else { &[] };
            let args = [spelling].into_iter().chain(value).map(|arg| (*arg).into());
            let parsed = parse_measuring(args, &|_| None, &[]);
            match in_measurement(flag, &[]) {
                Use::Obeyed => continue,
                Use::Ignored => {
                    let warnings = vec![format!("{spelling} has no effect in this program")];
                    assert_eq!(parsed.unwrap(), LowArgs { warnings, ..LowArgs::default() });
                }
                Use::Refused(why) => {
                    let error = parsed.unwrap_err().to_string();
                    assert_eq!(error, format!("error while handling argument \"{spelling}\": not supported: {why}"));
                }
            }
            n += 1;
            assert_eq!(in_measurement(flag, &[flag.id()]), Use::Obeyed);
        }
    }
    assert!(n > 60, "{n}");
    // What is set for all programs concerns those that have a use for it.
    let env = |name: &str| (name == "LLAMA_ARG_N_PREDICT" || name == "LLAMA_ARG_CONTEXT_SHIFT").then(|| "1".into());
    assert_eq!(parse_measuring([], &env, &[]).unwrap(), LowArgs::default());
}

#[test]
fn options_that_have_no_effect_are_one_warning_and_others_are_refused() {
    let dir = folder();
    let args =
        "-f text -c 64 --chunks 1 -n abc --temp 0 --context-shift --prompt-cache zz -o x -cnv --jinja --perplexity";
    let (code, _, err) = run(&dir, PERPLEXITY, args);
    assert_eq!(code, Some(0), "{err}");
    for name in ["-n", "--temp", "--context-shift", "--prompt-cache", "-o", "-cnv", "--jinja"] {
        let line = format!("warning: {name} has no effect in this program");
        assert_eq!(err.lines().filter(|l| **l == line).count(), 1, "{name}: {err}");
    }
    for name in ["x", "zz"] {
        assert!(!dir.path().join(name).exists(), "{name}");
    }
    let refused = [
        (PERPLEXITY, "-f text -p foo", "\"-p\": not supported: texts come from files"),
        (PERPLEXITY, "-f text --grammar q", "\"--grammar\": not supported"),
        (PERPLEXITY, "-f text --kv-report r", "\"--kv-report\": not supported: gracekv-run writes it"),
        (PERPLEXITY, "-f text --kv-budget 64", "\"--kv-budget\": not supported: name the ratios"),
        (PERPLEXITY, "-f text --ppl-stride 8", "\"--ppl-stride\": not supported: chunks do not overlap"),
        (PERPLEXITY, "-f text --hellaswag", "\"--hellaswag\": not supported: only perplexity"),
        (PERPLEXITY, "-f text --winogrande-tasks 3", "\"--winogrande-tasks\": not supported"),
        (PERPLEXITY, "-f text --multiple-choice", "\"--multiple-choice\": not supported"),
        (PERPLEXITY, "-f text --ppl-output-type 2", "it can be 0 or 1"),
        (EVAL, "-f text", "\"-f\": not supported"),
        (EVAL, "--kv-report r", "--kv-report is drawn by --heat-map"),
        (EVAL, "--json-schema {}", "\"--json-schema\": not supported"),
    ];
    for (program, args, want) in refused {
        let error = error(&dir, program, args);
        assert!(error.contains(want), "{args}: {error}");
    }
    for program in [EVAL, PERPLEXITY] {
        let (code, out, err) = run(&dir, program, "--list-devices");
        assert!(code == Some(0) && out.starts_with("Available devices:"), "{out}{err}");
    }
}

/// One output line per chunk, in llama-perplexity's second form.
#[test]
fn running_values_have_two_forms() {
    let dir = folder();
    let (_, row, _) = run(&dir, PERPLEXITY, "-f text -c 64 -b 128 --chunks 3");
    let (code, lines, _) = run(&dir, PERPLEXITY, "-f text -c 64 -b 128 --chunks 3 --ppl-output-type 1");
    assert_eq!(code, Some(0));
    let lines: Vec<Vec<&str>> = lines.lines().map(|l| l.split_whitespace().collect()).collect();
    let values: Vec<&str> = row.trim().trim_end_matches(',').split(',').map(|v| v.split(']').nth(1).unwrap()).collect();
    assert_eq!(lines.iter().filter_map(|l| l.get(1)).copied().collect::<Vec<_>>(), values);
    // Two chunks share a batch.
    assert_eq!(lines.iter().filter_map(|l| l.first()).copied().collect::<Vec<_>>(), ["0", "0", "128"]);
    let mean: f64 = lines[2][2].parse().unwrap();
    assert!((mean.exp() / values[2].parse::<f64>().unwrap() - 1.0).abs() < 1e-4, "{lines:?}");
}

#[test]
fn answers_of_another_setup_are_not_taken_over() {
    let dir = folder();
    let place = |name: &str| dir.path().join(name);
    tiny::lora("llama", &["blk.0.attn_q.weight"], &place("lora"), |_| ());
    tiny::control_vector(&place("control"), |_| ());
    let args = "--task passkey --samples 1 --length 1500 --kv-ratio 4 --kv-method streaming_llm --out out";
    let (code, table, err) = run(&dir, EVAL, args);
    assert!(code == Some(0) && table.contains("streaming_llm"), "{err}");
    let answers = || std::fs::read(place("out/answers.jsonl")).unwrap();
    let before = answers();

    let changes = [
        ("-s 2", "seed"),
        ("--length 1400", "length"),
        ("--query-agnostic", "query_agnostic"),
        ("--lora lora", "model_fingerprint"),
        ("--lora-scaled lora:0.5", "model_fingerprint"),
        ("--control-vector control", "model_fingerprint"),
        ("--rope-freq-base 5000", "model_fingerprint"),
        ("--rope-scaling yarn --rope-scale 2", ""),
        ("--override-kv llama.attention.layer_norm_rms_epsilon=float:0.001", "model_fingerprint"),
        ("-fa off", "flash_attn"),
        ("-ub 64", "n_ubatch"),
        ("-b 64", "n_ubatch"),
        ("-ctk q8_0", "cache_type"),
        ("-ctv q8_0", "cache_type"),
        ("--no-repack", "repack"),
        ("--kv-sink 8", "kv_sink"),
        ("--kv-window 32", "kv_window"),
        ("--kv-floor 0.5", "kv_floor"),
        ("--kv-prototypes 0.5", "kv_prototypes"),
        ("--kv-lookahead 8", "kv_lookahead"),
        ("--kv-min-tokens 64", "kv_min_tokens"),
        ("--kv-force", "kv_force"),
    ];
    for (change, name) in changes {
        let error = error(&dir, EVAL, &format!("{args} {change}"));
        let names_it =
            error.contains("answers.jsonl: '") && error.contains(name) && error.contains("give another folder");
        assert!(names_it, "{change}: {error}");
    }
    // Another model of the same name, size and metadata.
    let model = place("model.gguf");
    let mut bytes = std::fs::read(&model).unwrap();
    let at = Gguf::open(&model).unwrap().tensors()[3].offset as usize;
    bytes[at] ^= 1;
    std::fs::rename(&model, place("kept")).unwrap();
    std::fs::write(&model, &bytes).unwrap();
    assert!(error(&dir, EVAL, args).contains("'model_fingerprint'"));
    std::fs::rename(place("kept"), &model).unwrap();

    // What leaves answers as they are goes on where the run was.
    for same in ["", "-t 2", "-c 4000", "-lv 1", "--no-mmap", "--csv table"] {
        let (code, again, err) = run(&dir, EVAL, &format!("{args} {same}"));
        assert_eq!((code, &again), (Some(0), &table), "{same}: {err}");
    }
    assert_eq!(answers(), before);
}

/// An empty table is no result.
#[test]
fn nothing_to_measure_is_an_error() {
    let dir = folder();
    let sample = r#"{"context": "The key is 7.", "question": "Key?", "answers": ["7"], "task": "x"}"#;
    std::fs::write(dir.path().join("data"), sample).unwrap();
    let cases = [
        (EVAL, "--samples 0", "--samples 0"),
        (EVAL, "--first-sample 0", "the first sample is 1"),
        (EVAL, "--first-sample 18446744073709551615 --samples 3", "no sample has so high a number"),
        (EVAL, "--data data --first-sample 2", "no sample from --first-sample 2 on"),
        (EVAL, "--length 99999999", "--length 99999999: the context is 4096 tokens"),
        (EVAL, "-c 512 --length 1000", "--length 1000: the context is 512 tokens"),
        (EVAL, "--kv-ratio 1e300", "'1e300' is not a number from 1 to 1e9"),
        (PERPLEXITY, "-f text --kv-ratio 1e300", "'1e300' is not a number from 1 to 1e9"),
        (
            PERPLEXITY,
            "-f text -c 64 --chunks 1 --kv-ratio 4 --skip 9999",
            "--skip 9999 leaves nothing to report: 31 tokens",
        ),
        (PERPLEXITY, "-f text -c 64 --chunks 0", "--chunks 0"),
        (BENCH, "-p 0 -n 0", "nothing to measure"),
        (BENCH, "-p 16 -n 4 -d 256 --kv-ratio 300", "--kv-ratio 300 leaves less than one entry per head of -d 256"),
    ];
    for (program, args, want) in cases {
        let error = error(&dir, program, args);
        assert!(error.contains(want), "{args}: {error}");
    }
}

/// No number of a table that succeeds is NaN: the default of --skip fits short chunks, too.
#[test]
fn short_continuations_have_a_later_part() {
    let dir = folder();
    for args in ["-c 64", "-c 32", "--prefix 128 --continuation 2"] {
        let (code, out, err) = run(&dir, PERPLEXITY, &format!("-f text --chunks 2 --kv-ratio 2 {args}"));
        assert!(code == Some(0) && !out.contains("NaN") && out.contains("KL > "), "{args}: {out}{err}");
    }
}

#[test]
fn files_that_cannot_be_written_are_found_before_anything_is_measured() {
    let dir = folder();
    for name in ["--json", "--csv", "--plot"] {
        for (program, args) in [(EVAL, "--samples 1 --kv-ratio 4"), (PERPLEXITY, "-f text -c 64 --kv-ratio 4")] {
            let (code, out, err) = run(&dir, program, &format!("{args} {name} none/file"));
            assert!(code == Some(1) && out.is_empty() && err.contains("none/file: No such file"), "{name}: {out}{err}");
            assert!(!err.contains("prompts of") && !err.contains("chunks"), "{name}: {err}");
        }
    }
    let files = "--json j --csv c --plot p.svg";
    let (code, _, err) =
        run(&dir, EVAL, &format!("--task passkey --samples 1 --length 1500 --kv-ratio 4 --kv-method topk {files}"));
    assert_eq!(code, Some(0), "{err}");
    for name in ["j", "c", "p.svg"] {
        assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() > 100, "{name}");
    }
    assert!(!Path::new(&dir.path().join("none")).exists());
}

#[test]
fn bench_measures_prompt_and_generation_together_and_every_combination() {
    let dir = folder();
    let args = "-p 8-16*2 -n 2 -pg 16,4 -d 0,130 -r 1 -ub 16,32 --no-warmup -o csv -oe md --progress --kv-ratio 4";
    let (code, out, err) = run(&dir, BENCH, args);
    assert_eq!(code, Some(0), "{err}");
    let mut csv = csv::Reader::from_reader(out.as_bytes());
    let heads = csv.headers().unwrap().clone();
    let at = |name: &str| heads.iter().position(|h| h == name).unwrap();
    let rows: Vec<csv::StringRecord> = csv.records().map(|r| r.unwrap()).collect();
    let tests: Vec<[String; 5]> = rows
        .iter()
        .map(|r| ["n_ubatch", "n_depth", "n_prompt", "n_gen", "kv_ratio"].map(|name| r[at(name)].to_owned()))
        .collect();
    let mut want = Vec::new();
    for n_ubatch in ["16", "32"] {
        for (depth, ratio) in [("0", "1.0"), ("130", "4.0")] {
            let tests = [("8", "0", "1.0"), ("16", "0", "1.0"), ("0", "2", ratio), ("16", "4", "1.0")];
            want.extend(tests.map(|(p, n, r)| [n_ubatch, depth, p, n, r].map(str::to_owned)));
        }
    }
    assert_eq!(tests, want);
    // The same rows on standard error, in the other form.
    let names = ["pp8", "pp16", "tg2", "pp16+tg4", "pp8 @ d130", "pp16 @ d130", "tg2 @ d130", "pp16+tg4 @ d130"];
    for name in names {
        assert_eq!(err.matches(&format!(" {name} |")).count(), 2, "{name}: {err}");
        assert_eq!(err.matches(&format!("gracekv-bench: {name}, ")).count(), 2, "{name}: {err}");
    }
    assert!(err.contains("| n_ubatch |"), "{err}");
    for (args, want) in [("--version", "version:"), ("--list-devices", "Available devices:")] {
        let (code, out, err) = run(&dir, BENCH, args);
        assert!(code == Some(0) && out.starts_with(want), "{out}{err}");
    }
}
