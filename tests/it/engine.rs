//! The engine: every way to attend, split a batch or place threads gives the same logits, within the rounding of its numbers.
//!
//! ggml's fused attention sums values in f16, its matrix products round queries and probabilities to f16, the kernel keeps f32:
//! the bounds below are what that costs, with room for other processors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use gracekv::cache::memory::Random;
use gracekv::engine::{Engine, EngineOptions, FlashAttn, Recorded, Taps, Want};
use gracekv::error::Error;
use gracekv::ggml::Type;
use gracekv::model::Model;

use crate::support::{self, decode, nmse, options, tiny};

/// Between two ways to attend, or two ways to split a batch, over a cache of f16.
const CLOSE: f64 = 1e-4;
/// The same for a model with quantised weights: ggml rounds activations to 8 bits, and where one lies near a step, a
/// difference in its last bit becomes one of a step.
const CLOSE_QUANTISED: f64 = 2e-3;

fn close(name: &str) -> f64 {
    if name == "smollm2" {
        CLOSE_QUANTISED
    } else {
        CLOSE
    }
}

/// The tiny model of every architecture.
fn tiny_models() -> impl Iterator<Item = (&'static str, Arc<Model>)> {
    tiny::KINDS.into_iter().map(|name| (name, tiny::model(name)))
}

/// The tiny models, and a real one where it was fetched.
fn models() -> Vec<(&'static str, Arc<Model>)> {
    tiny_models().chain(support::model("smollm2").map(|m| ("smollm2", m))).collect()
}

/// Tokens that come back in runs, as those of a text do.
pub fn tokens(model: &Model, n: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let runs: Vec<Vec<u32>> =
        (0..6).map(|_| (0..7).map(|_| 3 + random.below(model.hp.n_vocab.min(290) - 3) as u32).collect()).collect();
    (0..n).map(|i| if random.below(5) == 0 { 3 + random.below(200) as u32 } else { runs[i / 11 % 6][i % 7] }).collect()
}

fn with(model: &Arc<Model>, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = options(1024, 1);
    change(&mut options);
    Engine::new(model.clone(), options).unwrap()
}

/// Logits of all tokens, decoded together. Shapes: `{n_vocab}` per token.
fn decode_all(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let n_vocab = engine.model().hp.n_vocab;
    let mut out = Vec::new();
    let keep = |_, logits: &mut Vec<f32>| {
        out.extend(logits.chunks(n_vocab).map(<[f32]>::to_vec));
        Ok(())
    };
    engine.decode(tokens, Want::All, &Taps::default(), &mut Recorded::default(), keep).unwrap();
    out
}

/// Reads a prompt of 300 tokens, then eight one by one; gives the logits of each of the nine steps.
fn run(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens = tokens(engine.model(), 308, 1);
    let mut out = vec![decode(engine, &tokens[..300])];
    out.extend(tokens[300..].iter().map(|&t| decode(engine, &[t])));
    out
}

/// The largest error of any step.
fn worst(reference: &[Vec<f32>], x: &[Vec<f32>]) -> f64 {
    assert_eq!(reference.len(), x.len());
    assert!(x.iter().flatten().all(|v| v.is_finite()));
    reference.iter().zip(x).map(|(r, x)| nmse(r, x)).fold(0.0, f64::max)
}

#[test]
fn ways_to_attend_agree() {
    for (name, model) in models() {
        let reference = run(&mut with(&model, |o| o.flash_attn = FlashAttn::Off));
        for flash_attn in [FlashAttn::On, FlashAttn::Auto] {
            let error = worst(&reference, &run(&mut with(&model, |o| o.flash_attn = flash_attn)));
            eprintln!("{name}: {flash_attn:?} to off, NMSE {error:.1e}");
            assert!(error < close(name), "{name}: {flash_attn:?} to off, NMSE {error:e}");
        }
    }
}

