//! Adaptive-p: prefers tokens whose probability is near a target, which moves against the average of what was chosen.
//! It takes the place of the draw at the end of the chain.
//!
//! Source: `llama_sampler_adaptive_p_apply` and `llama_sampler_adaptive_p_accept` (github.com/ggml-org/llama.cpp/pull/17927).

use super::rng::Rng;
use super::{Candidates, SampleParams, Selector};

/// Distance from the target at which the preference has fallen markedly.
const WIDTH: f32 = 0.3;
/// Logit of a token exactly at the target.
const PEAK: f32 = 5.0;
/// How fast the logit falls with the distance.
const SHARPNESS: f32 = 10.0;

/// The moving target of one sequence.
pub(super) struct AdaptiveP {
    /// Below 0 the distribution stays as it is.
    target: f32,
    decay: f32,
    /// Sums over the chosen tokens, the latest with weight 1, each one before with `decay` of the next.
    weighted_sum: f32,
    total_weight: f32,
    /// The token drawn last and its probability before the transform.
    drawn: Option<(u32, f32)>,
    rng: Rng,
}

impl AdaptiveP {
    pub(super) fn new(params: &SampleParams) -> Self {
        let decay = params.adaptive_decay.clamp(0.0, 0.99);
        let rng = Rng::new(params.seed);
        let mut new =
            AdaptiveP { target: params.adaptive_target, decay, weighted_sum: 0.0, total_weight: 0.0, drawn: None, rng };
        new.reset();
        new
    }

    /// The probability to prefer now.
    fn adapted_target(&self) -> f32 {
        let target = self.target.clamp(0.0, 1.0);
        match self.total_weight {
            0.0 => target,
            total => (2.0 * target - self.weighted_sum / total).clamp(0.0, 1.0),
        }
    }
}

impl Selector for AdaptiveP {
    fn select(&mut self, candidates: &mut Candidates) -> u32 {
        let original = candidates.probabilities();
        if self.target >= 0.0 {
            let target = self.adapted_target();
            candidates.transform(&original, |logit, p| {
                let distance = ((p - target) * (1.0 / WIDTH)).abs();
                match logit {
                    f32::NEG_INFINITY => logit,
                    _ => PEAK - SHARPNESS * distance * distance / (1.0 + distance),
                }
            });
        }
        let drawn = self.rng.weighted(&candidates.probabilities());
        let id = candidates.list().get(drawn).map_or(0, |c| c.id);
        self.drawn = original.get(drawn).filter(|_| self.target >= 0.0).map(|&p| (id, p));
        id
    }

    fn accept(&mut self, token: u32) {
        if let Some((_, p)) = self.drawn.take().filter(|(drawn, _)| *drawn == token) {
            self.weighted_sum = p + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }

    fn reset(&mut self) {
        self.weighted_sum = self.target / (1.0 - self.decay);
        self.total_weight = 1.0 / (1.0 - self.decay);
        self.drawn = None;
        self.rng.reset();
    }
}
