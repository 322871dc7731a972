//! Quantised caches: what is stored is what the model computed, up to rounding; the pass and full contexts work on them.

use std::process::{Command, Stdio};
use std::sync::Arc;

use gracekv::compress::{by_name, MethodOptions};
use gracekv::engine::{Engine, EngineOptions, FlashAttn};
use gracekv::ggml::Type;
use gracekv::model::Model;
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;

use crate::engine::tokens;
use crate::support::{decode, nmse, options, tiny};

const N_PROMPT: usize = 300;

/// Types with the error of their rounding: the square of a block's step over the square of its numbers.
const TYPES: [(Type, f64); 4] = [(Type::F16, 1e-5), (Type::Q8_0, 1e-4), (Type::Q5_1, 4e-3), (Type::Q4_0, 2e-2)];

fn engine(model: &Arc<Model>, ty: Type, flash_attn: FlashAttn) -> Engine {
    let ty_v = if flash_attn == FlashAttn::Off { Type::F32 } else { ty };
    Engine::new(model.clone(), EngineOptions { ty_k: ty, ty_v, flash_attn, ..options(1024, 1) }).unwrap()
}

fn models() -> Vec<Arc<Model>> {
    gracekv::ggml::set_log(false);
    ["llama", "gemma3"].map(tiny::wide).into()
}

#[test]
fn a_quantised_cache_is_read_as_the_model_computed_it() {
    for model in models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let read = |ty| {
            let mut engine = engine(&model, ty, FlashAttn::Auto);
            decode(&mut engine, &prompt);
            let (il, n) = (model.hp.global_layers()[0], model.hp.head_dim_k * N_PROMPT);
            let (mut keys, mut values) = (vec![0.0; n], vec![0.0; n]);
            engine.cache.read_keys(il, 1, 0, &mut keys).unwrap();
            engine.cache.read_values(il, 1, 0, &mut values).unwrap();
            (keys, values, engine.cache.layers[0].hadamard_k.is_some() && engine.cache.layers[0].hadamard_v.is_some())
        };
        let exact = read(Type::F32);
        assert!(!exact.2);
        for (ty, bound) in TYPES {
            let (keys, values, is_transformed) = read(ty);
            assert_eq!(is_transformed, ty.is_quantized(), "{ty}");
            let error = nmse(&exact.0, &keys).max(nmse(&exact.1, &values));
            eprintln!("{} {ty}: NMSE {error:.1e}", model.arch().name());
            assert!(error < bound, "{} {ty}: NMSE {error:e}", model.arch().name());
        }
    }
}

#[test]
fn every_way_to_attend_reads_a_transformed_cache() {
    for model in models() {
        let ids = tokens(&model, N_PROMPT + 4, 1);
        let run = |ty, flash_attn| {
            let mut engine = engine(&model, ty, flash_attn);
            let mut all = decode(&mut engine, &ids[..N_PROMPT]);
            ids[N_PROMPT..].iter().for_each(|&t| all.extend(decode(&mut engine, &[t])));
            all
        };
        let exact = run(Type::F32, FlashAttn::On);
        for (ty, bound) in TYPES {
            for flash_attn in [FlashAttn::Auto, FlashAttn::On, FlashAttn::Off] {
                let error = nmse(&exact, &run(ty, flash_attn));
                eprintln!("{} {ty} {flash_attn:?}: NMSE {error:.1e}", model.arch().name());
                assert!(error < 4.0 * bound, "{} {ty} {flash_attn:?}: NMSE {error:e}", model.arch().name());
            }
        }
    }
}

/// Report 16 of the reference: rounding adds little to what a pass costs.
#[test]
fn a_pass_over_a_quantised_cache_loses_what_one_over_an_exact_cache_loses() {
    for model in models() {
        let prompt = tokens(&model, N_PROMPT, 1);
        let run = |ty, method: Option<(&str, f64)>| {
            let compress = method.map(|(name, ratio)| {
                let pass = PassOptions { target: Target::Ratio(ratio), n_lookahead: 0, ..PassOptions::default() };
                (by_name(name, &MethodOptions::default()).unwrap(), pass)
            });
            let mut session = Session::new(engine(&model, ty, FlashAttn::Auto), compress);
            session.prefill(&prompt, |_| Ok(())).unwrap();
            assert_eq!(session.engine.cache.is_compressed(), method.is_some());
            (0..4).flat_map(|t| session.step(7 + t).unwrap()).collect::<Vec<f32>>()
        };
        let whole = run(Type::F32, None);
        for method in ["gracekv", "topk", "d2o"] {
            let lost = |ty, ratio| nmse(&whole, &run(ty, Some((method, ratio))));
            let (exact, rounded) = (lost(Type::F32, 2.0), lost(Type::Q8_0, 2.0));
            eprintln!("{} {method}: NMSE {exact:.1e}, of q8_0 {rounded:.1e}", model.arch().name());
            assert!(rounded < 1.5 * exact + 0.02, "{} {method}: NMSE {exact:e} {rounded:e}", model.arch().name());
        }
    }
}

/// Report 17: a context that fills up ends the text, whatever the types.
#[test]
fn a_full_quantised_context_ends_the_run() {
    for kv in [&["-ctk", "q4_0", "-ctv", "q4_0"][..], &["-ctk", "q4_0", "-ctv", "q4_0", "--kv-ratio", "4"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
            .arg("-m")
            .arg(tiny::wide_path("gemma3"))
            .args(["-no-cnv", "-c", "400", "-n", "-1", "--ignore-eos", "--temp", "0", "-t", "1", "-p"])
            .arg("the rain in the inner harbour ".repeat(8))
            .args(kv)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(0) && log.contains("context full"), "{log}");
    }
}
