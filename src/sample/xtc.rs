//! Excludes top choices: by chance, all tokens above the threshold but the least probable of them are removed.
//!
//! Source: `llama_sample_xtc_apply` (github.com/oobabooga/text-generation-webui/pull/6335). It draws from a generator of its own.

use super::rng::Rng;
use super::{Candidates, SampleParams, Sampler};

struct Xtc {
    probability: f32,
    threshold: f32,
    rng: Rng,
}

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
    // Two tokens cannot both have more than half of the probability.
    let is_off = probability <= 0.0 || threshold > 0.5;
    (!is_off).then(|| Box::new(Xtc { probability, threshold, rng: Rng::new(params.seed) }) as Box<dyn Sampler>)
}

impl Sampler for Xtc {
    fn apply(&mut self, candidates: &mut Candidates) {
        if candidates.list().len() < 2 || self.rng.uniform_f32() > self.probability {
            return;
        }
        candidates.sort();
        let n_above = candidates.probabilities().iter().take_while(|&&p| p >= self.threshold).count();
        candidates.skip(n_above.saturating_sub(1));
    }

    fn reset(&mut self) {
        self.rng.reset();
    }
}
