//! Adapters and control vectors: they add what their definition says, and nothing where their factor is 0; wrong ones are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gracekv::gguf::{GgmlType, Gguf, Writer};
use gracekv::model::{LoadOptions, Model};
use tempfile::TempDir;

use crate::engine::tokens;
use crate::support::{decode, engine, nmse, tiny};

/// Every kind of weight, in two layers.
const WEIGHTS: [&str; 9] = [
    "blk.0.attn_q.weight",
    "blk.0.attn_k.weight",
    "blk.1.attn_v.weight",
    "blk.1.attn_output.weight",
    "blk.0.ffn_gate.weight",
    "blk.1.ffn_up.weight",
    "blk.1.ffn_down.weight",
    "output.weight",
    "token_embd.weight",
];

fn load(arch: &str) -> Model {
    gracekv::ggml::set_log(false);
    Model::load(&tiny::path(arch), LoadOptions::default()).unwrap()
}

/// Logits of a prompt and of one more token.
fn logits(model: Model) -> Vec<f32> {
    let model = Arc::new(model);
    let prompt = tokens(&model, 40, 1);
    let mut engine = engine(&model, 256, 1);
    let mut all = decode(&mut engine, &prompt);
    all.extend(decode(&mut engine, &[7]));
    all
}

fn weights(arch: &str) -> Vec<&'static str> {
    // Only llama has an output matrix of its own.
    WEIGHTS.into_iter().filter(|w| arch == "llama" || !["output.weight", "token_embd.weight"].contains(w)).collect()
}

fn adapter(dir: &TempDir, arch: &str, weights: &[&str]) -> PathBuf {
    let path = dir.path().join(format!("{arch}-{}.gguf", weights.len()));
    tiny::lora(arch, weights, &path, |_| ());
    path
}

/// A copy of a model in which the sum with its adapters is the weight.
fn merged(model: &Model, path: &Path) -> Model {
    let mut header = Writer::new();
    model.gguf.keys().for_each(|(key, value)| header.set(key, value.clone()).unwrap());
    for t in model.gguf.tensors() {
        header.add_tensor(&t.name, GgmlType::F32, &t.ne[..t.n_dims as usize]).unwrap();
    }
    let floats = |name: &str| model.dequantize(name).unwrap();
    header.write(path, |t| Ok(floats(&t.name).iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())).unwrap();
    Model::load(path, LoadOptions::default()).unwrap()
}

#[test]
fn an_adapter_equals_the_merged_weights() {
    let dir = tempfile::tempdir().unwrap();
    for arch in ["llama", "qwen2", "qwen3", "gemma3"] {
        let plain = logits(load(arch));
        for weights in std::iter::once(weights(arch)).chain(weights(arch).into_iter().map(|w| vec![w])) {
            let mut model = load(arch);
            model.add_lora(&adapter(&dir, arch, &weights), 0.7).unwrap();
            let merged = logits(merged(&model, &dir.path().join("merged.gguf")));
            let adapted = logits(model);
            // Weights of qwen are f16, and its merged ones f32: products round differently.
            let error = nmse(&merged, &adapted);
            assert!(error < 1e-5, "{arch} {weights:?}: {error:e}");
            let change = nmse(&plain, &adapted);
            assert!(change > 100.0 * error && change > 1e-4, "{arch} {weights:?}: {change:e}");
        }
    }
}

#[test]
fn the_factor_0_changes_no_bit_and_halves_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = adapter(&dir, "llama", &WEIGHTS);
    let with = |scales: &[f32]| {
        let mut model = load("llama");
        scales.iter().for_each(|&s| model.add_lora(&path, s).unwrap());
        model
    };
    assert!(logits(with(&[0.0])) == logits(load("llama")));
    let error = nmse(&logits(with(&[1.0])), &logits(with(&[0.5, 0.5])));
    // Keys are rounded to f16 in the cache.
    assert!(error < 1e-6, "{error:e}");
    let prints = [with(&[]), with(&[1.0]), with(&[0.5]), with(&[0.5, 0.5])].map(|m| m.fingerprint().unwrap());
    assert!((0..4).all(|i| (0..i).all(|j| prints[i] != prints[j])), "{prints:?}");
}

