//! Tiny models with seeded random weights, one per architecture, so that tests need no download.
//!
//! Weights are scaled so that attention is neither flat nor a single peak and logits differ clearly; the same seed gives
//! the same bytes. llama has rope factors and an output matrix of its own, gemma3 sliding windows in every
//! other layer, the last one included. Weights are not quantised, but for gpt-oss's experts: activations rounded to 8 bits would
//! hide what is compared. llama, qwen3 and gemma3 are here, all others in `shapes`.

mod shapes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use gracekv::cache::memory::Random;
use gracekv::ggml::Type;
use gracekv::gguf::{Array, GgmlType, Writer};
use gracekv::model::{LoadOptions, Model};

/// Tokens that a sliding-window layer of the gemma3 model sees.
pub const N_SWA: usize = 32;
const N_EMBD: u64 = 64;
const N_FF: u64 = 96;
const N_HEAD: u64 = 4;
const N_HEAD_KV: u64 = 2;
const HEAD_DIM: u64 = 32;
const WIDE_HEAD_DIM: u64 = 128;
const N_VOCAB: usize = 300;

/// One tensor of a model: name, type, shape, and mean and deviation of its values.
pub struct Row {
    pub name: String,
    pub ty: GgmlType,
    pub ne: Vec<u64>,
    mean: f32,
    std: f32,
    /// What values are rounded to before they become `ty`.
    via: Option<GgmlType>,
}

/// Everything that makes a model file; tests change it to make a wrong one.
pub struct Recipe {
    pub header: Writer,
    pub tensors: Vec<Row>,
}

/// The model of this architecture, written and loaded once.
pub fn model(arch: &'static str) -> Arc<Model> {
    static MODELS: OnceLock<Mutex<BTreeMap<&str, Arc<Model>>>> = OnceLock::new();
    let mut models = MODELS.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
    let load = || {
        gracekv::ggml::set_log(false);
        Arc::new(Model::load(&path(arch), LoadOptions::default()).unwrap())
    };
    models.entry(arch).or_insert_with(load).clone()
}

/// The file of the model of this architecture, written once per process.
pub fn path(arch: &str) -> PathBuf {
    static WRITING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tiny-{}.gguf", arch.replace('/', "-")));
    let mut written = WRITING.lock().unwrap_or_else(|e| e.into_inner());
    if !written.contains(&path) {
        recipe(arch).write(&path);
        written.push(path.clone());
    }
    path
}

/// The same with heads that are long enough to be transformed in a quantised cache.
pub fn wide(arch: &'static str) -> Arc<Model> {
    Arc::new(Model::load(&wide_path(arch), LoadOptions::default()).unwrap())
}

/// The file of [`wide`], written anew.
pub fn wide_path(arch: &str) -> PathBuf {
    static WRITING: Mutex<()> = Mutex::new(());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tiny-wide-{arch}.gguf"));
    let _one = WRITING.lock().unwrap_or_else(|e| e.into_inner());
    sized(arch, WIDE_HEAD_DIM).write(&path);
    path
}

/// What the model of this architecture, or a variant of it, consists of.
pub fn recipe(name: &str) -> Recipe {
    match FIRST.contains(&name) {
        true => sized(name, HEAD_DIM),
        false => shapes::recipe(name),
    }
}

/// The architectures that are described here.
const FIRST: [&str; 3] = ["llama", "qwen3", "gemma3"];

/// Models that differ in what cache and pass see: rotations and none, parts of a key, windows, soft caps, sinks, one latent head.
/// Where there are experts, all are used: a choice among them may change with the last bit.
pub const KINDS: [&str; 8] =
    ["llama", "qwen3", "gemma3", "gemma2", "smollm3", "gpt-oss/all-experts", "phi2", "deepseek2/all-experts"];

/// All tiny models, architectures and variants.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    FIRST.into_iter().chain(shapes::NAMES.iter().copied())
}

fn sized(arch: &str, head_dim: u64) -> Recipe {
    let mut header = Writer::new();
    let n_layer: u64 = match arch {
        "gemma3" => 5,
        _ => 3,
    };
    header.set("general.architecture", arch).unwrap();
    let mut number = |key: &str, n: u64| header.set(&format!("{arch}.{key}"), n as u32).unwrap();
    number("block_count", n_layer);
    number("context_length", 4096);
    number("embedding_length", N_EMBD);
    number("feed_forward_length", N_FF);
    number("attention.head_count", N_HEAD);
    number("attention.head_count_kv", N_HEAD_KV);
    number("attention.key_length", head_dim);
    number("attention.value_length", head_dim);
    if arch == "gemma3" {
        number("attention.sliding_window", N_SWA as u64);
        number("attention.sliding_window_pattern", 2);
    }
    header.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6f32).unwrap();
    header.set(&format!("{arch}.rope.freq_base"), 100_000f32).unwrap();
    match arch {
        "gemma3" => spm_vocabulary(&mut header),
        _ => bpe_vocabulary(&mut header),
    }
    Recipe { header, tensors: tensors(arch, n_layer, head_dim) }
}

