//! Adds a constant to the logits of single tokens; -inf forbids a token. Always the first step of the chain.
//!
//! Source: `llama_sampler_logit_bias_apply`. Several entries for one token add up.

use super::{Candidates, SampleParams, Sampler};

struct LogitBias(Vec<(u32, f32)>);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    let bias = &params.logit_bias;
    (!bias.is_empty()).then(|| Box::new(LogitBias(bias.clone())) as Box<dyn Sampler>)
}

impl Sampler for LogitBias {
    fn apply(&mut self, candidates: &mut Candidates) {
        for &(token, bias) in &self.0 {
            candidates.update(token, |logit| logit + bias);
        }
    }
}
