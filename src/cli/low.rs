//! What was typed: one field per setting, with llama.cpp's defaults, nothing opened and nothing combined yet.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Map;

use crate::ggml::Numa;
use crate::gguf::Value;
use crate::model::RopeOptions;
use crate::sample::SampleParams;

/// Something to print instead of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The help, on standard output.
    Help,
    /// The version, on standard error as llama.cpp does.
    Version,
    /// The compression methods, on standard output.
    Methods,
    /// The models in the cache, on standard output.
    CacheList,
    /// The devices, on standard output.
    Devices,
    /// A completion script for bash, on standard output.
    CompletionBash,
}

/// A setting that may be left to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOffAuto {
    /// Yes.
    On,
    /// No.
    Off,
    /// The program decides.
    #[default]
    Auto,
}

/// How the model file gets into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Mapped.
    #[default]
    Mmap,
    /// Mapped and locked.
    Mlock,
    /// Read.
    Read,
}

/// How threads are placed and how they wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in LowArgs
pub struct Placement {
    pub cpu_mask: Vec<bool>,
    pub strict: bool,
    pub priority: i32,
    pub poll: u32,
}

impl Default for Placement {
    fn default() -> Self {
        Placement { cpu_mask: Vec::new(), strict: false, priority: 0, poll: 50 }
    }
}

/// The same for prompts, where it differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in LowArgs
pub struct PlacementBatch {
    pub cpu_mask: Vec<bool>,
    pub strict: Option<bool>,
    pub priority: Option<i32>,
    pub poll: Option<u32>,
}

impl Placement {
    /// The placement for prompts: what is not given for them is the same.
    pub fn batch(&self, asked: &PlacementBatch) -> Placement {
        Placement {
            cpu_mask: if asked.cpu_mask.is_empty() { &self.cpu_mask } else { &asked.cpu_mask }.clone(),
            strict: asked.strict.unwrap_or(self.strict),
            priority: asked.priority.unwrap_or(self.priority),
            poll: asked.poll.unwrap_or(self.poll),
        }
    }
}

/// How layers are divided over devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitMode {
    /// Each device holds some.
    #[default]
    Layer,
    /// One device holds them.
    None,
}

/// Which devices are used, and what lives where.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    /// Layers that devices hold; -1 = auto, -2 = all.
    pub n_layers: i32,
    /// `None` = all devices; `none` = the CPU alone.
    pub names: Option<Vec<String>>,
    /// Servers, `host:port`.
    pub rpc: Vec<String>,
    /// One device or several.
    pub split_mode: SplitMode,
    /// Of the layers, by device; empty = by free memory.
    pub shares: Vec<f64>,
    /// The device of [`SplitMode::None`].
    pub main: usize,
    /// Caches stay on the CPU.
    pub kv_on_cpu: bool,
    /// Products with weights of the CPU stay there.
    pub ops_stay: bool,
    /// Patterns of names of weights, each with the place where they live.
    pub overrides: Vec<(String, String)>,
    /// Whether what is not given is chosen so that it fits.
    pub fit: bool,
    /// Memory to be left free, by device. Units: MiB.
    pub margins_mib: Vec<f64>,
    /// Smallest context that is chosen.
    pub min_ctx: usize,
}

impl Default for Devices {
    fn default() -> Self {
        Devices {
            n_layers: -1,
            names: None,
            rpc: Vec::new(),
            split_mode: SplitMode::Layer,
            shares: Vec::new(),
            main: 0,
            kv_on_cpu: false,
            ops_stay: false,
            overrides: Vec::new(),
            fit: true,
            margins_mib: Vec::new(),
            min_ctx: 4096,
        }
    }
}

/// Where a text comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Text(String),
    /// A file, without one line break at its end.
    File(PathBuf),
    /// A file as it is.
    Binary(PathBuf),
}

/// What the answer has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// A grammar in GBNF.
    Gbnf(Source),
    /// A JSON schema.
    JsonSchema(Source),
}

/// How small the compressed cache is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvSize {
    /// This many times smaller; 1 is the whole cache.
    Ratio(f64),
    /// Entries per head, on average.
    Tokens(usize),
}

/// Form of the gracekv method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Prototypes fitted to the queries.
    #[default]
    Fitted,
    /// As in the paper.
    Paper,
}

/// The arguments as typed.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each field is the option of its name; the tables hold the texts
pub struct LowArgs {
    pub special: Option<Special>,
    /// Lines to be printed as information.
    pub notices: Vec<String>,
    /// Lines to be printed as warnings.
    pub warnings: Vec<String>,
    /// Names ([`super::flags::Flag::id`]) of the options that were given, also by the environment.
    pub given: BTreeSet<&'static str>,
    /// Those of them that stand on the command line.
    pub typed: BTreeSet<&'static str>,

    pub kv_size: KvSize,
    pub kv_method: String,
    pub kv_variant: Variant,
    pub kv_lookahead: usize,
    pub kv_sink: Option<usize>,
    pub kv_window: Option<usize>,
    pub kv_floor: Option<f64>,
    pub kv_prototypes: Option<f64>,
    pub kv_min_tokens: usize,
    pub kv_decode_interval: usize,
    pub kv_report: Option<PathBuf>,
    pub kv_discard_lookahead: bool,
    pub kv_force: bool,

