//! Divides the logits by the temperature; 0 or less leaves only the most probable token. With a range, the temperature
//! follows the entropy of the candidates: low where the model is sure, high where it is not.
//!
//! Source: `llama_sampler_temp_impl` and `llama_sampler_temp_ext_apply`. Of equal maxima the first one stays, as there.

use super::{Candidates, SampleParams, Sampler};

/// A temperature that may depend on the entropy.
pub(super) struct Temperature {
    temperature: f32,
    range: f32,
    exponent: f32,
}

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    let fixed = Temperature::fixed(params.temperature);
    let (range, exponent) = (params.dynatemp_range, params.dynatemp_exponent);
    let is_off = params.temperature == 1.0 && range <= 0.0;
    (!is_off).then(|| Box::new(Temperature { range, exponent, ..fixed }) as Box<dyn Sampler>)
}

impl Temperature {
    /// The temperature as it is.
    pub(super) fn fixed(temperature: f32) -> Self {
        Temperature { temperature, range: 0.0, exponent: 1.0 }
    }

    /// The temperature for the entropy of these candidates, which are more than one and in order.
    fn for_entropy(&self, candidates: &Candidates) -> f32 {
        let probabilities = candidates.probabilities();
        let entropy = probabilities.iter().filter(|&&p| p > 0.0).fold(0.0f32, |sum, &p| sum - p * p.ln());
        let max_entropy = -(1.0 / probabilities.len() as f32).ln();
        let (min, max) = ((self.temperature - self.range).max(0.0), self.temperature + self.range);
        min + (max - min) * (entropy / max_entropy).powf(self.exponent)
    }
}

impl Sampler for Temperature {
    fn apply(&mut self, candidates: &mut Candidates) {
        let mut temperature = self.temperature;
        if self.range > 0.0 {
            if candidates.list().len() < 2 {
                return;
            }
            candidates.sort();
            temperature = self.for_entropy(candidates);
        }
        match temperature > 0.0 {
            true => candidates.scale(|logit| logit / temperature),
            false => candidates.keep_first_maximum(),
        }
    }
}
