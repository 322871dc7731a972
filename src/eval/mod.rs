//! Measurements: what a ratio costs, by method, against the full cache of the same model and text.
//!
//! One state, many caches: a prompt is read once with everything recorded that any of the methods needs; then every method and
//! ratio compresses a copy of that state, and what follows is scored from the compressed cache alone. The lookahead is the
//! model's own greedy continuation, decoded once from the full cache; it serves as probes and is taken back.

pub mod answer;
pub mod base;
pub mod chart;
pub mod data;
pub mod divergence;
pub mod kl;
pub mod longbench;
pub mod metrics;
pub mod perplexity;
pub mod plot;
pub mod question;
pub mod records;
pub mod report;
pub mod scores;
pub mod tasks;

use crate::cache::{CacheOptions, KvCache};
use crate::compress::{Named, Needs};
use crate::engine::{Engine, Recorded, Taps};
use crate::error::Result;
use crate::pass::{self, Material, PassOptions, Target};
use std::time::Duration;

/// One row of a comparison: a method at a ratio.
pub struct Case {
    /// The method, under its name in tables.
    pub method: Named,
    /// How many times smaller the cache becomes.
    pub ratio: f64,
}

/// Parameters that all cases of a comparison share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The pass; its target is replaced by each case's ratio.
    pub pass: PassOptions,
    /// Tokens that end a text; the lookahead stops before them.
    pub end_of_text: Vec<u32>,
}

/// What is measured: a context, and something that follows it.
pub trait Item {
    /// Its name in messages.
    fn name(&self) -> &str;
    /// The tokens that are compressed.
    fn context(&self) -> &[u32];
    /// The token that is known to follow, where the lookahead is to begin with it.
    fn first(&self) -> Option<u32>;
    /// Tokens that follow.
    fn room(&self) -> usize;
}

/// What one case did to every item.
#[derive(Clone, Debug)]
pub struct Outcome<T> {
    /// Method, or `full` for the uncompressed cache.
    pub name: String,
    /// How many times smaller the cache was to become.
    pub ratio: f64,
    /// One per item.
    pub results: Vec<T>,
    /// Bytes of the compressed contexts, without room for tokens to come; mean over the items.
    pub kv_bytes: f64,
    /// Time of a pass; mean over the items.
    pub pass_ms: f64,
}

/// What a measurement tells while it runs.
pub enum Event<'a, T> {
    /// What comes next, and how many of how many steps are done.
    Step(String, usize, usize),
    /// The item of this number is done; what has come out so far.
    Done(usize, &'a [Outcome<T>]),
}

/// Measures every item with the full cache, which gives the first outcome, and with each case. `measure` finds the context
/// in the engine's cache and is told the number of the outcome, 0 first. Memory: two full caches.
///
/// # Errors
/// As [`visit`].
pub fn compare<I: Item, T>(
    engine: &mut Engine,
    items: &[I],
    cases: &[Case],
    setting: &Setting,
    mut measure: impl FnMut(&mut Engine, &I, usize) -> Result<T>,
    on_event: impl FnMut(Event<T>) -> Result<()>,
) -> Result<Vec<Outcome<T>>> {
    let named = cases.iter().map(|case| (case.method.name.as_str(), case.ratio));
    let mut outcomes: Vec<Outcome<T>> = [("full", 1.0)]
        .into_iter()
        .chain(named)
        .map(|(name, ratio)| Outcome { name: name.to_owned(), ratio, results: Vec::new(), kv_bytes: 0.0, pass_ms: 0.0 })
        .collect();
    // Two callbacks are called in turn.
    let on_event = std::cell::RefCell::new(on_event);
    let on_step = |what, done, all| (on_event.borrow_mut())(Event::Step(what, done, all));
    let measure = |engine: &mut Engine, visit: &Visit| {
        let result = measure(engine, &items[visit.item], visit.nth)?;
        let outcome = &mut outcomes[visit.nth];
        outcome.results.push(result);
        outcome.kv_bytes += visit.kv_bytes as f64 / items.len() as f64;
        outcome.pass_ms += visit.pass.as_secs_f64() * 1e3 / items.len() as f64;
        match visit.nth == cases.len() {
            true => (on_event.borrow_mut())(Event::Done(visit.item, &outcomes)),
            false => Ok(()),
        }
    };
    let wanted = vec![(0..=cases.len()).collect(); items.len()];
    visit(engine, items, cases, setting, &wanted, measure, on_step)?;
    Ok(outcomes)
}

/// One case of one item, its context in the engine's cache.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Number of the item.
    pub item: usize,
    /// Number of the case, from 1 on; 0 is the full cache.
    pub nth: usize,
    /// Bytes of the compressed context, without room for tokens to come.
    pub kv_bytes: u64,
    /// Time of the pass.
    pub pass: Duration,
}

/// Takes the engine through the cases of each item that are `wanted`, by their numbers as in [`Visit`]. An item is read once,
/// and not at all when nothing of it is wanted. `on_step` hears what comes next, and how many of how many steps are done.
///
/// # Errors
/// When an item does not fit the context, a budget cannot be met, ggml fails, or a callback does.
pub fn visit<I: Item>(
    engine: &mut Engine,
    items: &[I],
    cases: &[Case],
    setting: &Setting,
    wanted: &[Vec<usize>],
    mut measure: impl FnMut(&mut Engine, &Visit) -> Result<()>,
    mut on_step: impl FnMut(String, usize, usize) -> Result<()>,
) -> Result<()> {
    let n_step = wanted.iter().map(Vec::len).sum();
    let mut n_done = 0;
    for (i, (item, nths)) in items.iter().zip(wanted).enumerate().filter(|(_, (_, nths))| !nths.is_empty()) {
        on_step(format!("{}, reading", item.name()), n_done, n_step)?;
        let of_item: Vec<&Case> = nths.iter().filter_map(|&j| cases.get(j.checked_sub(1)?)).collect();
        let state = Prefilled::read(engine, item.context(), item.first(), &of_item, setting)?;
        for &nth in nths {
            let pass = match nth.checked_sub(1).map(|j| &cases[j]) {
                None => {
                    state.restore(engine)?;
                    Duration::ZERO
                }
                Some(case) => {
                    on_step(format!("{}, {} at ratio {}", item.name(), case.method.name, case.ratio), n_done, n_step)?;
                    state.compress(engine, case, setting, item.room())?
                }
            };
            measure(engine, &Visit { item: i, nth, kv_bytes: bytes_of_context(engine), pass })?;
            n_done += 1;
        }
    }
    Ok(())
}

