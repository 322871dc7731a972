//! Keeps the smallest set of tokens whose probability reaches p (Holtzman et al. 2019, arXiv 1904.09751).
//!
//! Source: `llama_sampler_top_p_apply`. As there, the sums run in `f32` and in the order of the list.

use super::{Candidates, SampleParams, Sampler};

/// How many candidates are sorted before all are; the set is seldom larger.
const N_FIRST: usize = 256;

struct TopP(f32);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    (params.top_p < 1.0).then(|| Box::new(TopP(params.top_p)) as Box<dyn Sampler>)
}

impl Sampler for TopP {
    fn apply(&mut self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        let sum: f32 = candidates.list().iter().map(|c| (c.logit - max).exp()).fold(0.0, |sum, p| sum + p);
        let reaches = |n: usize| {
            let mut reached = 0.0;
            candidates.best(n).iter().position(|c| {
                reached += (c.logit - max).exp() / sum;
                reached >= self.0
            })
        };
        let n_all = candidates.list().len();
        let last = reaches(N_FIRST).or_else(|| reaches(n_all));
        candidates.truncate(last.map_or(n_all, |i| i + 1));
    }
}
