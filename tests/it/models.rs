//! Every architecture on its tiny model: logits of llama.cpp, nothing changed at ratio 1, a pass that runs. And the table of
//! README.md that says so: `UPDATE_EXPECT=1 cargo test --release --test it models` renews it, NMSE included.

use std::sync::Arc;

use gracekv::compress::{by_name, MethodOptions};
use gracekv::engine::{Engine, EngineOptions, FlashAttn, Recorded, Taps, Want};
use gracekv::ggml::Type;
use gracekv::model::{Model, ARCHITECTURES};
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;

use crate::engine::tokens;
use crate::support::{self, argmax, nmse, options, tiny};

/// As in `scripts/tiny_logits.cpp`.
const N_TOKENS: usize = 64;
const STRIDE: usize = 20;
/// Squared error of logits, relative to their squares.
const MAX_NMSE: f64 = 1e-5;
/// The same with an f16 cache and fused attention, which sums in f16; quantised experts round what comes of it to 8 bits.
const MAX_NMSE_F16: f64 = 5e-3;

/// The tokens of `scripts/tiny_logits.cpp`.
fn golden_tokens(n_vocab: usize) -> Vec<u32> {
    (0..N_TOKENS).map(|i| ((7919 * i + 104_729) % n_vocab) as u32).collect()
}

/// Every `STRIDE`-th logit of each of the tokens, as the golden file holds them.
fn logits(model: &Arc<Model>, change: impl FnOnce(&mut EngineOptions)) -> Vec<f32> {
    let mut options = EngineOptions { n_ubatch: N_TOKENS, ..options(256, 1) };
    change(&mut options);
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let (mut out, n_vocab) = (Vec::new(), model.hp.n_vocab);
    let on_ubatch = |_, logits: &mut Vec<f32>| {
        logits.chunks_exact(n_vocab).for_each(|row| out.extend(row.iter().step_by(STRIDE)));
        Ok(())
    };
    engine.decode(&golden_tokens(n_vocab), Want::All, &Taps::default(), &mut Recorded::default(), on_ubatch).unwrap();
    out
}

