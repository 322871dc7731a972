//! Forbids tokens whose logit lies more than n standard deviations below the highest (Tang et al. 2024, arXiv 2411.07641).
//!
//! Source: `llama_sampler_top_n_sigma_apply`. Forbidden tokens do not count; sums run in `f32` as there.

use super::{Candidates, SampleParams, Sampler};

struct TopNSigma(f32);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    (params.top_n_sigma > 0.0).then(|| Box::new(TopNSigma(params.top_n_sigma)) as Box<dyn Sampler>)
}

impl Sampler for TopNSigma {
    fn apply(&mut self, candidates: &mut Candidates) {
        let list = candidates.list();
        let logits = || list.iter().map(|c| c.logit).filter(|&x| x != f32::NEG_INFINITY);
        let n = logits().count() as f32;
        if list.len() < 2 || n == 0.0 {
            return;
        }
        let mean = logits().fold(0.0f32, |sum, x| sum + x) / n;
        // The square is taken in f64, its sum in f32: that is what `float += pow(float, int)` does in C++.
        let squares = logits().fold(0.0f32, |sum, x| (f64::from(sum) + f64::from(x - mean).powi(2)) as f32);
        let min = candidates.max_logit() - self.0 * (squares / n).sqrt();
        candidates.scale(|x| if x < min { f32::NEG_INFINITY } else { x });
    }
}
