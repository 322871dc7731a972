//! Sampler traces of llama.cpp (tests/golden/README.md says how they were made).

use gracekv::gguf::Gguf;
use gracekv::sample::order::Order;
use gracekv::sample::{breakers, Chain, SampleParams};
use gracekv::tokenizer::Tokenizer;
use serde_json::Value;

use crate::support::{model_path, tiny};

const TRACES: &str = include_str!("../golden/sample/chain.json");

const BREAKERS: &str = include_str!("../golden/sample/breakers.json");

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
            chain.accept(token).unwrap();
            assert_eq!(u64::from(token), want.as_u64().unwrap(), "{} at step {step}", case["name"]);
        }
    }
}

/// Number of token sequences, sum of their first tokens, number of the others, and the sum of these.
#[test]
fn sequence_breakers_become_the_tokens_of_llama_cpp() {
    let golden: Value = serde_json::from_str(BREAKERS).unwrap();
    for (name, cases) in golden.as_object().unwrap() {
        let Some(path) = model_path(&format!("vocab/ggml-vocab-{name}.gguf")) else { continue };
        let tokenizer = Tokenizer::load(&Gguf::open(&path).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let all = breakers(&[case[0].as_str().unwrap().into()], &tokenizer).unwrap();
            let sum = |ids: &mut dyn Iterator<Item = u32>| ids.map(u64::from).sum::<u64>();
            let tails = || all.iter().flat_map(|(_, tail)| tail.iter().copied());
            let got = [all.len() as u64, sum(&mut all.iter().map(|s| s.0)), tails().count() as u64, sum(&mut tails())];
            let want: Vec<u64> = case.as_array().unwrap()[1..].iter().map(|x| x.as_u64().unwrap()).collect();
            assert_eq!(got, *want, "{name}: {}", case[0]);
        }
    }
}

#[test]
fn models_recommend_what_the_user_has_not_set() {
    let mut gguf = Gguf::open(&tiny::path("llama")).unwrap();
    let mut set =
        |key: &str, value: gracekv::gguf::Value| gguf.set_override(&format!("general.sampling.{key}"), value).unwrap();
    set("top_k", 7u32.into());
    set("temp", 0.25f32.into());
    set("min_p", "0.5".to_owned().into());
    set("penalty_last_n", (-1i32).into());
    set("mirostat", 2u32.into());
    set("sequence", "temperature;top-k;nonsense".to_owned().into());
    let mut params = SampleParams::default();
    assert_eq!(params.recommended(&gguf, &|_| false).unwrap(), ["unable to match sampler by name 'nonsense'"]);
    let d = SampleParams::default;
    let samplers = vec!["temperature", "top_k"];
    let want = SampleParams { top_k: 7, temperature: 0.25, min_p: 0.5, repeat_last_n: 0, mirostat: 2, samplers, ..d() };
    assert_eq!(params, want);
    let mut params = d();
    let given = ["top-k", "temp", "min-p", "repeat-last-n", "mirostat", "sampler-seq"];
    assert!(params.recommended(&gguf, &|option| given.contains(&option)).unwrap().is_empty());
    assert_eq!(params, d());
}
