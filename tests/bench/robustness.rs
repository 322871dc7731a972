//! Hostile input in bulk: `make check-robustness`, or `cargo bench --bench robustness -- [CLASS..]`.
//!
//! A second process works through the numbered inputs of a class, each from the file or text to a token, and says which it
//! refuses and which it accepts. When it dies or says nothing for too long, the first one notes the number and starts another
//! behind it. An input is made from its number: `cargo bench --bench robustness -- --one CLASS NUMBER` repeats it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code)]
#[path = "../it/support/mod.rs"]
mod support;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gracekv::cli::{high::HighArgs, parse, setup};
use gracekv::error::Result;
use gracekv::eval::data;
use gracekv::gguf::Gguf;
use gracekv::sample::{Constraint, Grammar};
use gracekv::tokenizer::chat::{ChatTemplate, Message, SpecialTokens};
use gracekv::tokenizer::Tokenizer;
use serde_json::Value;
use support::tiny;

/// One input has to be done with in this time.
const LIMIT: Duration = Duration::from_secs(20);
/// Address space of the process that works. Units: KiB.
const MEMORY: u64 = 6 << 20;
/// The real model, where it has been fetched.
const REAL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

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
        Class { name: "truncated-model", n: header_length(&tiny::path("llama")), open: truncated },
        Class { name: "changed-header", n: 10_000, open: |dir| changed(dir, &tiny::path("llama"), true) },
        Class { name: "changed-header-spm", n: 3_000, open: |dir| changed(dir, &tiny::path("gemma3"), true) },
        Class { name: "changed-weights", n: 1_000, open: |dir| changed(dir, &tiny::path("llama"), false) },
        Class { name: "changed-prompt-cache", n: 500, open: prompt_cache },
        Class { name: "chat-template", n: 5_000, open: |_| chat_template() },
        Class { name: "grammar", n: 5_000, open: |_| grammar() },
        Class { name: "data-set", n: 2_000, open: data_set },
    ];
    if real().exists() {
        classes.push(Class { name: "changed-header-real", n: 200, open: |dir| changed(dir, &real(), true) });
    }
    classes
}

fn real() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(REAL)
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
    println!("class                  inputs  refused  accepted  crashed  hung  seconds");
    let mut n_bad = 0;
    for class in classes().iter().filter(|class| names.is_empty() || names.contains(&class.name)) {
        let start = Instant::now();
        let Counts { refused, accepted, crashed, hung } = count(class);
        n_bad += crashed + hung;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:21}{:>8}{refused:>9}{accepted:>10}{crashed:>9}{hung:>6}{seconds:>9.1}", class.name, class.n);
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

fn header_length(model: &Path) -> u64 {
    Gguf::open(model).unwrap().tensors().iter().map(|t| t.offset).min().unwrap()
}

/// What `gracekv-run` does with a model, up to the first token.
fn run(model: &Path, more: &[&str]) -> Result<()> {
    gracekv::ggml::set_log(false);
    let fixed = ["-c", "256", "-t", "1", "--temp", "0", "-m"].map(OsString::from);
    let args = fixed.into_iter().chain([model.into()]).chain(more.iter().map(OsString::from));
    let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
    let loaded = setup::load(&args, &mut |_| ())?;
    let mut session = setup::session(&args, &loaded)?;
    let mut chain = setup::chain(&args, &loaded, &mut |_| ())?;
    let tokens = loaded.tokenizer.encode("the rain in the harbour", true, true)?;
    let logits = session.prefill(&tokens, |_| Ok(()))?;
    let token = chain.sample(&logits)?;
    session.step(token).map(drop)
}

/// The model cut off at every byte of its header.
fn truncated(dir: &Path) -> Try {
    let (whole, path) = (std::fs::read(tiny::path("llama")).unwrap(), dir.join("model.gguf"));
    Box::new(move |number| {
        std::fs::write(&path, &whole[..number as usize]).unwrap();
        run(&path, &[])
    })
}

/// A copy of the model in which some bytes of the header, or of the weights, are others.
fn changed(dir: &Path, model: &Path, in_header: bool) -> Try {
    let path = dir.join("model.gguf");
    std::fs::copy(model, &path).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (header, end) = (header_length(model), file.metadata().unwrap().len());
    let (first, n) = if in_header { (0, header) } else { (header, end - header) };
    Box::new(move |number| {
        let mut old = Vec::new();
        for k in 0..1 + random(number, 0) % 3 {
            let (at, mut byte) = (first + random(number, 3 * k + 1) % n, [0u8]);
            file.read_exact_at(&mut byte, at).unwrap();
            old.push((at, byte));
            // Mostly one bit, so that numbers stay near what they were.
            let new = match random(number, 3 * k + 2) % 4 {
                0 => random(number, 3 * k + 3) as u8,
                _ => byte[0] ^ 1 << (random(number, 3 * k + 3) % 8),
            };
            file.write_all_at(&[new], at).unwrap();
        }
        let done = run(&path, &[]);
        for (at, byte) in old.into_iter().rev() {
            file.write_all_at(&byte, at).unwrap();
        }
        done
    })
}

