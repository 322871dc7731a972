//! Sampler traces of llama.cpp (tests/golden/README.md says how they were made).

use gracekv::sample::{Chain, SampleParams};
use serde_json::Value;

const TRACES: &str = include_str!("../golden/sample/chain.json");

fn params(case: &Value) -> SampleParams {
    let float = |key: &str| case[key].as_f64().unwrap() as f32;
    let bias = |b: &Value| (b[0].as_u64().unwrap() as u32, b[1].as_f64().map_or(f32::NEG_INFINITY, |x| x as f32));
    SampleParams {
        seed: case["seed"].as_u64().unwrap() as u32,
        temperature: float("temperature"),
        top_k: case["top_k"].as_i64().unwrap() as i32,
        top_p: float("top_p"),
        min_p: float("min_p"),
        repeat_last_n: case["repeat_last_n"].as_u64().unwrap() as u32,
        repeat_penalty: float("repeat_penalty"),
        frequency_penalty: float("frequency_penalty"),
        presence_penalty: float("presence_penalty"),
        logit_bias: case["logit_bias"].as_array().unwrap().iter().map(bias).collect(),
    }
}

#[test]
fn traces_equal_those_of_llama_cpp() {
    let cases: Vec<Value> = serde_json::from_str(TRACES).unwrap();
    assert!(cases.len() >= 14);
    for case in &cases {
        let n_vocab = case["n_vocab"].as_u64().unwrap() as usize;
        let mut state = case["seed"].as_u64().unwrap() as u32;
        let mut chain = Chain::new(&params(case)).unwrap();
        for (step, want) in case["tokens"].as_array().unwrap().iter().enumerate() {
            let logits: Vec<f32> = (0..n_vocab)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let u = (state >> 8) as f32 / 16_777_216.0;
                    u * u * u * 18.0 - 9.0
                })
                .collect();
            let token = chain.sample(&logits).unwrap();
            chain.accept(token);
            assert_eq!(u64::from(token), want.as_u64().unwrap(), "{} at step {step}", case["name"]);
        }
    }
}
