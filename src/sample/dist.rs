//! Draws one candidate by its probability. The last step of the chain unless another one takes its place.
//!
//! Source: `llama_sampler_dist_apply`. One number is drawn for each token, also when a single candidate is left.

use super::rng::Rng;
use super::{Candidates, Selector};

/// The generator of one sequence.
pub(super) struct Dist(Rng);

impl Dist {
    pub(super) fn new(seed: u32) -> Self {
        Dist(Rng::new(seed))
    }
}

impl Selector for Dist {
    fn select(&mut self, candidates: &mut Candidates) -> u32 {
        let uniform = self.0.uniform();
        let max = candidates.max_logit();
        let weight = |logit: f32| f64::from((logit - max).exp());
        let sum = candidates.list().iter().fold(0.0, |sum, c| sum + weight(c.logit));
        let mut reached = 0.0;
        let drawn = candidates.list().iter().find(|c| {
            reached += weight(c.logit);
            reached >= sum * uniform
        });
        drawn.or(candidates.list().last()).map_or(0, |c| c.id)
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}