/// A prompt cache with another byte, or cut off, in a run that goes on from it.
fn prompt_cache(dir: &Path) -> Try {
    let (model, path) = (tiny::path("llama"), dir.join("cache"));
    let cache = path.to_str().unwrap().to_owned();
    let resume = move || {
        let fixed = ["-c", "256", "-t", "1", "-m"].map(OsString::from);
        let args = fixed.into_iter().chain([model.clone().into(), "--prompt-cache".into(), cache.clone().into()]);
        let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
        let loaded = setup::load(&args, &mut |_| ())?;
        let mut session = setup::session(&args, &loaded)?;
        let settings = gracekv::cli::prompt_cache::Settings::new(&args, &session)?.expect("--prompt-cache is given");
        let mut cache = gracekv::cli::prompt_cache::PromptCache::open(settings, &session, &mut |_, _| ())?;
        let prompt = loaded.tokenizer.encode("the rain in the harbour", true, true)?;
        let (logits, _) = cache.read(&mut session, &prompt, &mut |_, _| (), |_| Ok(()))?;
        cache.filled(&session, &logits)
    };
    resume().unwrap();
    let whole = std::fs::read(&path).unwrap();
    Box::new(move |number| {
        let mut bytes = whole.clone();
        let at = random(number, 1) as usize % bytes.len();
        match random(number, 2) % 4 {
            // An empty file is a new one.
            0 => bytes.truncate(at.max(1)),
            _ => bytes[at] ^= 1 << (random(number, 3) % 8),
        }
        std::fs::write(&path, bytes).unwrap();
        resume()
    })
}

/// A text with some parts removed, doubled, put elsewhere or replaced by pieces that have a meaning there.
fn mutated(texts: &[String], pieces: &[&str], number: u64) -> String {
    let pick = |place: u64, n: usize| random(number, place) as usize % n.max(1);
    let mut text: Vec<char> = texts[pick(0, texts.len())].chars().collect();
    for k in 1..=1 + random(number, 1) % 4 {
        let place = 10 * k;
        let from = pick(place, text.len());
        let to = (from + pick(place + 1, 40)).min(text.len());
        let part: Vec<char> = text[from..to].to_vec();
        let piece: Vec<char> = pieces[pick(place + 2, pieces.len())].chars().collect();
        let at = pick(place + 3, text.len());
        match random(number, place + 4) % 6 {
            0 => drop(text.drain(from..to)),
            1 => drop(text.splice(at..at, part)),
            2 => drop(text.splice(from..to, piece)),
            3 => drop(text.splice(at..at, piece.repeat(1 + pick(place + 5, 300)))),
            4 => drop(text.splice(at..at, char::from_u32(random(number, place + 6) as u32 % 0x11_0000))),
            _ => drop(text.splice(at..at, piece)),
        }
    }
    text.into_iter().collect()
}

fn golden(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// All strings of a value that begin a text of some length.
fn strings(value: &Value, key: &str, out: &mut Vec<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|v| strings(v, key, out)),
        Value::Object(fields) => fields.iter().for_each(|(name, v)| match v.as_str() {
            Some(text) if name == key => out.push(text.to_owned()),
            _ => strings(v, key, out),
        }),
        _ => {}
    }
}

/// Templates of models and pieces of their language.
fn chat_template() -> Try {
    const PIECES: [&str; 24] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if x %}",
        "{% endif %}",
        "{% set ns.x = ns %}",
        "{% set ns = namespace(x=[]) %}",
        "|tojson",
        "|string",
        "[",
        "]",
        "(",
        ")",
        " not ",
        "loop.cycle()",
        "messages",
        "range(100000)",
        "{% macro f() %}{{ f() }}{% endmacro %}",
        "{% generation %}",
        "ns.x",
        "*1000000",
    ];
    let mut texts = Vec::new();
    strings(&golden("chat/templates.json"), "source", &mut texts);
    assert!(!texts.is_empty());
    let talk = [("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "bye")];
    let talk = talk.map(|(role, content)| Message::new(role, content));
    Box::new(move |number| {
        let special = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false };
        ChatTemplate::new(&mutated(&texts, &PIECES, number), special)?.render(&talk, true).map(drop)
    })
}

/// Grammars with verdicts of llama.cpp and pieces of their language, over a vocabulary of a tiny model.
fn grammar() -> Try {
    const PIECES: [&str; 20] = [
        "root ::= ",
        "::=",
        "(",
        ")",
        "[",
        "]",
        "*",
        "+",
        "?",
        "{1000}",
        "{0,}",
        "|",
        "\"",
        "[^\\n]",
        "\\u0041",
        "<",
        ">",
        "\n",
        "#",
        "x ::= x x",
    ];
    let mut texts = Vec::new();
    strings(&golden("grammar/verdicts.json"), "grammar", &mut texts);
    assert!(!texts.is_empty());
    let tokenizer = Tokenizer::load(&Gguf::open(&tiny::path("llama")).unwrap()).unwrap();
    Box::new(move |number| {
        let constraint = Constraint::Gbnf { source: "--grammar".into(), text: mutated(&texts, &PIECES, number) };
        let mut grammar = Grammar::new(&constraint, &tokenizer)?;
        for token in tokenizer.encode("hello 12", false, false)? {
            if !grammar.allows(token)? {
                return Ok(());
            }
            grammar.accept(token)?;
        }
        Ok(())
    })
}

/// Lines of a set of questions as LongBench has them.
fn data_set(dir: &Path) -> Try {
    const PIECES: [&str; 12] =
        ["{", "}", "[", "]", "\"", ":", ",", "null", "1e999", "\\ud800", "\n", "\"answers\": [[]]"];
    let line = r#"{"input": "who?", "context": "the cat sat", "answers": ["the cat"], "length": 3, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "1"}"#;
    let path = dir.join("data.jsonl").to_str().unwrap().to_owned();
    Box::new(move |number| {
        std::fs::write(&path, mutated(&[format!("{line}\n{line}\n")], &PIECES, number)).unwrap();
        data::open(std::slice::from_ref(&path)).map(drop)
    })
}
