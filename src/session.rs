//! The whole story: prompt -> prefill -> lookahead -> pass -> tokens one by one. Everything else exists to keep this file short.
//!
//! The first tokens of an answer are decoded from the full cache: their queries show what the answer reads, and they are kept
//! as its beginning, so nothing is paid twice. Later passes work on what came since the last one:
//! 1. a later turn of at least [`PassOptions::n_min_tokens`] tokens is compressed as the first prompt is, after its lookahead,
//!    together with all that came since the last pass; a shorter one stays exact;
//! 2. after `decode_interval` tokens since the last pass, and when the context is full, what came since is compressed except
//!    the last [`PassOptions::n_lookahead`] tokens, which are read again with those before them: their queries are the probes.
//!
//! Entries of earlier passes are never merged again; they count as what a probe reads besides ([`crate::cache::view::Source::earlier`]).
//! Every pass keeps the ratio for its own tokens. After a pass, positions may go beyond the context up to the length that the
//! model was trained with, while the entries fill no more memory than a dense cache of the context.

use crate::cache::state as saved;
use crate::compress::{Named, Needs};
use crate::engine::{Engine, Recorded, Taps, Want};
use crate::error::{Error, Result};
use crate::pass::{self, Material, PassOptions};
use crate::report::Report;
use std::time::Duration;

/// Tokens for which a pool gets room at a time when it is not known how many will come.
const ROOM: usize = 256;

/// A conversation of one model with one cache.
///
/// It belongs to one thread at a time and may move to another. Several threads generate from one loaded
/// [`Model`](crate::model::Model), which they share, with a session each; one session for two of them does not compile:
///
/// ```compile_fail,E0499
/// fn two(session: &mut gracekv::session::Session) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| session.step(1));
///         scope.spawn(|| session.step(2));
///     });
/// }
/// ```
pub struct Session {
    /// The model and its cache.
    pub engine: Engine,
    compress: Option<(Named, PassOptions)>,
    /// The tokens in the cache, by position.
    tokens: Vec<u32>,
    /// The tokens that the next pass compresses: from the end of the last one to here.
    n_prompt: usize,
    prompt_record: Recorded,
    lookahead_record: Recorded,
    lookahead: Vec<u32>,
    state: State,
    /// What the pass did, once it has run.
    pub report: Option<Report>,
    /// Tokens that are expected to follow the pass; the pools get room for them.
    pub n_predict: Option<usize>,
    /// Tokens since the last pass after which they are compressed; 0 = only when the context is full.
    pub decode_interval: usize,
    n_passes: usize,
    pass_time: Duration,
    n_dropped: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A pass will follow the tokens that are being decoded.
    Lookahead,
    /// None will, until there is more to compress.
    Done,
}

impl Session {
    /// A session that compresses what it reads with this method, or never.
    pub fn new(engine: Engine, compress: Option<(Named, PassOptions)>) -> Session {
        Session {
            engine,
            compress,
            tokens: Vec::new(),
            n_prompt: 0,
            prompt_record: Recorded::default(),
            lookahead_record: Recorded::default(),
            lookahead: Vec::new(),
            state: State::Done,
            report: None,
            n_predict: None,
            decode_interval: 0,
            n_passes: 0,
            pass_time: Duration::ZERO,
            n_dropped: 0,
        }
    }

    /// Reads a prompt, or the next turn, and gives the logits after its last token. Shapes: `{n_vocab}`.
    /// `on_progress` is told how many tokens have been read; its error ends the run.
    ///
    /// # Errors
    /// When it does not fit the context, or ggml fails.
    pub fn prefill(&mut self, tokens: &[u32], mut on_progress: impl FnMut(usize) -> Result<()>) -> Result<Vec<f32>> {
        if self.state == State::Lookahead {
            self.compress_now()?;
        }
        let n_past = self.engine.cache.n_past();
        let is_first = n_past == 0;
        self.prompt_record = Recorded::default();
        self.tokens.truncate(n_past);
        self.tokens.extend(tokens);
        let n_new = self.tokens.len() - self.engine.cache.n_prompt();
        let needs = match &self.compress {
            Some((method, options)) if options.applies(tokens.len()) && (is_first || !options.force) => {
                if is_first {
                    // A budget that cannot be met is said before anything is read.
                    options.budget(&self.engine.model().hp, n_new, true)?;
                }
                // Of a later turn that is too short for the ratio nothing would be left: it stays exact.
                let is_enough = is_first || options.applies_further(n_new);
                Some(method.needs()).filter(|needs| is_enough && (is_first || is_of_queries(needs)))
            }
            _ => None,
        };
        self.state = State::Done;
        self.make_room(tokens.len())?;
        let Some(needs) = needs else {
            return read(&mut self.engine, tokens, &Taps::default(), &mut Recorded::default(), &mut on_progress);
        };
        let mut taps = pass::taps(&needs, tokens.len(), self.engine.model().hp.n_layer);
        taps.queries.iter_mut().chain(&mut taps.samples).for_each(|pos| *pos += n_past as u32);
        self.n_prompt = self.tokens.len();
        let logits = read(&mut self.engine, tokens, &taps, &mut self.prompt_record, &mut on_progress)?;
        self.lookahead.clear();
        self.state = State::Lookahead;
        if !needs.lookahead || self.n_lookahead() == 0 {
            self.compress_now()?;
        }
        Ok(logits)
    }

