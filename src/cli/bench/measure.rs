//! The measurements of gracekv-bench at one depth of the cache.
//!
//! The cache is filled with random tokens once; every repetition starts from that state, by forgetting the tokens behind it
//! or, where a sliding window or the pass has dropped what they overwrote, from a copy.
//! Source: llama.cpp `tools/llama-bench/llama-bench.cpp` (`test_prompt`, `test_gen`).

use super::options::Options;
use crate::cache::memory::Random;
use crate::cache::KvCache;
use crate::compress::Named;
use crate::engine::{Engine, EngineOptions, Recorded, Taps};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::pass::{self, Material, PassOptions, Target};
use crate::tokenizer::Tokenizer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Reads this many tokens.
    Prompt(usize),
    /// Decodes this many tokens one by one.
    Gen(usize),
    /// Reads so many tokens, and decodes so many behind them.
    PromptGen(usize, usize),
}

impl Test {
    /// Tokens that are read, and that are decoded.
    pub fn n_tokens(self) -> (usize, usize) {
        match self {
            Test::Prompt(n) => (n, 0),
            Test::Gen(n) => (0, n),
            Test::PromptGen(n_prompt, n_gen) => (n_prompt, n_gen),
        }
    }

    /// Its name in tables, behind `depth` tokens.
    pub fn name(self, depth: usize) -> String {
        let name = match self.n_tokens() {
            (n, 0) => format!("pp{n}"),
            (0, n) => format!("tg{n}"),
            (n_prompt, n_gen) => format!("pp{n_prompt}+tg{n_gen}"),
        };
        match depth {
            0 => name,
            _ => format!("{name} @ d{depth}"),
        }
    }
}

/// A compressed cache.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// Time of the pass.
    pub pass: Duration,
}

/// An engine whose cache holds `depth` tokens before every repetition.
pub struct Bench<'a> {
    engine: Engine,
    options: &'a Options,
    method: Named,
    random: Random,
    bos: Option<u32>,
    /// The tokens in the cache.
    prompt: Vec<u32>,
    /// The filled cache with the lookahead behind it, where truncating is not enough.
    filled: Option<KvCache>,
    records: [Recorded; 2],
}

