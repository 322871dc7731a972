//! Sampler traces of llama.cpp (tests/golden/README.md says how they were made).

use gracekv::sample::order::Order;
use gracekv::sample::{Chain, SampleParams};
use serde_json::Value;

const TRACES: &str = include_str!("../golden/sample/chain.json");

/// The parameters of a case; what it does not name has the default.
fn params(given: &Value) -> SampleParams {
    let mut p = SampleParams::default();
    for (name, value) in given.as_object().unwrap() {
        let (float, int) = (value.as_f64().unwrap_or_default() as f32, value.as_i64().unwrap_or_default());
        let token = |v: &Value| v.as_u64().unwrap() as u32;
        match name.as_str() {
            "seed" => p.seed = int as u32,
            "samplers" => p.samplers = Order::from_letters(value.as_str().unwrap()).unwrap().names,
            "temperature" => p.temperature = float,
            "dynatemp_range" => p.dynatemp_range = float,
            "dynatemp_exponent" => p.dynatemp_exponent = float,
            "top_k" => p.top_k = int as i32,
            "top_p" => p.top_p = float,
            "min_p" => p.min_p = float,
            "top_n_sigma" => p.top_n_sigma = float,
            "typ_p" => p.typ_p = float,
            "xtc_probability" => p.xtc_probability = float,
            "xtc_threshold" => p.xtc_threshold = float,
            "repeat_last_n" => p.repeat_last_n = int as u32,
            "repeat_penalty" => p.repeat_penalty = float,
            "frequency_penalty" => p.frequency_penalty = float,
            "presence_penalty" => p.presence_penalty = float,
            "dry_multiplier" => p.dry_multiplier = float,
            "dry_base" => p.dry_base = float,
            "dry_allowed_length" => p.dry_allowed_length = int as i32,
            "dry_penalty_last_n" => p.dry_penalty_last_n = int as u32,
            "dry_breakers" => {
                let sequence = |v: &Value| v.as_array().unwrap().iter().map(token).collect::<Vec<u32>>();
                let sequences = value.as_array().unwrap().iter().map(sequence);
                p.dry_breakers = sequences.map(|s| (s[0], s[1..].to_vec())).collect();
            }
            "adaptive_target" => p.adaptive_target = float,
            "adaptive_decay" => p.adaptive_decay = float,
            "mirostat" => p.mirostat = int as i32,
            "mirostat_tau" => p.mirostat_tau = float,
            "mirostat_eta" => p.mirostat_eta = float,
            "logit_bias" => {
                let bias = |b: &Value| (token(&b[0]), b[1].as_f64().map_or(f32::NEG_INFINITY, |x| x as f32));
                p.logit_bias = value.as_array().unwrap().iter().map(bias).collect();
            }
            other => panic!("{other} is no parameter"),
        }
    }
    p
}

#[test]
fn traces_equal_those_of_llama_cpp() {
    let cases: Vec<Value> = serde_json::from_str(TRACES).unwrap();
    assert!(cases.len() >= 48);
    for case in &cases {
        let n_vocab = case["n_vocab"].as_u64().unwrap() as usize;
        let power = case["power"].as_u64().unwrap();
        let params = params(&case["params"]);
        let mut state = params.seed;
        let mut chain = Chain::new(&params).unwrap();
        for (step, want) in case["tokens"].as_array().unwrap().iter().enumerate() {
            let logits: Vec<f32> = (0..n_vocab)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let u = (state >> 8) as f32 / 16_777_216.0;
                    (0..power).fold(1.0, |x, _| x * u) * 18.0 - 9.0
                })
                .collect();
            let token = chain.sample(&logits).unwrap();
            chain.accept(token);
            assert_eq!(u64::from(token), want.as_u64().unwrap(), "{} at step {step}", case["name"]);
        }
    }
}