#[test]
fn the_split_into_batches_does_not_matter() {
    for (name, model) in models() {
        let reference = run(&mut with(&model, |_| ()));
        for n_ubatch in [1, 7] {
            let error = worst(&reference, &run(&mut with(&model, |o| o.n_ubatch = n_ubatch)));
            eprintln!("{name}: -ub {n_ubatch} to 512, NMSE {error:.1e}");
            assert!(error < close(name), "{name}: -ub {n_ubatch}, NMSE {error:e}");
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    for (name, model) in models() {
        let reference = run(&mut with(&model, |_| ()));
        let found = run(&mut Engine::new(model.clone(), options(1024, 2)).unwrap());
        assert!(found == reference, "{name}");
    }
}

#[test]
fn graphs_are_reused_from_token_to_token() {
    let model = tiny::model("llama");
    let mut engine = with(&model, |_| ());
    run(&mut engine);
    assert_eq!(engine.n_reused, 7, "of 8 single tokens after the prompt the first builds the graph");
}

#[test]
fn quantised_caches_stay_near() {
    let bounds: [(Type, f64); 5] =
        [(Type::F32, 1e-4), (Type::BF16, 1e-3), (Type::Q8_0, 2e-3), (Type::Q5_1, 5e-2), (Type::Q4_0, 3e-1)];
    // The coarse types' errors grow with the depth of a random model; these have three to five layers and whole blocks.
    let few = ["llama", "qwen3", "gemma3", "smollm2"];
    for (name, model) in models().into_iter().filter(|(name, _)| few.contains(name)) {
        let reference = run(&mut with(&model, |_| ()));
        for (ty, bound) in bounds {
            let change = |o: &mut EngineOptions| (o.ty_k, o.ty_v) = (ty, ty);
            let error = worst(&reference, &run(&mut with(&model, change)));
            eprintln!("{name}: {ty}, NMSE {error:.1e}");
            assert!(error < bound.max(close(name)), "{name}: {ty}, NMSE {error:e}");
        }
        let off = |o: &mut EngineOptions| (o.ty_k, o.flash_attn) = (Type::Q8_0, FlashAttn::Off);
        let error = worst(&reference, &run(&mut with(&model, off)));
        assert!(error < 2e-3, "{name}: q8_0 keys without flash attention, NMSE {error:e}");
    }
}

/// The ring of the tiny gemma3 holds 256 rows at this batch size; the reference never wraps.
#[test]
fn a_sliding_window_is_a_window_over_the_whole_text() {
    let model = tiny::model("gemma3");
    let tokens = tokens(&model, 700, 2);
    let mut reference = with(&model, |o| (o.flash_attn, o.n_ubatch) = (FlashAttn::Off, 1024));
    assert!(reference.cache.n_ring() >= 700);
    let want = decode_all(&mut reference, &tokens);
    for flash_attn in [FlashAttn::Off, FlashAttn::On, FlashAttn::Auto] {
        let mut engine = with(&model, |o| (o.flash_attn, o.n_ubatch) = (flash_attn, 64));
        assert_eq!(engine.cache.n_ring(), 256);
        let mut found = decode_all(&mut engine, &tokens[..400]);
        for &t in &tokens[400..] {
            found.push(decode(&mut engine, &[t]));
        }
        let error = worst(&want, &found);
        eprintln!("{flash_attn:?}, NMSE {error:.1e}");
        assert!(error < CLOSE, "{flash_attn:?}, NMSE {error:e}");
    }
}

#[test]
fn a_token_beyond_the_window_is_not_seen() {
    // Two texts that differ only in their first token: the layers that slide make no difference 40 tokens later, but the
    // model has global layers, too, so its logits do. Without global layers they must not.
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-gemma3-sliding.gguf");
    let mut recipe = tiny::recipe("gemma3");
    recipe.header.set("gemma3.attention.sliding_window_pattern", 99u32).unwrap();
    recipe.write(&path);
    let sliding = Arc::new(Model::load(&path, Default::default()).unwrap());
    for (model, differs) in [(tiny::model("gemma3"), true), (sliding, false)] {
        let mut tokens = tokens(&model, 200, 3);
        let a = decode(&mut with(&model, |_| ()), &tokens);
        tokens[0] += 1;
        let b = decode(&mut with(&model, |_| ()), &tokens);
        assert_eq!(a != b, differs);
    }
}

/// A text of one token repeated has the same key at every position, before it is rotated: the rotation of the graph and that
/// of the host, which compression moves keys with, must be one. Behind a layer with sinks keys differ: what a token reads grows
/// with the tokens before it.
#[test]
fn keys_are_rotated_as_the_host_rotates() {
    for (name, model) in models().into_iter().filter(|(_, model)| model.hp.sinks.iter().all(Vec::is_empty)) {
        let (n, dim) = (300, model.hp.head_dim_k);
        let mut engine = with(&model, |o| (o.ty_k, o.ty_v) = (Type::F32, Type::F32));
        decode(&mut engine, &vec![40; n]);
        for il in model.hp.global_layers() {
            let mut keys = vec![0.0; n * dim];
            engine.cache.read_keys(il, model.hp.n_head_kv - 1, 0, &mut keys).unwrap();
            for (pos, key) in keys.chunks_exact_mut(dim).enumerate() {
                model.hp.rope[il].unrotate(key, pos as f32);
            }
            let error = keys.chunks_exact(dim).map(|key| nmse(&keys[..dim], key)).fold(0.0, f64::max);
            assert!(error < 1e-2 * close(name) / CLOSE, "{name}, layer {il}: NMSE {error:e}");
        }
    }
}

#[test]
fn truncating_and_going_on_is_as_if_nothing_had_been() {
    for (name, model) in tiny_models() {
        let tokens = tokens(&model, 320, 4);
        let mut engine = with(&model, |_| ());
        decode(&mut engine, &tokens[..300]);
        tokens[300..310].iter().for_each(|&t| drop(decode(&mut engine, &[t])));
        engine.cache.truncate(300).unwrap();
        let found = decode(&mut engine, &tokens[310..]);
        let mut fresh = with(&model, |_| ());
        decode(&mut fresh, &tokens[..300]);
        assert!(found == decode(&mut fresh, &tokens[310..]), "{name}");
        engine.clear().unwrap();
        let mut empty = with(&model, |_| ());
        assert!(decode(&mut engine, &tokens) == decode(&mut empty, &tokens), "{name} after clear");
    }
}

#[test]
fn what_a_window_has_dropped_cannot_come_back() {
    let model = tiny::model("gemma3");
    let mut engine = with(&model, |o| o.n_ubatch = 64);
    decode(&mut engine, &tokens(&model, 400, 5));
    let e = engine.cache.truncate(100).unwrap_err();
    assert!(matches!(e, Error::Context { .. }), "{e}");
    engine.cache.truncate(0).unwrap();
}

#[test]
fn wrong_requests_are_errors() {
    let model = tiny::model("llama");
    let none = |engine: &mut Engine, tokens: &[u32]| {
        engine.decode_last(tokens, &Taps::default(), &mut Recorded::default()).unwrap_err().to_string()
    };
    let mut engine = with(&model, |o| o.n_ctx = 20);
    assert_eq!(none(&mut engine, &[5; 21]), "21 tokens do not fit: 20 of the context of 20 are left");
    decode(&mut engine, &[5; 20]);
    assert_eq!(none(&mut engine, &[5]), "1 tokens do not fit: 0 of the context of 20 are left");
    assert_eq!(none(&mut with(&model, |_| ()), &[1, 300, 2]), "token 300 is not of the vocabulary of 300",);
    let with_error = |change: &dyn Fn(&mut EngineOptions)| {
        let mut options = options(64, 1);
        change(&mut options);
        Engine::new(model.clone(), options).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let e = with_error(&|o| (o.ty_v, o.flash_attn) = (Type::Q8_0, FlashAttn::Off));
    assert_eq!(e, "-ctv q8_0 needs flash attention; use -fa on or auto instead of -fa off");
    let e = with_error(&|o| o.ty_k = Type::Q4_K);
    assert_eq!(e, "-ctk q4_K needs heads of a multiple of 256 numbers; this model has 32; use f16");
    assert!(with_error(&|o| o.n_ctx = 0).contains("dimensions"));
}

/// Ctrl-C does not wait for a batch of many tokens: what was stopped leaves no trace, whichever layers a model has.
#[test]
fn a_stopped_batch_leaves_the_cache_as_it_was() {
    for (name, model) in models() {
        let tokens = tokens(&model, 220, 5);
        let (begin, rest) = tokens.split_at(90);
        let mut undisturbed = with(&model, |o| o.n_ubatch = 64);
        decode(&mut undisturbed, begin);
        let expected = decode(&mut undisturbed, rest);

        let mut engine = with(&model, |o| o.n_ubatch = 64);
        let stop = Arc::new(AtomicBool::new(false));
        engine.set_stop(stop.clone());
        for micros in [0, 30, 100, 300, 1000, 3000] {
            engine.clear().unwrap();
            decode(&mut engine, begin);
            let result = std::thread::scope(|scope| {
                let late = || {
                    std::thread::sleep(Duration::from_micros(micros));
                    stop.store(true, Ordering::SeqCst);
                };
                match micros {
                    0 => late(),
                    _ => drop(scope.spawn(late)),
                }
                engine.decode_last(rest, &Taps::default(), &mut Recorded::default())
            });
            stop.store(false, Ordering::SeqCst);
            let n_past = engine.cache.n_past();
            match result {
                Err(Error::Interrupted) => assert_eq!((n_past - begin.len()) % 64, 0, "{name}"),
                other => assert!(micros > 0 && other.unwrap() == expected, "{name}"),
            }
            if n_past < tokens.len() {
                assert_eq!(decode(&mut engine, &tokens[n_past..]), expected, "{name}, stopped after {n_past} tokens");
            }
        }
        // A single token is finished: what was shown is in the cache.
        stop.store(true, Ordering::SeqCst);
        assert_eq!(decode(&mut engine, &[7]), decode(&mut undisturbed, &[7]), "{name}");
    }
}

/// Whatever the batches are, and whatever else is recorded.
#[test]
fn samples_are_the_queries_of_one_head_of_each_group_in_turn() {
    let model = tiny::model("llama");
    let hp = model.hp.clone();
    let (dim, n_group) = (hp.head_dim_k, hp.n_group());
    assert!(n_group > 1, "the test needs groups");
    let prompt = tokens(&model, 90, 5);
    let samples: Vec<u32> = (3..80).step_by(7).collect();
    let record = |taps: &Taps, n_ubatch: usize| {
        let mut engine = Engine::new(model.clone(), EngineOptions { n_ubatch, ..options(128, 1) }).unwrap();
        let mut record = Recorded::default();
        engine.decode_last(&prompt, taps, &mut record).unwrap();
        record
    };
    for n_ubatch in [16, 90] {
        let all = record(&Taps { queries: (0..90).collect(), ..Taps::default() }, n_ubatch);
        for queries in [vec![], vec![10, 11, 88], (70..90).collect()] {
            let taps = Taps { queries: queries.clone(), samples: samples.clone(), ..Taps::default() };
            let found = record(&taps, n_ubatch);
            assert!(found.pos == queries && all.at(&taps).queries == found.queries, "samples change no other queries");
            assert!(found.samples.iter().map(|s| s.pos).eq(samples.iter().copied()));
            assert!(found.samples.iter().enumerate().all(|(i, s)| s.head as usize == i % n_group));
            for (il, layer) in found.sample_queries.iter().enumerate() {
                let want = found.samples.iter().flat_map(|sample| {
                    let at = |g: usize| (sample.pos as usize * hp.n_head + g * n_group + sample.head as usize) * dim;
                    (0..hp.n_head_kv).flat_map(move |g| at(g)..at(g) + dim)
                });
                assert!(want.map(|i| all.queries[il][i]).eq(layer.iter().copied()), "layer {il}");
            }
            // The part of a method that samples less.
            let half = Taps { samples: samples[..5].to_vec(), ..taps.clone() };
            let part = found.at(&half);
            assert!(part.samples == found.samples[..5] && part.queries == found.queries);
            assert!(part.sample_queries.iter().zip(&found.sample_queries).all(|(p, f)| p[..] == f[..p.len()]));
            assert_eq!(part.sample_queries[0].len(), 5 * dim * hp.n_head_kv);
        }
    }
}
