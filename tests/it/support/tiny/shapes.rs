//! The tiny model of each architecture as a row: numbers of the header and tensors in a short notation.
//!
//! `attn_q e,q` is the tensor `attn_q.weight` of `n_embd` by `n_head * head_dim` numbers (the letters are in [`Dims`]), `+` adds a
//! bias, `*` makes it one, `-` leaves a norm without, `:mxfp4` is a type. Some architectures have variants, named behind a slash, for what one model cannot show.

use gracekv::gguf::{GgmlType, Value, Writer};

use super::{bpe_vocabulary, spm_vocabulary, Recipe, Row, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_SWA, N_VOCAB};

const N_CTX: u64 = 4096;
const N_EXPERT: u64 = 8;
const N_FF_EXPERT: u64 = 32;
const N_LATENT: u64 = 32;
const N_ROT_LATENT: u64 = 8;
const N_PLAIN: u64 = 16;
const N_VALUE: u64 = 20;
const N_LORA: u64 = 24;

/// One model.
#[derive(Clone)]
struct Shape {
    n_embd: u64,
    n_ff: u64,
    n_layer: u64,
    /// Length of a head; the model is `n_head` times as wide unless the file says otherwise.
    head_dim: u64,
    n_head_kv: u64,
    n_rot: u64,
    /// Normalises by mean and deviation, with biases.
    layer_norm: bool,
    spm: bool,
    numbers: Vec<(&'static str, u32)>,
    floats: Vec<(&'static str, f32)>,
    others: Vec<(&'static str, Value)>,
    outer: Vec<&'static str>,
    /// Tensors of the first layers where they differ.
    first: Vec<&'static str>,
    layer: Vec<&'static str>,
    /// Tensors of the second, fourth, .. layer where they differ.
    every_second: Vec<&'static str>,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            n_embd: N_EMBD,
            n_ff: N_FF,
            n_layer: 3,
            head_dim: N_EMBD / N_HEAD,
            n_head_kv: N_HEAD_KV,
            n_rot: 0,
            layer_norm: false,
            spm: false,
            numbers: Vec::new(),
            floats: Vec::new(),
            others: Vec::new(),
            outer: vec!["output e,v"],
            first: Vec::new(),
            layer: vec!["attn_norm e", QKV, "ffn_norm e", FFN],
            every_second: Vec::new(),
        }
    }
}

const QKV: &str = "attn_q e,q attn_k e,k attn_v e,k attn_output q,e";
const QKV_BIASED: &str = "attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output+ q,e";
const FFN: &str = "ffn_gate e,f ffn_up e,f ffn_down f,e";
const MLP_BIASED: &str = "ffn_up+ e,f ffn_down+ f,e";
const EXPERTS: &str = "ffn_gate_inp e,x ffn_gate_exps e,m,x ffn_up_exps e,m,x ffn_down_exps m,e,x";
const SHARED: &str = "ffn_gate_shexp e,f ffn_up_shexp e,f ffn_down_shexp f,e";
const SHARED_ONCE: &str = "ffn_gate_shexp e,m ffn_up_shexp e,m ffn_down_shexp m,e";
const SHARED_TWICE: &str = "ffn_gate_shexp e,M ffn_up_shexp e,M ffn_down_shexp M,e";
const LATENT: &str = "attn_q_a e,o attn_q_a_norm o attn_q_b o,Q attn_kv_a_mqa e,L attn_kv_a_norm l attn_k_b p,l,n \
                      attn_v_b l,w,n attn_output W,e";
const POST_NORMS: &str = "post_attention_norm e post_ffw_norm e";

/// Every model of this file: its name, and its architecture in front of a slash.
pub const NAMES: &[&str] = &[
    "qwen2",
    "llama/experts",
    "gemma2",
    "gemma",
    "phi3",
    "phi3/short",
    "phi2",
    "qwen2moe",
    "qwen3moe",
    "granite",
    "granitemoe",
    "olmo2",
    "olmo2/dense",
    "olmoe",
    "smollm3",
    "gpt-oss",
    "gpt-oss/all-experts",
    "command-r",
    "cohere2",
    "stablelm",
    "stablelm/parallel",
    "starcoder2",
    "falcon",
    "falcon/two-norms",
    "gpt2",
    "gptneox",
    "gptneox/serial",
    "glm4",
    "mistral3",
    "exaone",
    "minicpm",
    "internlm2",
    "nemotron",
    "seed_oss",
    "baichuan",
    "baichuan/alibi",
    "deepseek2",
    "deepseek2/groups",
    "deepseek2/all-experts",
    "llama4",
];

fn shape(name: &str) -> Shape {
    let base = Shape::default();
    let wide = Shape { head_dim: 32, ..base.clone() };
    let layer_norm = Shape { layer_norm: true, ..base.clone() };
    let narrow = |shape: &Shape| Shape { n_ff: N_FF_EXPERT, ..shape.clone() };
    let experts = vec![
        ("expert_count", N_EXPERT as u32),
        ("expert_used_count", if name.ends_with("all-experts") { N_EXPERT as u32 } else { 2 }),
    ];
    let sized = [experts.clone(), vec![("expert_feed_forward_length", N_FF_EXPERT as u32)]].concat();
    let sliding =
        |pattern: u32| vec![("attention.sliding_window", N_SWA as u32), ("attention.sliding_window_pattern", pattern)];
    match name {
        // Blocks of 256 numbers, which some types have.
        "llama/long-rows" => Shape { n_embd: 256, n_ff: 256, n_layer: 2, head_dim: 64, ..base },
        "llama/experts" => {
            Shape { numbers: experts, layer: vec!["attn_norm e", QKV, "ffn_norm e", WIDE_EXPERTS], ..narrow(&wide) }
        }
        "qwen2" => Shape {
            outer: vec![],
            layer: vec!["attn_norm e attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output q,e ffn_norm e", FFN],
            ..base
        },
        "gemma2" => Shape {
            n_layer: 5,
            spm: true,
            numbers: sliding(2),
            floats: vec![("attn_logit_softcapping", 3.0), ("final_logit_softcapping", 10.0)],
            outer: vec![],
            layer: vec!["attn_norm e", QKV, "ffn_norm e", FFN, POST_NORMS],
            ..wide
        },
        "gemma" => Shape { spm: true, outer: vec![], ..wide },
        "phi3" | "phi3/short" => Shape {
            n_rot: 12,
            numbers: vec![("rope.scaling.original_context_length", if name == "phi3" { 128 } else { 2048 })],
            floats: vec![("rope.scaling.attn_factor", 1.2)],
            others: vec![("rope.scaling.type", "longrope".into())],
            outer: vec!["output e,v rope_factors_long r rope_factors_short r"],
            layer: vec!["attn_norm e attn_qkv e,a attn_output q,e ffn_norm e ffn_up e,F ffn_down f,e"],
            ..base
        },
        "phi2" => Shape {
            n_rot: 8,
            outer: vec!["output+ e,v"],
            layer: vec!["attn_norm e", QKV_BIASED, MLP_BIASED],
            ..layer_norm
        },
        "qwen2moe" => Shape {
            numbers: sized,
            layer: vec![
                "attn_norm e attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output q,e ffn_norm e",
                EXPERTS,
                SHARED,
                "ffn_gate_inp_shexp e",
            ],
            ..base
        },
        "qwen3moe" => Shape {
            numbers: sized,
            layer: vec!["attn_norm e", QKV, "attn_q_norm h attn_k_norm h ffn_norm e", EXPERTS],
            ..wide
        },
        "granite" => Shape {
            floats: vec![
                ("logit_scale", 4.0),
                ("residual_scale", 0.7),
                ("embedding_scale", 3.0),
                ("attention.scale", 0.3),
            ],
            outer: vec![],
            ..wide
        },
        "granitemoe" => Shape {
            numbers: [experts, vec![("expert_shared_feed_forward_length", N_FF_EXPERT as u32)]].concat(),
            floats: vec![
                ("logit_scale", 4.0),
                ("residual_scale", 0.7),
                ("embedding_scale", 3.0),
                ("attention.scale", 0.3),
            ],
            outer: vec![],
            layer: vec!["attn_norm e", QKV, "ffn_norm e", WIDE_EXPERTS, SHARED],
            ..narrow(&wide)
        },
        "olmo2" => Shape {
            n_layer: 5,
            numbers: [sliding(4), vec![("rope.scaling.original_context_length", 64)]].concat(),
            floats: vec![("rope.scaling.factor", 4.0)],
            others: vec![("rope.scaling.type", "yarn".into())],
            layer: vec![QKV, "attn_q_norm q attn_k_norm k", POST_NORMS, FFN],
            ..base
        },
        "olmo2/dense" => Shape { layer: vec![QKV, "attn_q_norm q attn_k_norm k", POST_NORMS, FFN], ..base },
        "olmoe" => Shape {
            n_head_kv: N_HEAD,
            numbers: experts,
            layer: vec!["attn_norm e", QKV, "attn_q_norm q attn_k_norm k ffn_norm e", WIDE_EXPERTS],
            ..narrow(&base)
        },
        "smollm3" => Shape { n_layer: 5, outer: vec![], ..wide },
        "gpt-oss" | "gpt-oss/all-experts" => Shape {
            n_layer: 4,
            numbers: [sized, sliding(2), vec![("rope.scaling.original_context_length", 64)]].concat(),
            floats: vec![("rope.scaling.factor", 4.0)],
            others: vec![("rope.scaling.type", "yarn".into())],
            layer: vec![
                "attn_norm e attn_sinks n post_attention_norm e",
                QKV_BIASED,
                match name {
                    "gpt-oss" => "ffn_gate_inp+ e,x ffn_gate_exps+ e,m,x:mxfp4 ffn_up_exps+ e,m,x:mxfp4 ffn_down_exps+ m,e,x:mxfp4",
                    _ => "ffn_gate_inp+ e,x ffn_gate_exps+ e,m,x ffn_up_exps+ e,m,x ffn_down_exps+ m,e,x",
                },
            ],
            ..wide
        },
        "command-r" => Shape {
            floats: vec![("logit_scale", 0.25)],
            outer: vec![],
            layer: vec!["attn_norm- e", QKV, FFN],
            ..layer_norm
        },
        "cohere2" => Shape {
            n_layer: 5,
            numbers: sliding(4),
            floats: vec![("logit_scale", 0.25)],
            outer: vec![],
            layer: vec!["attn_norm- e", QKV, FFN],
            ..layer_norm
        },
        "stablelm" => Shape {
            n_rot: 8,
            layer: vec!["attn_norm e attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output q,e ffn_norm e", FFN],
            ..layer_norm
        },
        "stablelm/parallel" => {
            Shape { n_rot: 8, layer: vec!["attn_norm e attn_q_norm- h,n attn_k_norm- h,g", QKV, FFN], ..layer_norm }
        }
        "starcoder2" => {
            Shape { outer: vec![], layer: vec!["attn_norm e", QKV_BIASED, "ffn_norm e", MLP_BIASED], ..layer_norm }
        }
        "falcon" => Shape {
            n_head_kv: 1,
            layer: vec!["attn_norm e attn_qkv e,a attn_output q,e ffn_up e,f ffn_down f,e"],
            ..layer_norm
        },
        "falcon/two-norms" => Shape {
            layer: vec!["attn_norm e attn_norm_2 e attn_qkv e,a attn_output q,e ffn_up e,f ffn_down f,e"],
            ..layer_norm
        },
        "gpt2" => Shape {
            n_head_kv: N_HEAD,
            outer: vec!["position_embd e,c"],
            layer: vec!["attn_norm e attn_qkv+ e,a attn_output+ q,e ffn_norm e", MLP_BIASED],
            ..layer_norm
        },
        "gptneox" | "gptneox/serial" => Shape {
            n_head_kv: N_HEAD,
            n_rot: 8,
            others: vec![("use_parallel_residual", (name == "gptneox").into())],
            layer: vec!["attn_norm e attn_qkv+ e,a attn_output+ q,e ffn_norm e", MLP_BIASED],
            ..layer_norm
        },
        "glm4" => Shape {
            n_rot: 16,
            layer: vec![
                "attn_norm e attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output q,e ffn_norm e ffn_up e,F ffn_down f,e",
                POST_NORMS,
            ],
            ..wide
        },
        "mistral3" => Shape {
            numbers: vec![("rope.scaling.original_context_length", 16)],
            floats: vec![
                ("rope.scaling.factor", 8.0),
                ("rope.scaling.yarn_beta_fast", 16.0),
                ("rope.scaling.yarn_beta_slow", 2.0),
                ("rope.scaling.yarn_log_multiplier", 1.0),
                ("attention.temperature_scale", 0.5),
            ],
            others: vec![("rope.scaling.type", "yarn".into())],
            ..wide
        },
        "exaone" => Shape { outer: vec!["output e,v rope_freqs r"], ..wide },
        "minicpm" | "internlm2" => Shape { spm: true, ..base },
        "nemotron" => {
            Shape { n_rot: 8, layer: vec!["attn_norm e", QKV, "ffn_norm e ffn_up e,f ffn_down f,e"], ..layer_norm }
        }
        "seed_oss" => Shape {
            layer: vec!["attn_norm e attn_q+ e,q attn_k+ e,k attn_v+ e,k attn_output q,e post_attention_norm e", FFN],
            ..wide
        },
        // Both programs know the two models by their layers.
        "baichuan" | "baichuan/alibi" => Shape {
            n_embd: 32,
            n_ff: 32,
            head_dim: 8,
            n_layer: if name == "baichuan" { 32 } else { 40 },
            n_head_kv: N_HEAD,
            spm: true,
            ..base
        },
        "deepseek2" | "deepseek2/groups" | "deepseek2/all-experts" => {
            let groups = name == "deepseek2/groups";
            let latent = vec![
                ("attention.key_length", (N_LATENT + N_ROT_LATENT) as u32),
                ("attention.value_length", N_LATENT as u32),
                ("attention.key_length_mla", (N_PLAIN + N_ROT_LATENT) as u32),
                ("attention.value_length_mla", N_VALUE as u32),
                ("attention.kv_lora_rank", N_LATENT as u32),
                ("attention.q_lora_rank", N_LORA as u32),
                ("leading_dense_block_count", 1),
                ("expert_shared_count", 2),
                ("rope.scaling.original_context_length", 64),
            ];
            let chosen = vec![("expert_group_count", 4), ("expert_group_used_count", 2), ("expert_gating_func", 2)];
            Shape {
                n_head_kv: 1,
                n_rot: N_ROT_LATENT,
                numbers: [sized, latent, if groups { chosen } else { vec![] }].concat(),
                floats: vec![
                    ("rope.scaling.factor", 4.0),
                    ("rope.scaling.yarn_log_multiplier", 0.0707),
                    ("expert_weights_scale", 1.5),
                ],
                others: vec![("rope.scaling.type", "yarn".into()), ("expert_weights_norm", groups.into())],
                first: vec!["attn_norm e", LATENT, "ffn_norm e", FFN],
                layer: match groups {
                    true => vec!["attn_norm e", LATENT, "ffn_norm e exp_probs_b* x", EXPERTS, SHARED_TWICE],
                    false => vec!["attn_norm e", LATENT, "ffn_norm e", EXPERTS, SHARED_TWICE],
                },
                ..base
            }
        }
        "llama4" => Shape {
            n_layer: 4,
            numbers: [sized, vec![("interleave_moe_layer_step", 2)]].concat(),
            outer: vec!["output e,v rope_freqs r"],
            every_second: vec!["attn_norm e", QKV, "ffn_norm e", EXPERTS, SHARED_ONCE],
            ..wide
        },
        other => panic!("no tiny model for '{other}'; describe one in {}", file!()),
    }
}

/// Experts as wide as a dense layer.
const WIDE_EXPERTS: &str = "ffn_gate_inp e,x ffn_gate_exps e,f,x ffn_up_exps e,f,x ffn_down_exps f,e,x";

/// What the letters of the notation stand for.
struct Dims<'a>(&'a Shape);

