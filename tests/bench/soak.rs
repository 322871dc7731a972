//! Loads, reads, compresses, generates and drops, again and again: `make soak MINUTES=30`. Resident memory has to stay flat.
//!
//! Each round takes the next kind of tiny model and the next method; caches, samplers and grammars come and go with it, a state is
//! saved and read again. Ends with 1 when the last fifth of the time has seen more memory than the second one, within 2 MiB.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../it/support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gracekv::cache::state::{Identity, Mark, State, StateFile};
use gracekv::compress::{by_name, METHODS};
use gracekv::ggml;
use gracekv::gguf::Gguf;
use gracekv::model::{LoadOptions, Model};
use gracekv::pass::{PassOptions, Target};
use gracekv::sample::{Chain, Constraint, Grammar, SampleParams};
use gracekv::session::Session;
use gracekv::tokenizer::Tokenizer;
use support::{engine, tiny};

/// What the allocator may hold back.
const ALLOWANCE: u64 = 2 << 20;
const MIB: f64 = 1048576.0;
const TEXT: &str = "the rain in the inner harbour and the heat of an inert rhine than the train in the hen ";

fn main() {
    let minutes = std::env::args().filter_map(|arg| arg.parse::<f64>().ok()).next().unwrap_or(1.0);
    let (begin, total) = (Instant::now(), Duration::from_secs_f64(60.0 * minutes));
    let dir = tempfile::tempdir().unwrap();
    // Highest resident memory in each fifth of the time.
    let (mut highest, mut n_rounds) = ([0u64; 5], [0usize; 5]);
    ggml::set_log(false);
    println!("minutes   rounds  resident MiB");
    while begin.elapsed() < total {
        let fifth = (5.0 * begin.elapsed().as_secs_f64() / total.as_secs_f64()) as usize;
        round(n_rounds.iter().sum(), dir.path());
        ggml::trim();
        n_rounds[fifth] += 1;
        let resident = ggml::resident_bytes();
        highest[fifth] = highest[fifth].max(resident);
        if n_rounds[fifth] == 1 {
            report(begin, &n_rounds, resident);
        }
    }
    report(begin, &n_rounds, ggml::resident_bytes());
    println!("highest of each fifth: {:.1?} MiB", highest.map(|bytes| bytes as f64 / MIB));
    if n_rounds.contains(&0) || highest[4] > highest[1] + ALLOWANCE {
        println!("memory has grown, or a fifth of the time saw no round");
        std::process::exit(1);
    }
}

fn report(begin: Instant, n_rounds: &[usize], resident: u64) {
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!("{minutes:7.2} {:8} {:13.1}", n_rounds.iter().sum::<usize>(), resident as f64 / MIB);
}

fn round(number: usize, dir: &Path) {
    let kind = tiny::KINDS[number % tiny::KINDS.len()];
    let method = &METHODS[number / tiny::KINDS.len() % METHODS.len()];
    let path = tiny::path(kind);
    let model = Arc::new(
        Model::load(&path, LoadOptions { mmap: !number.is_multiple_of(3), ..LoadOptions::default() }).unwrap(),
    );
    let tokenizer = Tokenizer::load(&Gguf::open(&path).unwrap()).unwrap();
    // `none` keeps all.
    let target = Target::Ratio(if method.name == "none" { 1.0 } else { 4.0 });
    let options = PassOptions { target, n_lookahead: 4, n_min_tokens: 0, ..PassOptions::default() };
    let compress = by_name(method.name, &Default::default()).unwrap();
    let mut session = Session::new(engine(&model, 1024, 1), Some((compress, options)));
    let constraint = Constraint::Gbnf { source: "soak".into(), text: "root ::= [a-z ]+".into() };
    let params = SampleParams { seed: number as u32, ..SampleParams::default() };
    let mut chain = Chain::new(&params).unwrap().with_grammar(Some(Grammar::new(&constraint, &tokenizer).unwrap()));
    let prompt = tokenizer.encode(&TEXT.repeat(6), true, false).unwrap();
    let mut logits = session.prefill(&prompt, |_| Ok(())).unwrap();
    for _ in 0..32 {
        let token = chain.sample(&logits).unwrap();
        chain.accept(token).unwrap();
        logits = session.step(token).unwrap();
    }
    resume(&session, logits, &model, &dir.join("state"));
}

/// Saves the cache and reads it into another session.
fn resume(session: &Session, logits: Vec<f32>, model: &Arc<Model>, path: &Path) {
    let identity = Identity { model: "tiny".into(), kv: session.engine.cache.types(), compression: "any".into() };
    let state = State {
        identity: identity.clone(),
        sampling: String::new(),
        n_given: session.tokens().len(),
        n_whole: session.tokens().len(),
        tokens: session.tokens().to_vec(),
        marks: vec![Mark { n_tokens: session.tokens().len(), logits }],
    };
    state.write(&session.engine.cache, std::fs::File::create(path).unwrap()).unwrap();
    let mut other = Session::new(engine(model, 1024, 1), None);
    let file = StateFile::open(path, &identity, &other.engine.cache, model.hp.n_vocab).unwrap();
    other.load(file).unwrap();
    other.step(7).unwrap();
}
