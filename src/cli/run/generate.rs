//! Reading prompts into the cache and generating tokens, with the lines that a run prints about both.

use super::{out, Runner, INFO, N_RESERVED, WARN};
use crate::cli::console::Style;
use crate::cli::low::KvSize;
use crate::cli::write_file;
use crate::error::{Error, Result};
use crate::eval::argmax;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

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
    /// Puts tokens into the cache; with `echo` their text is written first.
    pub(super) fn read(&mut self, tokens: &[u32], echo: bool) -> Result<Vec<f32>> {
        let n_ctx = self.session.engine.options().n_ctx;
        let n_past = self.session.engine.cache.n_past();
        let max = n_ctx.saturating_sub(n_past + N_RESERVED);
        if tokens.len() > max {
            return Err(Error::Context {
                what: format!(
                    "prompt is too long ({} tokens, max {max}); use -c {} or more",
                    tokens.len(),
                    n_past + tokens.len() + N_RESERVED
                ),
            });
        }
        if echo {
            out(self.console.style(Style::Prompt))?;
            for &t in tokens {
                out(self.console.write(self.tokenizer.piece(t, self.args.low.special_tokens)))?;
            }
            out(self.console.style(Style::Plain))?;
        }
        for &t in tokens {
            self.chain.accept(t);
        }
        let start = Instant::now();
        let pass_before = self.pass_time();
        let (console, interrupt, n) = (&mut *self.console, &self.interrupt, tokens.len());
        let logits = self.session.prefill(tokens, |done| {
            console.progress(&format!("reading the prompt: {done} of {n} tokens"));
            match interrupt.is_pending() {
                true => Err(Error::Interrupted),
                false => Ok(()),
            }
        })?;
        self.console.clear_progress();
        self.perf.prompt += start.elapsed().saturating_sub(self.pass_time() - pass_before);
        self.perf.n_prompt += n;
        self.explain_no_pass(n);
        if self.args.low.kv_discard_lookahead && self.session.is_pending() {
            return self.discard_lookahead(logits);
        }
        self.session_report()?;
        Ok(logits)
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
        self.session_report()?;
        Ok(logits)
    }

    fn explain_no_pass(&mut self, n_tokens: usize) {
        let low = &self.args.low;
        let asked = matches!(low.kv_size, KvSize::Ratio(x) if x > 1.0) || matches!(low.kv_size, KvSize::Tokens(_));
        if asked && self.session.report.is_none() && !self.args.compresses(n_tokens) && low.kv_method != "none" {
            let why = if n_tokens < low.kv_min_tokens {
                format!("it is shorter than --kv-min-tokens {}", low.kv_min_tokens)
            } else {
                "it fits the budget".into()
            };
            self.console.message(INFO, &format!("gracekv: the prompt of {n_tokens} tokens is left as it is: {why}"));
        }
    }

    /// Samples until something ends the answer. `n_predict`: -1 no limit, -2 until the context is full.
    pub(super) fn generate(&mut self, mut logits: Vec<f32>, n_predict: i32) -> Result<(Stop, String)> {
        let limit = usize::try_from(n_predict).unwrap_or(usize::MAX);
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
            let token = self.chain.sample(&logits)?;
            self.chain.accept(token);
            self.perf.sample += at.elapsed();
            self.perf.n_sample += 1;
            n += 1;
            if self.tokenizer.is_eog(token) {
                self.pending = Some(token);
                if self.args.low.special_tokens {
                    out(self.console.write(self.tokenizer.piece(token, true)))?;
                }
                break Stop::EndOfText;
            }
            let piece = self.tokenizer.piece(token, self.args.low.special_tokens);
            answer.extend_from_slice(piece);
            out(self.console.write(piece))?;
            if self.ends_with_reverse_prompt(&answer) {
                self.pending = Some(token);
                break Stop::ReversePrompt;
            }
            if n >= limit {
                self.pending = Some(token);
                break Stop::Length;
            }
            if self.session.engine.cache.n_past() + 1 > self.session.engine.options().n_ctx {
                self.console.message(WARN, "\n\ncontext full and context shift is disabled => stopping");
                break Stop::ContextFull;
            }
            logits = self.step(token)?;
        };
        if stop == Stop::Interrupted && self.template_is_off() {
            return Err(Error::Interrupted);
        }
        Ok((stop, String::from_utf8_lossy(&answer).into_owned()))
    }

    fn template_is_off(&self) -> bool {
        self.args.low.conversation == Some(false) || !io::stdin().is_terminal()
    }

    fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        let (start, pass_before) = (Instant::now(), self.pass_time());
        let compressed = self.session.report.is_some();
        let logits = self.session.step(token)?;
        let spent = start.elapsed().saturating_sub(self.pass_time() - pass_before);
        self.perf.eval += spent;
        self.perf.n_eval += 1;
        if compressed {
            self.perf.eval_compressed += spent;
            self.perf.n_eval_compressed += 1;
        }
        self.session_report()?;
        Ok(logits)
    }

    fn pass_time(&self) -> Duration {
        self.session.report.as_ref().map_or(Duration::ZERO, |r| r.total)
    }

    /// Prints and writes what the pass did, once.
    pub(super) fn session_report(&mut self) -> Result<()> {
        let Some(report) = self.session.report.as_ref().filter(|_| !self.is_reported) else { return Ok(()) };
        self.is_reported = true;
        self.perf.pass = report.total;
        self.console.message(INFO, &report.to_string());
        if let Some(path) = &self.args.low.kv_report {
            write_file(path, format!("{:#}\n", report.to_json()).as_bytes())?;
        }
        Ok(())
    }

    fn ends_with_reverse_prompt(&self, answer: &[u8]) -> bool {
        // llama-completion widens the search by two characters, because a token may carry some that follow.
        self.args.reverse_prompts.iter().filter(|r| !r.is_empty()).any(|r| {
            let from = answer.len().saturating_sub(r.len() + 2);
            answer[from..].windows(r.len()).any(|w| w == r.as_bytes())
        })
    }
}