#[test]
fn a_directions_factor_is_linear_in_the_sum() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.gguf");
    tiny::control_vector(&path, |_| ());
    for arch in ["llama", "gemma3"] {
        let with = |scales: &[f32], range| {
            let mut model = load(arch);
            let files: Vec<(&Path, f32)> = scales.iter().map(|&s| (&*path, s)).collect();
            model.add_control(&files, range).unwrap();
            logits(model)
        };
        let plain = logits(load(arch));
        assert!(with(&[0.0], None) == plain && with(&[], None) == plain && with(&[1.0], Some(3..=9)) == plain);
        let one = with(&[1.0], None);
        assert!(nmse(&plain, &one) > 1e-3);
        assert!(nmse(&one, &with(&[0.25, 0.75], None)) < 1e-6);
        assert!(nmse(&one, &with(&[1.0], Some(1..=2))) == 0.0 && one != with(&[1.0], Some(2..=2)));
    }
}

#[test]
fn wrong_adapters_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.gguf");
    let refused = |change: &dyn Fn(&mut tiny::Recipe)| {
        tiny::lora("llama", &["blk.0.attn_q.weight"], &path, change);
        let text = load("llama").add_lora(&path, 1.0).unwrap_err().to_string();
        assert!(!text.contains('\n') && text.contains("wrong.gguf"), "{text}");
        text
    };
    let set = |key: &'static str, value: &'static str| move |r: &mut tiny::Recipe| r.header.set(key, value).unwrap();
    assert!(refused(&set("general.type", "model")).contains("general.type is 'model'"));
    assert!(refused(&set("adapter.type", "dora")).contains("adapter.type is 'dora'"));
    assert!(refused(&set("general.architecture", "qwen2")).contains("this model has 'llama'"));
    assert!(refused(&|r| r.header.set("adapter.lora.alpha", f32::NAN).unwrap()).contains("alpha is NaN"));
    assert!(refused(&|r| r.tensors.clear()).contains("has no tensors"));
    assert!(refused(&|r| drop(r.tensors.pop())).contains("lacks its .lora_a or .lora_b"));
    assert!(refused(&|r| r.tensors[0].name = "blk.0.attn_q.weight".into()).contains("is neither a .lora_a nor"));
    let renamed = |r: &mut tiny::Recipe| r.tensors.iter_mut().for_each(|t| t.name = t.name.replace("blk.0", "blk.9"));
    assert!(refused(&renamed).contains("the model has no tensor 'blk.9.attn_q.weight'"));
    let of_norm =
        |r: &mut tiny::Recipe| r.tensors.iter_mut().for_each(|t| t.name = t.name.replace("attn_q.w", "attn_norm.w"));
    assert!(refused(&of_norm).contains("is of another model"));
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(refused(&|r| r.tensors[i].ne[j] *= 2).contains("is of another model"), "{i} {j}");
    }
    assert!(load("llama").add_lora(&tiny::path("llama"), 1.0).is_err());
    assert!(Gguf::open(&path).is_ok(), "only what it says is wrong with the file");
    let refused = |change: &dyn Fn(&mut tiny::Recipe)| {
        tiny::control_vector(&path, change);
        load("llama").add_control(&[(&path, 1.0)], None).unwrap_err().to_string()
    };
    for name in ["direction.0", "direction.3", "direction.x", "direction.-1", "steering.1"] {
        assert!(refused(&|r| r.tensors[0].name = name.into()).contains("none of direction.1 to direction.2"), "{name}");
    }
    assert!(refused(&|r| r.tensors[0].ne[0] = 32).contains("is of another model"));
    assert!(refused(&|r| r.tensors[0].ty = GgmlType::F16).contains("is of another model"));
    assert!(refused(&|r| r.tensors.clear()).contains("has no directions"));
}
