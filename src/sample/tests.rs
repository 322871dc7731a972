//! Laws of the chain against a slow reference; the traces of llama.cpp are in the integration tests.

use super::order::Order;
use super::*;

/// Logits that differ and have a peak, from a fixed generator.
fn logits(n_vocab: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let u = (state >> 8) as f32 / 16_777_216.0;
        u * u * u * 18.0 - 9.0
    };
    (0..n_vocab).map(|_| next()).collect()
}

/// The chain written down a second time: full sort, `f64`, no shortcuts. Returns the set of possible tokens.
fn possible(params: &SampleParams, logits: &[f32]) -> Vec<u32> {
    let mut list: Vec<(u32, f64)> = logits.iter().enumerate().map(|(i, &x)| (i as u32, f64::from(x))).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        list.truncate(params.top_k as usize);
    }
    let total: f64 = list.iter().map(|c| c.1.exp()).sum();
    let mut reached = 0.0;
    let n = list.iter().take_while(|c| {
        let before = reached;
        reached += c.1.exp() / total;
        before < f64::from(params.top_p)
    });
    let mut list: Vec<_> = n.copied().collect();
    let best = list[0].1.exp();
    list.retain(|c| c.1.exp() >= best * f64::from(params.min_p));
    if params.temperature <= 0.0 {
        list.truncate(1);
    }
    list.into_iter().map(|c| c.0).collect()
}

fn chain(params: &SampleParams) -> Chain {
    Chain::new(params).unwrap()
}

