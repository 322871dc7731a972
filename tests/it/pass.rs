//! The pass: nothing changes at ratio 1, plans are reproducible, memory is what the report says, and pools are read right by
//! every way to attend.

use std::sync::Arc;

use gracekv::cache::Layout;
use gracekv::compress::{by_name, MethodOptions, METHODS};
use gracekv::engine::{Engine, FlashAttn};
use gracekv::error::Error;
use gracekv::ggml::Type;
use gracekv::model::Model;
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;
use gracekv::tokenizer::Tokenizer;
use serde_json::{json, Value};

use crate::engine::tokens;
use crate::support::{self, argmax, decode, nmse, options, tiny, MODELS};

/// Tokens of the prompts: more than the 256 up to which `-fa auto` decodes as llama.cpp does.
const N_PROMPT: usize = 300;

fn tiny_models() -> Vec<(&'static str, Arc<Model>)> {
    tiny::KINDS.into_iter().map(|name| (name, tiny::model(name))).collect()
}

/// The tiny models and the real ones that were fetched, each with a prompt.
fn all_models() -> Vec<(&'static str, Arc<Model>, Vec<u32>)> {
    let tiny = tiny_models().into_iter().map(|(name, m)| (name, m.clone(), tokens(&m, N_PROMPT, 1)));
    let real = MODELS.iter().filter_map(|(name, file)| {
        let model = support::model(name)?;
        let text = include_str!("../golden/README.md").repeat(3);
        let mut ids = Tokenizer::load(&model.gguf).unwrap().encode(&text, true, false).unwrap();
        ids.truncate(N_PROMPT);
        Some((*file, model, ids))
    });
    tiny.chain(real).collect()
}

fn ratio(ratio: f64) -> PassOptions {
    PassOptions { target: Target::Ratio(ratio), n_lookahead: 8, ..PassOptions::default() }
}

fn forced() -> PassOptions {
    PassOptions { force: true, ..ratio(1.0) }
}

fn engine(model: &Arc<Model>) -> Engine {
    support::engine(model, 1024, 1)
}

fn session(engine: Engine, method: Option<(&str, PassOptions)>) -> Session {
    let method = method.map(|(name, pass)| (by_name(name, &MethodOptions::default()).unwrap(), pass));
    Session::new(engine, method)
}

/// Logits of the prompt and of `n` greedy tokens.
fn generate(session: &mut Session, prompt: &[u32], n: usize) -> Vec<Vec<f32>> {
    let mut out = vec![session.prefill(prompt, |_| Ok(())).unwrap()];
    for _ in 0..n {
        let next = argmax(&out[out.len() - 1]);
        out.push(session.step(next).unwrap());
    }
    out
}

/// A session that has compressed its prompt, ready for the token after the lookahead, and that token.
fn compressed(model: &Arc<Model>, method: &str, pass: PassOptions) -> (Session, u32) {
    let mut session = session(engine(model), Some((method, pass)));
    let logits = generate(&mut session, &tokens(model, N_PROMPT, 1), 8);
    assert!(!session.is_pending() && session.engine.cache.is_compressed());
    (session, argmax(&logits[8]))
}

fn plan(session: &Session) -> Value {
    session.report.as_ref().unwrap().to_json()["plan"].take()
}

#[test]
fn ratio_1_is_no_pass() {
    for (name, model, prompt) in all_models() {
        let mut with = session(engine(&model), Some(("gracekv", ratio(1.0))));
        let want = generate(&mut session(engine(&model), None), &prompt, 4);
        assert!(generate(&mut with, &prompt, 4) == want, "{name}");
        assert!(with.report.is_none());
    }
}

