//! What several test modules need: real models where they were fetched, an engine, greedy decoding.

pub mod server;
pub mod tiny;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gracekv::engine::{Engine, EngineOptions, FlashAttn, Recorded, Taps};
use gracekv::ggml::{ThreadParams, Type};
use gracekv::model::{LoadOptions, Model};

/// The real models of the tests: name and file under `models/`.
pub const MODELS: [(&str, &str); 3] = [
    ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("qwen2", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    ("gemma3", "gemma-3-270m-q4_k_m.gguf"),
];

/// `path` under `models/`; `None`, with a message, where it was not fetched and need not be there.
pub fn model_path(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(path);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("GRACEKV_REQUIRE_MODELS").is_some();
    assert!(!required, "{} is missing and GRACEKV_REQUIRE_MODELS is set", path.display());
    eprintln!("skipped: {} is missing; `make models` fetches it", path.display());
    None
}

/// The loaded model of this name.
pub fn model(name: &str) -> Option<Arc<Model>> {
    gracekv::ggml::set_log(false);
    let file = MODELS.iter().find(|(n, _)| *n == name).unwrap().1;
    Some(Arc::new(Model::load(&model_path(file)?, LoadOptions::default()).unwrap()))
}

/// Options of an engine with this context and number of threads, f16 cache.
pub fn options(n_ctx: usize, n_threads: usize) -> EngineOptions {
    EngineOptions {
        n_ctx,
        n_ubatch: 512,
        n_threads,
        n_threads_batch: n_threads,
        threads: ThreadParams::new(n_threads),
        threads_batch: None,
        flash_attn: FlashAttn::Auto,
        ty_k: Type::F16,
        ty_v: Type::F16,
    }
}

/// An engine with an f16 cache.
pub fn engine(model: &Arc<Model>, n_ctx: usize, n_threads: usize) -> Engine {
    Engine::new(model.clone(), options(n_ctx, n_threads)).unwrap()
}

/// Decodes tokens and gives the logits of the last one.
pub fn decode(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    engine.decode_last(tokens, &Taps::default(), &mut Recorded::default()).unwrap()
}

/// The first of the largest logits.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

/// Squared error over squared reference.
pub fn nmse(reference: &[f32], x: &[f32]) -> f64 {
    assert_eq!(reference.len(), x.len());
    let sum = |f: &dyn Fn(usize) -> f64| (0..x.len()).map(f).sum::<f64>();
    sum(&|i| (f64::from(x[i]) - f64::from(reference[i])).powi(2)) / sum(&|i| f64::from(reference[i]).powi(2))
}

/// The message of an error; what succeeded has none.
pub fn error<T>(result: gracekv::error::Result<T>) -> String {
    result.err().map(|e| e.to_string()).unwrap_or_default()
}