#[test]
fn only_and_all_tokens_of_the_reference_are_drawn() {
    for (top_k, top_p, min_p, temperature) in [
        (40, 0.95, 0.05, 0.8),
        (5, 1.0, 0.0, 1.0),
        (0, 0.5, 0.0, 1.0),
        (0, 1.0, 0.6, 5.0),
        (0, 0.999, 0.0, 9.0),
        (40, 0.95, 0.05, 0.0),
    ] {
        let params = SampleParams { seed: 1, top_k, top_p, min_p, temperature, ..SampleParams::default() };
        let logits = logits(300, 11);
        let mut chain = chain(&params);
        let n = if cfg!(miri) { 50 } else { 20_000 };
        let mut drawn: Vec<u32> = (0..n).map(|_| chain.sample(&logits).unwrap()).collect();
        drawn.sort_unstable();
        drawn.dedup();
        let mut want = possible(&params, &logits);
        want.sort_unstable();
        assert!(drawn.iter().all(|t| want.contains(t)), "{params:?} drew a token outside of the set");
        if !cfg!(miri) && (temperature >= 5.0 || want.len() < 10) {
            assert_eq!(drawn, want, "{params:?}");
        }
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let params =
        SampleParams { seed: 3, top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 1.0, ..SampleParams::default() };
    let logits = [0.0, 1.0, 2.0, -1.0];
    let mut chain = chain(&params);
    let mut counts = [0.0f64; 4];
    let n = if cfg!(miri) { 2_000 } else { 200_000 };
    (0..n).for_each(|_| counts[chain.sample(&logits).unwrap() as usize] += 1.0);
    let total: f64 = logits.iter().map(|&x: &f32| f64::from(x).exp()).sum();
    let chi2: f64 = logits
        .iter()
        .zip(counts)
        .map(|(&x, got)| {
            let want = f64::from(x).exp() / total * f64::from(n);
            (got - want).powi(2) / want
        })
        .sum();
    assert!(chi2 < 16.3, "chi squared with 3 degrees of freedom is {chi2} (0.1 % limit 16.3)");
}

#[test]
fn temperature_zero_takes_the_first_maximum() {
    let params = SampleParams { temperature: 0.0, ..SampleParams::default() };
    assert_eq!(chain(&params).sample(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
    let wide = SampleParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..params };
    assert_eq!(chain(&wide).sample(&[1.0, 3.0, 3.0, 2.0]).unwrap(), 1);
    assert_eq!(chain(&wide).sample(&[-0.0, 0.0]).unwrap(), 0);
}

#[test]
fn partial_selection_equals_a_full_sort() {
    let logits: Vec<f32> = logits(5_000, 5).iter().map(|x| (x * 4.0).round() / 4.0).collect();
    let mut candidates = Candidates::default();
    candidates.fill(&logits).unwrap();
    let mut full: Vec<Candidate> = candidates.list().to_vec();
    full.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
    for k in [0, 1, 2, 40, 129, 4_999, 5_000, 9_000] {
        assert_eq!(candidates.best(k), full[..k.min(5_000)], "k = {k}");
    }
}

#[test]
fn unusable_logits_are_named() {
    let mut chain = chain(&SampleParams::default());
    let is = |r: Result<u32>, what: &str| {
        let text = r.unwrap_err().to_string();
        assert!(text.starts_with(&format!("logits: expected finite numbers, got {what}")), "{text}");
    };
    is(chain.sample(&[0.0, f32::NAN, 1.0]), "NaN for token 1");
    is(chain.sample(&[0.0, 1.0, f32::INFINITY]), "inf for token 2");
    is(chain.sample(&[f32::NEG_INFINITY; 2]), "none");
    is(chain.sample(&[]), "none");
    assert_eq!(chain.sample(&[f32::NEG_INFINITY, 0.0]).unwrap(), 1);
}

#[test]
fn unusable_parameters_are_named() {
    let bad = |params: SampleParams| Chain::new(&params).err().map(|e| e.to_string()).unwrap_or_default();
    let d = SampleParams::default;
    assert!(bad(SampleParams { temperature: f32::NAN, ..d() }).contains("temperature"));
    assert!(bad(SampleParams { repeat_penalty: 0.0, ..d() }).contains("repeat penalty"));
    assert!(bad(SampleParams { logit_bias: vec![(4, f32::INFINITY)], ..d() }).contains("token 4"));
    assert!(bad(SampleParams { mirostat: 3, ..d() }).contains("Mirostat"));
    assert!(bad(SampleParams { xtc_threshold: f32::INFINITY, ..d() }).contains("XTC threshold"));
    let params = SampleParams { logit_bias: vec![(9, 1.0)], ..d() };
    assert!(chain(&params).sample(&[0.0; 9]).is_err());
    assert!(chain(&params).sample(&[0.0; 10]).is_ok());
}

#[test]
fn penalties_forget_what_left_the_window() {
    let params = SampleParams { temperature: 0.0, presence_penalty: 5.0, repeat_last_n: 2, ..SampleParams::default() };
    let mut chain = chain(&params);
    let logits = [3.0, 2.0, 1.0, 0.0];
    let mut tokens = Vec::new();
    for _ in 0..6 {
        let token = chain.sample(&logits).unwrap();
        chain.accept(token).unwrap();
        tokens.push(token);
    }
    assert_eq!(tokens, [0, 1, 2, 0, 1, 2]);
    chain.reset();
    assert_eq!(chain.sample(&logits).unwrap(), 0);
}

#[test]
fn reset_repeats_the_draws_and_random_seeds_differ() {
    let logits = logits(1_000, 8);
    let params = SampleParams { temperature: 3.0, ..SampleParams::default() };
    let mut a = chain(&params);
    let first: Vec<u32> = (0..50).map(|_| a.sample(&logits).unwrap()).collect();
    a.reset();
    let second: Vec<u32> = (0..50).map(|_| a.sample(&logits).unwrap()).collect();
    assert_eq!(first, second);
    assert_ne!(a.seed(), chain(&params).seed(), "two random seeds agree: one in 2^32 runs");
    assert_eq!(chain(&SampleParams { seed: 9, ..params }).seed(), 9);
}

#[test]
fn the_default_order_is_that_of_llama_cpp() {
    assert_eq!(DEFAULT_ORDER.join(";"), "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
    assert_eq!(SAMPLERS.iter().map(|e| e.letter).collect::<String>(), "edskypmxt");
    let line = |params: SampleParams| chain(&params).names().join(" -> ");
    let d = SampleParams::default;
    assert_eq!(
        line(SampleParams { repeat_penalty: 1.1, logit_bias: vec![(0, 1.0)], ..d() }),
        "logit-bias -> penalties -> ?dry -> ?top-n-sigma -> top-k -> ?typical -> top-p -> min-p -> ?xtc -> temp-ext -> dist"
    );
    assert_eq!(line(SampleParams { mirostat: 2, temperature: 1.0, ..d() }), "?temp -> mirostat-v2");
    assert_eq!(line(SampleParams { samplers: vec!["adaptive_p", "top_k"], ..d() }), "top-k -> adaptive-p");
}

#[test]
fn orders_are_read_as_llama_cpp_reads_them() {
    let names = |text: &str| Order::from_names(text).unwrap();
    assert_eq!(
        names("TOP-K;topp;nucleus;Temp;typ;adaptivep").names.join(" "),
        "top_k top_p top_p temperature typ_p adaptive_p"
    );
    assert_eq!(names("top_k;tfs").warnings, ["unable to match sampler by name 'tfs'"]);
    assert_eq!(names("top_k; min_p").names, ["top_k"]);
    assert_eq!(names("").warnings, ["unable to match sampler by name ''"]);
    let letters = Order::from_letters("kz?ka").unwrap();
    assert_eq!(letters.names, ["top_k", "top_k", "adaptive_p"]);
    assert_eq!(letters.warnings, ["unable to match sampler by char 'z'", "unable to match sampler by char '?'"]);
    assert_eq!(Order::from_letters("edskypmxt").unwrap().names, DEFAULT_ORDER);
    assert!(Order::from_names("infill").is_err() && Order::from_letters("ki").is_err());
}

#[test]
fn forbidding_everything_is_an_error() {
    let params =
        SampleParams { logit_bias: vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)], ..SampleParams::default() };
    for params in
        [SampleParams { mirostat: 1, ..params.clone() }, SampleParams { mirostat: 2, ..params.clone() }, params]
    {
        assert!(chain(&params).sample(&[0.0; 2]).unwrap_err().to_string().starts_with("no token can follow"));
        assert_eq!(chain(&params).sample(&[0.0; 3]).unwrap(), 2);
    }
}

/// DRY written down a second time: for every token that could come, the longest earlier occurrence of the text before it.
#[test]
fn dry_punishes_what_continues_the_longest_repetition() {
    let params = SampleParams {
        samplers: vec!["dry"],
        dry_multiplier: 0.5,
        dry_base: 2.0,
        dry_allowed_length: 1,
        dry_breakers: vec![(5, vec![])],
        ..SampleParams::default()
    };
    let mut state = 1u32;
    for _ in 0..200 {
        let mut text = Vec::new();
        for _ in 0..30 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push((state >> 16) % 6);
        }
        let mut sampler = dry::new(&params).unwrap();
        text.iter().for_each(|&t| sampler.accept(t));
        let mut candidates = Candidates::default();
        candidates.fill(&[0.0; 6]).unwrap();
        sampler.apply(&mut candidates);
        let since = text.iter().rev().position(|&t| t == 5).unwrap_or(30);
        for c in candidates.list() {
            let places = (1..30).filter(|&i| text[i] == c.id);
            let common = |i: usize| (0..i).take_while(|&n| text[i - 1 - n] == text[29 - n]).count().min(since);
            let longest = places.map(common).max().unwrap_or(0);
            let want = if longest < 1 || c.id == 5 { 0.0 } else { -0.5 * 2f32.powi(longest as i32 - 1) };
            assert_eq!(c.logit, want, "token {} after {text:?}", c.id);
        }
    }
}
