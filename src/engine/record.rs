//! What a run records beside logits: queries, hidden states and the attention that entries get (stage 3).

use crate::cache::view::Sample;
use crate::error::Result;
use crate::ggml::{Scheduler, Tensor};
use crate::model::{Hparams, ModelGraph};

/// What a run has to record beside logits.
#[derive(Clone, Debug, Default)]
pub struct Taps {
    /// Positions whose queries are kept, ascending.
    pub queries: Vec<u32>,
    /// Positions of which the query of one head in each group is kept, in turn; ascending.
    pub samples: Vec<u32>,
    /// Layers whose projected hidden states are kept.
    pub hidden: Vec<usize>,
    /// Whether the attention that each entry gets is summed over all queries.
    pub attention_mass: bool,
}

/// What a run has recorded.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Positions of the kept queries.
    pub pos: Vec<u32>,
    /// Per layer `{head_dim_k, n_head, pos.len()}`, rotated, unscaled; empty for layers that slide.
    pub queries: Vec<Vec<f32>>,
    /// What was kept for [`Taps::samples`].
    pub samples: Vec<Sample>,
    /// Per layer `{head_dim_k, n_head_kv, samples.len()}`, as `queries`.
    pub sample_queries: Vec<Vec<f32>>,
    /// Per layer of [`Taps::hidden`] `{n_proj, n_tokens}`.
    pub hidden: Vec<Vec<f32>>,
    /// Per layer `{n_tokens, n_head_kv}`: attention that each token got from all queries of the run and all query heads of the
    /// group; empty for layers that slide, and unless asked for.
    pub attention_mass: Vec<Vec<f32>>,
}

impl Recorded {
    /// The part that a run with these taps would have left, whose query positions are ascending and all recorded.
    pub fn at(&self, taps: &Taps) -> Recorded {
        let asked = |asked: &[u32], pos: &[u32]| -> Vec<usize> {
            (0..pos.len()).filter(|&i| asked.binary_search(&pos[i]).is_ok()).collect()
        };
        let of_layers = |layers: &[Vec<f32>], kept: &[usize], n_recorded: usize| {
            let of_layer = |layer: &Vec<f32>| {
                let n = layer.len() / n_recorded.max(1);
                kept.iter().flat_map(|&i| &layer[i * n..(i + 1) * n]).copied().collect()
            };
            layers.iter().map(of_layer).collect()
        };
        let kept = asked(&taps.queries, &self.pos);
        let kept_samples = asked(&taps.samples, &self.samples.iter().map(|s| s.pos).collect::<Vec<u32>>());
        Recorded {
            pos: kept.iter().map(|&i| self.pos[i]).collect(),
            queries: of_layers(&self.queries, &kept, self.pos.len()),
            samples: kept_samples.iter().map(|&i| self.samples[i]).collect(),
            sample_queries: of_layers(&self.sample_queries, &kept_samples, self.samples.len()),
            hidden: if taps.hidden.is_empty() { Vec::new() } else { self.hidden.clone() },
            attention_mass: if taps.attention_mass { self.attention_mass.clone() } else { Vec::new() },
        }
    }

    /// Adds what the entries of a layer got from a batch; there are `n_tokens` by now. Shapes: `mass: {n_kv, n_head_kv}`.
    fn add_mass(&mut self, il: usize, mass: &[f32], n_tokens: usize, n_head_kv: usize) {
        let n_before = self.attention_mass[il].len() / n_head_kv;
        let before = std::mem::replace(&mut self.attention_mass[il], vec![0.0; n_tokens * n_head_kv]);
        for (g, sum) in self.attention_mass[il].chunks_exact_mut(n_tokens).enumerate() {
            sum[..n_before].copy_from_slice(&before[g * n_before..(g + 1) * n_before]);
            sum.iter_mut().zip(&mass[g * mass.len() / n_head_kv..]).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Adds what a graph with these taps has left for a batch, behind which `n_tokens` are in the cache; `tapped` are the positions
    /// that its queries are of.
    ///
    /// # Errors
    /// When the backend cannot be read.
    pub(super) fn add(
        &mut self,
        (sched, g): (&mut Scheduler, &ModelGraph),
        hp: &Hparams,
        taps: &Taps,
        tapped: &[u32],
        n_tokens: usize,
    ) -> Result<()> {
        let (n_layer, dim, n_group) = (hp.n_layer, hp.head_dim_k, hp.n_group());
        let n_sampled = self.samples.len();
        let (mut whole, mut samples) = (Vec::new(), Vec::new());
        for (i, &pos) in tapped.iter().enumerate() {
            if taps.queries.binary_search(&pos).is_ok() {
                self.pos.push(pos);
                whole.push(i);
            }
            if taps.samples.binary_search(&pos).is_ok() {
                let head = (self.samples.len() % n_group) as u32;
                self.samples.push(Sample { pos, head });
                samples.push(i);
            }
        }
        self.queries.resize(n_layer, Vec::new());
        self.sample_queries.resize(n_layer, Vec::new());
        let mut rows = Vec::new();
        for (il, t) in &g.outputs.queries {
            if samples.is_empty() {
                append(sched, g, t, &mut self.queries[*il])?;
                continue;
            }
            rows.resize(t.n_elements(), 0.0);
            sched.read(&g.graph, t, &mut rows)?;
            let n = rows.len() / tapped.len();
            // What a doubling vector holds in reserve would be resident beside the full cache.
            self.queries[*il].reserve_exact(whole.len() * n);
            whole.iter().for_each(|i| self.queries[*il].extend_from_slice(&rows[i * n..(i + 1) * n]));
            let kept = &mut self.sample_queries[*il];
            kept.reserve_exact(samples.len() * n / n_group);
            for (i, sample) in samples.iter().zip(&self.samples[n_sampled..]) {
                let of_head = rows[i * n..(i + 1) * n].chunks_exact(dim).skip(sample.head as usize).step_by(n_group);
                of_head.for_each(|query| kept.extend_from_slice(query));
            }
        }
        self.attention_mass.resize(n_layer, Vec::new());
        for (il, t) in &g.outputs.attention_mass {
            let mut mass = vec![0.0; t.n_elements()];
            sched.read(&g.graph, t, &mut mass)?;
            self.add_mass(*il, &mass, n_tokens, hp.n_head_kv);
        }
        self.hidden.resize(g.outputs.hidden.len().max(self.hidden.len()), Vec::new());
        for (slot, (_, t)) in self.hidden.iter_mut().zip(&g.outputs.hidden) {
            append(sched, g, t, slot)?;
        }
        Ok(())
    }
}

fn append(sched: &mut Scheduler, g: &ModelGraph, t: &Tensor, out: &mut Vec<f32>) -> Result<()> {
    let at = out.len();
    // What a doubling vector holds in reserve would be resident beside the full cache.
    out.reserve_exact(t.n_elements());
    out.resize(at + t.n_elements(), 0.0);
    sched.read(&g.graph, t, &mut out[at..])
}