/// A prompt in the full cache, with what the methods need.
struct Prefilled {
    prompt: Vec<u32>,
    record: Recorded,
    lookahead_record: Recorded,
    /// Holds the prompt and the lookahead.
    full: KvCache,
}

impl Prefilled {
    /// Reads `prompt` into an empty cache and decodes a lookahead, which begins with `first` where that is given.
    fn read(
        engine: &mut Engine,
        prompt: &[u32],
        first: Option<u32>,
        cases: &[&Case],
        setting: &Setting,
    ) -> Result<Prefilled> {
        engine.clear()?;
        let n_layer = engine.model().hp.n_layer;
        let needs: Vec<Needs> = cases.iter().map(|case| case.method.needs()).collect();
        let taps = union(needs.iter().map(|needs| pass::taps(needs, prompt.len(), n_layer)));
        let mut record = Recorded::default();
        let mut logits = engine.decode_last(prompt, &taps, &mut record)?;

        let n_lookahead = if needs.iter().any(|needs| needs.lookahead) { setting.pass.n_lookahead } else { 0 };
        let mut lookahead_record = Recorded::default();
        let mut next = first.unwrap_or_else(|| argmax(&logits));
        while lookahead_record.pos.len() < n_lookahead && !setting.end_of_text.contains(&next) {
            let taps = Taps { queries: vec![engine.cache.n_past() as u32], ..Taps::default() };
            logits = engine.decode_last(&[next], &taps, &mut lookahead_record)?;
            next = argmax(&logits);
        }
        let full = engine.cache.duplicate()?;
        Ok(Prefilled { prompt: prompt.to_vec(), record, lookahead_record, full })
    }

    /// Gives the engine a full cache that holds the prompt.
    fn restore(&self, engine: &mut Engine) -> Result<()> {
        self.put(engine)?;
        engine.cache.truncate(self.prompt.len())
    }

    /// Gives the engine a cache that holds the prompt as `case` compresses it, with room for `room` tokens; gives the time of the pass.
    fn compress(&self, engine: &mut Engine, case: &Case, setting: &Setting, room: usize) -> Result<Duration> {
        self.put(engine)?;
        let needs = case.method.needs();
        let taps = pass::taps(&needs, self.prompt.len(), engine.model().hp.n_layer);
        // A method sees what it would see if it ran alone.
        let prompt_record = self.record.at(&taps);
        let lookahead_record = if needs.lookahead { self.lookahead_record.clone() } else { Recorded::default() };
        let material = Material { first: 0, prompt: &self.prompt, prompt_record, lookahead_record };
        let options = PassOptions { target: Target::Ratio(case.ratio), ..setting.pass.clone() };
        let report = pass::run(engine, &case.method, &options, material, room)?;
        engine.cache.truncate(self.prompt.len())?;
        Ok(report.total)
    }

    fn put(&self, engine: &mut Engine) -> Result<()> {
        let copy = self.full.duplicate()?;
        // The kept graph refers to the tensors that go.
        engine.drop_graph();
        engine.cache = copy;
        Ok(())
    }
}

/// Bytes that the context takes in the engine's cache, without room for tokens to come.
fn bytes_of_context(engine: &Engine) -> u64 {
    let cache = &engine.cache;
    match cache.is_compressed() {
        true => cache.bytes() - cache.bytes_of_room(),
        false => KvCache::bytes_needed(
            &engine.model().hp.cache_shape(),
            &CacheOptions { n_ctx: cache.n_past(), ..*cache.options() },
        ),
    }
}

/// Everything that any of these wants.
fn union(all: impl Iterator<Item = Taps>) -> Taps {
    let mut sum = Taps::default();
    for taps in all {
        sum.queries.extend(taps.queries);
        sum.samples.extend(taps.samples);
        sum.hidden.extend(taps.hidden);
        sum.attention_mass |= taps.attention_mass;
    }
    for list in [&mut sum.queries, &mut sum.samples] {
        list.sort_unstable();
        list.dedup();
    }
    sum.hidden.sort_unstable();
    sum.hidden.dedup();
    sum
}

/// The token with the largest logit.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..).zip(logits).fold((0, f32::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best }).0
}

/// Tokens to decode at a time when all their logits are wanted: as many as `LOGIT_BYTES` hold, within the engine's batch.
fn n_scored_at_once(engine: &Engine) -> usize {
    // A full micro batch of 512 over a vocabulary of 262,144. Smaller batches would save memory, but ggml attends to fewer than
    // 64 tokens with sums in half precision, which moved perplexity by up to 0.4 % from llama-perplexity's.
    const LOGIT_BYTES: usize = 512 << 20;
    (LOGIT_BYTES / (4 * engine.model().hp.n_vocab)).clamp(1, engine.options().n_ubatch)
}

/// A hash that is the same on every machine (FNV-1a, 64 bits).
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
