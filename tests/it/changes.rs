//! Options that change a model: texts of llama.cpp (`tests/golden/changes/runs.json`), and values that no model can have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gracekv::gguf::GgmlType;
use serde_json::Value;

use crate::support::tiny;

/// The files that the options of the golden runs name.
fn files() -> BTreeMap<&'static str, PathBuf> {
    let place = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tiny-{name}.gguf"));
    let mut files = BTreeMap::new();
    let weights =
        |il: u32| ["attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down"].map(|w| format!("blk.{il}.{w}.weight"));
    for (arch, name) in [("llama", "llama-lora"), ("qwen3", "qwen3-lora"), ("gemma3", "gemma3-lora")] {
        tiny::path(arch);
        let mut names: Vec<String> = (0..2).flat_map(weights).collect();
        if arch == "llama" {
            names.extend(["output.weight", "token_embd.weight"].map(String::from));
        }
        tiny::lora(arch, &names.iter().map(String::as_str).collect::<Vec<_>>(), &place(name), |_| ());
        files.insert(name, place(name));
    }
    tiny::control_vector(&place("control"), |_| ());
    for arch in ["llama", "gemma3"] {
        tiny::wide_path(arch);
    }
    files.insert("control", place("control"));
    files
}

fn file_of(model: &str) -> PathBuf {
    match model.strip_prefix("wide-") {
        Some(arch) => tiny::wide_path(arch),
        None => tiny::path(model),
    }
}

