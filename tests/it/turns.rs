//! More than one pass: turns of a conversation, decode intervals, a context that fills up, and going back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use gracekv::cache::rope::Rope;
use gracekv::compress::{by_name, MethodOptions, METHODS};
use gracekv::engine::{Engine, EngineOptions};
use gracekv::error::Error;
use gracekv::ggml::Type;
use gracekv::model::Model;
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;

use crate::engine::tokens;
use crate::support::{self, argmax, decode, nmse, options, tiny};

const N_PROMPT: usize = 200;
const N_LOOKAHEAD: usize = 8;

fn pass(ratio: f64) -> PassOptions {
    PassOptions { target: Target::Ratio(ratio), n_lookahead: N_LOOKAHEAD, n_min_tokens: 64, ..PassOptions::default() }
}

fn session(model: &Arc<Model>, n_ctx: usize, method: &str, pass: PassOptions) -> Session {
    let method = by_name(method, &MethodOptions::default()).unwrap();
    Session::new(support::engine(model, n_ctx, 1), Some((method, pass)))
}

fn read(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    session.prefill(tokens, |_| Ok(())).unwrap()
}

fn step_n(session: &mut Session, logits: Vec<f32>, n: usize) -> Vec<f32> {
    (0..n).fold(logits, |logits, _| session.step(argmax(&logits)).unwrap())
}

/// Entries of all heads of all pools.
fn n_entries(session: &Session) -> usize {
    session.engine.cache.layers.iter().flat_map(|l| l.pool_entries()).sum()
}

#[test]
fn long_turns_are_compressed_and_short_ones_stay() {
    for name in ["llama", "gemma3"] {
        let model = tiny::model(name);
        let n_heads = model.hp.global_layers().len() * model.hp.n_head_kv;
        let mut session = session(&model, 2048, "gracekv", pass(4.0));
        session.n_predict = Some(20);
        let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
        let logits = step_n(&mut session, logits, 20);
        assert_eq!((session.n_passes(), n_entries(&session)), (1, n_heads * N_PROMPT / 4), "{name}");

        read(&mut session, &tokens(&model, 40, 2));
        step_n(&mut session, logits, 20);
        assert_eq!((session.n_passes(), session.is_pending()), (1, false), "{name}: a short turn");

        let logits = read(&mut session, &tokens(&model, 100, 3));
        assert!(session.is_pending(), "{name}: a long turn");
        let before = session.engine.cache.bytes();
        let logits = step_n(&mut session, logits, N_LOOKAHEAD);
        let report = session.report.clone().unwrap();
        assert_eq!((session.n_passes(), report.first, report.n_tokens), (2, N_PROMPT, 20 + 40 + 20 + 100), "{name}");
        assert_eq!(report.n_entries_after(), n_heads * report.n_tokens / 4, "{name}");
        assert_eq!(n_entries(&session), n_heads * (N_PROMPT + report.n_tokens) / 4, "{name}");
        assert!(report.bytes_after < before, "{name}: {before} -> {}", report.bytes_after);
        assert_eq!(report.bytes_after, session.engine.cache.bytes());
        assert_eq!(session.tokens().len(), session.engine.cache.n_past());
        let last = step_n(&mut session, logits, 20);
        assert!(last.iter().all(|l| l.is_finite()));
        // The window of the later part is kept; its first tokens are no sinks.
        for head in report.layers.iter().flat_map(|l| &l.tokens) {
            assert!(head.contains(&(report.n_tokens as u32 - 1)), "{name}: {head:?}");
        }
    }
}

/// At ratio 1 a second pass only reads the last tokens again, as one batch.
#[test]
fn a_later_pass_at_ratio_1_changes_nothing() {
    for name in ["llama", "qwen2", "qwen3", "gemma3"] {
        let model = tiny::model(name);
        let run = |passes: usize| {
            let mut session = session(&model, 1024, "gracekv", PassOptions { force: true, ..pass(1.0) });
            let mut logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
            for (i, &t) in tokens(&model, 120, 2).iter().enumerate() {
                logits = session.step(t).unwrap();
                if passes > 0 && i % 40 == 39 {
                    assert!(session.compress_further().unwrap());
                }
            }
            assert_eq!(session.n_passes(), if passes > 0 { 4 } else { 1 });
            session.step(argmax(&logits)).unwrap()
        };
        let error = nmse(&run(0), &run(1));
        assert!(error < 1e-4, "{name}: NMSE {error:e}");
    }
}