#[test]
fn a_forced_pass_at_ratio_1_changes_nothing() {
    for (name, model, prompt) in all_models() {
        let want = generate(&mut session(engine(&model), None), &prompt, 16);
        for method in ["none", "gracekv"] {
            let mut session = session(engine(&model), Some((method, forced())));
            let found = generate(&mut session, &prompt, 16);
            let report = session.report.as_ref().unwrap();
            assert_eq!(report.n_entries_after(), report.n_entries_before);
            let layers = &session.engine.cache.layers;
            let pools = layers.iter().filter(|l| matches!(l.layout, Layout::Pool(_))).count();
            assert_eq!(pools, model.hp.global_layers().len(), "{name}: every global layer is rewritten");
            let error = want.iter().zip(&found).map(|(w, f)| nmse(w, f)).fold(0.0, f64::max);
            eprintln!("{name} {method}: NMSE {error:.1e}");
            assert!(error <= 1e-8, "{name} {method}: NMSE {error:e}");
            let text = |logits: &[Vec<f32>]| logits.iter().map(|l| argmax(l)).collect::<Vec<_>>();
            assert_eq!(text(&want), text(&found), "{name} {method}");
        }
    }
}

/// Every method, plain and with each of its modifiers.
fn all_names() -> impl Iterator<Item = String> {
    METHODS.iter().flat_map(|entry| entry.names())
}

/// All methods leave the same cache at ratio 1, where none of them has anything to decide.
#[test]
fn at_ratio_1_every_method_is_none_bit_for_bit() {
    for (name, model) in tiny_models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let run = |method: &str| {
            let pass = PassOptions { n_lookahead: 0, ..forced() };
            generate(&mut session(engine(&model), Some((method, pass))), &prompt, 6)
        };
        let want = run("none");
        for method in all_names() {
            assert!(run(&method) == want, "{name} {method}");
        }
    }
}

#[test]
fn plans_are_the_same_for_equal_input_and_any_number_of_threads() {
    for (name, model, prompt) in all_models() {
        // Real models take long, and the tiny ones have their shape.
        let is_tiny = model.hp.n_layer < 10;
        for method in if is_tiny { &["gracekv", "topk", "streaming_llm"][..] } else { &["gracekv"] } {
            let run = |n_threads: usize| {
                let engine = support::engine(&model, 1024, n_threads);
                let mut session = session(engine, Some((method, ratio(8.0))));
                let logits = generate(&mut session, &prompt, 12);
                (plan(&session), logits)
            };
            let (want, logits) = run(1);
            for n_threads in [1, 2] {
                let found = run(n_threads);
                assert_eq!(found.0, want, "{name} {method} with {n_threads} threads");
                assert!(found.1 == logits, "{name} {method} with {n_threads} threads");
            }
        }
    }
}

/// ggml multiplies batches of other sizes with other kernels, whose sums round differently in the last bits; scores that are
/// nearly equal may then change places. Budgets do not change, and nearly all tokens stay.
#[test]
fn plans_of_other_batch_sizes_differ_in_ties_only() {
    for (name, model) in tiny_models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let run = |n_ubatch: usize| {
            let options = gracekv::engine::EngineOptions { n_ubatch, ..options(1024, 1) };
            let engine = Engine::new(model.clone(), options).unwrap();
            let mut session = session(engine, Some(("gracekv", ratio(4.0))));
            generate(&mut session, &prompt, 9);
            session.report.unwrap()
        };
        let (a, b) = (run(512), run(64));
        assert_eq!(a.n_entries_after(), b.n_entries_after());
        let tokens = |r: &gracekv::report::Report| -> Vec<(usize, usize, u32)> {
            let heads = r.layers.iter().flat_map(|l| l.tokens.iter().enumerate().map(move |(g, t)| (l.il, g, t)));
            heads.flat_map(|(il, g, t)| t.iter().map(move |&t| (il, g, t))).collect()
        };
        let (a, b) = (tokens(&a), tokens(&b));
        let common = a.iter().filter(|t| b.contains(t)).count();
        eprintln!("{name}: {common} of {} exact tokens in common", a.len());
        assert!(common * 100 >= a.len() * 95, "{name}: {common} of {}", a.len());
    }
}