impl<'a> Bench<'a> {
    /// Makes an engine and fills its cache.
    ///
    /// # Errors
    /// When memory cannot be had or ggml fails.
    pub fn new(model: &Arc<Model>, options: &'a Options, depth: usize) -> Result<Bench<'a>> {
        let n_lookahead = PassOptions::default().n_lookahead;
        let both = options.n_pg.iter().map(|(n_prompt, n_gen)| n_prompt + n_gen);
        let longest = options.n_prompt.iter().chain(&options.n_gen).copied().chain(both).max().unwrap_or(0);
        let engine_options = EngineOptions {
            n_ctx: (depth + longest.max(n_lookahead)).next_multiple_of(256),
            n_ubatch: options.n_ubatch,
            n_threads: options.threads.n_threads,
            n_threads_batch: options.threads.n_threads,
            threads: options.threads.clone(),
            threads_batch: None,
            flash_attn: options.flash_attn,
            ty_k: options.ty_k,
            ty_v: options.ty_v,
        };
        let vocabulary = Tokenizer::load(&model.gguf).ok();
        let bos = vocabulary.filter(Tokenizer::add_bos).and_then(|t| t.bos());
        let engine = Engine::new(model.clone(), engine_options)?;
        let (random, records) = (Random(depth as u64), <[Recorded; 2]>::default());
        let method = options.method()?;
        let mut bench = Bench { engine, options, method, random, bos, prompt: Vec::new(), filled: None, records };
        bench.fill(depth, n_lookahead)?;
        Ok(bench)
    }

    fn fill(&mut self, depth: usize, n_lookahead: usize) -> Result<()> {
        self.prompt = self.tokens(depth, true);
        let compresses = self.options.ratios(depth).iter().any(|&r| r > 1.0);
        let n_layer = self.engine.model().hp.n_layer;
        let taps = match compresses {
            true => pass::taps(&self.method.needs(), depth, n_layer),
            false => Taps::default(),
        };
        let mut record = Recorded::default();
        for part in self.prompt.chunks(self.options.n_batch) {
            self.engine.decode_last(part, &taps, &mut record)?;
        }
        if compresses {
            let mut ahead = Recorded::default();
            let n_lookahead = if self.method.needs().lookahead { n_lookahead } else { 0 };
            for token in self.tokens(n_lookahead, false) {
                let taps = Taps { queries: vec![self.engine.cache.n_past() as u32], ..Taps::default() };
                self.engine.decode_last(&[token], &taps, &mut ahead)?;
            }
            self.records = [record, ahead];
        }
        if compresses || (depth > 0 && self.engine.model().hp.swa.contains(&true)) {
            self.filled = Some(self.engine.cache.duplicate()?);
        }
        Ok(())
    }

    /// Random tokens; a text begins with the token that the vocabulary wants there.
    fn tokens(&mut self, n: usize, begins: bool) -> Vec<u32> {
        let n_vocab = self.engine.model().hp.n_vocab;
        let mut tokens: Vec<u32> = (0..n).map(|_| self.random.below(n_vocab) as u32).collect();
        if let (true, Some(first), Some(bos)) = (begins, tokens.first_mut(), self.bos) {
            *first = bos;
        }
        tokens
    }

    /// Back to the filled cache.
    fn rewind(&mut self) -> Result<()> {
        let truncated = self.engine.cache.truncate(self.prompt.len());
        if truncated.is_ok() || self.engine.cache.is_compressed() {
            return truncated;
        }
        self.restore()?;
        self.engine.cache.truncate(self.prompt.len())
    }

    /// Back to the filled cache with the lookahead behind it.
    fn restore(&mut self) -> Result<()> {
        let filled = self.filled.as_ref().ok_or_else(|| Error::ggml("the filled cache was not kept"))?;
        self.engine.drop_graph();
        self.engine.cache = filled.duplicate()?;
        Ok(())
    }

    /// Makes the filled cache `ratio` times smaller; 1 takes the compression back.
    ///
    /// # Errors
    /// When the budget cannot be met or memory cannot be had.
    pub fn compress(&mut self, ratio: f64) -> Result<Option<Compressed>> {
        if ratio == 1.0 {
            if self.engine.cache.is_compressed() {
                self.restore()?;
            }
            return Ok(None);
        }
        self.restore()?;
        let room = self.options.n_gen.iter().copied().max().unwrap_or(0);
        let options = PassOptions { target: Target::Ratio(ratio), ..PassOptions::default() };
        let [prompt_record, lookahead_record] = self.records.clone();
        let material = Material { first: 0, prompt: &self.prompt, prompt_record, lookahead_record };
        let report = pass::run(&mut self.engine, &self.method, &options, material, room)?;
        Ok(Some(Compressed { pass: report.total }))
    }

    /// Bytes of the cache as it is now.
    pub fn kv_bytes(&self) -> u64 {
        self.engine.cache.bytes()
    }

    /// The times of all repetitions of a test.
    ///
    /// # Errors
    /// When ggml fails.
    pub fn run(&mut self, test: Test) -> Result<Vec<Duration>> {
        if self.options.warmup {
            self.once(match test {
                Test::Prompt(n) => Test::Prompt(n),
                Test::Gen(_) => Test::Gen(1),
                Test::PromptGen(n, n_gen) => Test::PromptGen(n, n_gen.min(1)),
            })?;
        }
        (0..self.options.n_reps).map(|_| self.once(test)).collect()
    }

    fn once(&mut self, test: Test) -> Result<Duration> {
        self.rewind()?;
        let (n_prompt, n_gen) = test.n_tokens();
        let tokens = self.tokens(n_prompt + n_gen, self.prompt.is_empty());
        let (read, decoded) = tokens.split_at(n_prompt);
        let start = Instant::now();
        for part in read.chunks(self.options.n_batch).chain(decoded.chunks(1)) {
            self.engine.decode_last(part, &Taps::default(), &mut Recorded::default())?;
        }
        Ok(start.elapsed())
    }
}