#[test]
fn every_interval_is_compressed_and_its_last_tokens_stay() {
    for method in ["gracekv", "snapkv", "streaming_llm"] {
        let model = tiny::model("llama");
        let n_heads = model.hp.n_layer * model.hp.n_head_kv;
        let mut session = session(&model, 2048, method, pass(8.0));
        session.decode_interval = 80;
        let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
        step_n(&mut session, logits, 400);
        let lookahead = session.report.as_ref().unwrap().n_lookahead;
        assert_eq!(session.n_passes(), 1 + (400 - lookahead.min(N_LOOKAHEAD)) / 80, "{method}");
        let n_covered = session.engine.cache.n_prompt();
        assert_eq!(n_entries(&session), n_heads * n_covered / 8, "{method}");
        assert!(session.engine.cache.n_past() - n_covered >= lookahead, "{method}");
    }
}

/// Positions go beyond the context, memory does not.
#[test]
fn a_full_context_is_compressed_further() {
    let model = tiny::model("llama");
    let n_ctx = 320;
    let mut session = session(&model, n_ctx, "gracekv", pass(8.0));
    let dense = session.engine.cache.bytes();
    let mut logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    for _ in 0..3 * n_ctx {
        if session.n_left() <= 1 {
            let n_left = session.n_left();
            assert!(session.compress_further().unwrap());
            assert!(session.n_left() > n_left);
        }
        logits = session.step(argmax(&logits)).unwrap();
        assert!(session.engine.cache.bytes() <= dense + dense / 4);
    }
    assert!(session.engine.cache.n_past() > 3 * n_ctx && session.n_passes() > 2);
    assert!(logits.iter().all(|l| l.is_finite()));
}

/// A prompt that was too short for a pass is compressed when the context is full.
#[test]
fn what_was_left_alone_is_compressed_at_last() {
    let model = tiny::model("qwen3");
    let mut session = session(&model, 256, "gracekv", pass(4.0));
    let mut logits = read(&mut session, &tokens(&model, 30, 1));
    assert!(!session.is_pending());
    while session.n_left() > 1 {
        logits = session.step(argmax(&logits)).unwrap();
    }
    assert!(!session.engine.cache.is_compressed());
    assert!(session.compress_further().unwrap() && session.n_left() > 100);
    assert!(!session.compress_further().unwrap(), "too little came since");
    session.step(argmax(&logits)).unwrap();
}

#[test]
fn methods_that_must_read_the_whole_are_used_once() {
    let model = tiny::model("llama");
    for method in ["h2o", "gracekv+paper"] {
        let mut session = session(&model, 1024, method, pass(4.0));
        let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
        step_n(&mut session, logits, 100);
        read(&mut session, &tokens(&model, 100, 2));
        assert!(!session.is_pending() && !session.compress_further().unwrap(), "{method}");
        assert_eq!(session.n_passes(), 1, "{method}");
    }
}

#[test]
fn the_session_goes_back_to_what_is_not_merged() {
    let model = tiny::model("llama");
    let mut session = session(&model, 1024, "gracekv", pass(4.0));
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    let first = step_n(&mut session, logits.clone(), 4);
    assert!(session.is_pending());
    session.take_back(N_PROMPT).unwrap();
    assert_eq!(step_n(&mut session, logits.clone(), 4), first, "nothing was compressed yet");
    step_n(&mut session, first, 10);
    assert_eq!(session.n_passes(), 1);
    session.take_back(N_PROMPT).unwrap();
    let again = step_n(&mut session, logits.clone(), 3);
    session.take_back(N_PROMPT).unwrap();
    assert_eq!(step_n(&mut session, logits, 3), again, "the same answer from the same compressed cache");
    let e = session.take_back(N_PROMPT - 1).unwrap_err();
    assert!(matches!(e, Error::Context { .. }), "{e}");
    session.clear().unwrap();
    assert!(session.tokens().is_empty() && session.engine.cache.n_past() == 0);
    read(&mut session, &tokens(&model, N_PROMPT, 1));
    assert!(session.is_pending(), "the next prompt is a first one");
}

