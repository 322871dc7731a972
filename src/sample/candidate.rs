//! The candidates for the next token: a list that samplers shorten, change and order.
//!
//! Source: `llama_token_data_array` of llama.cpp. Partial selection replaces its bucket sort: one scan over the vocabulary
//! against the worst of the best k so far, which costs about as much as reading the logits once.

use std::cmp::Ordering;

use crate::error::{Error, Result};

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit, as changed by the samplers so far.
    pub logit: f32,
}

/// The tokens that may come next.
#[derive(Debug, Default)]
pub struct Candidates {
    list: Vec<Candidate>,
    sorted: bool,
}

/// Higher logits first; equal ones by token id.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

impl Candidates {
    /// Starts over with every token of the vocabulary.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the first token whose logit is NaN or +inf, or when no logit is finite.
    pub fn fill(&mut self, logits: &[f32]) -> Result<()> {
        // `<` is false for NaN and for +inf; folding without a branch lets the compiler use vector instructions.
        let usable = logits.iter().fold(true, |ok, &x| ok & (x < f32::INFINITY));
        let finite = logits.iter().fold(false, |any, &x| any | (x > f32::NEG_INFINITY));
        if !usable || !finite {
            let bad = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
            let got = bad.map_or("none".to_string(), |id| format!("{} for token {id}", logits[id]));
            return Err(Error::shape(
                "logits",
                "finite numbers",
                got + "; --check-tensors finds weights that are none",
            ));
        }
        self.list.clear();
        // + 0.0 turns -0.0 into 0.0, so that the total order agrees with `<`.
        self.list.extend(logits.iter().zip(0u32..).map(|(&x, id)| Candidate { id, logit: x + 0.0 }));
        self.sorted = false;
        Ok(())
    }

    /// The candidates in their present order.
    pub fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// Whether the candidates stand in descending order of their logits.
    pub fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// Changes the logit of one token, if it is still a candidate. The list counts as unsorted afterwards.
    pub fn update(&mut self, id: u32, change: impl FnOnce(f32) -> f32) {
        let found = match self.list.get(id as usize) {
            Some(c) if c.id == id => Some(id as usize),
            _ => self.list.iter().position(|c| c.id == id),
        };
        if let Some(at) = found {
            self.list[at].logit = change(self.list[at].logit) + 0.0;
            self.sorted = false;
        }
    }

    /// Changes every logit by a function that keeps their order.
    pub fn scale(&mut self, change: impl Fn(f32) -> f32) {
        for c in &mut self.list {
            c.logit = change(c.logit);
        }
    }

    /// Changes every logit by a function of it and of the number that belongs to it; the list counts as unsorted afterwards.
    pub fn transform(&mut self, numbers: &[f32], change: impl Fn(f32, f32) -> f32) {
        for (c, &x) in self.list.iter_mut().zip(numbers) {
            c.logit = change(c.logit, x);
        }
        self.sorted = false;
    }

    /// Forbids tokens: their logit becomes -inf.
    pub fn forbid(&mut self, is_forbidden: impl Fn(u32) -> bool) {
        for c in &mut self.list {
            if is_forbidden(c.id) {
                c.logit = f32::NEG_INFINITY;
            }
        }
        self.sorted = false;
    }

    /// Forbids all but the candidate with the highest logit; of equal ones the first in the list stays.
    pub fn keep_first_maximum(&mut self) {
        if let Some(best) = self.first_maximum() {
            let sorted = self.sorted;
            self.forbid(|id| id != best.id);
            self.sorted = sorted;
        }
    }

    /// Removes candidates; their order stays.
    pub fn retain(&mut self, keep: impl Fn(&Candidate) -> bool) {
        self.list.retain(keep);
    }

    /// Removes the first `n` candidates.
    pub fn skip(&mut self, n: usize) {
        self.list.drain(..n.min(self.list.len()));
    }

    /// Keeps the candidates at these places, in this order; the list counts as unsorted afterwards.
    pub fn arrange(&mut self, places: &[usize]) {
        self.list = places.iter().filter_map(|&i| self.list.get(i).copied()).collect();
        self.sorted = false;
    }

    /// Sorts the candidates.
    pub fn sort(&mut self) {
        self.truncate(self.list.len());
    }

    /// The probability of each candidate, in the order of the list; the sum runs in `f32`, as in llama.cpp.
    pub fn probabilities(&self) -> Vec<f32> {
        let max = self.max_logit();
        let weights: Vec<f32> = self.list.iter().map(|c| (c.logit - max).exp()).collect();
        let sum = weights.iter().fold(0.0f32, |sum, w| sum + w);
        weights.into_iter().map(|w| w / sum).collect()
    }

    /// Keeps the `k` best and sorts them.
    pub fn truncate(&mut self, k: usize) {
        if !self.sorted {
            self.list = self.best(k);
            self.sorted = true;
        }
        self.list.truncate(k);
    }

    /// The `k` best candidates in order; the list itself stays as it is.
    pub fn best(&self, k: usize) -> Vec<Candidate> {
        let k = k.min(self.list.len());
        if k == 0 {
            return Vec::new();
        }
        if self.sorted {
            return self.list[..k].to_vec();
        }
        let n_buffer = (4 * k).max(64);
        let mut buffer = Vec::with_capacity(n_buffer.min(self.list.len()));
        let mut worst: Option<Candidate> = None;
        for c in &self.list {
            if worst.is_some_and(|w| c.logit < w.logit || order(c, &w) == Ordering::Greater) {
                continue;
            }
            buffer.push(*c);
            if buffer.len() == n_buffer {
                buffer.select_nth_unstable_by(k - 1, order);
                buffer.truncate(k);
                worst = buffer.last().copied();
            }
        }
        buffer.sort_unstable_by(order);
        buffer.truncate(k);
        buffer
    }

    /// The candidate with the highest logit; of equal ones the first in the list.
    pub fn first_maximum(&self) -> Option<Candidate> {
        let better = |best: Candidate, c: &Candidate| if c.logit > best.logit { *c } else { best };
        let (first, rest) = self.list.split_first()?;
        Some(if self.sorted { *first } else { rest.iter().fold(*first, better) })
    }

    /// The highest logit.
    pub fn max_logit(&self) -> f32 {
        self.first_maximum().map_or(f32::NEG_INFINITY, |c| c.logit)
    }
}
