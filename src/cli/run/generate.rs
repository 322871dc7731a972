//! Reading prompts into the cache and generating tokens, with the lines that a run prints about both.

use super::{out, Runner, INFO, N_RESERVED, WARN};
use crate::cli::console::Style;
use crate::cli::prompt_cache::PromptCache;
use crate::cli::NewFile;
use crate::error::{Error, Result};
use crate::eval::argmax;
use std::io::Write;
use std::time::{Duration, Instant};

/// Tokens whose text is searched for reverse prompts.
const N_RECENT: usize = 32;
/// Level of messages about single tokens.
const DEBUG: i32 = 5;

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    EndOfText,
    Length,
    ReversePrompt,
    ContextFull,
    Interrupted,
}

impl Runner<'_> {
    /// Checks the length of the first prompt.
    pub(super) fn check_prompt(&mut self, n_tokens: usize) -> Result<()> {
        let max = self.session.engine.options().n_ctx.saturating_sub(N_RESERVED);
        match n_tokens <= max {
            true => Ok(()),
            false => Err(Error::Context {
                what: format!(
                    "prompt is too long ({n_tokens} tokens, max {max}); use -c {} or more",
                    n_tokens + N_RESERVED
                ),
            }),
        }
    }

    /// Writes the text of the prompt.
    pub(super) fn echo(&mut self, tokens: &[u32]) -> Result<()> {
        out(self.console.style(Style::Prompt))?;
        for &t in tokens {
            out(self.console.write(self.tokenizer.piece(t, self.args.low.special_tokens)))?;
        }
        out(self.console.style(Style::Plain))
    }

    /// Puts tokens into the cache and gives the logits after them. One that is pending is the first; the samplers know it.
    pub(super) fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        if !self.make_room(tokens.len())? {
            let o = self.session.engine.options();
            let (n_past, n) = (self.session.engine.cache.n_past(), tokens.len());
            return Err(Error::Context {
                what: format!(
                    "{n} tokens do not fit: {} of the context of {} are left; use -c {} or more",
                    self.session.n_left(),
                    o.n_ctx,
                    n_past + n + N_RESERVED
                ),
            });
        }
        for &t in &tokens[usize::from(self.pending.is_some())..] {
            self.chain.accept_prompt(t);
            self.perf.n_sample += 1;
            self.remember(t);
        }
        self.set_n_to_come(self.remaining.limit(self.is_interactive));
        let start = Instant::now();
        let pass_before = self.session.pass_time();
        let is_first = self.session.engine.cache.n_past() == 0;
        let (console, interrupt, n) = (&mut *self.console, &self.interrupt, tokens.len());
        let on_progress = |done| {
            console.progress(&format!("reading the prompt: {done} of {n} tokens"));
            match interrupt.is_pending() {
                true => Err(Error::Interrupted),
                false => Ok(()),
            }
        };
        let mut notices = Vec::new();
        let read = match self.prompt_cache.as_mut().filter(|_| is_first) {
            Some(cache) => {
                let mut say = |level, text: &str| notices.push((level, text.to_owned()));
                cache.read(&mut self.session, tokens, &mut say, on_progress)
            }
            None => self.session.prefill(tokens, on_progress).map(|logits| (logits, n)),
        };
        self.console.clear_progress();
        notices.iter().for_each(|(level, text)| self.console.message(*level, text));
        let (mut logits, n) = read?;
        self.pending = None;
        let spent = start.elapsed().saturating_sub(self.session.pass_time() - pass_before);
        // llama.cpp counts a batch of one token as decoding.
        let (time, count) = match n {
            1 => (&mut self.perf.eval, &mut self.perf.n_eval),
            _ => (&mut self.perf.prompt, &mut self.perf.n_prompt),
        };
        *time += spent;
        *count += n;
        self.perf.last_prompt = (spent, n);
        self.explain_no_pass(tokens.len());
        if self.args.low.kv_discard_lookahead && self.session.is_pending() {
            logits = self.discard_lookahead(logits)?;
        }
        if let Some(cache) = self.prompt_cache.as_mut().filter(|_| is_first) {
            let saved = cache.filled(&self.session, &logits);
            self.note_saved(saved);
        }
        self.session_report();
        Ok(logits)
    }

    /// Keeps a token for the search for reverse prompts.
    fn remember(&mut self, token: u32) {
        if self.recent.len() == N_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    /// Decodes the lookahead greedily from the full cache, compresses, and takes the lookahead back; gives the logits after the prompt.
    fn discard_lookahead(&mut self, logits: Vec<f32>) -> Result<Vec<f32>> {
        let mut next = logits.clone();
        while self.session.is_pending() {
            let best = argmax(&next);
            if self.tokenizer.is_eog(best) {
                break;
            }
            next = self.session.step(best)?;
        }
        self.session.compress_discarding()?;
        self.session_report();
        Ok(logits)
    }

    /// Samples until something ends the answer.
    pub(super) fn generate(&mut self, mut logits: Vec<f32>) -> Result<(Stop, String)> {
        let limit = self.remaining.limit(self.is_interactive);
        let mut answer: Vec<u8> = Vec::new();
        let mut n = 0;
        let stop = loop {
            if n >= limit {
                break Stop::Length;
            }
            if self.interrupt.is_pending() {
                break Stop::Interrupted;
            }
            let at = Instant::now();
            let replayed = self.prompt_cache.as_mut().and_then(PromptCache::replayed);
            let token = match replayed {
                Some(token) => token,
                None => self.chain.sample(&logits)?,
            };
            self.chain.accept(token)?;
            self.remember(token);
            self.perf.sample += at.elapsed();
            self.perf.n_sample += 1;
            n += 1;
            self.pending = Some(token);
            let piece = self.tokenizer.piece(token, self.args.low.special_tokens);
            out(self.console.write(piece))?;
            if self.tokenizer.is_eog(token) {
                break Stop::EndOfText;
            }
            answer.extend_from_slice(piece);
            if self.ends_with_reverse_prompt() {
                break Stop::ReversePrompt;
            }
            if n >= limit {
                break Stop::Length;
            }
            if replayed.is_none() && !self.make_room(1)? {
                break Stop::ContextFull;
            }
            logits = match (&self.prompt_cache, replayed) {
                (Some(cache), Some(_)) => cache.after_replayed(),
                _ => {
                    self.set_n_to_come(limit - n);
                    self.step(token)?
                }
            };
            self.pending = None;
        };
        self.remaining.answered(n, self.is_interactive);
        if let Some(cache) = &mut self.prompt_cache {
            cache.settle(&mut self.session, self.pending.is_some())?;
        }
        if stop == Stop::Interrupted && (!self.is_interactive || self.interrupt.ending().is_some()) {
            return Err(Error::Interrupted);
        }
        Ok((stop, String::from_utf8_lossy(&answer).into_owned()))
    }

    /// Tells the session how many tokens are still to come, if their number was given.
    fn set_n_to_come(&mut self, n: usize) {
        self.session.n_predict = self.session.n_predict.map(|_| n);
    }

    /// Decodes a token of an answer and gives the logits after it.
    pub(super) fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        let (start, pass_before) = (Instant::now(), self.session.pass_time());
        let compressed = self.session.report.is_some();
        let logits = self.session.step(token)?;
        if let Some(cache) = &mut self.prompt_cache {
            let saved = cache.stepped(&self.session, token, &logits);
            self.note_saved(saved);
        }
        let spent = start.elapsed().saturating_sub(self.session.pass_time() - pass_before);
        self.perf.eval += spent;
        self.perf.n_eval += 1;
        if compressed {
            self.perf.eval_compressed += spent;
            self.perf.n_eval_compressed += 1;
        }
        let (n_past, n_print) = (self.session.engine.cache.n_past(), self.args.low.n_print);
        if usize::try_from(n_print).is_ok_and(|n| n > 0 && n_past % n == 0) {
            let n_ctx = self.session.engine.options().n_ctx;
            self.console.message(DEBUG, &format!("\nTokens consumed so far = {n_past} / {n_ctx}"));
        }
        // On a terminal it would stand in the middle of the answer.
        if !self.is_for_people {
            self.session_report();
        }
        Ok(logits)
    }

    /// Goes on without a prompt cache that could not be saved.
    fn note_saved(&mut self, saved: Result<()>) {
        if saved.is_err() {
            self.prompt_cache = None;
        }
        self.note_failure(saved);
    }

    /// Prints and writes what a pass did, once.
    pub(super) fn session_report(&mut self) {
        let Some(report) = self.session.report.as_ref().filter(|_| self.session.n_passes() > self.n_reported) else {
            return;
        };
        self.n_reported = self.session.n_passes();
        self.perf.pass = self.session.pass_time();
        self.console.message(INFO, &report.to_string());
        let text = format!("{:#}\n", report.to_json());
        let written = self.write_report(text.as_bytes());
        self.is_report_lost |= written.is_err();
        self.note_failure(written);
    }

    /// Writes to the file of `--kv-report`, which holds the last pass, or all of them one after another where it is a pipe.
    fn write_report(&mut self, text: &[u8]) -> Result<()> {
        let Some(path) = self.args.low.kv_report.as_deref().filter(|_| !self.is_report_lost) else { return Ok(()) };
        let mut file = self.report.take().map_or_else(|| NewFile::create(path), Ok)?;
        file.write_all(text).and_then(|()| file.flush()).map_err(|e| Error::io(path, e))?;
        if file.is_stream() {
            self.report = Some(file);
            return Ok(());
        }
        file.finish()
    }

    /// Whether the last tokens, read or chosen, end with a reverse prompt.
    pub(super) fn ends_with_reverse_prompt(&self) -> bool {
        if self.args.reverse_prompts.is_empty() {
            return false;
        }
        let mut text = Vec::new();
        self.recent.iter().for_each(|&t| text.extend_from_slice(self.tokenizer.piece(t, true)));
        // llama-completion widens the search by two bytes where nobody is asked, because a token may carry some that follow.
        let padding = if self.is_interactive { 0 } else { 2 };
        let found = self.args.reverse_prompts.iter().any(|r| {
            let from = text.len().saturating_sub(r.len() + padding);
            !r.is_empty() && text[from..].windows(r.len().max(1)).any(|w| w == r.as_bytes())
        });
        found || self.recent.back().is_some_and(|t| self.reverse_tokens.contains(t))
    }

    /// The tokens of a text, for `--verbose-prompt`.
    pub(super) fn show_tokens(&mut self, prompt: &str, tokens: &[u32]) {
        if !self.args.low.verbose_prompt {
            return;
        }
        let piece = |t: &u32| String::from_utf8_lossy(self.tokenizer.piece(*t, true)).into_owned();
        let mut lines = vec![format!("prompt: '{prompt}'"), format!("number of tokens in prompt = {}", tokens.len())];
        lines.extend(tokens.iter().map(|t| format!("{t:6} -> '{}'", piece(t))));
        if self.n_keep > usize::from(self.tokenizer.add_bos()) {
            let kept: String = tokens.iter().take(self.n_keep).map(piece).collect();
            lines.push(format!("static prompt based on n_keep: '{kept}'"));
        }
        lines.push(String::new());
        lines.iter().for_each(|line| self.console.message(INFO, line));
    }

    /// Text of the token that ends an answer, for a conversation whose last answer did not come to its end.
    pub(super) fn end_of_turn(&self) -> Option<u32> {
        self.tokenizer.eot().or(self.tokenizer.eos())
    }

    /// Tokens per second of the last prompt, if one was read, and of generation since an earlier state of its times.
    pub(super) fn speeds(&self, eval: (Duration, usize)) -> String {
        let rate = |(d, n): (Duration, usize)| n as f64 / d.as_secs_f64().max(1e-9);
        let prompt = match self.perf.last_prompt {
            (_, 0) => String::new(),
            read => format!("Prompt: {:.1} t/s | ", rate(read)),
        };
        let generated = (self.perf.eval - eval.0, self.perf.n_eval - eval.1);
        format!("{prompt}Generation: {:.1} t/s", rate(generated))
    }

    /// Says why the generation ends before its time.
    pub(super) fn warn_full(&mut self, why: &str) {
        self.console.message(WARN, &format!("\n\ncontext full and {why} => stopping"));
    }
}
