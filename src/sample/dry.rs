//! DRY: makes a token less probable the longer the repetition is that it would continue
//! (github.com/oobabooga/text-generation-webui/pull/5677). Sequence breakers end a repetition.
//!
//! Source: `llama_sampler_dry_apply`. The repetitions are the Z array of the latest tokens read backwards; the few tokens
//! they lead to are looked up among the candidates, not every candidate among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Candidates, SampleParams, Sampler, Vocabulary};
use crate::error::{Error, Result};

/// Logarithm of the largest `f32`, above which a power is no number.
const LN_MAX: f32 = 88.722_84;

/// Most sequence breakers: for each, the whole vocabulary is searched.
const MAX_BREAKERS: usize = 128;
/// Most bytes of a sequence breaker, and most tokens after its first.
const MAX_BREAKER: (usize, usize) = (40, 20);

struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: i32,
    n_last: usize,
    /// What can follow a token to make a sequence breaker; empty when the token is one by itself.
    breakers: BTreeMap<u32, Vec<Vec<u32>>>,
    /// The latest token first.
    last: VecDeque<u32>,
}

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    if params.dry_multiplier == 0.0 || params.dry_base < 1.0 || params.dry_penalty_last_n == 0 {
        return None;
    }
    let mut breakers: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
    for (head, tail) in &params.dry_breakers {
        breakers.entry(*head).or_default().push(tail.clone());
    }
    Some(Box::new(Dry {
        multiplier: params.dry_multiplier,
        base: params.dry_base,
        allowed_length: params.dry_allowed_length,
        n_last: params.dry_penalty_last_n as usize,
        breakers,
        last: VecDeque::new(),
    }))
}

/// The token sequences that contain a text: every token that holds it, and every one that ends with its beginning, followed
/// by the tokens of the rest. Source: `get_overlapping_token_sequences`.
///
/// # Errors
/// When there are too many texts, or the vocabulary cannot express one.
pub fn breakers(texts: &[Vec<u8>], vocabulary: &dyn Vocabulary) -> Result<Vec<(u32, Vec<u32>)>> {
    let mut all = Vec::new();
    let texts = texts.iter().map(|t| &t[..t.len().min(MAX_BREAKER.0)]).filter(|t| !t.is_empty());
    let texts: BTreeSet<&[u8]> = texts.collect();
    if texts.len() > MAX_BREAKERS {
        let n = texts.len();
        return Err(Error::Usage(format!(
            "error: {n} different values of --dry-sequence-breaker; {MAX_BREAKERS} are the most"
        )));
    }
    for text in texts {
        let mut rests = Vec::with_capacity(text.len());
        for n in 0..text.len() {
            let mut rest = if n == 0 { Vec::new() } else { vocabulary.encode(&text[n..], false)? };
            rest.truncate(MAX_BREAKER.1);
            rests.push(rest);
        }
        for id in 0..vocabulary.n_vocab() {
            let piece = vocabulary.first_piece(id);
            if piece.windows(text.len()).any(|w| w == text) {
                all.push((id, Vec::new()));
                continue;
            }
            let ends_with = |n: &usize| piece.ends_with(&text[..*n]);
            all.extend((1..text.len()).filter(ends_with).map(|n| (id, rests[n].clone())));
        }
    }
    Ok(all)
}

impl Dry {
    /// Tokens since the last sequence breaker: no repetition is longer.
    fn limit(&self) -> usize {
        let matches = |at: usize, tail: &[u32]| {
            tail.len() <= at && tail.iter().enumerate().all(|(i, t)| self.last[at - 1 - i] == *t)
        };
        let breaker = self.last.iter().enumerate().find_map(|(at, token)| {
            let tails = self.breakers.get(token)?.iter().filter(|tail| matches(at, tail));
            tails.map(|tail| at - tail.len()).min()
        });
        breaker.unwrap_or(self.last.len())
    }

    /// The longest repetition that each token would continue.
    fn repetitions(&self, limit: usize) -> BTreeMap<u32, i32> {
        let mut longest = BTreeMap::new();
        for (k, &length) in z_array(&self.last).iter().enumerate().skip(1) {
            let length = length.min(limit) as i32;
            if length >= self.allowed_length {
                let longest = longest.entry(self.last[k - 1]).or_insert(length);
                *longest = length.max(*longest);
            }
        }
        longest
    }

    fn penalty(&self, length: i32) -> f32 {
        let max_exponent = if self.base > 1.000_001 { (LN_MAX / self.base.ln()) as i32 } else { 0 };
        let mut exponent = length.saturating_sub(self.allowed_length);
        if max_exponent > 0 {
            exponent = exponent.min(max_exponent);
        }
        (f64::from(self.multiplier) * f64::from(self.base).powf(f64::from(exponent))) as f32
    }
}

/// At each place, how many elements from there on equal those from the start on.
fn z_array(list: &VecDeque<u32>) -> Vec<usize> {
    let mut z = vec![0; list.len()];
    let (mut left, mut right) = (0, 0);
    for k in 1..list.len() {
        let mut n = if k < right { z[k - left].min(right - k) } else { 0 };
        while k + n < list.len() && list[n] == list[k + n] {
            n += 1;
        }
        z[k] = n;
        if k + n > right {
            (left, right) = (k, k + n);
        }
    }
    z
}

impl Sampler for Dry {
    fn apply(&mut self, candidates: &mut Candidates) {
        let n_last = i32::try_from(self.last.len()).unwrap_or(i32::MAX);
        if n_last <= self.allowed_length {
            return;
        }
        let limit = self.limit();
        if i32::try_from(limit).is_ok_and(|limit| limit < self.allowed_length) {
            return;
        }
        for (token, length) in self.repetitions(limit) {
            let is_breaker = self.breakers.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty));
            if !is_breaker {
                candidates.update(token, |logit| logit - self.penalty(length));
            }
        }
    }

    fn accept(&mut self, token: u32) {
        self.last.push_front(token);
        self.last.truncate(self.n_last);
    }

    fn reset(&mut self) {
        self.last.clear();
    }
}
