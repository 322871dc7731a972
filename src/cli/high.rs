//! Checked settings: texts are read, escapes replaced, automatic values chosen, contradictions refused.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::escape::{lossy, unescape};
use super::low::{self, LowArgs, Source, Variant};
use crate::compress::registry;
use crate::error::{Error, Result};
use crate::ggml::MAX_THREADS;
use crate::sample::Constraint;
use crate::tokenizer::chat::{self, ChatTemplate, Choice, SpecialTokens};

/// Longest prompt that is read, as in llama.cpp, which counts bytes in 31 bits.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;
/// Texts that end a repetition for DRY, unless the user names others.
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Smallest context of llama.cpp.
const MIN_CTX: usize = 8;

/// Settings a run can rely on.
#[derive(Clone, Debug, PartialEq)]
pub struct HighArgs {
    /// What needs no further work.
    pub low: LowArgs,
    /// The model file.
    pub model: PathBuf,
    /// The prompt with escapes replaced; `None` when none was given.
    pub prompt: Option<String>,
    /// Its bytes where they are no UTF-8; what a tokenizer makes of them is not always what it makes of U+FFFD.
    pub prompt_bytes: Option<Vec<u8>>,
    /// The system message; escapes are not replaced in it, as in llama.cpp.
    pub system_prompt: Option<String>,
    /// Texts that stop the generation.
    pub reverse_prompts: Vec<String>,
    /// Jinja text or name of a built-in template.
    pub chat_template: Option<String>,
    /// What the answer has to match.
    pub constraint: Option<Constraint>,
    /// Texts that end a repetition for DRY, with escapes replaced.
    pub dry_breakers: Vec<Vec<u8>>,
    /// Threads for one token.
    pub n_threads: usize,
    /// Threads for the prompt.
    pub n_threads_batch: usize,
}

impl HighArgs {
    /// Checks `low`.
    ///
    /// # Errors
    /// [`Error::Usage`] for what the arguments lack or contradict, [`Error::Io`] and [`Error::Context`] for their files.
    pub fn new(mut low: LowArgs) -> Result<Self> {
        let model = low.model.clone().ok_or_else(|| Error::Usage("error: --model is required".to_string()))?;
        adjust(&mut low);
        low.kv_method = method_name(&low.kv_method, low.kv_variant)?;
        if low.kv_variant == Variant::Paper && !low.kv_method.starts_with("gracekv") {
            low.warnings.push(format!("--kv-variant is of gracekv and has no effect on --kv-method {}", low.kv_method));
        }
        let replaces = low.escape;
        let escape = |bytes: Vec<u8>| if replaces { unescape(&bytes) } else { bytes };
        let file = if matches!(low.prompt, Some(Source::Binary(_))) { "--binary-file" } else { "--file" };
        let bytes = low.prompt.as_ref().map(|s| read(s, file).map(escape)).transpose()?;
        let prompt_bytes = bytes.as_ref().filter(|bytes| std::str::from_utf8(bytes).is_err()).cloned();
        let prompt = low.prompt.as_ref().zip(bytes).map(|(s, bytes)| any_text("the prompt", bytes, s)).transpose()?;
        let system = low.system_prompt.as_ref();
        let system_prompt =
            system.map(|s| any_text("the system prompt", read(s, "--system-prompt-file")?, s)).transpose()?;
        let template = low.chat_template.as_ref();
        let chat_template =
            template.map(|s| text("the chat template", read(s, "--chat-template-file")?, s)).transpose()?;
        if let Some(given) = chat_template.as_deref() {
            // Before the model is loaded; what it says about special tokens comes later.
            let jinja = low.jinja.unwrap_or(chat::format_of(given).is_none());
            let choice = Choice { given: Some(given), own: None, jinja };
            ChatTemplate::open(choice, SpecialTokens::default(), low.template_variables.clone())?;
        }
        let reverse = low
            .reverse_prompts
            .iter()
            .map(|r| text("the reverse prompt", escape(r.clone().into_bytes()), &Source::Text(String::new())));
        let reverse_prompts = reverse.collect::<Result<Vec<_>>>()?;
        let affix = |s: &str| text("the prefix or suffix", escape(s.as_bytes().to_vec()), &Source::Text(String::new()));
        (low.in_prefix, low.in_suffix) = (affix(&low.in_prefix)?, affix(&low.in_suffix)?);
        let constraint = low.constraint.as_ref().map(constraint).transpose()?.filter(|c| !c.is_empty());
        let dry_breakers = match &low.dry_sequence_breakers {
            Some(texts) => texts.iter().map(|t| escape(t.clone().into_bytes())).collect(),
            None => DRY_BREAKERS.map(|t| t.as_bytes().to_vec()).to_vec(),
        };
        let n_threads = threads(low.n_threads, default_threads());
        let n_threads_batch = threads(low.n_threads_batch, n_threads);
        Ok(HighArgs {
            model,
            prompt,
            prompt_bytes,
            system_prompt,
            reverse_prompts,
            chat_template,
            constraint,
            dry_breakers,
            n_threads,
            n_threads_batch,
            low,
        })
    }
}