#[test]
fn memory_is_what_the_report_says() {
    for (name, model) in tiny_models() {
        for x in [4.0, 16.0] {
            let (session, _) = compressed(&model, "gracekv", ratio(x));
            let (report, cache) = (session.report.as_ref().unwrap(), &session.engine.cache);
            assert_eq!(report.bytes_after, cache.bytes());
            assert_eq!(report.bytes_room, cache.bytes_of_room());
            let n_head_total = model.hp.global_layers().len() * model.hp.n_head_kv;
            let budget = ((n_head_total * N_PROMPT) as f64 / x) as usize;
            assert!(report.n_entries_after() <= budget, "{name} at {x}: {}", report.n_entries_after());
            assert!(report.n_entries_after() + n_head_total >= budget, "{name} at {x}: budget left unused");
            for l in &report.layers {
                assert_eq!(l.n_entries, cache.layers[l.il].pool_entries());
            }
            let (mut n_bytes, mut n_pool) = (0, 0);
            for layer in &cache.layers {
                n_bytes += (layer.k.n_bytes() + layer.v.n_bytes()) as u64 + 4 * layer.bias.len() as u64;
                if let Layout::Pool(heads) = &layer.layout {
                    n_pool += heads.iter().map(|h| h.n_entries).sum::<usize>();
                    assert_eq!(layer.n_rows(), heads.iter().map(|h| h.capacity).sum::<usize>());
                }
            }
            assert_eq!(n_pool, report.n_entries_after());
            // Buffers end on ggml's alignment.
            let slack = 2 * 64 * cache.layers.len() as u64;
            assert!((n_bytes..=n_bytes + slack).contains(&cache.bytes()), "{name}: {n_bytes} to {}", cache.bytes());
            assert!(report.bytes_after < report.bytes_before);
        }
    }
}

/// Every way to attend reads the same pool, biases included.
#[test]
fn a_pool_is_read_the_same_by_every_way_to_attend() {
    for (name, model) in tiny_models() {
        for method in ["gracekv", "gracekv+paper", "topk"] {
            let (mut session, first) = compressed(&model, method, ratio(6.0));
            let n_past = session.engine.cache.n_past();
            let mut steps = tokens(&model, 6, 9);
            steps[0] = first;
            let want: Vec<_> = steps.iter().map(|&t| session.step(t).unwrap()).collect();
            let has_bias = session.engine.cache.layers.iter().any(|l| !l.bias.is_empty());
            assert_eq!(has_bias, method != "topk", "{name} {method}: biases");
            for flash_attn in [FlashAttn::On, FlashAttn::Off] {
                let options = gracekv::engine::EngineOptions { flash_attn, ..options(1024, 1) };
                let mut other = Engine::new(model.clone(), options).unwrap();
                session.engine.drop_graph();
                std::mem::swap(&mut other.cache, &mut session.engine.cache);
                other.cache.truncate(n_past).unwrap();
                for (want, &t) in want.iter().zip(&steps) {
                    let error = nmse(want, &decode(&mut other, &[t]));
                    assert!(error < 1e-4, "{name} {method} {flash_attn:?}: NMSE {error:e}");
                }
                other.cache.truncate(n_past).unwrap();
                let error = nmse(&want[5], &decode(&mut other, &steps));
                assert!(error < 1e-4, "{name} {method} {flash_attn:?}, one batch: NMSE {error:e}");
                other.drop_graph();
                std::mem::swap(&mut other.cache, &mut session.engine.cache);
            }
            session.engine.cache.truncate(n_past).unwrap();
            let error = nmse(&want[5], &decode(&mut session.engine, &steps));
            eprintln!("{name} {method}: one batch, NMSE {error:.1e}");
            // A model with sliding windows reads batches with ggml's attention, whose sums are f16.
            let bound = if model.hp.swa.contains(&true) { 1e-4 } else { 1e-5 };
            assert!(error < bound, "{name} {method}, one batch: NMSE {error:e}");
        }
    }
}

#[test]
fn pools_grow_without_a_trace() {
    for (name, model) in tiny_models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let run = |n_predict: usize| {
            let mut session = session(engine(&model), Some(("gracekv", ratio(4.0))));
            session.n_predict = Some(n_predict);
            let mut logits = generate(&mut session, &prompt, 14);
            logits.push(session.prefill(&tokens(&model, 40, 7), |_| Ok(())).unwrap());
            logits.push(session.step(5).unwrap());
            logits
        };
        assert!(run(2) == run(200), "{name}");
    }
}

