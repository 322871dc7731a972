//! What `gracekv-eval` asks: tasks and files, which of their samples, and the settings that decide the answers.

use crate::cli::console::Console;
use crate::cli::high::HighArgs;
use crate::cli::measure::Given;
use crate::cli::setup::{self, Loaded};
use crate::error::{Error, Result};
use crate::eval::question::{Prompter, Question, Sample};
use crate::eval::tasks::haystack::Haystack;
use crate::eval::tasks::{self, Task, TASKS};
use crate::eval::{data, fnv1a};
use serde_json::{json, Map, Value};
use std::io::{Stderr, Stdout};

/// Tokens of a task's prompt when no length is asked for.
const DEFAULT_LENGTH: usize = 2000;
/// Samples of a task when no number is asked for.
const DEFAULT_SAMPLES: usize = 10;

/// What is asked for.
pub(super) struct Asked {
    tasks: Vec<&'static Task>,
    data: Vec<String>,
    haystack: Vec<String>,
    /// Number of the first sample.
    first: usize,
    n_sample: Option<usize>,
    length: Option<usize>,
    /// Tokens that the model's context holds, or what `-c` makes of it.
    n_ctx: usize,
    seed: u64,
    template: bool,
    query_agnostic: bool,
}

impl Asked {
    /// What these options ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] for an unknown task, and for numbers that leave nothing to ask or that the model cannot read.
    pub(super) fn new(given: &Given, args: &HighArgs, loaded: &Loaded) -> Result<Self> {
        let refuse = |text: String| Err(Error::Usage(format!("error: {text}")));
        let first: usize = given.number("--first-sample")?.unwrap_or(1);
        let n_sample: Option<usize> = given.number("--samples")?;
        if first == 0 {
            return refuse("--first-sample 0: the first sample is 1".to_owned());
        }
        if n_sample == Some(0) {
            return refuse("--samples 0 leaves nothing to ask".to_owned());
        }
        if first.checked_add(n_sample.unwrap_or(DEFAULT_SAMPLES)).is_none() {
            return refuse(format!("--first-sample {first}: no sample has so high a number"));
        }
        let (length, n_ctx) = (given.number("--length")?, n_ctx(args, loaded));
        if let Some(n) = length.filter(|&n| n > n_ctx) {
            return refuse(format!("--length {n}: the context is {n_ctx} tokens; -c sets another"));
        }
        let data = given.list("--data");
        let mut names = given.list("--task");
        if names.is_empty() && data.is_empty() {
            names.push("niah_single".to_owned());
        }
        Ok(Asked {
            tasks: named(&names)?,
            data,
            haystack: given.list("--haystack"),
            first,
            n_sample,
            length,
            n_ctx,
            seed: given.number("-s")?.unwrap_or(1),
            template: given.last("--template").is_some(),
            query_agnostic: given.last("--query-agnostic").is_some(),
        })
    }

    /// All questions. What the user should know of them goes to `console`.
    pub(super) fn questions(
        &self,
        args: &HighArgs,
        loaded: &Loaded,
        console: &mut Console<Stdout, Stderr>,
    ) -> Result<Vec<Question>> {
        let prompter = Prompter {
            tokenizer: &loaded.tokenizer,
            template: if self.template { Some(setup::chat_template(args, loaded, true, console)?) } else { None },
            query_agnostic: self.query_agnostic,
        };
        let mut questions = self.generated(&prompter)?;
        let stored = self.stored(&prompter)?;
        let cut: Vec<usize> = stored.iter().map(|q| q.n_cut).filter(|&n| n > 0).collect();
        if let Some(most) = cut.iter().max() {
            let (n, all) = (cut.len(), stored.len());
            console.message(2, &format!("warning: {n} of {all} prompts of --data were too long and lost up to {most} tokens of their middle; --length sets how long they may be"));
        }
        questions.extend(stored);
        match questions.is_empty() {
            true => Err(Error::Usage(format!("error: --data has no sample from --first-sample {} on", self.first))),
            false => Ok(questions),
        }
    }

    fn generated(&self, prompter: &Prompter) -> Result<Vec<Question>> {
        let haystack = if self.haystack.is_empty() { Haystack::filler() } else { Haystack::open(&self.haystack)? };
        let length = self.length_of_task();
        let count = |sample: &Sample| Ok(prompter.tokens(sample)?.len());
        let mut questions = Vec::new();
        for task in &self.tasks {
            for i in (self.first..).take(self.n_sample.unwrap_or(DEFAULT_SAMPLES)) {
                let sample = task.sample(&haystack, self.seed, i, length, count)?;
                questions.push(prompter.question(sample, length)?);
            }
        }
        Ok(questions)
    }

