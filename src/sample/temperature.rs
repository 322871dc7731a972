//! Divides the logits by the temperature; 0 or less leaves only the most probable token.
//!
//! Source: `llama_sampler_temp_impl`. Of equal maxima the first one stays, as there.

use super::{Candidates, SampleParams, Sampler};

struct Temperature(f32);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    (params.temperature != 1.0).then(|| Box::new(Temperature(params.temperature)) as Box<dyn Sampler>)
}

impl Sampler for Temperature {
    fn apply(&mut self, candidates: &mut Candidates) {
        if self.0 > 0.0 {
            candidates.scale(|logit| logit / self.0);
        } else if let Some(best) = candidates.first_maximum() {
            candidates.retain(|c| c.id == best.id);
        }
    }
}
