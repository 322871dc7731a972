//! Keeps tokens with at least the share p of the highest probability (Nguyen et al. 2024, arXiv 2407.01082).
//!
//! Source: `llama_sampler_min_p_apply`: logits are compared, so no probability has to be computed.

use super::{Candidates, SampleParams, Sampler};

struct MinP(f32);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    (params.min_p > 0.0).then(|| Box::new(MinP(params.min_p)) as Box<dyn Sampler>)
}

impl Sampler for MinP {
    fn apply(&mut self, candidates: &mut Candidates) {
        // p above 1 would remove even the best token; llama.cpp keeps that one.
        let max = candidates.max_logit();
        let min_logit = max + self.0.ln().min(0.0);
        candidates.retain(|c| c.logit >= min_logit);
    }
}
