//! Draws one candidate by its probability. Always the last step of the chain.
//!
//! Source: `llama_sampler_dist_apply`, seeded by `std::mt19937(seed)`, with `std::uniform_real_distribution<double>` as
//! libstdc++ and libc++ compute it (two 32-bit draws, low half first). One number is drawn for each token, also when
//! a single candidate is left.

use std::hash::{BuildHasher, Hasher};

use rand_mt::Mt;

use super::Candidates;

/// The generator of one sequence.
pub(super) struct Dist {
    seed: u32,
    rng: Mt,
}

impl Dist {
    /// `u32::MAX` takes a random seed.
    pub(super) fn new(seed: u32) -> Self {
        let seed = if seed == u32::MAX { random_seed() } else { seed };
        Dist { seed, rng: Mt::new(seed) }
    }

    pub(super) fn seed(&self) -> u32 {
        self.seed
    }

    pub(super) fn reset(&mut self) {
        self.rng = Mt::new(self.seed);
    }

    pub(super) fn draw(&mut self, candidates: &Candidates) -> u32 {
        let uniform = self.uniform();
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

    /// A number in [0, 1) with 53 random bits.
    fn uniform(&mut self) -> f64 {
        let low = f64::from(self.rng.next_u32());
        let high = f64::from(self.rng.next_u32());
        let x = (low + high * 4_294_967_296.0) / 18_446_744_073_709_551_616.0;
        x.min(1.0 - f64::EPSILON / 2.0)
    }
}

/// The standard library keys its hash maps from the operating system's random numbers; an empty hash shows such a key.
fn random_seed() -> u32 {
    let bits = std::hash::RandomState::new().build_hasher().finish();
    (bits as u32).min(u32::MAX - 1)
}
