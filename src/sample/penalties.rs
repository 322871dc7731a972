//! Makes tokens of the recent text less probable: repeat (Keskar et al. 2019, arXiv 1909.05858), frequency, presence.
//!
//! Source: `llama_sampler_penalties_apply`. Deviation: the few counted tokens are looked up among the candidates, not
//! every candidate among the counted tokens.

use std::collections::{BTreeMap, VecDeque};

use super::{Candidates, SampleParams, Sampler};

struct Penalties {
    n_last: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    last: VecDeque<u32>,
    counts: BTreeMap<u32, u32>,
}

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    let neutral = params.repeat_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0;
    if neutral || params.repeat_last_n == 0 {
        return None;
    }
    Some(Box::new(Penalties {
        n_last: params.repeat_last_n as usize,
        repeat: params.repeat_penalty,
        frequency: params.frequency_penalty,
        presence: params.presence_penalty,
        last: VecDeque::new(),
        counts: BTreeMap::new(),
    }))
}

impl Sampler for Penalties {
    fn apply(&mut self, candidates: &mut Candidates) {
        for (&token, &count) in &self.counts {
            candidates.update(token, |logit| {
                // Dividing a negative logit would make the token more probable.
                let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
                repeated - (count as f32 * self.frequency + self.presence)
            });
        }
    }

    fn accept(&mut self, token: u32) {
        *self.counts.entry(token).or_default() += 1;
        self.last.push_back(token);
        if self.last.len() > self.n_last {
            if let Some(old) = self.last.pop_front() {
                match self.counts.get_mut(&old) {
                    Some(count) if *count > 1 => *count -= 1,
                    _ => drop(self.counts.remove(&old)),
                }
            }
        }
    }

    fn reset(&mut self) {
        self.last.clear();
        self.counts.clear();
    }
}