fn run(model: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
    command.arg("-m").arg(model).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn changed_models_write_what_llama_cpp_writes() {
    let files = files();
    let golden: Value = serde_json::from_str(include_str!("../golden/changes/runs.json")).unwrap();
    let common: Vec<&str> = golden["common"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    for run_of in golden["runs"].as_array().unwrap() {
        let (model, options) = (run_of["model"].as_str().unwrap(), run_of["options"].as_str().unwrap());
        let mut filled = options.to_owned();
        files.iter().for_each(|(name, path)| filled = filled.replace(&format!("{{{name}}}"), path.to_str().unwrap()));
        let args: Vec<&str> = common.iter().copied().chain(filled.split_whitespace()).collect();
        let output = run(&file_of(model), &[&["-p", golden["prompt"].as_str().unwrap()][..], &args[..]].concat());
        let text: String = output.stdout.iter().map(|&b| b as char).collect();
        if output.status.code() != Some(0)
            || text.trim_end_matches('\n') != run_of["text"].as_str().unwrap().trim_end_matches('\n')
        {
            wrong.push(format!("{model} {options}: {text:?}, {:?}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn texts_differ_where_the_options_change_something() {
    let golden: Value = serde_json::from_str(include_str!("../golden/changes/runs.json")).unwrap();
    let runs = golden["runs"].as_array().unwrap();
    let text = |model: &str, options: &str| {
        let found = runs.iter().find(|r| r["model"] == model && r["options"] == options);
        found.unwrap_or_else(|| panic!("{options}"))["text"].as_str().unwrap()
    };
    let plain = text("llama", "");
    assert_eq!(text("llama", "--rope-scaling none --rope-scale 4"), plain);
    for run in runs.iter().filter(|r| r["model"] == "llama") {
        let options = run["options"].as_str().unwrap();
        let is_small = options.is_empty() || options.contains("none") || options.contains("q8_0");
        assert!(is_small || run["text"] != plain, "{options}");
    }
}

/// The only error line of a run that must fail.
fn error(model: &Path, args: &[&str]) -> String {
    let output = run(model, &[&["-no-cnv", "-p", "the rain", "-n", "2", "-t", "1"][..], args].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && !text.contains("panicked"), "{args:?}: {text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{args:?}: {text}");
    errors[0].to_owned()
}

/// Class 20 of hostile input: a value that breaks a check breaks it from the command line, too.
#[test]
fn overridden_values_are_checked_as_those_of_the_file() {
    let model = tiny::path("llama");
    let refused = |value: &str| error(&model, &["--override-kv", value]);
    for (value, key) in [
        ("llama.block_count=int:0", "llama.block_count is 0"),
        ("llama.block_count=int:100000", "llama.block_count is 100000"),
        ("llama.block_count=int:-1", "llama.block_count"),
        ("llama.block_count=str:many", "llama.block_count"),
        ("llama.attention.head_count=int:3", "llama.attention.head_count"),
        ("llama.embedding_length=int:1048576", "tensor 'output.weight'"),
        ("llama.rope.freq_base=float:-1", "llama.rope.freq_base is -1"),
        ("llama.rope.dimension_count=int:31", "llama.rope.dimension_count"),
        ("llama.rope.scaling.type=str:spiral", "spiral"),
        ("tokenizer.ggml.bos_token_id=int:99999999", "tokenizer.ggml.bos_token_id"),
        ("tokenizer.ggml.model=str:none-such", "none-such"),
        ("general.architecture=str:qwen2", "cannot be overridden"),
        ("general.alignment=int:3", "cannot be overridden"),
        ("no-type", "expected KEY=TYPE:VALUE"),
        ("a=int", "expected TYPE:VALUE"),
        ("a=int:1.5", "no integer"),
        ("a=int:9223372036854775808", "no integer"),
        ("a=float:nan", "no finite number"),
        ("a=bool:1", "neither true nor false"),
        ("a=list:1", "none of int, float, bool, str"),
        ("=int:1", "1 to 127 bytes"),
        ("", "a value is missing"),
    ] {
        let text = refused(value);
        assert!(text.contains(key), "{value}: {text}");
    }
    assert!(refused(&format!("{}=int:1", "k".repeat(128))).contains("1 to 127 bytes"));
    assert!(refused(&format!("a=str:{}", "v".repeat(128))).contains("127 bytes at most"));
    // The first of two values counts, and a comma within quotes divides nothing.
    let two = "llama.context_length=int:77,llama.context_length=int:0";
    assert_eq!(run(&model, &["-no-cnv", "-p", "a", "-n", "1", "--override-kv", two]).status.code(), Some(0));
    assert_eq!(
        run(&model, &["-no-cnv", "-p", "a", "-n", "1", "--override-kv", "\"a=str:b,c\""]).status.code(),
        Some(0)
    );
}

#[test]
fn numbers_of_a_rotation_are_checked() {
    let model = tiny::path("llama");
    for args in [
        ["--rope-freq-base", "-1"],
        ["--rope-scale", "-4"],
        ["--rope-freq-scale", "1e-60"],
        ["--rope-freq-base", "inf"],
        ["--yarn-ext-factor", "nan"],
        ["--rope-scaling", "cubic"],
        ["--yarn-orig-ctx", "-5"],
    ] {
        assert!(error(&model, &args).contains(args[0]), "{args:?}");
    }
}

/// Class 18: a weight that is no number is found, and named with its tensor.
#[test]
fn weights_that_are_not_finite_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan.gguf");
    let whole = std::fs::read(tiny::path("llama")).unwrap();
    let name = "blk.1.ffn_up.weight";
    let gguf = gracekv::gguf::Gguf::open(&tiny::path("llama")).unwrap();
    let tensor = gguf.tensor(name).unwrap();
    assert_eq!(tensor.ty, GgmlType::F32);
    for (value, text) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut bytes = whole.clone();
        bytes[tensor.offset as usize + 4 * 5000..][..4].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        let found = error(&path, &["--check-tensors"]);
        assert!(found.contains(&format!("tensor '{name}' has the weight {text} at element 5000")), "{found}");
    }
    let intact = run(&tiny::path("llama"), &["-no-cnv", "-p", "a", "-n", "1", "--check-tensors"]);
    assert_eq!(intact.status.code(), Some(0));
}

#[test]
fn adapters_that_cannot_be_read_end_the_run() {
    let model = tiny::path("llama");
    assert!(error(&model, &["--lora", "none.gguf"]).contains("none.gguf"));
    assert!(error(&model, &["--lora", model.to_str().unwrap()]).contains("general.type"));
    assert!(error(&model, &["--control-vector", model.to_str().unwrap()]).contains("none of direction.1"));
    for scaled in ["a.gguf", "a.gguf:", "a.gguf:x", ":1", "a.gguf:nan"] {
        assert!(error(&model, &["--lora-scaled", scaled]).contains("FNAME:SCALE"), "{scaled}");
    }
    assert!(error(&model, &["--control-vector-layer-range", "1", "x"]).contains("'x' is no number"));
}

/// Types that hold no weights, in a model and in an adapter: the file and the tensor are named, not an operation of ggml.
#[test]
fn tensors_of_integers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let lora = dir.path().join("lora.gguf");
    tiny::lora("llama", &["blk.0.attn_q.weight"], &lora, |_| ());
    let model = tiny::path("llama");
    for (file, name) in [
        (&lora, "blk.0.attn_q.weight.lora_a"),
        (&model, "blk.0.attn_q.weight"),
        (&model, "token_embd.weight"),
        (&model, "blk.1.attn_norm.weight"),
    ] {
        let mut bytes = std::fs::read(file).unwrap();
        let at =
            bytes.windows(name.len() + 4).position(|w| w.starts_with(name.as_bytes()) && w[name.len()] < 5).unwrap();
        let n_dims = usize::from(bytes[at + name.len()]);
        // I32 has as many bytes as F32.
        bytes[at + name.len() + 4 + 8 * n_dims] = 26;
        let path = dir.path().join("integers.gguf");
        std::fs::write(&path, bytes).unwrap();
        let found = match file == &lora {
            true => error(&model, &["--lora", path.to_str().unwrap()]),
            false => error(&path, &[]),
        };
        assert!(
            found.contains("integers.gguf") && found.contains(&format!("tensor '{name}' is of type i32")),
            "{found}"
        );
    }
}

#[test]
fn options_reach_their_settings() {
    let low = |args: &[&str]| gracekv::cli::parse::parse(args.iter().map(std::ffi::OsString::from), &|_| None).unwrap();
    let rope =
        low(&["--rope-scale", "4", "--yarn-ext-factor", "-1", "--yarn-orig-ctx", "0", "--rope-freq-base", "0"]).rope;
    assert_eq!(
        (rope.freq_scale, rope.yarn_ext_factor, rope.yarn_orig_ctx, rope.freq_base),
        (Some(0.25), None, None, None)
    );
    let args = low(&["--poll", "7", "--prio", "1", "-Cb", "6", "--poll-batch", "0", "--cpu-strict-batch", "1"]);
    let batch = args.placement.batch(&args.placement_batch);
    assert_eq!((batch.poll, batch.priority, batch.strict), (0, 1, true));
    assert_eq!(batch.cpu_mask, [false, true, true, false]);
    assert_eq!(low(&[]).placement.batch(&low(&[]).placement_batch), low(&[]).placement);
    let args = low(&["--control-vector-layer-range", "2", "-1", "--lora-scaled", "a:b:0.5", "--lora", "c,d"]);
    assert_eq!(args.control_range, Some((2, usize::MAX)));
    let loras: Vec<_> = args.loras.iter().map(|(path, scale)| (path.to_str().unwrap(), *scale)).collect();
    assert_eq!(loras, [("a:b", 0.5), ("c", 1.0), ("d", 1.0)]);
}

/// Threads of their own for prompts give the very numbers that shared ones give.
#[test]
fn a_second_pool_of_threads_changes_nothing() {
    let text = |args: &[&str]| {
        let all = [&["-no-cnv", "-p", "the rain in the inner harbour", "-n", "8", "--temp", "0", "-t", "2"][..], args]
            .concat();
        let output = run(&tiny::path("llama"), &all);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let plain = text(&[]);
    for args in [
        &["--poll-batch", "0"][..],
        &["-Cb", "1", "-tb", "1"],
        &["--prio-batch", "0", "--poll", "0", "--cpu-strict-batch", "1"],
        &["--numa", "distribute"],
    ] {
        assert!(text(args) == plain, "{args:?}");
    }
}
