//! Hostile input in bulk: `make check-robustness`, or `cargo bench --bench robustness -- [CLASS..]`.
//!
//! A second process works through the numbered inputs of a class, each from the file or text to a token, and says which it
//! refuses and which it accepts. When it dies or says nothing for too long, the first one notes the number and starts another
//! behind it. An input is made from its number: `cargo bench --bench robustness -- --one CLASS NUMBER` repeats it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "robustness/files.rs"]
mod files;
#[path = "robustness/shared.rs"]
mod shared;
#[allow(dead_code)]
#[path = "../it/support/mod.rs"]
mod support;
#[path = "robustness/texts.rs"]
mod texts;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gracekv::error::Result;
use support::tiny;

/// One input has to be done with in this time.
const LIMIT: Duration = Duration::from_secs(20);
/// Address space of the process that works. Units: KiB.
const MEMORY: u64 = 6 << 20;
/// A real model and a real vocabulary, where they have been fetched.
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const VOCAB: &str = "vocab/ggml-vocab-llama-spm.gguf";

/// Tries the input of a number.
type Try = Box<dyn FnMut(u64) -> Result<()>>;

/// A kind of input.
struct Class {
    name: &'static str,
    n: u64,
    /// Prepares the trials in a folder.
    open: fn(&Path) -> Try,
}

fn classes() -> Vec<Class> {
    let mut classes = vec![
        Class { name: "truncated-model", n: files::header_length(&tiny::path("llama")), open: files::truncated },
        Class { name: "changed-header", n: 10_000, open: |dir| files::changed(dir, &tiny::path("llama"), true) },
        Class { name: "changed-header-spm", n: 3_000, open: |dir| files::changed(dir, &tiny::path("gemma3"), true) },
        Class { name: "changed-weights", n: 1_000, open: |dir| files::changed(dir, &tiny::path("llama"), false) },
        Class { name: "changed-split", n: 2_000, open: files::split },
        Class { name: "changed-lora", n: 2_000, open: files::lora },
        Class { name: "changed-control-vector", n: 1_000, open: files::control_vector },
        Class { name: "changed-prompt-cache", n: 500, open: |dir| files::prompt_cache(dir, false) },
        Class { name: "prompt-cache-resealed", n: 2_000, open: |dir| files::prompt_cache(dir, true) },
        Class { name: "chat-template", n: 5_000, open: |_| texts::chat_template() },
        Class { name: "grammar", n: 5_000, open: |_| texts::grammar() },
        Class { name: "data-set", n: 2_000, open: texts::data_set },
        Class { name: "answers", n: 2_000, open: texts::answers },
        Class { name: "override-kv", n: 2_000, open: |_| texts::override_kv() },
    ];
    let vocab = models().join(VOCAB);
    if vocab.exists() {
        let n = vocab.metadata().unwrap().len();
        classes.push(Class {
            name: "truncated-real-vocab",
            n,
            open: |dir| files::truncated_vocab(dir, &models().join(VOCAB)),
        });
        classes.push(Class {
            name: "changed-real-vocab",
            n: 10_000,
            open: |dir| files::changed_vocab(dir, &models().join(VOCAB)),
        });
    }
    if models().join(MODEL).exists() {
        classes.push(Class {
            name: "changed-header-real",
            n: 200,
            open: |dir| files::changed(dir, &models().join(MODEL), true),
        });
        classes.push(Class {
            name: "changed-weights-real",
            n: 200,
            open: |dir| files::changed(dir, &models().join(MODEL), false),
        });
    }
    classes
}

/// Where `make models` and `scripts/fetch_models.py vocab` put them.
fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

fn main() {
    // cargo adds --bench.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["--work", name, from] => work(name, from.parse().unwrap()),
        ["--one", name, number] => {
            let (dir, class) = (tempfile::tempdir().unwrap(), find(name));
            println!("{:?}", (class.open)(dir.path())(number.parse().unwrap()).map_err(|e| e.to_string()));
        }
        _ => std::process::exit(table(&words)),
    }
}

fn find(name: &str) -> Class {
    classes().into_iter().find(|class| class.name == name).expect("a class")
}

/// Says `r` or `a` of every input from this number on.
fn work(name: &str, from: u64) {
    let (dir, class) = (tempfile::tempdir().unwrap(), find(name));
    let mut attempt = (class.open)(dir.path());
    let mut out = std::io::stdout().lock();
    for number in from..class.n {
        let said = if attempt(number).is_ok() { b"a" } else { b"r" };
        out.write_all(said).and_then(|()| out.flush()).unwrap();
    }
}

/// What came of the inputs of a class.
#[derive(Default)]
struct Counts {
    refused: u64,
    accepted: u64,
    crashed: u64,
    hung: u64,
}

/// Prints a row for every class; gives 1 when something crashed or hung.
fn table(names: &[&str]) -> i32 {
    println!("class                    inputs  refused  accepted  crashed  hung  seconds");
    let mut n_bad = 0;
    for class in classes().iter().filter(|class| names.is_empty() || names.contains(&class.name)) {
        let start = Instant::now();
        let Counts { refused, accepted, crashed, hung } = count(class);
        n_bad += crashed + hung;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:23}{:>8}{refused:>9}{accepted:>10}{crashed:>9}{hung:>6}{seconds:>9.1}", class.name, class.n);
    }
    i32::from(n_bad > 0)
}

fn count(class: &Class) -> Counts {
    let (mut counts, mut next) = (Counts::default(), 0);
    while next < class.n {
        let (mut child, said) = spawn(class.name, next);
        let end = loop {
            match said.recv_timeout(LIMIT) {
                Ok(b'a') => counts.accepted += 1,
                Ok(_) => counts.refused += 1,
                Err(end) => break end,
            }
            next += 1;
        };
        if next < class.n {
            match end {
                RecvTimeoutError::Timeout => counts.hung += 1,
                RecvTimeoutError::Disconnected => counts.crashed += 1,
            }
            // One that has ended already cannot be killed.
            let _ = child.kill();
            eprintln!("{} {next}: {end}, {}", class.name, child.wait().unwrap());
            next += 1;
        } else {
            child.wait().unwrap();
        }
    }
    counts
}

/// Starts the process that works, and a thread that hands on what it says.
fn spawn(name: &str, from: u64) -> (Child, Receiver<u8>) {
    let limit = format!("ulimit -v {MEMORY}; ulimit -c 0; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limit, "sh"]).arg(std::env::current_exe().unwrap()).args(["--work", name, &from.to_string()]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let (send, receive) = channel();
    std::thread::spawn(move || stdout.bytes().map_while(|b| b.ok()).try_for_each(|b| send.send(b)));
    (child, receive)
}

/// A number that follows from the number of an input and from a place in it.
fn random(number: u64, place: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93);
    for _ in 0..2 {
        x = (x ^ (x >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    x ^ (x >> 29)
}