fn tensors(arch: &str, n_layer: u64, head_dim: u64) -> Vec<Row> {
    let matrix_ty = match arch {
        "qwen3" => GgmlType::F16,
        _ => GgmlType::F32,
    };
    let mut out: Vec<Row> = Vec::new();
    let mut add = |name: String, ty: GgmlType, ne: &[u64], mean: f32, std: f32| {
        out.push(Row { name, ty, ne: ne.to_vec(), mean, std, via: None });
    };
    let f32 = GgmlType::F32;
    add("token_embd.weight".into(), f32, &[N_EMBD, N_VOCAB as u64], 0.0, 0.3);
    add("output_norm.weight".into(), f32, &[N_EMBD], 1.0, 0.1);
    if arch == "llama" {
        add("output.weight".into(), f32, &[N_EMBD, N_VOCAB as u64], 0.0, 0.3);
        add("rope_freqs.weight".into(), f32, &[head_dim / 2], 2.0, 0.5);
    }
    let has_qk_norm = ["qwen3", "gemma3"].contains(&arch);
    for il in 0..n_layer {
        let name = |what: &str| format!("blk.{il}.{what}");
        let mut matrix = |what: &str, n_in: u64, n_out: u64, gain: f32| {
            add(name(what), matrix_ty, &[n_in, n_out], 0.0, gain / (n_in as f32).sqrt());
        };
        matrix("attn_q.weight", N_EMBD, head_dim * N_HEAD, 1.5);
        matrix("attn_k.weight", N_EMBD, head_dim * N_HEAD_KV, 1.5);
        matrix("attn_v.weight", N_EMBD, head_dim * N_HEAD_KV, 1.0);
        matrix("attn_output.weight", head_dim * N_HEAD, N_EMBD, 1.0);
        matrix("ffn_gate.weight", N_EMBD, N_FF, 1.0);
        matrix("ffn_up.weight", N_EMBD, N_FF, 1.0);
        matrix("ffn_down.weight", N_FF, N_EMBD, 1.0);
        let mut vector = |what: &str, n: u64, mean: f32, std: f32| add(name(what), f32, &[n], mean, std);
        vector("attn_norm.weight", N_EMBD, 1.0, 0.1);
        vector("ffn_norm.weight", N_EMBD, 1.0, 0.1);
        if has_qk_norm {
            vector("attn_q_norm.weight", head_dim, 1.5, 0.1);
            vector("attn_k_norm.weight", head_dim, 1.5, 0.1);
        }
        if arch == "gemma3" {
            vector("post_attention_norm.weight", N_EMBD, 1.0, 0.1);
            vector("post_ffw_norm.weight", N_EMBD, 1.0, 0.1);
        }
    }
    out
}

impl Recipe {
    /// Writes the file; the values depend on nothing but the names and shapes.
    pub fn write(mut self, path: &Path) {
        for t in &self.tensors {
            self.header.add_tensor(&t.name, t.ty, &t.ne).unwrap();
        }
        let tensors = &self.tensors;
        let bytes = |info: &gracekv::gguf::TensorInfo| {
            let t = tensors.iter().find(|t| t.name == info.name).unwrap();
            let seed = t.name.bytes().fold(7u64, |seed, b| seed.wrapping_mul(31).wrapping_add(b.into()));
            let n: u64 = t.ne.iter().product();
            let mut values = Random(seed).vector(n as usize, t.std);
            values.iter_mut().for_each(|x| *x += t.mean);
            if let Some(via) = t.via {
                let rounded = quantized(via, &values, t.ne[0] as usize);
                assert!(Type::from_id(via.id()).unwrap().to_f32(&rounded, &mut values));
            }
            let out = quantized(t.ty, &values, t.ne[0] as usize);
            assert_eq!(out.len(), info.n_bytes as usize);
            Ok(out)
        };
        self.header.write(path, bytes).unwrap();
    }

    /// Writes the file with tensors of zeros.
    pub fn write_zeros(mut self, path: &Path) {
        for t in &self.tensors {
            self.header.add_tensor(&t.name, t.ty, &t.ne).unwrap();
        }
        self.header.write(path, |info| Ok(vec![0; info.n_bytes as usize])).unwrap();
    }
}

/// Values in a type, every place of a row being equally important.
fn quantized(ty: GgmlType, values: &[f32], n_per_row: usize) -> Vec<u8> {
    let ty = Type::from_id(ty.id()).unwrap();
    let mut out = vec![0u8; ty.row_size(values.len())];
    assert!(ty.quantize(values, n_per_row, Some(&vec![1.0; n_per_row]), &mut out), "{ty}");
    out
}

/// A llama with matrices of this type, whose rows are long enough for its blocks; `back`, those matrices turned back to `f32`.
pub fn in_type(ty: GgmlType, back: bool) -> Recipe {
    let mut recipe = shapes::recipe("llama/long-rows");
    for t in recipe.tensors.iter_mut().filter(|t| t.ne.len() > 1) {
        (t.ty, t.via) = if back { (GgmlType::F32, Some(ty)) } else { (ty, None) };
    }
    recipe
}

