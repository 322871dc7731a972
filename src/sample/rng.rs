//! Random numbers as llama.cpp draws them with libstdc++.
//!
//! Source: `std::mt19937`, `std::uniform_real_distribution` and `std::discrete_distribution` of libstdc++, on which
//! `llama_sampler_dist_apply`, `llama_sampler_xtc` and `llama_sample_dist` rest.

use std::hash::{BuildHasher, Hasher};

use rand_mt::Mt;

/// A generator that can start again from its seed.
pub(super) struct Rng {
    seed: u32,
    mt: Mt,
}

impl Rng {
    pub(super) fn new(seed: u32) -> Self {
        Rng { seed, mt: Mt::new(seed) }
    }

    pub(super) fn reset(&mut self) {
        self.mt = Mt::new(self.seed);
    }

    /// A number in [0, 1) with 53 random bits: two draws, the low half first.
    pub(super) fn uniform(&mut self) -> f64 {
        let low = f64::from(self.mt.next_u32());
        let high = f64::from(self.mt.next_u32());
        let x = (low + high * 4_294_967_296.0) / 18_446_744_073_709_551_616.0;
        x.min(1.0 - f64::EPSILON / 2.0)
    }

    /// A number in [0, 1) with 24 random bits: one draw.
    pub(super) fn uniform_f32(&mut self) -> f32 {
        let x = self.mt.next_u32() as f32 / 4_294_967_296.0;
        x.min(1.0 - f32::EPSILON / 2.0)
    }

    /// The index of a weight, drawn in proportion to it. A single weight draws nothing, as in libstdc++.
    pub(super) fn weighted(&mut self, weights: &[f32]) -> usize {
        let Some(last) = weights.len().checked_sub(1).filter(|&last| last > 0) else { return 0 };
        let sum: f64 = weights.iter().fold(0.0, |sum, &w| sum + f64::from(w));
        let uniform = self.uniform();
        let mut reached = 0.0;
        let drawn = weights[..last].iter().position(|&w| {
            reached += f64::from(w) / sum;
            reached >= uniform
        });
        drawn.unwrap_or(last)
    }
}

/// The seed itself, or a random one for `u32::MAX`.
pub(super) fn resolve(seed: u32) -> u32 {
    match seed {
        // The standard library keys its hash maps from the operating system's random numbers; an empty hash shows such a key.
        u32::MAX => (std::hash::RandomState::new().build_hasher().finish() as u32).min(u32::MAX - 1),
        seed => seed,
    }
}