    /// Decodes one token and gives the logits after it; runs the pass when the lookahead is complete. Shapes: `{n_vocab}`.
    ///
    /// # Errors
    /// When the context is full, or ggml fails.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        self.tokens.truncate(self.engine.cache.n_past());
        self.tokens.push(token);
        self.make_room(1)?;
        if self.state != State::Lookahead {
            let logits = self.engine.decode_last(&[token], &Taps::default(), &mut Recorded::default())?;
            if self.decode_interval > 0 && self.n_compressible() >= self.decode_interval {
                self.compress_further()?;
            }
            return Ok(logits);
        }
        let taps = Taps { queries: vec![self.engine.cache.n_past() as u32], ..Taps::default() };
        let logits = self.engine.decode_last(&[token], &taps, &mut self.lookahead_record)?;
        self.lookahead.push(token);
        if self.lookahead.len() >= self.n_lookahead() {
            self.compress_now()?;
        }
        Ok(logits)
    }

    /// The tokens in the cache, by position; after a context shift, those that are left.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.tokens.len().min(self.engine.cache.n_past())]
    }

    /// Tokens that may still be decoded.
    pub fn n_left(&self) -> usize {
        let hp = &self.engine.model().hp;
        self.engine.cache.n_left(hp.n_ctx_train.min(hp.n_pos_max))
    }

    /// Passes that have run.
    pub fn n_passes(&self) -> usize {
        self.n_passes
    }

    /// Time of all passes.
    pub fn pass_time(&self) -> Duration {
        self.pass_time
    }

    /// Whether a first prompt of `n_tokens` is compressed.
    pub fn compresses(&self, n_tokens: usize) -> bool {
        self.compress.as_ref().is_some_and(|(_, options)| options.applies(n_tokens))
    }

    /// Whether the method needs what only reading a first prompt shows, so that later turns stay exact.
    pub fn compresses_once(&self) -> bool {
        self.compress.as_ref().is_some_and(|(method, _)| !is_of_queries(&method.needs()))
    }

    /// Goes on from a state in a file; nothing may have been read yet.
    ///
    /// # Errors
    /// As [`saved::StateFile::load`].
    pub fn load(&mut self, file: saved::StateFile) -> Result<saved::State> {
        let left = self.engine.options().n_ctx.saturating_sub(file.state.tokens.len());
        let room = self.n_predict.unwrap_or(ROOM).min(left);
        self.engine.drop_graph();
        let loaded = file.load(&mut self.engine.cache, room)?;
        self.tokens.clone_from(&loaded.tokens);
        self.state = State::Done;
        Ok(loaded)
    }

    /// Forgets everything: the next prompt is a first one.
    ///
    /// # Errors
    /// When the memory of a new cache cannot be had.
    pub fn clear(&mut self) -> Result<()> {
        self.engine.clear()?;
        self.tokens.clear();
        self.lookahead.clear();
        (self.prompt_record, self.lookahead_record) = (Recorded::default(), Recorded::default());
        self.state = State::Done;
        Ok(())
    }

    /// Goes back to the first `n_past` tokens. What a pass has made of earlier ones stays as it is.
    ///
    /// # Errors
    /// When a pass has merged later ones, or a sliding window has lost what was before them; nothing has changed then.
    pub fn take_back(&mut self, n_past: usize) -> Result<()> {
        self.engine.cache.truncate(n_past)?;
        self.lookahead.clear();
        self.lookahead_record = Recorded::default();
        if self.state == State::Lookahead && n_past < self.n_prompt {
            // The pass was to compress what is no longer there.
            self.prompt_record = Recorded::default();
            self.state = State::Done;
        }
        Ok(())
    }

    /// Context shift: keeps the first `n_keep` tokens, drops half of the others, and gives how many these were.
    ///
    /// # Errors
    /// As [`crate::cache::KvCache::shift`].
    pub fn shift(&mut self, n_keep: usize) -> Result<usize> {
        let n_discard = self.engine.cache.n_past().saturating_sub(n_keep) / 2;
        let model = self.engine.model().clone();
        self.engine.cache.shift(n_keep, n_discard, &model.hp.rope_in(self.engine.options().n_ctx))?;
        self.tokens.drain(n_keep..n_keep + n_discard);
        self.n_dropped += n_discard;
        Ok(n_discard)
    }

    /// Tokens that context shifts have dropped.
    pub fn n_dropped(&self) -> usize {
        self.n_dropped
    }

    /// Whether the pass is still to come.
    pub fn is_pending(&self) -> bool {
        self.state == State::Lookahead
    }

    /// Runs the pass now if it is still to come. One that is interrupted ([`Engine::set_stop`]) leaves everything exact.
    ///
    /// # Errors
    /// As [`pass::run`].
    pub fn compress_now(&mut self) -> Result<()> {
        let Some((method, options)) = self.compress.as_ref().filter(|_| self.state == State::Lookahead) else {
            return Ok(());
        };
        let first = self.engine.cache.n_prompt();
        let material = Material {
            first,
            prompt: &self.tokens[first..self.n_prompt],
            prompt_record: std::mem::take(&mut self.prompt_record),
            lookahead_record: std::mem::take(&mut self.lookahead_record),
        };
        let left = self.n_left();
        let room = self.n_predict.unwrap_or(ROOM).min(left);
        let report = pass::run(&mut self.engine, method, options, material, room);
        self.state = State::Done;
        if matches!(report, Err(Error::Interrupted)) {
            // Nothing was rewritten, and the one who interrupts does not want to wait for anything else.
            return Ok(());
        }
        if report.is_err() && first > 0 {
            // Some layers may hold what others do not: nothing may go on from that.
            self.clear()?;
        }
        let report = report?;
        self.n_passes += 1;
        self.pass_time += report.total;
        self.report = Some(report);
        Ok(())
    }

    /// Runs a pass on what came since the last one, except the last tokens, whose queries serve as probes; one that is still to
    /// come is run instead. False when there is nothing to compress, or the method needs what only reading the whole shows.
    ///
    /// # Errors
    /// As [`pass::run`].
    pub fn compress_further(&mut self) -> Result<bool> {
        if self.state == State::Lookahead {
            return self.compress_now().map(|()| true);
        }
        let first = self.engine.cache.n_prompt();
        let n_tokens = self.n_compressible();
        let needs = match &self.compress {
            Some((method, options)) if n_tokens > 0 && options.applies_further(n_tokens) => method.needs(),
            _ => return Ok(false),
        };
        let (end, n_past) = (first + n_tokens, self.engine.cache.n_past());
        let window = first.max(end.saturating_sub(needs.n_window_query));
        if !is_of_queries(&needs) || self.engine.cache.truncate(window).is_err() {
            return Ok(false);
        }
        let taps = |from: usize, to: usize| Taps { queries: (from as u32..to as u32).collect(), ..Taps::default() };
        let (before, after) = (&self.tokens[window..end], &self.tokens[end..n_past]);
        let (prompt_record, lookahead_record) = (&mut self.prompt_record, &mut self.lookahead_record);
        // What was taken back has to be there again, whatever the user wants.
        self.engine.unstopped(|engine| {
            engine.decode(before, Want::Nothing, &taps(window, end), prompt_record, |_, _| Ok(()))?;
            engine.decode(after, Want::Nothing, &taps(end, n_past), lookahead_record, |_, _| Ok(()))
        })?;
        self.n_prompt = end;
        self.state = State::Lookahead;
        self.compress_now().map(|()| true)
    }

    /// Tokens since the last pass that another one could compress.
    fn n_compressible(&self) -> usize {
        let n_exact = self.engine.cache.n_past() - self.engine.cache.n_prompt();
        match &self.compress {
            Some((method, _)) if method.needs().lookahead => n_exact.saturating_sub(self.n_lookahead()),
            Some(_) => n_exact,
            None => 0,
        }
    }

    /// Runs the pass and throws the lookahead away: the next token follows the prompt. Gives back the discarded tokens.
    ///
    /// # Errors
    /// As [`pass::run`].
    pub fn compress_discarding(&mut self) -> Result<Vec<u32>> {
        self.compress_now()?;
        let n = self.lookahead.len();
        self.engine.cache.truncate(self.engine.cache.n_past() - n)?;
        Ok(std::mem::take(&mut self.lookahead))
    }

    fn n_lookahead(&self) -> usize {
        self.compress.as_ref().map_or(0, |(_, o)| o.n_lookahead)
    }

    fn make_room(&mut self, n: usize) -> Result<()> {
        let cache = &self.engine.cache;
        if cache.is_compressed() && cache.room() < n {
            let left = self.n_left();
            if n <= left {
                self.engine.drop_graph();
                self.engine.cache.grow(n.max(ROOM).min(left))?;
            }
        }
        Ok(())
    }
}

/// Whether the queries of some tokens are all that a method needs, so that a later pass can be given it.
fn is_of_queries(needs: &Needs) -> bool {
    !(needs.attention_mass || needs.hidden || needs.surprisal)
}

/// Decodes tokens, reporting progress; gives the logits of the last one.
fn read(
    engine: &mut Engine,
    tokens: &[u32],
    taps: &Taps,
    record: &mut Recorded,
    on_progress: &mut impl FnMut(usize) -> Result<()>,
) -> Result<Vec<f32>> {
    let mut out = Vec::new();
    engine.decode(tokens, Want::Last, taps, record, |range, logits| {
        if !logits.is_empty() {
            out = logits.to_vec();
        }
        on_progress(range.end)
    })?;
    Ok(out)
}
