//! A KV cache in plain vectors: the source of a [`View`] in tests and benchmarks of the methods (stage 4).

use super::rope::{Rope, RopeKind};
use super::view::{Hidden, Probe, ProbeKind, Probes, Sample, Source, View};
use crate::error::Result;

/// Everything a [`View`] shows.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Layers that may be compressed.
    pub layers: Vec<usize>,
    /// Query heads.
    pub n_head: usize,
    /// KV heads.
    pub n_head_kv: usize,
    /// Length of a key.
    pub head_dim_k: usize,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Tokens of the prompt.
    pub n_tokens: usize,
    /// Logit soft-cap, 0 = none.
    pub logit_softcap: f32,
    /// Sinks by layer and query head.
    pub sinks: Vec<Vec<f32>>,
    /// Keys, rotated, per layer and KV head (`il * n_head_kv + g`). Shapes: `{head_dim_k, n_tokens}`.
    pub keys: Vec<Vec<f32>>,
    /// Values, as `keys`. Shapes: `{head_dim_v, n_tokens}`.
    pub values: Vec<Vec<f32>>,
    /// Tapped queries.
    pub probes: Probes,
    /// Rotation per layer.
    pub rope: Vec<Rope>,
    /// Projected hidden states.
    pub hidden: Hidden,
    /// What all queries of the prompt gave to each token, per layer. Shapes: `{n_tokens, n_head_kv}`.
    pub attention_mass: Vec<Vec<f32>>,
}

impl Memory {
    /// The view.
    pub fn view(&self) -> View<'_> {
        View {
            source: self,
            n_layer: self.rope.len(),
            layers: &self.layers,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            n_tokens: self.n_tokens,
            kq_scale: 1.0 / (self.head_dim_k as f32).sqrt(),
            logit_softcap: self.logit_softcap,
            sinks: &self.sinks,
            rope: &self.rope,
            probes: &self.probes,
            hidden: &self.hidden,
            attention_mass: &self.attention_mass,
            surprisal: &[],
        }
    }

    /// Random heads with the structure of real ones: keys and values drift through topics, queries look for some of them,
    /// the first token is a sink. `n_probe` = window, sampled and lookahead probes.
    pub fn random(
        seed: u64,
        n_layer: usize,
        n_head: usize,
        n_head_kv: usize,
        head_dim: usize,
        n_tokens: usize,
        n_probe: [usize; 3],
    ) -> Self {
        // Miri takes a thousand times as long.
        let n_tokens = if cfg!(miri) { n_tokens.min(40) } else { n_tokens };
        let n_probe = n_probe.map(|n| if cfg!(miri) { n.min(8) } else { n });
        let mut random = Random(seed);
        let mut memory = Memory {
            layers: (0..n_layer).collect(),
            n_head,
            n_head_kv,
            head_dim_k: head_dim,
            head_dim_v: head_dim,
            n_tokens,
            rope: vec![Rope::new(RopeKind::Neox, head_dim, 10_000.0); n_layer],
            ..Memory::default()
        };
        let [n_window, n_sample, n_lookahead] = n_probe;
        let n_window = n_window.min(n_tokens);
        memory.probes.list = (0..n_window)
            .map(|i| (ProbeKind::Window, n_tokens - n_window + i))
            .chain((0..n_lookahead).map(|i| (ProbeKind::Lookahead, n_tokens + i)))
            .map(|(kind, pos)| Probe { kind, pos: pos as u32 })
            .collect();
        let n_group = (n_head / n_head_kv) as u32;
        memory.probes.samples =
            (0..n_sample).map(|i| Sample { pos: (i * n_tokens / n_sample) as u32, head: i as u32 % n_group }).collect();
        let mut masses = Random(!seed);
        for il in 0..n_layer {
            let topics: Vec<Vec<f32>> = (0..24).map(|_| random.vector(head_dim, 1.0)).collect();
            for _ in 0..n_head_kv {
                let (keys, values) = memory.random_head(&mut random, &topics, il);
                memory.keys.push(keys);
                memory.values.push(values);
            }
            let common = random.vector(head_dim, 0.7);
            let mut queries = |n_head: usize, pos: u32| -> Vec<f32> {
                let one = |_| {
                    let topic = &topics[random.below(topics.len())];
                    let mut q = random.vector(head_dim, 0.6);
                    q.iter_mut().zip(topic).zip(&common).for_each(|((q, t), c)| *q += 1.2 * t + c);
                    memory.rope[il].rotate(&mut q, pos as f32);
                    q
                };
                (0..n_head).flat_map(one).collect()
            };
            let of_probes = memory.probes.list.iter().flat_map(|probe| queries(n_head, probe.pos)).collect();
            let of_samples = memory.probes.samples.iter().flat_map(|s| queries(n_head_kv, s.pos)).collect();
            memory.probes.queries.push(of_probes);
            memory.probes.sample_queries.push(of_samples);
            let mut keys = Vec::new();
            for i in 0..n_lookahead * n_head_kv {
                let mut k = random.vector(head_dim, 1.0);
                memory.rope[il].rotate(&mut k, (n_tokens + i / n_head_kv) as f32);
                keys.extend(k);
            }
            memory.probes.lookahead_keys.push(keys);
            memory.attention_mass.push((0..n_head_kv).flat_map(|_| memory.random_mass(&mut masses)).collect());
        }
        memory.hidden = random_hidden(&mut random, n_tokens);
        memory
    }

    /// Token `t` is seen by itself and all later queries, each of which gives away 1.
    fn random_mass(&self, random: &mut Random) -> Vec<f32> {
        let attraction = random.vector(self.n_tokens, 1.0);
        let seen_by = (1..=self.n_tokens).rev();
        let mut mass: Vec<f32> = attraction.iter().zip(seen_by).map(|(a, n)| a.exp() * n as f32).collect();
        let scale = (self.n_tokens * (self.n_head / self.n_head_kv)) as f32 / mass.iter().sum::<f32>();
        mass.iter_mut().for_each(|m| *m *= scale);
        mass
    }

    fn random_head(&self, random: &mut Random, topics: &[Vec<f32>], il: usize) -> (Vec<f32>, Vec<f32>) {
        let dim = self.head_dim_k;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut topic = 0;
        for t in 0..self.n_tokens {
            if random.below(20) == 0 {
                topic = random.below(topics.len());
            }
            let size = if t == 0 { 2.5 } else { 1.0 };
            let mut k = random.vector(dim, 0.8);
            k.iter_mut().zip(&topics[topic]).for_each(|(k, t)| *k += size * t);
            self.rope[il].rotate(&mut k, t as f32);
            let mut v = random.vector(dim, 0.5);
            v.iter_mut().zip(topics[topic].iter().rev()).for_each(|(v, t)| *v += t);
            keys.extend(k);
            values.extend(v);
        }
        (keys, values)
    }
}

