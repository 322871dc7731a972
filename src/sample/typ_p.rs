//! Keeps the tokens whose surprise is nearest to the entropy, until their probability passes p (Meister et al. 2022,
//! arXiv 2202.00666).
//!
//! Source: `llama_sampler_typical_apply`. The order of the list is then by typicality, as there. Deviation: forbidden tokens
//! add nothing to the entropy; there it becomes NaN and the order undefined.

use super::{Candidates, SampleParams, Sampler};

struct Typical(f32);

pub(super) fn new(params: &SampleParams) -> Option<Box<dyn Sampler>> {
    (params.typ_p < 1.0).then(|| Box::new(Typical(params.typ_p)) as Box<dyn Sampler>)
}

impl Sampler for Typical {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.sort();
        let probabilities = candidates.probabilities();
        let entropy = probabilities.iter().filter(|&&p| p > 0.0).fold(0.0f32, |sum, &p| sum + -p * p.ln());
        let distance: Vec<f32> = probabilities.iter().map(|p| (-p.ln() - entropy).abs()).collect();
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|&a, &b| distance[a].total_cmp(&distance[b]));
        let mut reached = 0.0;
        let last = order.iter().position(|&i| {
            reached += probabilities[i];
            reached > self.0
        });
        order.truncate(last.map_or(order.len(), |i| i + 1));
        candidates.arrange(&order);
    }
}