/// What llama.cpp computes for the model of this name.
fn golden(name: &str) -> Vec<f32> {
    let file = format!("tests/golden/logits/{}.f32", name.replace('/', "-"));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn exact(o: &mut EngineOptions) {
    (o.flash_attn, o.ty_k, o.ty_v) = (FlashAttn::Off, Type::F32, Type::F32);
}

#[test]
fn logits_are_those_of_llama_cpp() {
    let mut wrong = Vec::new();
    for name in tiny::names() {
        let (model, want) = (tiny::model(name), golden(name));
        let (exact, default) = (nmse(&want, &logits(&model, exact)), nmse(&want, &logits(&model, |_| ())));
        eprintln!("{name}: NMSE {exact:.1e}, as it runs by default {default:.1e}");
        if !(exact <= MAX_NMSE && default <= MAX_NMSE_F16) {
            wrong.push(format!("{name}: {exact:e}, {default:e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Batches of every size and single tokens give the same logits, so nothing depends on where a batch begins.
#[test]
fn logits_do_not_depend_on_batches() {
    for name in tiny::names() {
        let model = tiny::model(name);
        let run = |n_ubatch| {
            logits(&model, |o| {
                (o.flash_attn, o.ty_k, o.ty_v, o.n_ubatch) = (FlashAttn::Off, Type::F32, Type::F32, n_ubatch)
            })
        };
        let want = run(N_TOKENS);
        for n_ubatch in [1, 7] {
            let error = nmse(&want, &run(n_ubatch));
            assert!(error <= MAX_NMSE, "{name}, batches of {n_ubatch}: NMSE {error:e}");
        }
    }
}

/// Logits of a prompt and of tokens after it; with a ratio, the prompt is compressed first.
fn run(model: &Arc<Model>, ratio: Option<(f64, bool)>) -> (Vec<Vec<f32>>, Session) {
    const N_PROMPT: usize = 300;
    let method = ratio.map(|(ratio, force)| {
        let pass = PassOptions { target: Target::Ratio(ratio), n_lookahead: 4, force, ..PassOptions::default() };
        (by_name("gracekv", &MethodOptions::default()).unwrap(), pass)
    });
    let mut session = Session::new(support::engine(model, 1024, 1), method);
    let mut out = vec![session.prefill(&tokens(model, N_PROMPT, 1), |_| Ok(())).unwrap()];
    for _ in 0..8 {
        let next = argmax(&out[out.len() - 1]);
        out.push(session.step(next).unwrap());
    }
    (out, session)
}

#[test]
fn ratio_1_changes_nothing_and_ratio_4_runs() {
    for name in tiny::names() {
        let model = tiny::model(name);
        let (want, _) = run(&model, None);
        assert!(run(&model, Some((1.0, false))).0 == want, "{name} at ratio 1");
        if model.hp.alibi_max_bias > 0.0 {
            continue; // The next test.
        }
        let (found, session) = run(&model, Some((1.0, true)));
        let error = want.iter().zip(&found).map(|(w, f)| nmse(w, f)).fold(0.0, f64::max);
        assert!(session.report.is_some() && error <= 1e-8, "{name}, a forced pass at ratio 1: NMSE {error:e}");
        let (found, session) = run(&model, Some((4.0, false)));
        assert!(session.report.unwrap().achieved_ratio() >= 3.99, "{name}");
        assert!(found.iter().flatten().all(|x| x.is_finite()), "{name} at ratio 4");
    }
}

#[test]
fn a_pass_is_refused_where_entries_count_by_their_distance() {
    let model = tiny::model("baichuan/alibi");
    let pass = PassOptions { target: Target::Ratio(4.0), n_lookahead: 0, ..PassOptions::default() };
    let method = by_name("gracekv", &MethodOptions::default()).unwrap();
    let mut session = Session::new(support::engine(&model, 1024, 1), Some((method, pass)));
    let e = support::error(session.prefill(&tokens(&model, 300, 1), |_| Ok(())));
    assert_eq!(e, "unsupported compression: 'a model with ALiBi, whose entries count by their distance'");
}

#[test]
fn every_architecture_has_a_tiny_model_and_golden_logits() {
    for a in ARCHITECTURES {
        assert!(tiny::names().any(|name| name == a.name()), "{} has no tiny model", a.name());
    }
    for name in tiny::names() {
        assert_eq!(tiny::model(name).arch().name(), name.split('/').next().unwrap());
        assert!(golden(name).iter().all(|x| x.is_finite()) && golden(name).len() == N_TOKENS * 15, "{name}");
    }
}

/// Writes the files for `scripts/tiny_logits.cpp`.
#[test]
fn the_files_are_written() {
    for name in tiny::names() {
        let size = std::fs::metadata(tiny::path(name)).unwrap().len();
        assert!(size < 2_000_000, "{name}: {size} bytes");
    }
}

const BEGIN: &str = "<!-- models: made from src/model by UPDATE_EXPECT=1 cargo test --release --test it models -->\n";
const END: &str = "<!-- models end -->\n";

/// Models of `scripts/fetch_models.py` and what they are.
const REAL: [(&str, &str); 3] =
    [("llama", "SmolLM2 135M"), ("qwen2", "Qwen2.5-Coder 0.5B"), ("gemma3", "Gemma 3 270M")];

/// What a pass does to the layers of an architecture, given the names of its models.
fn pass_of(mut own: impl Iterator<Item = &'static str> + Clone) -> String {
    let model = tiny::model(own.clone().next().unwrap());
    let (hp, global) = (&model.hp, model.hp.global_layers());
    let turns = |il: &usize| hp.rope[*il].kind != gracekv::cache::rope::RopeKind::None;
    let mut out = match (global.len() == hp.n_layer, model.weights.layers.iter().any(|l| l.latent.is_some())) {
        (_, true) => "all layers, the one latent head".to_owned(),
        (true, _) => "all layers".to_owned(),
        (false, _) => "layers that do not slide".to_owned(),
    };
    out += match (global.iter().all(turns), global.iter().any(turns)) {
        (true, _) => "",
        (_, true) => "; some keys have no rotation",
        _ => "; keys have no rotation",
    };
    if global.iter().any(|&il| turns(&il) && hp.rope[il].n_rot < hp.head_dim_k) && !out.contains("latent") {
        out += "; part of a key is rotated";
    }
    if hp.attn_softcap > 0.0 {
        out += "; multiplicity after the soft cap";
    }
    if own.any(|name| tiny::model(name).hp.alibi_max_bias > 0.0) {
        out += "; refused under ALiBi, where an entry counts by its distance";
    }
    if hp.sinks.iter().any(|s| !s.is_empty()) {
        out += "; sinks stay in the denominator";
    }
    out
}

fn table() -> String {
    let mut out = String::from(
        "| architecture | file | checked against llama.cpp b11434 | NMSE | KV pass |\n|---|---|---|---|---|\n",
    );
    for a in ARCHITECTURES {
        let own = || tiny::names().filter(|name| name.split('/').next() == Some(a.name()));
        let error = own().map(|name| nmse(&golden(name), &logits(&tiny::model(name), exact))).fold(0.0, f64::max);
        let error = if error == 0.0 { "0".to_owned() } else { format!("{error:.0e}") };
        let real = REAL.iter().filter(|(name, _)| *name == a.name()).map(|(_, model)| format!("{model}, "));
        let variants: Vec<_> = own().filter_map(|name| name.split_once('/')).map(|(_, variant)| variant).collect();
        let variants = if variants.is_empty() { String::new() } else { format!(" ({})", variants.join(", ")) };
        let file = a.name().replace('-', "_");
        out += &format!(
            "| {} | [{file}.rs](src/model/{file}.rs) | {}{} tiny model{}{variants} | {error} | {} |\n",
            a.name(),
            real.collect::<String>(),
            own().count(),
            if own().count() == 1 { "" } else { "s" },
            pass_of(own()),
        );
    }
    out
}

#[test]
fn the_table_of_the_readme_is_the_registry() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("README.md has the table of models");
    let (found, after) = rest.split_once(END).expect("README.md has the end of the table");
    let want = table();
    // The errors differ between processors in their last digits.
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| {
            line.split(" | ").map(str::to_owned).enumerate().filter(|(i, _)| *i != 3).map(|(_, c)| c).collect()
        };
        text.lines().map(cells).collect()
    };
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{want}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(rows(found), rows(&want), "renew it: UPDATE_EXPECT=1 cargo test --release --test it models");
}