fn set_tokens(header: &mut Writer, tokens: Vec<Vec<u8>>, types: Vec<i32>) {
    assert_eq!(tokens.len(), N_VOCAB);
    header.set("tokenizer.ggml.tokens", Array::Str(tokens.iter().collect())).unwrap();
    header.set("tokenizer.ggml.token_type", Array::I32(types)).unwrap();
}

/// Byte-level BPE: GPT-2's 256 characters, a few merges, and the end of text.
fn bpe_vocabulary(header: &mut Writer) {
    let mut next = 0x100u32;
    let mut tokens: Vec<String> = (0..=255u32)
        .map(|b| {
            let printable = matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let c = if printable { b } else { next };
            next += u32::from(!printable);
            char::from_u32(c).unwrap().to_string()
        })
        .collect();
    let pairs =
        [("\u{120}", "t"), ("h", "e"), ("\u{120}t", "he"), ("i", "n"), ("\u{120}", "a"), ("a", "n"), ("e", "r")];
    tokens.extend(pairs.iter().map(|(a, b)| format!("{a}{b}")));
    let merges: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
    while tokens.len() < N_VOCAB - 1 {
        tokens.push(format!("<|extra_{}|>", tokens.len()));
    }
    tokens.push("<|endoftext|>".into());
    let types = tokens.iter().map(|t| if t.starts_with("<|") { 3 } else { 1 }).collect();
    header.set("tokenizer.ggml.model", "gpt2").unwrap();
    header.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    header.set("tokenizer.ggml.merges", Array::Str(merges.iter().collect())).unwrap();
    let end = N_VOCAB as u32 - 1;
    header.set("tokenizer.ggml.bos_token_id", end).unwrap();
    header.set("tokenizer.ggml.eos_token_id", end).unwrap();
    header.set("tokenizer.ggml.add_bos_token", false).unwrap();
    set_tokens(header, tokens.into_iter().map(String::into_bytes).collect(), types);
}

/// SPM: three special tokens, all bytes, and some pieces with scores.
fn spm_vocabulary(header: &mut Writer) {
    let mut tokens: Vec<String> = ["<unk>", "<bos>", "<eos>"].map(String::from).into();
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255u32).map(|b| format!("<0x{b:02X}>")));
    types.extend([6; 256]);
    tokens.extend(["\u{2581}", "\u{2581}the", "\u{2581}t", "he", "in", "er", "an"].map(String::from));
    tokens.extend(('a'..='z').map(String::from));
    while tokens.len() < N_VOCAB {
        tokens.push(format!("piece{}", tokens.len()));
    }
    types.resize(N_VOCAB, 1);
    let scores = (0..N_VOCAB).map(|i| -(i as f32)).collect();
    header.set("tokenizer.ggml.model", "llama").unwrap();
    header.set("tokenizer.ggml.scores", Array::F32(scores)).unwrap();
    header.set("tokenizer.ggml.bos_token_id", 1u32).unwrap();
    header.set("tokenizer.ggml.eos_token_id", 2u32).unwrap();
    set_tokens(header, tokens.into_iter().map(String::into_bytes).collect(), types);
}

/// Rank of the factors of [`lora`].
pub const RANK: u64 = 4;

/// A LoRA adapter of the model of this architecture, with pairs for these weights; `change` may make it a wrong one.
pub fn lora(arch: &str, weights: &[&str], path: &Path, change: impl FnOnce(&mut Recipe)) {
    let mut header = Writer::new();
    header.set("general.type", "adapter").unwrap();
    header.set("general.architecture", arch).unwrap();
    header.set("adapter.type", "lora").unwrap();
    header.set("adapter.lora.alpha", 8f32).unwrap();
    let model = recipe(arch);
    let mut tensors = Vec::new();
    for weight in weights {
        let base = &model.tensors.iter().find(|t| t.name == *weight).unwrap_or_else(|| panic!("{weight}")).ne;
        // The factors of embeddings lie the other way round.
        let (a, b) = match *weight {
            "token_embd.weight" => ([RANK, base[1]], [RANK, base[0]]),
            _ => ([base[0], RANK], [RANK, base[1]]),
        };
        for (side, ne) in [("lora_a", a), ("lora_b", b)] {
            let std = 0.5 / (ne[0] as f32).sqrt();
            tensors.push(Row {
                name: format!("{weight}.{side}"),
                ty: GgmlType::F32,
                ne: ne.to_vec(),
                mean: 0.0,
                std,
                via: None,
            });
        }
    }
    let mut recipe = Recipe { header, tensors };
    change(&mut recipe);
    recipe.write(path);
}

/// A control vector with directions for layers 1 and 2 of a tiny model.
pub fn control_vector(path: &Path, change: impl FnOnce(&mut Recipe)) {
    let mut header = Writer::new();
    header.set("general.architecture", "controlvector").unwrap();
    let row = |il| Row {
        name: format!("direction.{il}"),
        ty: GgmlType::F32,
        ne: vec![N_EMBD],
        mean: 0.0,
        std: 0.5,
        via: None,
    };
    let mut recipe = Recipe { header, tensors: vec![row(1), row(2)] };
    change(&mut recipe);
    recipe.write(path);
}