/// Kept tokens stay, the others move to where the dropped ones were and are rotated as if they had always been there.
#[test]
fn a_shift_drops_tokens_and_rotates_the_others() {
    let mut n_run = 0;
    for name in ["llama", "qwen2", "qwen3", "gemma3"] {
        for (ty, bound) in [(Type::F32, 1e-4), (Type::F16, 1e-3), (Type::Q8_0, 2e-2)] {
            let model = tiny::model(name);
            // Heads that are no whole number of blocks cannot be quantised.
            if !model.hp.head_dim_k.is_multiple_of(ty.block_size()) {
                continue;
            }
            n_run += 1;
            let o = EngineOptions { ty_k: ty, ty_v: ty, ..options(512, 1) };
            let mut session = Session::new(Engine::new(model.clone(), o).unwrap(), None);
            read(&mut session, &tokens(&model, N_PROMPT, 1));
            let rope: Vec<Rope> = model.hp.rope.clone();
            let global = model.hp.global_layers();
            let dim = model.hp.head_dim_k;
            let keys = |session: &Session, il: usize, from: usize, n: usize| {
                let mut out = vec![0.0; n * dim];
                session.engine.cache.read_keys(il, 0, from, &mut out).unwrap();
                out
            };
            let before: Vec<Vec<f32>> = global.iter().map(|&il| keys(&session, il, 0, N_PROMPT)).collect();
            let n_dropped = session.shift(10).unwrap();
            assert_eq!((n_dropped, session.engine.cache.n_past()), (95, N_PROMPT - 95), "{name}");
            assert_eq!(session.tokens().len(), N_PROMPT - 95);
            for (&il, before) in global.iter().zip(&before) {
                assert_eq!(keys(&session, il, 0, 10), before[..10 * dim], "{name}: kept tokens stay");
                let mut moved = before[105 * dim..].to_vec();
                for (i, row) in moved.chunks_exact_mut(dim).enumerate() {
                    rope[il].unrotate(row, (105 + i) as f32);
                    rope[il].rotate(row, (10 + i) as f32);
                }
                let error = nmse(&moved, &keys(&session, il, 10, 95));
                assert!(error < bound, "{name} {ty}: NMSE {error:e}");
            }
            let logits = decode(&mut session.engine, &[5]);
            assert!(logits.iter().all(|l| l.is_finite()));
        }
    }
    assert!(n_run > 8, "some model has to be quantised");
}

#[test]
fn a_compressed_cache_is_not_shifted() {
    let model = tiny::model("llama");
    let mut session = session(&model, 1024, "gracekv", pass(4.0));
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    step_n(&mut session, logits, N_LOOKAHEAD);
    let e = session.shift(10).unwrap_err();
    assert!(e.to_string().contains("compressed further instead"), "{e}");
}

/// Ctrl-C while a pass divides its budget: everything stays exact, and the answer can go on.
#[test]
fn a_pass_that_is_interrupted_leaves_the_cache_as_it_was() {
    for kind in ["llama", "gemma3", "qwen2"] {
        let model = tiny::model(kind);
        let prompt = tokens(&model, N_PROMPT, 1);
        let mut whole = support::engine(&model, 1024, 1);
        let of_prompt = decode(&mut whole, &prompt);
        let after = decode(&mut whole, &[7]);
        for method in METHODS.iter().map(|m| m.name).chain(["gracekv+paper"]).filter(|name| *name != "none") {
            for n_lookahead in [0, 1] {
                let stop = Arc::new(AtomicBool::new(false));
                let mut session = session(&model, 1024, method, PassOptions { n_lookahead, ..pass(4.0) });
                session.engine.set_stop(stop.clone());
                let read = |n| {
                    stop.store(n == N_PROMPT, Ordering::SeqCst);
                    Ok(())
                };
                let logits = session.prefill(&prompt, read).unwrap();
                assert!(nmse(&of_prompt, &logits) < 1e-12, "{kind} {method}");
                let logits = session.step(7).unwrap();
                assert_eq!((session.n_passes(), session.is_pending()), (0, false), "{kind} {method}");
                assert!(!session.engine.cache.is_compressed(), "{kind} {method}");
                assert!(nmse(&after, &logits) < 1e-12, "{kind} {method}");
                // The next one comes when there is more to compress.
                stop.store(false, Ordering::SeqCst);
                session.prefill(&tokens(&model, 100, 3), |_| Ok(())).unwrap();
                step_n(&mut session, logits, 4);
            }
        }
    }
}

