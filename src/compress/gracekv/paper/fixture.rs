//! A small cache of vectors for the tests of this folder: two of three layers may be compressed, with different rotations.

use crate::cache::rope::{Rope, RopeKind};
use crate::cache::view::{Hidden, Probe, ProbeKind, Probes, Source, View};
use crate::error::{Error, Result};

/// SplitMix64.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Even in -1..1.
    pub fn real(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

pub(super) fn reals(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.real()).collect()
}

pub(super) const N_LAYER: usize = 3;
pub(super) const N_HEAD: usize = 4;
pub(super) const N_HEAD_KV: usize = 2;
pub(super) const D_K: usize = 16;
pub(super) const D_V: usize = 8;
const N_EMBD: usize = 12;
const N_PROJ: usize = 6;
const N_WINDOW_QUERY: usize = 6;
const N_LOOKAHEAD: usize = 4;

pub(super) struct Fixture {
    pub n_tokens: usize,
    /// Per layer and head.
    pub keys: Vec<Vec<f32>>,
    pub values: Vec<Vec<f32>>,
    pub probes: Probes,
    pub hidden: Hidden,
    pub surprisal: Vec<f32>,
    pub rope: Vec<Rope>,
    pub decodes: bool,
}

impl Fixture {
    /// Text whose topic changes every 40 tokens, so that neighbours are alike.
    pub fn new(n_tokens: usize) -> Self {
        let rng = &mut Rng(n_tokens as u64);
        let rope = vec![
            Rope::new(RopeKind::Neox, 12, 10_000.0),
            Rope::new(RopeKind::None, 0, 10_000.0),
            Rope::new(RopeKind::Normal, 16, 10_000.0),
        ];
        let text = |rng: &mut Rng, d: usize, noise: f32| -> Vec<f32> {
            let topics: Vec<Vec<f32>> = (0..n_tokens.div_ceil(40)).map(|_| reals(rng, d)).collect();
            (0..n_tokens * d).map(|i| topics[i / d / 40][i % d] + noise * rng.real()).collect()
        };
        let mut keys = Vec::new();
        for i in 0..N_LAYER * N_HEAD_KV {
            let mut k = text(rng, D_K, 0.4);
            k.chunks_mut(D_K).enumerate().for_each(|(t, k)| rope[i / N_HEAD_KV].rotate(k, t as f32));
            keys.push(k);
        }
        let values = (0..N_LAYER * N_HEAD_KV).map(|_| text(rng, D_V, 0.6)).collect();
        let hidden = Hidden { layers: (0..2).map(|_| text(rng, N_PROJ, 0.2)).collect(), n_proj: N_PROJ };
        let probes = probes(rng, n_tokens);
        Fixture { n_tokens, keys, values, probes, hidden, surprisal: Vec::new(), rope, decodes: true }
    }

    pub fn view(&self) -> View<'_> {
        View {
            source: self,
            n_layer: N_LAYER,
            layers: &[0, 2],
            n_head: N_HEAD,
            n_head_kv: N_HEAD_KV,
            head_dim_k: D_K,
            head_dim_v: D_V,
            n_tokens: self.n_tokens,
            kq_scale: 0.25,
            logit_softcap: 0.0,
            sinks: &[],
            rope: &self.rope,
            probes: &self.probes,
            hidden: &self.hidden,
            attention_mass: &[],
            surprisal: &self.surprisal,
        }
    }
}

fn probes(rng: &mut Rng, n_tokens: usize) -> Probes {
    let n_window = N_WINDOW_QUERY.min(n_tokens);
    let window = (n_tokens - n_window..n_tokens).map(|t| (ProbeKind::Window, t));
    let lookahead = (n_tokens..n_tokens + N_LOOKAHEAD).map(|t| (ProbeKind::Lookahead, t));
    let list: Vec<Probe> = window.chain(lookahead).map(|(kind, t)| Probe { kind, pos: t as u32 }).collect();
    let queries =
        (0..N_LAYER).map(|_| reals(rng, list.len() * N_HEAD * D_K).iter().map(|x| 4.0 * x).collect()).collect();
    let lookahead_keys = (0..N_LAYER).map(|_| reals(rng, N_LOOKAHEAD * N_HEAD_KV * D_K)).collect();
    Probes { list, queries, lookahead_keys, ..Probes::default() }
}

fn copy(from: &[f32], first: usize, out: &mut [f32]) -> Result<()> {
    out.copy_from_slice(&from[first..first + out.len()]);
    Ok(())
}

impl Source for Fixture {
    fn keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        copy(&self.keys[il * N_HEAD_KV + g], first * D_K, out)
    }

    fn values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        copy(&self.values[il * N_HEAD_KV + g], first * D_V, out)
    }

    fn output_weight(&self, il: usize, h: usize) -> Result<Vec<f32>> {
        Ok(reals(&mut Rng((il * N_HEAD + h) as u64 + 99), N_EMBD * D_V))
    }

    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        if !self.decodes {
            return Err(Error::unsupported("source", "saved cache"));
        }
        let of_layer = |il: usize| {
            tokens.iter().flat_map(|&t| reals(&mut Rng(u64::from(t) * 31 + il as u64), D_K * N_HEAD)).collect()
        };
        Ok((0..N_LAYER).map(of_layer).collect())
    }
}