    pub prompt: Option<Source>,
    pub system_prompt: Option<Source>,
    pub escape: bool,
    pub conversation: Option<bool>,
    pub single_turn: bool,
    pub interactive: bool,
    pub interactive_first: bool,
    pub in_prefix: String,
    pub in_prefix_bos: bool,
    pub in_suffix: String,
    pub reverse_prompts: Vec<String>,
    pub multiline_input: bool,
    pub chat_template: Option<Source>,
    /// `None` = as llama-cli on a terminal, as llama-completion elsewhere.
    pub jinja: Option<bool>,
    /// Variables of the chat template, by `--chat-template-kwargs` and the options of reasoning.
    pub template_variables: Map<String, serde_json::Value>,

    pub sample: SampleParams,
    pub ignore_eos: bool,
    /// `None` stands for llama.cpp's default breakers.
    pub dry_sequence_breakers: Option<Vec<String>>,
    pub constraint: Option<Constraint>,

    pub n_ctx: usize,
    pub n_predict: i32,
    /// -1 = the whole prompt.
    pub n_keep: i32,
    pub context_shift: bool,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub flash_attn: OnOffAuto,
    pub cache_type_k: &'static str,
    pub cache_type_v: &'static str,
    pub rope: RopeOptions,
    pub prompt_cache: Option<PathBuf>,
    pub prompt_cache_all: bool,
    pub prompt_cache_ro: bool,

    pub model: Option<PathBuf>,
    pub model_url: Option<String>,
    pub hf_repo: Option<String>,
    pub hf_file: Option<String>,
    pub hf_token: Option<String>,
    pub offline: bool,
    pub load_mode: LoadMode,
    pub repack: bool,
    pub check_tensors: bool,
    pub kv_overrides: Vec<(String, Value)>,
    /// Files with their factors.
    pub loras: Vec<(PathBuf, f32)>,
    /// Files with their factors.
    pub control_vectors: Vec<(PathBuf, f32)>,
    /// First and last layer.
    pub control_range: Option<(usize, usize)>,
    /// 0 = all hardware threads.
    pub n_threads: Option<usize>,
    pub n_threads_batch: Option<usize>,
    pub placement: Placement,
    pub placement_batch: PlacementBatch,
    pub numa: Option<Numa>,
    pub devices: Devices,

    pub display_prompt: bool,
    pub special_tokens: bool,
    pub color: OnOffAuto,
    pub simple_io: bool,
    pub perf: bool,
    /// `None` = after each answer of a conversation on a terminal.
    pub show_timings: Option<bool>,
    /// Tokens between two counts of them; 0 or less = never.
    pub n_print: i32,
    pub verbose_prompt: bool,
    pub output: Option<PathBuf>,
    pub log_file: Option<PathBuf>,
    pub log_prefix: bool,
    pub log_timestamps: bool,
    pub log_colors: OnOffAuto,
    pub warmup: bool,
    /// Highest level of messages that are printed.
    pub verbosity: i32,
}

impl Default for LowArgs {
    fn default() -> Self {
        LowArgs {
            special: None,
            notices: Vec::new(),
            warnings: Vec::new(),
            given: BTreeSet::new(),
            typed: BTreeSet::new(),
            kv_size: KvSize::Ratio(1.0),
            kv_method: "gracekv".to_string(),
            kv_variant: Variant::Fitted,
            kv_lookahead: 32,
            kv_sink: None,
            kv_window: None,
            kv_floor: None,
            kv_prototypes: None,
            kv_min_tokens: 128,
            kv_decode_interval: 0,
            kv_report: None,
            kv_discard_lookahead: false,
            kv_force: false,
            prompt: None,
            system_prompt: None,
            escape: true,
            conversation: None,
            single_turn: false,
            interactive: false,
            interactive_first: false,
            in_prefix: String::new(),
            in_prefix_bos: false,
            in_suffix: String::new(),
            reverse_prompts: Vec::new(),
            multiline_input: false,
            chat_template: None,
            jinja: None,
            template_variables: Map::new(),
            sample: SampleParams::default(),
            ignore_eos: false,
            dry_sequence_breakers: None,
            constraint: None,
            n_ctx: 0,
            n_predict: -1,
            n_keep: 0,
            context_shift: false,
            n_batch: 2048,
            n_ubatch: 512,
            flash_attn: OnOffAuto::Auto,
            cache_type_k: "f16",
            cache_type_v: "f16",
            rope: RopeOptions::default(),
            prompt_cache: None,
            prompt_cache_all: false,
            prompt_cache_ro: false,
            model: None,
            model_url: None,
            hf_repo: None,
            hf_file: None,
            hf_token: None,
            offline: false,
            load_mode: LoadMode::Mmap,
            repack: true,
            check_tensors: false,
            kv_overrides: Vec::new(),
            loras: Vec::new(),
            control_vectors: Vec::new(),
            control_range: None,
            n_threads: None,
            n_threads_batch: None,
            placement: Placement::default(),
            placement_batch: PlacementBatch::default(),
            numa: None,
            devices: Devices::default(),
            display_prompt: true,
            special_tokens: false,
            color: OnOffAuto::Auto,
            simple_io: false,
            perf: true,
            show_timings: None,
            n_print: -1,
            verbose_prompt: false,
            output: None,
            log_file: None,
            log_prefix: false,
            log_timestamps: false,
            log_colors: OnOffAuto::Auto,
            warmup: true,
            verbosity: 3,
        }
    }
}
