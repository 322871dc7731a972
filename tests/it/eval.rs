//! Measurements on a real model: the control that nothing is lost at ratio 1, and that what is lost shows.

use crate::support::{engine, model, nmse, tiny};
use gracekv::compress::{by_name, MethodOptions};
use gracekv::engine::{Recorded, Taps, Want};
use gracekv::eval::kl;
use gracekv::eval::perplexity::{self, Batches, Perplexity};
use gracekv::eval::tasks::haystack;
use gracekv::eval::{Case, Setting};
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;
use gracekv::tokenizer::Tokenizer;

const BATCHES: Batches = Batches { n_batch: 512, n_ubatch: 512 };

fn case(method: &str, ratio: f64) -> Case {
    Case { method: by_name(method, &MethodOptions::default()).unwrap(), ratio }
}

#[test]
fn nothing_is_lost_at_ratio_1_and_losses_show() {
    let Some(model) = model("smollm2") else { return };
    let tokenizer = Tokenizer::load(&model.gguf).unwrap();
    let text = haystack::filler(60).join(" ");
    let passages = perplexity::chunks(&tokenizer.encode(&text, true, false).unwrap(), 256, Some(2), None).unwrap();
    let cases = [case("none", 1.0), case("gracekv", 8.0), case("streaming_llm", 32.0)];
    let setting = Setting { pass: PassOptions { force: true, ..Default::default() }, end_of_text: Vec::new() };
    let mut engine = engine(&model, 256, 2);
    let outcomes = perplexity::compare(&mut engine, &passages, &cases, &setting, |_| Ok(())).unwrap();
    let plain = perplexity::run(&mut engine, &passages, BATCHES, |_| Ok(()), |_, _| Ok(())).unwrap();

    let nll = |i: usize| outcomes[i].results.iter().flatten().map(|s| s.nll).sum::<f64>();
    let kl = |i: usize| outcomes[i].results.iter().flatten().map(|s| s.kl).sum::<f64>() / 254.0;
    assert_eq!(outcomes[0].results.iter().map(Vec::len).sum::<usize>(), 254);
    assert!(((nll(0) / 254.0).exp() / plain.value() - 1.0).abs() < 1e-6, "{} {}", nll(0), plain.value());
    // Another operation attends to a pool, and quantised activations magnify how it rounds.
    assert!(kl(1) < 5e-3 && (nll(1) - nll(0)).abs() < 0.01 * nll(0), "none at ratio 1: KL {}", kl(1));
    assert!(kl(2) > 2.0 * kl(1) && kl(3) > 2.0 * kl(2), "KL {} at ratio 1, {} and {} later", kl(1), kl(2), kl(3));
    assert!(outcomes[2].kv_bytes < outcomes[0].kv_bytes / 7.0);
}

#[test]
fn a_batch_behind_a_compressed_cache_equals_its_tokens_one_by_one() {
    let Some(model) = model("smollm2") else { return };
    let tokenizer = Tokenizer::load(&model.gguf).unwrap();
    let tokens = tokenizer.encode(&haystack::filler(60).join(" "), true, false).unwrap();
    let (prompt, rest) = tokens[..440].split_at(400);
    let pass = PassOptions { target: Target::Ratio(8.0), n_lookahead: 0, ..Default::default() };
    let method = by_name("gracekv", &MethodOptions::default()).unwrap();
    let mut session = Session::new(engine(&model, 512, 2), Some((method, pass)));
    session.prefill(prompt, |_| Ok(())).unwrap();
    assert!(session.report.is_some());
    let mut read = |n: usize| {
        let mut all = Vec::new();
        for part in rest.chunks(n) {
            let keep = |_, logits: &mut Vec<f32>| {
                all.extend_from_slice(logits);
                Ok(())
            };
            session.engine.decode(part, Want::All, &Taps::default(), &mut Recorded::default(), keep).unwrap();
        }
        session.engine.cache.truncate(prompt.len()).unwrap();
        all
    };
    let (batch, single) = (read(40), read(1));
    let error = nmse(&batch, &single);
    assert!(error < 1e-4, "NMSE {error}");
    assert_eq!(batch.len(), 40 * model.hp.n_vocab);
}

/// How many tokens ggml is given at once decides how it rounds, so a chunk is read in the parts that it has in llama-perplexity.
#[test]
fn a_chunk_is_computed_in_llama_perplexitys_parts() {
    let model = tiny::model("llama");
    let n_vocab = model.hp.n_vocab;
    let tokens: Vec<u32> = (0..400).map(|i| i * 37 % 256).collect();
    let mut engine = engine(&model, 128, 1);
    let mut in_parts = |passages: &[perplexity::Passage], parts: &[usize]| {
        let mut total = Perplexity::default();
        for passage in passages {
            engine.clear().unwrap();
            let (mut all, mut rest) = (Vec::new(), &passage.tokens[..]);
            for &n in parts {
                let part;
                (part, rest) = rest.split_at(n);
                let keep = |_, logits: &mut Vec<f32>| {
                    all.extend_from_slice(logits);
                    Ok(())
                };
                engine.decode(part, Want::All, &Taps::default(), &mut Recorded::default(), keep).unwrap();
            }
            total.extend(kl::nll(&all[64 * n_vocab..127 * n_vocab], &passage.tokens[65..]));
        }
        total.value()
    };
    let mut other = crate::support::engine(&model, 128, 1);
    let cases: [(usize, usize, usize, &[usize]); 4] = [
        (2048, 512, 3, &[128]),
        (2048, 128, 3, &[42, 42, 42, 2]),
        (128, 128, 2, &[128]),
        (64, 48, 2, &[48, 16, 48, 16]),
    ];
    for (n_batch, n_ubatch, n_chunk, parts) in cases {
        let passages = perplexity::chunks(&tokens, 128, Some(n_chunk), None).unwrap();
        let batches = Batches { n_batch, n_ubatch };
        let got = perplexity::run(&mut other, &passages, batches, |_| Ok(()), |_, _| Ok(())).unwrap().value();
        let want = in_parts(&passages, parts);
        assert!((got / want - 1.0).abs() < 1e-7, "{parts:?}: {got} {want}");
        // Other parts give another number, or nothing would be shown; the last case has less than 64 tokens either way.
        let halves = in_parts(&passages, &[64, 63]);
        assert!(n_batch == 64 || (got / halves - 1.0).abs() > 1e-6, "{parts:?}: {got} {halves}");
    }
}
