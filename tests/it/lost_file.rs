//! A model file that changes while a run has it mapped: what is truncated ends the run with a line, what is replaced does not
//! concern it, and what was read before anything else cannot be lost.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::tiny;

/// A conversation that has loaded its model and waits for a turn.
struct Waiting {
    child: Child,
    said: Vec<u8>,
}

impl Waiting {
    fn start(model: &Path, args: &[&str]) -> Waiting {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
        command.arg("-m").arg(model).args(["-cnv", "--chat-template", "chatml", "-t", "2", "-c", "512", "-n", "8"]);
        command.args(["--temp", "0", "--no-repack"]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = Vec::new();
        let (stdout, mut byte) = (child.stdout.as_mut().unwrap(), [0u8]);
        // The prompt for a turn.
        while !said.ends_with(b"\n> ") {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        Waiting { child, said }
    }

    /// Takes the turn; gives what was said from then on, on both outputs.
    fn answer(mut self) -> (ExitStatus, Vec<u8>, String) {
        let begun = Instant::now();
        // A run that has ended reads nothing.
        let _ = self.child.stdin.take().unwrap().write_all(b"the rain in the inner harbour\n");
        let output = self.child.wait_with_output().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20));
        self.said = output.stdout;
        (output.status, self.said, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn copy(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("model.gguf");
    std::fs::copy(tiny::path("llama"), &path).unwrap();
    path
}

fn truncate(path: &Path) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
}

#[test]
fn a_truncated_model_ends_the_run_with_a_line() {
    let dir = TempDir::new().unwrap();
    let model = copy(&dir);
    let out = dir.path().join("out");
    std::fs::write(&out, "old").unwrap();
    let run = Waiting::start(&model, &["-o", out.to_str().unwrap()]);
    truncate(&model);
    let (status, _, text) = run.answer();
    assert_eq!(status.code(), Some(1), "{status}: {text}");
    let line = text.lines().last().unwrap();
    assert!(line.starts_with("error: ") && line.contains("model.gguf: the file was truncated"), "{text}");
    assert_eq!(text.lines().filter(|l| l.starts_with("error")).count(), 1, "{text}");
    // What was begun is gone, what was there is not.
    assert_eq!(std::fs::read(&out).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_replaced_model_and_one_read_into_memory_are_not_lost() {
    let dir = TempDir::new().unwrap();
    let intact = Waiting::start(&copy(&dir), &[]).answer();
    assert!(intact.0.success(), "{}", intact.2);
    let model = copy(&dir);
    let run = Waiting::start(&model, &[]);
    let other = dir.path().join("other");
    std::fs::write(&other, "another file under the name").unwrap();
    std::fs::rename(&other, &model).unwrap();
    let replaced = run.answer();
    assert!(replaced.0.success() && replaced.1 == intact.1, "{}", replaced.2);
    let model = copy(&dir);
    let run = Waiting::start(&model, &["--no-mmap"]);
    truncate(&model);
    let read = run.answer();
    assert!(read.0.success() && read.1 == intact.1, "{}", read.2);
}
