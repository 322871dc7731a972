//! Errors of the program: one line on standard error that begins with `error:`, exit code 1, never a panic.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::tiny;

/// A prompt of a few dozen tokens for the tiny models.
const PROMPT: &str = "the rain in the inner harbour and the heat of an inert rhine";

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(model: &Path, args: &[&str]) -> Output {
    program(&[&["-m", model.to_str().unwrap(), "-no-cnv", "-t", "1"], args].concat()).output().unwrap()
}

/// The only error line, without `error: `.
fn error_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert_eq!(text.lines().last(), Some(errors[0]), "the error is the last line: {text}");
    errors[0].strip_prefix("error: ").unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn refused(model: &Path, args: &[&str]) -> String {
    error_of(&run(model, &[&["-n", "4", "-p", PROMPT, "--no-display-prompt"], args].concat()))
}

/// A model file with a change.
fn changed(dir: &TempDir, name: &str, change: impl FnOnce(&mut tiny::Recipe)) -> PathBuf {
    let path = dir.path().join(name);
    let mut recipe = tiny::recipe("llama");
    change(&mut recipe);
    recipe.write(&path);
    path
}

#[test]
fn a_tiny_model_runs() {
    for a in gracekv::model::ARCHITECTURES {
        let output = run(&tiny::path(a.name()), &["-n", "8", "-p", PROMPT, "--temp", "0"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{}: {text}", a.name());
        assert!(output.stdout.len() > PROMPT.len(), "{}: {text}", a.name());
    }
}

#[test]
fn files_that_are_no_model() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("missing.gguf");
    let e = refused(&missing, &[]);
    assert!(e.contains("missing.gguf") && e.contains("No such file"), "{e}");
    assert!(refused(dir.path(), &[]).contains(dir.path().to_str().unwrap()));
    let text = dir.path().join("text.gguf");
    for content in [&b""[..], b"GG", b"GGUF", b"this is a text, not a model, but long enough for a header"] {
        std::fs::write(&text, content).unwrap();
        assert!(refused(&text, &[]).contains("text.gguf"));
    }
}

#[test]
fn truncated_files() {
    let dir = TempDir::new().unwrap();
    let whole = std::fs::read(tiny::path("llama")).unwrap();
    let path = dir.path().join("cut.gguf");
    for n in [4, 20, 24, 100, 3000, whole.len() / 4, whole.len() / 2, whole.len() - 100] {
        std::fs::write(&path, &whole[..n]).unwrap();
        let e = refused(&path, &[]);
        assert!(e.contains("cut.gguf"), "{n} bytes: {e}");
    }
}

#[test]
fn models_that_lack_something() {
    let dir = TempDir::new().unwrap();
    let other = changed(&dir, "other.gguf", |r| r.header.set("general.architecture", "mamba").unwrap());
    let e = refused(&other, &[]);
    assert!(e.contains("unsupported architecture 'mamba'; supported: llama"), "{e}");
    let missing = changed(&dir, "tensor.gguf", |r| r.tensors.retain(|t| t.name != "blk.1.ffn_up.weight"));
    assert!(refused(&missing, &[]).contains("tensor 'blk.1.ffn_up.weight' is missing"));
    let wide = |t: &mut tiny::Row| t.ne[1] += 32;
    let wrong = changed(&dir, "shape.gguf", |r| {
        r.tensors.iter_mut().filter(|t| t.name == "blk.0.attn_k.weight").for_each(wide)
    });
    let e = refused(&wrong, &[]);
    assert!(e.contains("blk.0.attn_k.weight") && e.contains("[64, 96, 1, 1]") && e.contains("[64, 64, 1, 1]"), "{e}");
    let numbers = [
        ("llama.block_count", 0, "expected 1 to 512"),
        ("llama.block_count", 4, "tensor 'blk.3.attn_norm.weight' is missing"),
        ("llama.attention.head_count", 3, "does not divide"),
        ("llama.attention.head_count", 0, "expected 1 to"),
        ("llama.rope.dimension_count", 33, "even number"),
        ("llama.expert_count", 8, "expert_used_count is missing"),
    ];
    for (key, value, want) in numbers {
        let e = refused(&changed(&dir, "number.gguf", |r| r.header.set(key, value as u32).unwrap()), &[]);
        assert!(e.contains(want), "{key} = {value}: {e}");
    }
}

#[test]
fn requests_that_cannot_be_met() {
    let model = tiny::path("llama");
    let long = PROMPT.repeat(16);
    let e = refused(&model, &["-c", "64", "-p", &long]);
    assert!(e.contains("prompt") && e.contains("context") || e.contains("too long"), "{e}");
    let e = refused(&model, &["-ctv", "q8_0", "-fa", "off"]);
    assert!(e.contains("-ctv q8_0 needs flash attention"), "{e}");
    let e = refused(&model, &["-f", "/nonexistent/prompt.txt"]);
    assert!(e.contains("/nonexistent/prompt.txt"), "{e}");
    let e = refused(&model, &["-p", &long, "--kv-ratio", "9999", "--kv-lookahead", "0"]);
    assert!(e.contains("the largest possible ratio is"), "{e}");
    let e = refused(&model, &["--kv-ratio", "4", "--kv-method", "unknown"]);
    assert!(e.contains("gracekv, topk"), "{e}");
}

/// Wrong values of options are worded as llama.cpp words them.
#[test]
fn wrong_options() {
    for args in [&["-ctk", "q3"][..], &["--kv-ratio", "0.5"], &["--kv-ratio", "-1"], &["-c"], &["--no-such-option"]] {
        let output = run(&tiny::path("llama"), args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("error") && !text.contains("panicked"), "{text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = program(&["-m", tiny::path("llama").to_str().unwrap(), "-no-cnv", "-t", "1", "-n", "2000"])
        .args(["-c", "4096", "-p", PROMPT, "--temp", "0"])
        .spawn()
        .unwrap();
    let mut first = [0; 8];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_empty_standard_input_ends_the_program() {
    let model = tiny::path("llama");
    for args in [&["-n", "8"][..], &["-n", "8", "-no-cnv"], &["-n", "8", "-cnv", "--chat-template", "chatml"]] {
        let output = program(&[&["-m", model.to_str().unwrap(), "-t", "1"], args].concat()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code().is_some_and(|c| [0, 1, 255].contains(&c)) && !text.contains("panicked"),
            "{args:?}: {text}"
        );
    }
}