impl Source for Memory {
    fn keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        copy_rows(&self.keys[il * self.n_head_kv + g], first * self.head_dim_k, out);
        Ok(())
    }

    fn values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        copy_rows(&self.values[il * self.n_head_kv + g], first * self.head_dim_v, out);
        Ok(())
    }

    fn output_weight(&self, _il: usize, h: usize) -> Result<Vec<f32>> {
        // A fixed pseudo-random matrix with n_embd = n_head * head_dim_v.
        let n = self.n_head * self.head_dim_v * self.head_dim_v;
        Ok(Random(h as u64 + 1).vector(n, 1.0))
    }

    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        // Nothing can be decoded here: a token looks for what is like itself.
        let (dim, n_group) = (self.head_dim_k, self.n_head / self.n_head_kv);
        let query = |il: usize, t: u32, h: usize| {
            self.keys[il * self.n_head_kv + h / n_group][t as usize * dim..][..dim].iter().copied()
        };
        let layer = |il| tokens.iter().flat_map(|&t| (0..self.n_head).flat_map(move |h| query(il, t, h))).collect();
        Ok((0..self.rope.len()).map(layer).collect())
    }
}

/// Hidden states of two layers that drift through topics.
fn random_hidden(random: &mut Random, n_tokens: usize) -> Hidden {
    let n_proj = 8;
    let mut layer = || {
        let mut topic = random.vector(n_proj, 1.0);
        let mut states = Vec::with_capacity(n_tokens * n_proj);
        for _ in 0..n_tokens {
            if random.below(20) == 0 {
                topic = random.vector(n_proj, 1.0);
            }
            states.extend(random.vector(n_proj, 0.3).iter().zip(&topic).map(|(x, t)| x + t));
        }
        states
    };
    Hidden { layers: vec![layer(), layer()], n_proj }
}

fn copy_rows(from: &[f32], at: usize, out: &mut [f32]) {
    out.copy_from_slice(&from[at..at + out.len()]);
}

/// A small generator of reproducible numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Roughly normal numbers with standard deviation `std`.
    pub fn vector(&mut self, n: usize, std: f32) -> Vec<f32> {
        // The sum of four uniform numbers has the variance 1/3.
        let mut uniform = || (self.bits() >> 40) as f32 / (1 << 24) as f32 - 0.5;
        (0..n).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * std * 3f32.sqrt()).collect()
    }
}
