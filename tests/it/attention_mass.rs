//! Attention mass: what the prefill graph sums up is what a slow sum over all queries gives, and asking for it changes nothing.

use std::sync::Arc;

use gracekv::engine::{Engine, EngineOptions, FlashAttn, Recorded, Taps, Want};
use gracekv::ggml::Type;
use gracekv::model::Model;

use crate::engine::tokens;
use crate::support::{self, nmse, options, tiny};

/// ggml's matrix products round queries to f16.
const CLOSE: f64 = 1e-6;

/// Probabilities of all queries of a prompt, summed in f64 from tapped queries and cached keys. Shapes: `{n_tokens, n_head_kv}`.
fn slow_mass(engine: &Engine, record: &Recorded, il: usize) -> Vec<f32> {
    let (hp, n) = (&engine.model().hp, record.pos.len());
    let (dim, n_group) = (hp.head_dim_k, hp.n_group());
    let mut mass = vec![0.0f64; n * hp.n_head_kv];
    for g in 0..hp.n_head_kv {
        let mut keys = vec![0.0; dim * n];
        engine.cache.read_keys(il, g, 0, &mut keys).unwrap();
        for (u, h) in (0..n).flat_map(|u| (g * n_group..(g + 1) * n_group).map(move |h| (u, h))) {
            let q = &record.queries[il][(u * hp.n_head + h) * dim..][..dim];
            let logit = |k: &[f32]| {
                let s: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let s = s * f64::from(hp.kq_scale);
                let cap = f64::from(hp.attn_softcap);
                if cap > 0.0 {
                    cap * (s / cap).tanh()
                } else {
                    s
                }
            };
            let logits: Vec<f64> = keys.chunks_exact(dim).take(u + 1).map(logit).collect();
            let max = logits.iter().fold(f64::MIN, |a, &b| a.max(b));
            let sum: f64 = logits.iter().map(|s| (s - max).exp()).sum();
            for (mass, s) in mass[g * n..].iter_mut().zip(&logits) {
                *mass += (s - max).exp() / sum;
            }
        }
    }
    mass.into_iter().map(|x| x as f32).collect()
}

struct Run {
    engine: Engine,
    logits: Vec<f32>,
    record: Recorded,
}

fn run(model: &Arc<Model>, prompt: &[u32], options: EngineOptions, attention_mass: bool) -> Run {
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let taps = Taps { queries: (0..prompt.len() as u32).collect(), attention_mass, ..Taps::default() };
    let mut record = Recorded::default();
    let logits = engine.decode_last(prompt, &taps, &mut record).unwrap();
    Run { engine, logits, record }
}

fn check(name: &str, model: &Arc<Model>, n: usize, options: EngineOptions) {
    let prompt = tokens(model, n, 3);
    let Run { engine, logits, record } = run(model, &prompt, options.clone(), true);
    let without = run(model, &prompt, options, false);
    assert!(logits == without.logits, "{name}: logits of a run that does not ask");
    assert!(record.queries == without.record.queries && without.record.attention_mass.iter().all(Vec::is_empty));
    let hp = &model.hp;
    assert_eq!(record.attention_mass.len(), hp.n_layer);
    for (il, mass) in record.attention_mass.iter().enumerate() {
        if hp.swa[il] {
            assert!(mass.is_empty(), "{name}: layer {il} slides");
            continue;
        }
        assert_eq!(mass.len(), n * hp.n_head_kv);
        for of_head in mass.chunks_exact(n) {
            let sum: f64 = of_head.iter().map(|&x| f64::from(x)).sum();
            let want = (n * hp.n_group()) as f64;
            assert!((sum / want - 1.0).abs() < 1e-4, "{name}: layer {il} gives away {sum}, {want} expected");
        }
        let error = nmse(&slow_mass(&engine, &record, il), mass);
        assert!(error < CLOSE, "{name}: layer {il}, NMSE {error:e}");
    }
}

#[test]
fn equals_a_slow_sum_over_all_queries() {
    for name in ["llama", "qwen2", "qwen3", "gemma3"] {
        let model = tiny::model(name);
        for n_ubatch in [512, 64, 7] {
            check(name, &model, 150, EngineOptions { n_ubatch, ..options(512, 1) });
        }
        for flash_attn in [FlashAttn::On, FlashAttn::Off] {
            check(name, &model, 90, EngineOptions { flash_attn, n_ubatch: 40, ..options(512, 2) });
        }
        // The last batch is one token over a long context, which the kernel attends to.
        check(name, &model, 301, EngineOptions { n_ubatch: 300, ..options(512, 1) });
    }
    if let Some(model) = support::model("smollm2") {
        for n_ubatch in [512, 32] {
            check("smollm2", &model, 80, EngineOptions { n_ubatch, ..options(512, 2) });
        }
    }
}

#[test]
fn quantised_caches_have_one_too() {
    let options = EngineOptions { ty_k: Type::Q8_0, ty_v: Type::Q8_0, n_ubatch: 50, ..options(512, 1) };
    let model = tiny::model("qwen3");
    let Run { engine, record, .. } = run(&model, &tokens(&model, 120, 5), options, true);
    for il in 0..model.hp.n_layer {
        // The product with q8_0 keys rounds queries to 8 bits.
        let error = nmse(&slow_mass(&engine, &record, il), &record.attention_mass[il]);
        assert!(error < 1e-3, "layer {il}: NMSE {error:e}");
    }
}

#[test]
fn batches_without_logits_count_in_the_last_layer() {
    let model = tiny::model("llama");
    let prompt = tokens(&model, 60, 8);
    let whole = run(&model, &prompt, options(512, 1), true).record;
    let mut engine = Engine::new(model.clone(), options(512, 1)).unwrap();
    let taps = Taps { attention_mass: true, ..Taps::default() };
    let mut record = Recorded::default();
    engine.decode(&prompt[..25], Want::Nothing, &taps, &mut record, |_, _| Ok(())).unwrap();
    engine.decode(&prompt[25..], Want::Nothing, &taps, &mut record, |_, _| Ok(())).unwrap();
    for (whole, parts) in whole.attention_mass.iter().zip(&record.attention_mass) {
        assert!(nmse(whole, parts) < CLOSE);
    }
}

/// Among methods measured together, one that does not ask gets nothing to see.
#[test]
fn is_shown_to_those_who_asked() {
    let model = tiny::model("llama");
    let record = run(&model, &tokens(&model, 40, 2), options(512, 1), true).record;
    let taps = |attention_mass| Taps { queries: vec![38, 39], attention_mass, ..Taps::default() };
    assert!(record.at(&taps(true)).attention_mass == record.attention_mass);
    assert!(record.at(&taps(false)).attention_mass.is_empty());
}
