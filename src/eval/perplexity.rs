//! Perplexity as llama-perplexity computes it, and the same of continuations read against compressed caches.
//!
//! Source: llama.cpp `tools/perplexity/perplexity.cpp` (`perplexity`): a text is cut into chunks that do not overlap, the first
//! half of each is context and the rest is scored, all positions but the last predicting the next token.
//! Deviation: the context is read before the scored tokens rather than with them, so that a pass can come in between.

use super::kl::{self, Scored};
use super::{n_scored_at_once, Case, Event, Item, Outcome, Setting};
use crate::engine::{Engine, Recorded, Taps, Want};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::ops::Range;

/// A context and the text that really follows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Passage {
    /// Where it comes from.
    pub name: String,
    /// Context and continuation.
    pub tokens: Vec<u32>,
    /// Tokens of the context.
    pub n_prompt: usize,
}

impl Passage {
    /// The continuation but for its last token, which predicts nothing.
    fn given(&self) -> &[u32] {
        &self.tokens[self.n_prompt..self.tokens.len() - 1]
    }

    /// The tokens that are scored.
    pub(super) fn targets(&self) -> &[u32] {
        &self.tokens[self.n_prompt + 1..]
    }
}

/// Cuts a tokenized text as llama-perplexity does; `bos` takes the place of the first token of each chunk.
///
/// # Errors
/// [`Error::Context`] with the number of tokens that are needed.
pub fn chunks(tokens: &[u32], n_ctx: usize, n_chunk: Option<usize>, bos: Option<u32>) -> Result<Vec<Passage>> {
    if n_ctx < 4 || tokens.len() < 2 * n_ctx {
        let what = format!(
            "you need at least {} tokens to evaluate perplexity with a context of {n_ctx}; the text has {}",
            2 * n_ctx.max(4),
            tokens.len()
        );
        return Err(Error::Context { what });
    }
    Ok(cut(tokens, n_ctx, bos).take(n_chunk.unwrap_or(usize::MAX)).collect())
}

/// All chunks of the tokens.
pub(super) fn cut(tokens: &[u32], n_ctx: usize, bos: Option<u32>) -> impl Iterator<Item = Passage> + '_ {
    tokens.chunks_exact(n_ctx).enumerate().map(move |(i, chunk)| {
        let mut tokens = chunk.to_vec();
        bos.into_iter().for_each(|bos| tokens[0] = bos);
        Passage { name: format!("chunk {}", i + 1), tokens, n_prompt: n_ctx / 2 }
    })
}

/// The beginning of a tokenized text: `n_prefix` tokens of context and `n_continuation` after them.
///
/// # Errors
/// [`Error::Context`] with the number of tokens that are needed.
pub fn beginning(name: &str, tokens: &[u32], n_prefix: usize, n_continuation: usize) -> Result<Passage> {
    let n = n_prefix + n_continuation;
    if n_prefix == 0 || n_continuation < 2 || tokens.len() < n {
        let what = format!("{name}: a context of {n_prefix} and a continuation of {n_continuation} need {n} tokens and at least 1 and 2; the text has {}", tokens.len());
        return Err(Error::Context { what });
    }
    Ok(Passage { name: name.to_owned(), tokens: tokens[..n].to_vec(), n_prompt: n_prefix })
}

/// Perplexity over scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    n: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// Adds negative log-likelihoods.
    pub fn extend(&mut self, nll: impl IntoIterator<Item = f64>) {
        for x in nll {
            self.n += 1;
            self.sum += x;
            self.sum_of_squares += x * x;
        }
    }

    /// `e^mean`.
    pub fn value(&self) -> f64 {
        (self.sum / self.n as f64).exp()
    }

    /// Its standard error.
    pub fn error(&self) -> f64 {
        let mean = self.sum / self.n as f64;
        let variance = self.sum_of_squares / self.n as f64 - mean * mean;
        self.value() * (variance.max(0.0) / (self.n as f64 - 1.0).max(1.0)).sqrt()
    }
}

/// Perplexity of the uncompressed model; `on_logits` sees all logits of scored tokens in their order, `on_passage` hears the
/// running value after each passage.
///
/// # Errors
/// When a passage does not fit the context, ggml fails, a result is no number, or a callback fails.
pub fn run(
    engine: &mut Engine,
    passages: &[Passage],
    mut on_logits: impl FnMut(&[f32]) -> Result<()>,
    mut on_passage: impl FnMut(usize, &Perplexity) -> Result<()>,
) -> Result<Perplexity> {
    let mut total = Perplexity::default();
    for (i, passage) in passages.iter().enumerate() {
        read(engine, passage, |logits, range| {
            total.extend(kl::nll(logits, &passage.targets()[range]));
            on_logits(logits)
        })?;
        finite(passage, total.value())?;
        on_passage(i, &total)?;
    }
    Ok(total)
}

