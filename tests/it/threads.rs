//! One loaded model, several threads: a model is shared, a session is one thread's at a time. Each generates what it would alone.

use std::sync::{Arc, Barrier};

use gracekv::compress;
use gracekv::engine::Engine;
use gracekv::model::Model;
use gracekv::pass::{PassOptions, Target};
use gracekv::sample::Chain;
use gracekv::session::Session;
use gracekv::tokenizer::Tokenizer;

use crate::support::{argmax, engine, tiny};

/// What the types promise; that a session cannot be used by two threads is a test in its documentation.
#[test]
fn what_is_shared_may_be_and_what_runs_may_move() {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<Model>();
    shared::<Tokenizer>();
    moved::<Engine>();
    moved::<Session>();
    moved::<Chain>();
}

/// Reads a prompt, compresses, and generates.
fn generate(model: &Arc<Model>, seed: u32, method: &str) -> Vec<u32> {
    let options = PassOptions { target: Target::Ratio(3.0), n_lookahead: 2, n_min_tokens: 0, ..PassOptions::default() };
    let method = compress::by_name(method, &Default::default()).unwrap();
    let mut session = Session::new(engine(model, 512, 1), Some((method, options)));
    let prompt: Vec<u32> = (0..150).map(|i| (i * 7 + seed * 31) % 250).collect();
    let mut logits = session.prefill(&prompt, |_| Ok(())).unwrap();
    let next = |_| {
        let token = argmax(&logits);
        logits = session.step(token).unwrap();
        token
    };
    (0..24).map(next).collect()
}

#[test]
fn runs_on_one_model_do_not_disturb_each_other() {
    for name in tiny::KINDS {
        let model = tiny::model(name);
        let method = |seed: u32| ["gracekv", "snapkv", "topk"][seed as usize % 3];
        let alone: Vec<_> = (0..4).map(|seed| generate(&model, seed, method(seed))).collect();
        assert!(alone.iter().any(|tokens| tokens != &alone[0]), "{name}: all the same");
        let begin = Barrier::new(4);
        let together: Vec<_> = std::thread::scope(|scope| {
            let run = |seed: u32| {
                let (model, begin) = (&model, &begin);
                scope.spawn(move || {
                    begin.wait();
                    (0..3).map(|_| generate(model, seed, method(seed))).collect::<Vec<_>>()
                })
            };
            let runs: Vec<_> = (0..4).map(run).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for (seed, runs) in together.iter().enumerate() {
            assert!(runs.iter().all(|tokens| tokens == &alone[seed]), "{name} {seed}");
        }
    }
}
