//! Keeps the k most probable tokens (Fan et al. 2018, arXiv 1805.04833). Source: `llama_sampler_top_k_impl`.

use super::{Candidates, SampleParams, Sampler};

struct TopK(usize);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    usize::try_from(params.top_k).ok().filter(|&k| k > 0).map(|k| Box::new(TopK(k)) as Box<dyn Sampler>)
}

impl Sampler for TopK {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.truncate(self.0);
    }
}