impl Dims<'_> {
    fn of(&self, letter: &str) -> u64 {
        let (d, g) = (self.0.head_dim, self.0.n_head_kv);
        match letter {
            "e" => self.0.n_embd,
            "f" => self.0.n_ff,
            "F" => 2 * self.0.n_ff,
            "q" => d * N_HEAD,
            "k" => d * g,
            "a" => d * (N_HEAD + 2 * g),
            "h" => d,
            "n" => N_HEAD,
            "g" => g,
            "r" => (if self.0.n_rot > 0 { self.0.n_rot } else { d }) / 2,
            "x" => N_EXPERT,
            "m" => N_FF_EXPERT,
            "v" => N_VOCAB as u64,
            "c" => N_CTX,
            "l" => N_LATENT,
            "L" => N_LATENT + N_ROT_LATENT,
            "o" => N_LORA,
            "p" => N_PLAIN,
            "Q" => (N_PLAIN + N_ROT_LATENT) * N_HEAD,
            "w" => N_VALUE,
            "W" => N_VALUE * N_HEAD,
            "M" => 2 * N_FF_EXPERT,
            other => panic!("letter '{other}'"),
        }
    }
}

/// The model of this name.
pub fn recipe(name: &str) -> Recipe {
    let (shape, arch) = (shape(name), name.split('/').next().unwrap());
    let mut header = Writer::new();
    header.set("general.architecture", arch).unwrap();
    let mut set = |key: &str, value: Value| header.set(&format!("{arch}.{key}"), value).unwrap();
    let mut number = |key: &str, n: u64| set(key, (n as u32).into());
    number("block_count", shape.n_layer);
    number("context_length", N_CTX);
    number("embedding_length", shape.n_embd);
    number("feed_forward_length", shape.n_ff);
    number("attention.head_count", N_HEAD);
    number("attention.head_count_kv", shape.n_head_kv);
    if shape.head_dim * N_HEAD != shape.n_embd {
        number("attention.key_length", shape.head_dim);
        number("attention.value_length", shape.head_dim);
    }
    if shape.n_rot > 0 {
        number("rope.dimension_count", shape.n_rot);
    }
    let eps = if shape.layer_norm { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" };
    set(eps, 1e-5f32.into());
    set("rope.freq_base", 10_000f32.into());
    shape.numbers.iter().for_each(|(key, n)| set(key, (*n).into()));
    shape.floats.iter().for_each(|(key, x)| set(key, (*x).into()));
    shape.others.iter().for_each(|(key, value)| set(key, value.clone()));
    match shape.spm {
        true => spm_vocabulary(&mut header),
        false => bpe_vocabulary(&mut header),
    }
    let mut tensors = Vec::new();
    let is_plain = shape.layer.iter().any(|words| words.contains("attn_norm- e"));
    add(
        &mut tensors,
        &shape,
        "",
        if is_plain { "token_embd e,v output_norm- e" } else { "token_embd e,v output_norm e" },
    );
    shape.outer.iter().for_each(|words| add(&mut tensors, &shape, "", words));
    for il in 0..shape.n_layer {
        let words = match il {
            0 if !shape.first.is_empty() => &shape.first,
            _ if il % 2 == 1 && !shape.every_second.is_empty() => &shape.every_second,
            _ => &shape.layer,
        };
        words.iter().for_each(|words| add(&mut tensors, &shape, &format!("blk.{il}."), words));
    }
    Recipe { header, tensors }
}

fn add(tensors: &mut Vec<Row>, shape: &Shape, prefix: &str, words: &str) {
    let mut words = words.split_whitespace();
    while let (Some(name), Some(size)) = (words.next(), words.next()) {
        let (size, ty) = match size.split_once(':') {
            Some((size, "mxfp4")) => (size, GgmlType::MXFP4),
            Some((_, other)) => panic!("type '{other}'"),
            None => (size, GgmlType::F32),
        };
        let ne: Vec<u64> = size.split(',').map(|letter| Dims(shape).of(letter)).collect();
        let plain = name.trim_end_matches(['+', '-', '*']);
        let is_norm = plain.contains("norm");
        let has_bias = name.ends_with('+') || (is_norm && shape.layer_norm && !name.ends_with('-'));
        let root = (ne[0] as f32).sqrt();
        let (mean, std) = match plain {
            _ if is_norm => (1.0, 0.1),
            "token_embd" | "output" | "position_embd" => (0.0, 0.3),
            "rope_freqs" | "rope_factors_long" | "rope_factors_short" => (2.0, 0.5),
            "attn_sinks" => (0.0, 1.0),
            "attn_q" | "attn_k" => (0.0, 1.5 / root),
            // Wide enough apart that rounding does not change a choice.
            "ffn_gate_inp" => (0.0, 4.0 / root),
            _ => (0.0, 1.0 / root),
        };
        if has_bias {
            let bias = ne[1.min(ne.len() - 1)..].to_vec();
            tensors.push(Row {
                name: format!("{prefix}{plain}.bias"),
                ty: GgmlType::F32,
                ne: bias,
                mean: 0.0,
                std: 0.2,
                via: None,
            });
        }
        let kind = if name.ends_with('*') { "bias" } else { "weight" };
        tensors.push(Row { name: format!("{prefix}{plain}.{kind}"), ty, ne, mean, std, via: None });
    }
}