    fn stored(&self, prompter: &Prompter) -> Result<Vec<Question>> {
        if self.data.is_empty() {
            return Ok(Vec::new());
        }
        let n_sample = self.n_sample.unwrap_or(usize::MAX);
        let is_asked = |s: &Sample| s.index >= self.first && s.index - self.first < n_sample;
        let question = |s: Sample| {
            let limit = self.length.unwrap_or(self.n_ctx.saturating_sub(s.max_new_tokens));
            prompter.question(s, limit)
        };
        data::open(&self.data)?.into_iter().filter(is_asked).map(question).collect()
    }

    fn length_of_task(&self) -> usize {
        self.length.unwrap_or(DEFAULT_LENGTH.min(self.n_ctx))
    }

    /// What decides the numbers of an answer, beside its task, sample, method and ratio: model and adapters, where and how they
    /// are computed, how prompts are made, and what all methods are told. Threads are not of it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn settings(&self, args: &HighArgs, loaded: &Loaded) -> Result<Map<String, Value>> {
        let (low, mut map) = (&args.low, Map::new());
        let mut set = |name: &str, value: Value| map.insert(name.to_owned(), value);
        let model = std::fs::metadata(&args.model).map_err(|e| Error::io(&args.model, e))?;
        set("version", json!(env!("CARGO_PKG_VERSION")));
        set("model", json!(args.model.file_name().unwrap_or_default().to_string_lossy()));
        set("model_bytes", json!(model.len()));
        set("model_fingerprint", json!(loaded.model.fingerprint()?));
        let offload = &loaded.model.offload;
        let devices: Vec<&str> = offload.devices.iter().map(|d| d.name()).collect();
        set("devices", json!(devices));
        set("device_layers", json!(offload.n_offloaded()));
        set("flash_attn", json!(format!("{:?}", low.flash_attn).to_lowercase()));
        set("n_ubatch", json!(low.n_ubatch));
        set("repack", json!(low.repack));
        set("template", json!(self.template));
        if self.template {
            set("chat_template", json!(args.chat_template));
            set("chat_template_kwargs", json!(low.template_variables));
            set("jinja", json!(low.jinja));
        }
        set("query_agnostic", json!(self.query_agnostic));
        if !self.tasks.is_empty() {
            set("length", json!(self.length_of_task()));
            set("seed", json!(self.seed));
            set("haystack", json!(if self.haystack.is_empty() { "filler".to_owned() } else { hash(&self.haystack)? }));
        }
        if !self.data.is_empty() {
            set("data", json!(hash(&self.data)?));
            set("data_length", json!(self.length.unwrap_or(self.n_ctx)));
        }
        set("kv_lookahead", json!(low.kv_lookahead));
        set("kv_sink", json!(low.kv_sink));
        set("kv_window", json!(low.kv_window));
        set("kv_min_tokens", json!(low.kv_min_tokens));
        set("kv_force", json!(low.kv_force));
        set("kv_floor", json!(low.kv_floor));
        set("kv_prototypes", json!(low.kv_prototypes));
        set("cache_type", json!(format!("{} {}", low.cache_type_k, low.cache_type_v)));
        Ok(map)
    }
}

/// Tokens of the longest prompt: what `-c` says, or the context of the training, and what YaRN makes of it.
fn n_ctx(args: &HighArgs, loaded: &Loaded) -> usize {
    let asked = if args.low.n_ctx > 0 { args.low.n_ctx } else { setup::trained(args, &loaded.model.hp) };
    asked.min(loaded.model.hp.n_pos_max)
}

fn named(names: &[String]) -> Result<Vec<&'static Task>> {
    if names.iter().any(|name| name == "all") {
        return Ok(TASKS.iter().collect());
    }
    let mut tasks: Vec<&Task> = Vec::new();
    for name in names {
        let task = tasks::by_name(name)?;
        if !tasks.iter().any(|t| t.name == task.name) {
            tasks.push(task);
        }
    }
    Ok(tasks)
}

/// What files hold, in a few letters.
fn hash(files: &[String]) -> Result<String> {
    let mut all = Vec::new();
    for file in files {
        all.extend(std::fs::read(file).map_err(|e| Error::io(file, e))?);
    }
    Ok(format!("{} files, FNV-1a {:016x}", files.len(), fnv1a(&all)))
}