#[test]
fn a_discarded_lookahead_leaves_the_prompt() {
    for (name, model) in tiny_models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let want = generate(&mut session(engine(&model), None), &prompt, 8);
        let mut session = session(engine(&model), Some(("gracekv", PassOptions { n_lookahead: 9, ..forced() })));
        let found = generate(&mut session, &prompt, 8);
        assert!(session.is_pending() && found == want);
        let taken_back = session.compress_discarding().unwrap();
        assert_eq!(taken_back, want[..8].iter().map(|l| argmax(l)).collect::<Vec<_>>());
        assert_eq!(session.engine.cache.n_past(), N_PROMPT);
        for (want, &t) in want[1..].iter().zip(&taken_back) {
            let error = nmse(want, &session.step(t).unwrap());
            assert!(error <= 1e-8, "{name}: NMSE {error:e}");
        }
    }
}

#[test]
fn every_method_runs_on_every_architecture() {
    for method in all_names().filter(|name| name != "none") {
        for (name, model) in tiny_models() {
            for x in [2.0, 24.0] {
                let (mut session, next) = compressed(&model, &method, ratio(x));
                let report = session.report.as_ref().unwrap();
                assert_eq!(report.to_json()["plan"]["method"], json!(method));
                assert!(report.achieved_ratio() >= x * 0.999, "{name} {method}: {}", report.achieved_ratio());
                assert!(session.step(next).unwrap().iter().all(|l| l.is_finite()));
                session.engine.clear().unwrap();
                assert!(!session.engine.cache.is_compressed() && session.engine.cache.n_past() == 0);
            }
        }
    }
}

#[test]
fn quantised_caches_are_compressed_in_their_type() {
    let model = tiny::model("qwen3");
    for ty in [Type::F32, Type::BF16, Type::Q8_0, Type::Q4_0] {
        let options = gracekv::engine::EngineOptions { ty_k: ty, ty_v: ty, ..options(1024, 1) };
        let engine = Engine::new(model.clone(), options).unwrap();
        let mut session = session(engine, Some(("gracekv", ratio(4.0))));
        generate(&mut session, &tokens(&model, N_PROMPT, 1), 10);
        let pool = session.engine.cache.layers.iter().find(|l| matches!(l.layout, Layout::Pool(_))).unwrap();
        assert_eq!((pool.k.ty(), pool.v.ty()), (ty, ty));
    }
}

#[test]
fn an_impossible_ratio_names_the_largest_possible_one() {
    for method in ["gracekv", "gracekv+paper", "topk"] {
        let model = tiny::model("llama");
        let pass = PassOptions { n_lookahead: 0, ..ratio(301.0) };
        let mut with = session(engine(&model), Some((method, pass)));
        let e = with.prefill(&tokens(&model, N_PROMPT, 1), |_| Ok(())).unwrap_err();
        assert!(matches!(e, Error::Budget { .. }), "{e}");
        assert!(e.to_string().ends_with("the largest possible ratio is 300"), "{e}");
        // The largest possible one is possible.
        let pass = PassOptions { n_lookahead: 0, ..ratio(300.0) };
        let mut with = session(engine(&model), Some((method, pass)));
        with.prefill(&tokens(&model, N_PROMPT, 1), |_| Ok(())).unwrap();
        assert_eq!(with.report.unwrap().n_entries_after(), model.hp.n_layer * model.hp.n_head_kv);
    }
}

#[test]
fn a_full_context_is_an_error_after_the_pass_too() {
    let model = tiny::model("llama");
    let mut session = session(support::engine(&model, 310, 1), Some(("topk", ratio(4.0))));
    generate(&mut session, &tokens(&model, N_PROMPT, 1), 10);
    // As many entries as a dense cache of the context would hold.
    let n = (N_PROMPT / 4 + 10..310).take_while(|_| session.step(5).is_ok()).count();
    assert_eq!(n, 310 - N_PROMPT / 4 - 10);
    let e = session.step(5).unwrap_err();
    assert_eq!(e.to_string(), "1 tokens do not fit: 0 of the context of 310 are left");
}
