//! From checked settings to a session: model, tokenizer, context size, method.

use super::console::Console;
use super::device;
use super::high::HighArgs;
use super::low::{KvSize, LoadMode, OnOffAuto, Placement};
use crate::compress::{self, MethodOptions, Named};
use crate::engine::{Engine, EngineOptions, FlashAttn};
use crate::error::{one_line, Error, Result};
use crate::ggml::{ThreadParams, Type};
use crate::gguf::Gguf;
use crate::model::{self, Hparams, LoadOptions, Model, Reader};
use crate::pass::{PassOptions, Target};
use crate::sample::{breakers, Chain, Grammar};
use crate::session::Session;
use crate::tokenizer::chat::{self, ChatTemplate, Choice, SpecialTokens};
use crate::tokenizer::Tokenizer;
use std::collections::BTreeSet;
use std::io::{Stderr, Stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded model with what belongs to it.
pub struct Loaded {
    /// Weights and numbers.
    pub model: Arc<Model>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// What reading the metadata and building the tokenizer took.
    pub vocabulary_time: Duration,
    /// The context that was asked for, or the one that fits.
    pub n_ctx: usize,
}

/// Loads model and tokenizer; notices for the user go to `notice`.
///
/// # Errors
/// When the file is missing, damaged or not supported, or does not fit memory together with its cache.
pub fn load(args: &HighArgs, notice: &mut dyn FnMut(String)) -> Result<Loaded> {
    let low = &args.low;
    if let Some(numa) = low.numa {
        numa.init();
    }
    let start = Instant::now();
    let mut gguf = Gguf::open(&args.model)?;
    let header_time = start.elapsed();
    let mut overridden = BTreeSet::new();
    // As in llama.cpp, the first of several values for a key counts.
    for (key, value) in low.kv_overrides.iter().filter(|(key, _)| overridden.insert(key)) {
        gguf.set_override(key, value.clone())?;
    }
    let hp = model::architecture(&gguf)?.hparams(&Reader::new(&gguf, low.rope))?;
    let (offload, n_ctx) = device::fit(args, &gguf, &hp, device::choose(&low.devices)?, notice)?;
    let n_trained = trained(args, &hp);
    if low.n_ctx > n_trained {
        notice(format!("model was trained on only {n_trained} context tokens ({} specified)", low.n_ctx));
    }
    let options = LoadOptions {
        mmap: low.load_mode != LoadMode::Read,
        mlock: low.load_mode == LoadMode::Mlock,
        repack: low.repack,
        check_tensors: low.check_tensors,
        rope: low.rope,
        offload,
    };
    let mut model = Model::from_gguf(gguf, options)?;
    for (path, scale) in &low.loras {
        model.add_lora(path, *scale).map_err(|e| named("LoRA adapter", &e))?;
    }
    let vectors: Vec<(&Path, f32)> = low.control_vectors.iter().map(|(path, scale)| (&**path, *scale)).collect();
    let range = low.control_range.map(|(first, last)| first..=last);
    model.add_control(&vectors, range).map_err(|e| named("control vector", &e))?;
    let start = Instant::now();
    let tokenizer = Tokenizer::load(&model.gguf)?;
    let vocabulary_time = header_time + start.elapsed();
    if tokenizer.n_vocab() as usize != model.hp.n_vocab {
        return Err(Error::gguf(
            &args.model,
            format!("the tokenizer has {} tokens, the model {}", tokenizer.n_vocab(), model.hp.n_vocab),
        ));
    }
    Ok(Loaded { model: Arc::new(model), tokenizer, vocabulary_time, n_ctx })
}

/// An error of a file beside the model, which does not say what the file is.
fn named(what: &str, e: &Error) -> Error {
    Error::Context { what: format!("{what} {e}") }
}

/// A session on the model.
///
/// # Errors
/// When the memory cannot be had, or the settings do not fit the model.
pub fn session(args: &HighArgs, loaded: &Loaded) -> Result<Session> {
    let low = &args.low;
    let engine = Engine::new(loaded.model.clone(), engine_options(args, loaded.n_ctx)?)?;
    let mut session = Session::new(engine, compression(args)?);
    session.decode_interval = low.kv_decode_interval;
    session.n_predict = usize::try_from(low.n_predict).ok();
    Ok(session)
}

/// Sizes, types and threads of an engine with a context of `n_ctx` tokens.
///
/// # Errors
/// When a cache type is not supported.
pub fn engine_options(args: &HighArgs, n_ctx: usize) -> Result<EngineOptions> {
    let low = &args.low;
    let threads = |placement: Placement| ThreadParams {
        n_threads: args.n_threads.max(args.n_threads_batch),
        poll: placement.poll,
        priority: placement.priority,
        cpu_mask: placement.cpu_mask,
        strict_cpu: placement.strict,
    };
    let batch = low.placement.batch(&low.placement_batch);
    Ok(EngineOptions {
        n_ctx,
        n_ubatch: low.n_ubatch,
        n_threads: args.n_threads,
        n_threads_batch: args.n_threads_batch,
        threads_batch: (batch != low.placement).then(|| threads(batch)),
        threads: threads(low.placement.clone()),
        flash_attn: match low.flash_attn {
            OnOffAuto::On => FlashAttn::On,
            OnOffAuto::Off => FlashAttn::Off,
            OnOffAuto::Auto => FlashAttn::Auto,
        },
        ty_k: cache_type(low.cache_type_k)?,
        ty_v: cache_type(low.cache_type_v)?,
    })
}

/// The chat template that is asked for, or the model's own; what has to be said about it goes to `console`.
///
/// `jinja` is what holds where the user has not chosen. A template that can only be read as Jinja always is.
///
/// # Errors
/// When it is no template.
pub fn chat_template(
    args: &HighArgs,
    loaded: &Loaded,
    jinja: bool,
    console: &mut Console<Stdout, Stderr>,
) -> Result<ChatTemplate> {
    let (t, low) = (&loaded.tokenizer, &args.low);
    let text = |id: Option<u32>| id.map_or(String::new(), |id| t.text(id).into_owned());
    let special = SpecialTokens { bos: text(t.bos()), eos: text(t.eos()), add_bos: t.add_bos() };
    let own = loaded.model.gguf.str("tokenizer.chat_template")?;
    let given = args.chat_template.as_deref();
    let needs_jinja = !low.template_variables.is_empty() || given.or(own).is_some_and(|t| chat::format_of(t).is_none());
    let choice = Choice { given, own, jinja: low.jinja.unwrap_or(jinja || needs_jinja) };
    let (template, notice) = ChatTemplate::open(choice, special, low.template_variables.clone())?;
    notice.into_iter().for_each(|notice| console.message(2, &format!("warning: {notice}")));
    Ok(template)
}

/// The samplers with their grammar; notices for the user go to `notice`.
///
/// # Errors
/// When a parameter or the grammar cannot be used.
pub fn chain(args: &HighArgs, loaded: &Loaded, notice: &mut dyn FnMut(String)) -> Result<Chain> {
    let (low, tokenizer) = (&args.low, &loaded.tokenizer);
    let mut params = low.sample.clone();
    let warnings = params.recommended(&loaded.model.gguf, &|option| low.given.contains(option))?;
    warnings.into_iter().for_each(&mut *notice);
    if low.ignore_eos {
        params.logit_bias.extend(tokenizer.eog().map(|id| (id, f32::NEG_INFINITY)));
    }
    if params.dry_multiplier != 0.0 {
        params.dry_breakers = breakers(&args.dry_breakers, tokenizer)?;
    }
    let grammar = args.constraint.as_ref().map(|c| Grammar::new(c, tokenizer)).transpose()?;
    grammar.iter().flat_map(Grammar::warnings).for_each(|w| notice(one_line(w)));
    Ok(Chain::new(&params)?.with_grammar(grammar))
}

/// The method and the parameters of the pass; `None` when nothing is to be compressed.
fn compression(args: &HighArgs) -> Result<Option<(Named, PassOptions)>> {
    let Some(pass) = asked_pass(args) else { return Ok(None) };
    let method = compress::by_name(&args.low.kv_method, &method_options(args))?;
    Ok(Some((method, pass)))
}

/// The pass that is asked for; `None` when nothing is to be compressed.
pub fn asked_pass(args: &HighArgs) -> Option<PassOptions> {
    let low = &args.low;
    let target = match low.kv_size {
        KvSize::Ratio(x) => Target::Ratio(x),
        KvSize::Tokens(n) => Target::Tokens(n),
    };
    let is_whole = target == Target::Ratio(1.0) || low.kv_method == "none";
    (!is_whole || low.kv_force).then(|| pass_options(args, target))
}

/// What the user changed about the methods.
pub fn method_options(args: &HighArgs) -> MethodOptions {
    let low = &args.low;
    MethodOptions {
        floor: low.kv_floor.map(|x| x as f32),
        prototypes: low.kv_prototypes.map(|x| x as f32),
        ..MethodOptions::default()
    }
}

/// The parameters of the pass.
pub fn pass_options(args: &HighArgs, target: Target) -> PassOptions {
    let (low, d) = (&args.low, PassOptions::default());
    PassOptions {
        target,
        n_lookahead: low.kv_lookahead,
        n_sink: low.kv_sink.unwrap_or(d.n_sink),
        n_window: low.kv_window.unwrap_or(d.n_window),
        n_min_tokens: low.kv_min_tokens,
        force: low.kv_force,
    }
}

/// The type of this name.
///
/// # Errors
/// When caches cannot be of it.
pub fn cache_type(name: &str) -> Result<Type> {
    let known =
        [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0, Type::Q4_1, Type::IQ4_NL, Type::Q5_0, Type::Q5_1];
    known.into_iter().find(|t| t.name() == name).ok_or_else(|| Error::unsupported("KV cache type", name))
}

/// The context of the training, or what YaRN makes of it where that is asked for.
pub fn trained(args: &HighArgs, hp: &Hparams) -> usize {
    match (args.low.rope.freq_scale, hp.global_layers().first().map(|&il| &hp.rope[il])) {
        (Some(scale), Some(rope)) if rope.ext_factor != 0.0 => (rope.n_ctx_orig as f32 / scale) as usize,
        _ => hp.n_ctx_train,
    }
}
