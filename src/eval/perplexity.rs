//! Perplexity as llama-perplexity computes it, and the same of continuations read against compressed caches.
//!
//! Source: llama.cpp `tools/perplexity/perplexity.cpp` (`perplexity`): a text is cut into chunks that do not overlap, the first
//! half of each is context and the rest is scored, all positions but the last predicting the next token. llama-perplexity reads
//! several chunks side by side; here they come one after the other, in parts of the size that each of them has there.
//! Deviation: in a comparison the context is read before the scored tokens rather than with them, so that a pass can come in
//! between.

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
    /// The continuation. Its last token predicts nothing, but is read, too: the size of a batch decides how it is computed.
    fn given(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    /// How many tokens are scored.
    pub fn n_scored(&self) -> usize {
        self.targets().len()
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
        self.value() * self.nll().1
    }

    /// Mean of the negative log-likelihoods and its standard error.
    pub fn nll(&self) -> (f64, f64) {
        let mean = self.sum / self.n as f64;
        let variance = self.sum_of_squares / self.n as f64 - mean * mean;
        (mean, (variance.max(0.0) / (self.n as f64 - 1.0).max(1.0)).sqrt())
    }
}

/// How llama-perplexity puts chunks into batches: as many as fit into one of `-b` tokens are read side by side, and of each
/// batch as many tokens are computed at once as `-ub` says, equally many of each chunk.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// Tokens of a batch.
    pub n_batch: usize,
    /// Tokens that are computed at once.
    pub n_ubatch: usize,
}

impl Batches {
    /// Chunks of this length that are read side by side.
    pub fn n_seq(&self, n_ctx: usize) -> usize {
        (self.n_batch / n_ctx.max(1)).max(1)
    }

    /// Tokens of chunk `i` of `n_chunk` that are computed at once.
    pub(super) fn n_at_once(&self, n_ctx: usize, i: usize, n_chunk: usize) -> usize {
        let n_seq = self.n_seq(n_ctx);
        let n_together = n_seq.min(n_chunk - i / n_seq * n_seq).max(1);
        (self.n_ubatch / n_together).max(1)
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
    batches: Batches,
    mut on_logits: impl FnMut(&[f32]) -> Result<()>,
    mut on_passage: impl FnMut(usize, &Perplexity) -> Result<()>,
) -> Result<Perplexity> {
    let mut total = Perplexity::default();
    for (i, passage) in passages.iter().enumerate() {
        let n_at_once = batches.n_at_once(passage.tokens.len(), i, passages.len());
        read(engine, passage, batches.n_batch, n_at_once, |logits, range| {
            total.extend(kl::nll(logits, &passage.targets()[range]));
            on_logits(logits)
        })?;
        finite(passage, total.value())?;
        on_passage(i, &total)?;
    }
    Ok(total)
}

/// Reads a whole passage into an empty cache, in batches and of these `n_at_once` tokens at a time; hands over logits and the
/// places they have among the targets.
pub(super) fn read(
    engine: &mut Engine,
    passage: &Passage,
    n_batch: usize,
    n_at_once: usize,
    mut on_logits: impl FnMut(&mut [f32], Range<usize>) -> Result<()>,
) -> Result<()> {
    engine.clear()?;
    let n_at_once = n_at_once.min(n_scored_at_once(engine));
    for batch in parts(0..passage.tokens.len(), n_batch.max(1)) {
        for part in parts(batch, n_at_once) {
            append(engine, passage, part, &mut on_logits)?;
        }
    }
    Ok(())
}

/// A range in parts of `n`, but for the last.
fn parts(range: Range<usize>, n: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(n).map(move |at| at..(at + n).min(range.end))
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
    parts(passage.n_prompt..passage.tokens.len(), n).try_for_each(|part| append(engine, passage, part, &mut on_logits))
}

/// Reads tokens of a passage behind those before them; hands over the logits that predict a target, and their places among the
/// targets.
fn append(
    engine: &mut Engine,
    passage: &Passage,
    part: Range<usize>,
    on_logits: &mut impl FnMut(&mut [f32], Range<usize>) -> Result<()>,
) -> Result<()> {
    let (n_vocab, n_target) = (engine.model().hp.n_vocab, passage.targets().len());
    let first = part.start.max(passage.n_prompt);
    let want = Want::Tail(part.end.saturating_sub(first));
    let mut at = first - passage.n_prompt;
    engine.decode(&passage.tokens[part], want, &Taps::default(), &mut Recorded::default(), |_, logits| {
        // What the last token of all predicts is not known.
        let n = (logits.len() / n_vocab).min(n_target - at);
        let places = at..at + n;
        at += n;
        if n > 0 {
            on_logits(&mut logits[..n * n_vocab], places)?;
        }
        Ok(())
    })
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
        assert_eq!((cut[1].given(), cut[1].targets()), (&[22, 23, 24, 25][..], &[23, 24, 25][..]));
        assert_eq!(chunks(&tokens, 8, Some(2), None).unwrap()[1].tokens[0], 18);
        let error = chunks(&tokens, 18, None, None).unwrap_err().to_string();
        assert!(error.contains("at least 36 tokens") && error.contains("has 35"), "{error}");
    }

    #[test]
    fn chunks_share_a_batch_as_in_llama_perplexity() {
        let batches = Batches { n_batch: 2048, n_ubatch: 512 };
        let at_once = |n_ctx: usize, n_chunk: usize| -> Vec<usize> {
            (0..n_chunk).map(|i| batches.n_at_once(n_ctx, i, n_chunk)).collect()
        };
        // Two chunks side by side, alone, four and then a last one, and longer than a batch.
        assert_eq!(at_once(128, 2), [256; 2]);
        assert_eq!(at_once(128, 1), [512]);
        assert_eq!(at_once(512, 5), [128, 128, 128, 128, 512]);
        assert_eq!(at_once(128, 17), [[32; 16].to_vec(), vec![512]].concat());
        assert_eq!(at_once(4096, 3), [512; 3]);
        assert_eq!((batches.n_seq(512), batches.n_seq(4096), batches.n_seq(600)), (4, 1, 3));
        assert_eq!(parts(3..10, 4).collect::<Vec<_>>(), [3..7, 7..10]);
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