/// Reads a whole passage into an empty cache; hands over logits and the places they have among the targets.
pub(super) fn read(
    engine: &mut Engine,
    passage: &Passage,
    on_logits: impl FnMut(&mut [f32], Range<usize>) -> Result<()>,
) -> Result<()> {
    engine.clear()?;
    engine.decode(
        &passage.tokens[..passage.n_prompt],
        Want::Nothing,
        &Taps::default(),
        &mut Recorded::default(),
        |_, _| Ok(()),
    )?;
    follow(engine, passage, on_logits)
}

impl Item for Passage {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> &[u32] {
        &self.tokens[..self.n_prompt]
    }

    fn first(&self) -> Option<u32> {
        None
    }

    fn room(&self) -> usize {
        self.given().len()
    }
}

/// Scores the continuations with the full cache and with each case.
///
/// Memory: the log-probabilities of one continuation, 4 bytes each, beside what [`super::compare`] needs.
///
/// # Errors
/// As [`super::compare`], and when a result is no number.
pub fn compare(
    engine: &mut Engine,
    passages: &[Passage],
    cases: &[Case],
    setting: &Setting,
    on_event: impl FnMut(Event<Vec<Scored>>) -> Result<()>,
) -> Result<Vec<Outcome<Vec<Scored>>>> {
    let n_vocab = engine.model().hp.n_vocab;
    let mut full: Vec<f32> = Vec::new();
    let measure = |engine: &mut Engine, passage: &Passage, nth: usize| {
        if nth == 0 {
            full.clear();
        }
        let mut scored = Vec::new();
        follow(engine, passage, |logits, range| {
            logits.par_chunks_exact_mut(n_vocab).for_each(kl::log_softmax);
            if nth == 0 {
                full.extend_from_slice(logits);
            }
            let full = &full[range.start * n_vocab..range.end * n_vocab];
            let (targets, first) = (&passage.targets()[range.clone()], range.start + 1);
            scored.extend(kl::score(full, logits, targets, first, f32::MIN));
            Ok(())
        })?;
        finite(passage, scored.iter().map(|s| s.nll + s.kl).sum())?;
        Ok(scored)
    };
    super::compare(engine, passages, cases, setting, measure, on_event)
}

/// Reads the continuation behind whatever the cache holds; hands over logits and the places they have among the targets.
fn follow(
    engine: &mut Engine,
    passage: &Passage,
    mut on_logits: impl FnMut(&mut [f32], Range<usize>) -> Result<()>,
) -> Result<()> {
    let n = n_scored_at_once(engine);
    for (i, tokens) in passage.given().chunks(n).enumerate() {
        engine.decode(tokens, Want::All, &Taps::default(), &mut Recorded::default(), |range, logits| {
            on_logits(logits, i * n + range.start..i * n + range.end)
        })?;
    }
    Ok(())
}

pub(super) fn finite(passage: &Passage, x: f64) -> Result<()> {
    match x.is_finite() {
        true => Ok(()),
        false => Err(Error::Context { what: format!("{}: the model's logits are no numbers", passage.name) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_llama_perplexitys() {
        let tokens: Vec<u32> = (10..45).collect();
        let cut = chunks(&tokens, 8, None, Some(1)).unwrap();
        assert_eq!(cut.len(), 4);
        assert_eq!(cut[1].tokens, [1, 19, 20, 21, 22, 23, 24, 25]);
        // n_ctx - 1 - n_ctx / 2 positions are scored, the first of them after the first token of the second half.
        assert_eq!((cut[1].given(), cut[1].targets()), (&[22, 23, 24][..], &[23, 24, 25][..]));
        assert_eq!(chunks(&tokens, 8, Some(2), None).unwrap()[1].tokens[0], 18);
        let error = chunks(&tokens, 18, None, None).unwrap_err().to_string();
        assert!(error.contains("at least 36 tokens") && error.contains("has 35"), "{error}");
    }

    #[test]
    fn perplexity_is_that_of_the_mean_with_its_standard_error() {
        let x = [1.0, 2.0, 4.0, 3.5];
        let mut p = Perplexity::default();
        p.extend(x);
        let mean = x.iter().sum::<f64>() / 4.0;
        let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 4.0;
        assert!((p.value() - mean.exp()).abs() < 1e-12);
        assert!((p.error() - mean.exp() * (variance / 3.0).sqrt()).abs() < 1e-12);
    }
}