/// A compression of what came since, too: what it reads again is there afterwards.
#[test]
fn an_interrupted_interval_loses_no_tokens() {
    let model = tiny::model("llama");
    let stop = Arc::new(AtomicBool::new(false));
    let mut session = session(&model, 1024, "gracekv", pass(4.0));
    session.engine.set_stop(stop.clone());
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    let logits = step_n(&mut session, logits, 60);
    let (n_past, bytes) = (session.engine.cache.n_past(), session.engine.cache.bytes());
    stop.store(true, Ordering::SeqCst);
    session.compress_further().unwrap();
    assert_eq!((session.engine.cache.n_past(), session.engine.cache.bytes(), session.n_passes()), (n_past, bytes, 1));
    step_n(&mut session, logits, 1);
}

/// Nothing is read for a budget that cannot be met.
#[test]
fn an_impossible_ratio_is_refused_before_the_prompt_is_read() {
    let model = tiny::model("llama");
    let mut session = session(&model, 1024, "gracekv", pass(5000.0));
    let error = session.prefill(&tokens(&model, N_PROMPT, 1), |_| panic!("a ubatch was read")).unwrap_err().to_string();
    assert!(error.contains("the largest possible ratio is 200"), "{error}");
    assert_eq!(session.engine.cache.n_past(), 0);
}

/// In a conversation there is no going back: what is too short for the ratio stays as it is.
#[test]
fn a_later_turn_that_is_too_short_for_the_ratio_stays_exact() {
    let model = tiny::model("llama");
    let mut session = session(&model, 1024, "gracekv", pass(150.0));
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    let logits = step_n(&mut session, logits, N_LOOKAHEAD);
    assert_eq!(session.n_passes(), 1);
    read(&mut session, &tokens(&model, 100, 2));
    step_n(&mut session, logits, 20);
    assert_eq!((session.n_passes(), session.is_pending()), (1, false));
}

/// An interval says itself how much is enough; only prompts have a least length.
#[test]
fn short_intervals_are_compressed_too() {
    let model = tiny::model("llama");
    let mut session = session(&model, 1024, "gracekv", pass(4.0));
    session.decode_interval = 16;
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    let logits = step_n(&mut session, logits, N_LOOKAHEAD);
    assert_eq!(session.n_passes(), 1);
    step_n(&mut session, logits, 64);
    assert_eq!(session.n_passes(), 5);
    let mut session = self::session(&model, 1024, "gracekv", pass(100.0));
    session.decode_interval = 16;
    let logits = read(&mut session, &tokens(&model, N_PROMPT, 1));
    step_n(&mut session, logits, 120);
    assert_eq!(session.n_passes(), 2, "not before there is an entry to be left");
}

/// A ring that has gone round holds after a shift what one that holds the whole context does.
#[test]
fn a_shift_finds_its_tokens_in_a_ring_that_has_gone_round() {
    let mut n_run = 0;
    for name in tiny::KINDS {
        let model = tiny::model(name);
        let read_and_shift = |n_ubatch: usize| {
            let mut engine = Engine::new(model.clone(), EngineOptions { n_ubatch, ..options(512, 1) }).unwrap();
            let tokens = tokens(&model, 400, 1);
            tokens.chunks(32).for_each(|part| drop(decode(&mut engine, part)));
            engine.cache.shift(10, 195, &model.hp.rope_in(512)).unwrap();
            let n_rows: Vec<usize> = engine.cache.layers.iter().map(|l| l.k.ne()[1]).collect();
            (n_rows, (0..40).map(|i| decode(&mut engine, &[3 + i])).collect::<Vec<_>>())
        };
        let ((whole, expected), (small, logits)) = (read_and_shift(512), read_and_shift(32));
        if whole == small {
            continue;
        }
        n_run += 1;
        for (i, (expected, logits)) in expected.iter().zip(&logits).enumerate() {
            let error = nmse(expected, logits);
            assert!(error < 1e-4, "{name}: token {i} after the shift, NMSE {error:e}");
        }
    }
    assert!(n_run > 2, "some models have rings");
}