/// The full name of a method; [`Variant::Paper`] is another spelling of `gracekv+paper`.
///
/// # Errors
/// As [`registry::full_name`].
pub fn method_name(name: &str, variant: Variant) -> Result<String> {
    let name = registry::full_name(name)?;
    match variant {
        Variant::Paper if name.split('+').next() == Some("gracekv") && !name.split('+').any(|m| m == "paper") => {
            registry::full_name(&(name + "+paper"))
        }
        _ => Ok(name),
    }
}

fn adjust(low: &mut LowArgs) {
    let mut warn = |text: &str| low.warnings.push(text.to_string());
    if low.n_ctx != 0 && low.n_ctx < MIN_CTX {
        warn("minimum context size is 8, using minimum size.");
        low.n_ctx = MIN_CTX;
    }
    let is_cpu_only = low.devices.rpc.is_empty() && crate::ggml::Device::offload().is_empty();
    if low.devices.n_layers != 0 && low.given.contains("gpu-layers") && is_cpu_only {
        warn("this build finds no device beside the CPU, --gpu-layers option will be ignored");
    }
    if low.kv_discard_lookahead && low.kv_lookahead == 0 {
        warn("--kv-discard-lookahead has no effect with --kv-lookahead 0");
    }
    low.n_ubatch = low.n_ubatch.min(low.n_batch);
}

/// The bytes of a text; `option` names its file.
fn read(source: &Source, option: &str) -> Result<Vec<u8>> {
    let read_file = |path: &Path| {
        let mut bytes = Vec::new();
        let failed = |e| Error::Context { what: format!("{option} {}: {e}", path.display()) };
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_TEXT_BYTES {
            return Err(Error::Context {
                what: format!("{}: more than {MAX_TEXT_BYTES} bytes cannot be a prompt", path.display()),
            });
        }
        Ok(bytes)
    };
    match source {
        Source::Text(text) => Ok(text.clone().into_bytes()),
        Source::Binary(path) => read_file(path),
        Source::File(path) => {
            let mut bytes = read_file(path)?;
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            Ok(bytes)
        }
    }
}

/// Reads a grammar or a schema.
fn constraint(constraint: &low::Constraint) -> Result<Constraint> {
    let (what, option, source) = match constraint {
        low::Constraint::Gbnf(source) => ("the grammar", "--grammar", source),
        low::Constraint::JsonSchema(source) => ("the JSON schema", "--json-schema", source),
    };
    let text = text(what, read(source, &format!("{option}-file"))?, source)?;
    let source = match source {
        Source::Text(_) => option.to_owned(),
        Source::File(path) | Source::Binary(path) => path.display().to_string(),
    };
    Ok(match constraint {
        low::Constraint::Gbnf(_) => Constraint::Gbnf { source, text },
        low::Constraint::JsonSchema(_) => Constraint::JsonSchema { source, text },
    })
}

/// As [`text`], but each byte that is no UTF-8 becomes U+FFFD, as in llama.cpp's byte-level tokenizers.
fn any_text(what: &str, bytes: Vec<u8>, source: &Source) -> Result<String> {
    text(what, lossy(&bytes).into_bytes(), source)
}

fn text(what: &str, bytes: Vec<u8>, source: &Source) -> Result<String> {
    let place = match source {
        Source::Text(_) => String::new(),
        Source::File(path) | Source::Binary(path) => format!("{}: ", path.display()),
    };
    let refuse = |at: usize, why: &str| Error::Context { what: format!("{place}{what} has {why} at byte {at}") };
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        return Err(refuse(at, "a NUL"));
    }
    String::from_utf8(bytes).map_err(|e| refuse(e.utf8_error().valid_up_to(), "invalid UTF-8"))
}

/// The physical cores, as far as this process may use them.
fn default_threads() -> usize {
    num_cpus::get_physical().min(hardware_threads())
}

fn hardware_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

fn threads(asked: Option<usize>, default: usize) -> usize {
    match asked {
        Some(0) => hardware_threads(),
        Some(n) => n,
        None => default,
    }
}
