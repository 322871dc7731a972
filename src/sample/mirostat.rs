//! Mirostat: keeps the surprise of the text near a target by feedback (Basu et al. 2020, arXiv 2007.14966). Both versions
//! take the place of the whole chain but the logit bias and the temperature.
//!
//! Source: `llama_sampler_mirostat_apply` and `llama_sampler_mirostat_v2_apply`. Deviation: where version 1 computes a k
//! beyond every vocabulary, all tokens stay; in C++ that conversion is undefined.

use super::rng::Rng;
use super::{Candidates, SampleParams, Selector};

/// Tokens from which version 1 estimates the exponent of Zipf's law, as llama.cpp.
const N_ESTIMATE: usize = 100;

/// How a version limits the surprise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// By a number of tokens that follows from Zipf's law.
    One,
    /// By removing every token of a higher surprise.
    Two,
}

/// The feedback loop.
pub(super) struct Mirostat {
    version: Version,
    /// Target surprise. Units: bits.
    tau: f32,
    /// Learning rate.
    eta: f32,
    /// Largest surprise allowed now.
    mu: f32,
    rng: Rng,
}

impl Mirostat {
    pub(super) fn new(version: Version, params: &SampleParams) -> Self {
        let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
        Mirostat { version, tau, eta, mu: 2.0 * tau, rng: Rng::new(params.seed) }
    }

    /// How many tokens have a surprise of at most mu, by the exponent that fits the most probable ones.
    fn n_zipf(&self, probabilities: &[f32]) -> usize {
        let (mut t_b, mut t_t) = (0.0f32, 0.0f32);
        for (i, pair) in probabilities.windows(2).take(N_ESTIMATE - 1).enumerate() {
            let t = ((i + 2) as f32 / (i + 1) as f32).ln();
            t_b += t * (pair[0] / pair[1]).ln();
            t_t += t * t;
        }
        let s = t_b / t_t;
        let epsilon = s - 1.0;
        let n_vocab = probabilities.len() as f32;
        let k = ((epsilon * 2f32.powf(self.mu)) / (1.0 - n_vocab.powf(-epsilon))).powf(1.0 / s);
        (k as usize).max(1)
    }
}

impl Selector for Mirostat {
    fn select(&mut self, candidates: &mut Candidates) -> u32 {
        candidates.sort();
        let probabilities = candidates.probabilities();
        let n = match self.version {
            Version::One => self.n_zipf(&probabilities),
            Version::Two => probabilities.iter().take_while(|p| -p.log2() <= self.mu).count().max(1),
        };
        candidates.truncate(n);
        let probabilities = candidates.probabilities();
        let drawn = self.rng.weighted(&probabilities);
        let surprise = probabilities.get(drawn).map_or(0.0, |p| -p.log2());
        self.mu -= self.eta * (surprise - self.tau);
        candidates.list().get(drawn).map_or(0, |c| c.id)
    }

    fn reset(&mut self) {
        self.mu = 2.0 * self.tau;
        self.rng.reset();
    }
}
