//! Command lines of llama.cpp's documents and of public reports: standard output, exit code and the lines that scripts look for
//! are those that llama-completion gave (`tests/golden/cli/command_lines.json`), except where the case says why not.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rayon::prelude::*;
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::model_path;

const GOLDEN: &str = include_str!("../golden/cli/command_lines.json");
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// What a run printed.
struct Printed {
    exit: i64,
    stdout: String,
    stderr: Vec<String>,
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Runs a case; `None` where its model was not fetched.
fn run(case: &Value, folder: &Path) -> Option<Printed> {
    let model = model_path(case["model"].as_str().unwrap_or(MODEL))?;
    let mut paths: Vec<(String, PathBuf)> = vec![("{model}".into(), model)];
    for (name, text) in case["files"].as_object().into_iter().flatten() {
        let path = folder.join(format!("{}-{name}", case["name"].as_str().unwrap()));
        std::fs::write(&path, text.as_str().unwrap()).unwrap();
        paths.push((format!("{{{name}}}"), path));
    }
    let filled =
        |arg: &str| paths.iter().fold(arg.to_string(), |a, (name, path)| a.replace(name, path.to_str().unwrap()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
        .args(strings(&case["args"]).into_iter().map(filled))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that ends without reading closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(case["stdin"].as_str().unwrap_or("").as_bytes());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Some(Printed {
        exit: i64::from(output.status.code().unwrap()),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: stderr.lines().map(comparable).collect(),
    })
}

/// A line without what changes from run to run, as `scripts/record_command_lines.py` records it.
fn comparable(line: &str) -> String {
    if !line.starts_with("common_perf_print:") {
        return line.trim_end().to_string();
    }
    let line = Regex::new(r" *\d+\.\d+").unwrap().replace_all(line, " #");
    Regex::new(" +").unwrap().replace_all(&line, " ").trim_end().to_string()
}

/// Whether texts were recorded on a processor like this one, `avx512_vnni` of `greedy.json`: llama.cpp's own differ with AMX.
fn is_recorded() -> bool {
    let has_amx = gracekv::ggml::BufferType::cpu_extra().iter().any(|buft| buft.name().contains("AMX"));
    #[cfg(target_arch = "x86_64")]
    let has_vnni = std::is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has_vnni = false;
    has_vnni && !has_amx
}

/// What is wrong with a run; empty when nothing is.
fn differences(case: &Value, found: &Printed) -> Vec<String> {
    let mut wrong = Vec::new();
    let ours = &case["here"];
    let exit = ours["exit"].as_i64().or(case["exit"].as_i64()).unwrap();
    if found.exit != exit {
        wrong.push(format!("exit code {} instead of {exit}", found.exit));
    }
    let stdout = ours["stdout"].as_str().or(case["stdout"].as_str()).unwrap();
    let echo = ours["echo"].as_str().or(case["echo"].as_str()).unwrap();
    let end = if stdout.ends_with("\n\n") { "\n\n" } else { "" };
    let is_text = ours["text"].as_str() != Some("other");
    if is_text && is_recorded() && found.stdout != stdout {
        wrong.push(format!("standard output\n  {:?} instead of\n  {stdout:?}", found.stdout));
    }
    if !found.stdout.starts_with(echo) || !found.stdout.ends_with(end) {
        wrong.push(format!("standard output {:?} does not begin with {echo:?} and end with {end:?}", found.stdout));
    }
    let missing = strings(&ours["missing"]);
    for line in strings(&case["stderr"]) {
        let depends_on_text = line.starts_with("common_perf_print:") && !is_recorded();
        let is_there = found.stderr.iter().any(|l| l.contains(line));
        if is_there == missing.contains(&line) && !depends_on_text {
            wrong.push(format!("standard error {} {line:?}", if is_there { "has" } else { "lacks" }));
        }
    }
    if exit == 0 && found.stderr.iter().any(|l| l.starts_with("error")) {
        wrong.push(format!("an error: {:?}", found.stderr));
    }
    wrong
}

#[test]
fn command_lines_of_llama_completion() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 40, "{}", cases.len());
    let folder = TempDir::new().unwrap();
    let check = |case: &Value| {
        let found = run(case, folder.path())?;
        let wrong = differences(case, &found);
        (!wrong.is_empty()).then(|| format!("{}:\n{}", case["name"].as_str().unwrap(), wrong.join("\n")))
    };
    let wrong: Vec<String> = cases.par_iter().filter_map(check).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_difference_has_a_reason() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let Some(here) = case["here"].as_object() else { continue };
        assert!(here["reason"].as_str().is_some_and(|r| r.len() > 20), "{}", case["name"]);
        assert!(here.len() > 1, "{}: a reason for nothing", case["name"]);
        for line in strings(&case["here"]["missing"]) {
            assert!(strings(&case["stderr"]).contains(&line), "{}: {line} was not recorded", case["name"]);
        }
    }
}
