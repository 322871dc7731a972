//! The GraceKV pass: full cache -> view -> allocation -> plan -> rewrite, layer by layer, timed and reported (stages 4 and 5).
//!
//! The method reads every layer once to divide the budget; then plans are made for a few layers at a time and carried out at
//! once, so that memory never exceeds the full cache and what those layers become.

use crate::cache::mirror::Mirror;
use crate::cache::rope::Rope;
use crate::cache::view::{Hidden, Probe, ProbeKind, Probes, Source, View};
use crate::compress::{Budget, Named, Needs};
use crate::engine::{Engine, Recorded, Taps, N_PROJ};
use crate::error::{Error, Result};
use crate::ggml::{self, Transfers};
use crate::model::Hparams;
use crate::report::{LayerReport, Report, StageTimes};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::Instant;

/// Layers that are planned one by one before several are at once.
const N_ALONE: usize = 2;

/// How much may be left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A cache this many times smaller.
    Ratio(f64),
    /// This many entries per head on average.
    Tokens(usize),
}

/// Parameters of the pass that are not the method's own.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOptions {
    /// How much may be left.
    pub target: Target,
    /// Tokens decoded from the full cache before the pass.
    pub n_lookahead: usize,
    /// First tokens that are kept, as far as the budget allows.
    pub n_sink: usize,
    /// Last tokens of the prompt that are kept, as far as the budget allows.
    pub n_window: usize,
    /// Shorter prompts are left alone.
    pub n_min_tokens: usize,
    /// Run the pass at ratio 1 too.
    pub force: bool,
}

impl Default for PassOptions {
    fn default() -> Self {
        PassOptions {
            target: Target::Ratio(1.0),
            n_lookahead: 32,
            n_sink: 4,
            n_window: 16,
            n_min_tokens: 128,
            force: false,
        }
    }
}

impl PassOptions {
    /// The ratio that this target means for a prompt of `n_tokens`.
    pub fn ratio(&self, n_tokens: usize) -> f64 {
        match self.target {
            Target::Ratio(x) => x,
            Target::Tokens(n) => (n_tokens as f64 / n.max(1) as f64).max(1.0),
        }
    }

    /// The budget for `n_tokens`; the first tokens of all are sinks.
    ///
    /// # Errors
    /// As [`Budget::of_ratio`].
    pub fn budget(&self, hp: &Hparams, n_tokens: usize, is_first: bool) -> Result<Budget> {
        let n_sink = if is_first { self.n_sink } else { 0 };
        let n_head = hp.global_layers().len() * hp.n_head_kv;
        Budget::of_ratio(self.ratio(n_tokens), n_head, n_tokens, n_sink, self.n_window)
    }

    /// Whether `n_tokens` that came since a pass can be compressed: as soon as an entry is left of them.
    pub fn applies_further(&self, n_tokens: usize) -> bool {
        let ratio = self.ratio(n_tokens);
        self.force || (ratio > 1.0 && n_tokens as f64 >= ratio)
    }

    /// Whether a prompt of `n_tokens` is compressed at all.
    pub fn applies(&self, n_tokens: usize) -> bool {
        self.force || (n_tokens >= self.n_min_tokens && self.ratio(n_tokens) > 1.0)
    }
}

/// What has to be recorded while a prompt of `n_tokens` is read.
pub fn taps(needs: &Needs, n_tokens: usize, n_layer: usize) -> Taps {
    let window = n_tokens.saturating_sub(needs.n_window_query)..n_tokens;
    // The first tokens' queries are unlike any later one's, and the window has its own probes.
    let (low, high) = (256.min(n_tokens / 4), window.start.saturating_sub(33));
    let n = needs.n_sample_query.min(high.saturating_sub(low));
    let samples = (0..n).map(|i| (low + i * (high - low) / n) as u32).collect();
    let queries = window.map(|t| t as u32).collect();
    let hidden = match needs.hidden {
        // First, middle and last thirds: meaning changes at different depths.
        // The last layer only goes on with the tokens whose logits are wanted.
        true => [n_layer / 4, n_layer / 2, 3 * n_layer / 4]
            .into_iter()
            .map(|il| il.min(n_layer.saturating_sub(2)))
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect(),
        false => Vec::new(),
    };
    Taps { queries, samples, hidden, attention_mass: needs.attention_mass }
}

/// The engine as a method sees it.
struct EngineSource<'a> {
    engine: RwLock<&'a mut Engine>,
    prompt: &'a [u32],
    mirror: &'a Mirror,
    /// Whether the pass may be given up: nothing has been rewritten.
    may_stop: bool,
    /// The output matrix that was read last: heads of one layer are asked for one after the other.
    wo: Mutex<Option<(usize, Arc<Vec<f32>>)>>,
}

impl<'a> EngineSource<'a> {
    fn new(engine: &'a mut Engine, prompt: &'a [u32], mirror: &'a Mirror, may_stop: bool) -> Self {
        EngineSource { engine: RwLock::new(engine), prompt, mirror, may_stop, wo: Mutex::new(None) }
    }

    /// The engine, unless the pass is to be given up.
    fn engine(&self) -> Result<RwLockReadGuard<'_, &'a mut Engine>> {
        let engine = self.engine.read().unwrap_or_else(|p| p.into_inner());
        match self.may_stop && engine.is_stopped() {
            true => Err(Error::Interrupted),
            false => Ok(engine),
        }
    }
}

impl Source for EngineSource<'_> {
    fn keys(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.mirror.read_keys(&self.engine()?.cache, il, g, first, out)
    }

    fn values(&self, il: usize, g: usize, first: usize, out: &mut [f32]) -> Result<()> {
        self.mirror.read_values(&self.engine()?.cache, il, g, first, out)
    }

    fn earlier(&self, il: usize, g: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        self.engine()?.cache.earlier(il, g)
    }

    fn output_weight(&self, il: usize, h: usize) -> Result<Vec<f32>> {
        let model = self.engine()?.model().clone();
        let mut last = self.wo.lock().unwrap_or_else(|p| p.into_inner());
        let wo = match &*last {
            Some((at, wo)) if *at == il => wo.clone(),
            _ => {
                let wo = Arc::new(model.output_matrix(il)?);
                *last = Some((il, wo.clone()));
                wo
            }
        };
        drop(last);
        // The matrix is {head_dim_v * n_head, n_embd}; the slice is wanted with n_embd innermost.
        let (dv, n_in, n_embd) = (model.hp.head_dim_v, model.hp.head_dim_v * model.hp.n_head, model.hp.n_embd);
        let mut out = vec![0.0; n_embd * dv];
        for (e, row) in wo.chunks_exact(n_in).enumerate() {
            for (d, x) in row[h * dv..(h + 1) * dv].iter().enumerate() {
                out[d * n_embd + e] = *x;
            }
        }
        Ok(out)
    }

    fn queries_of(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let ids: Option<Vec<u32>> = tokens.iter().map(|&t| self.prompt.get(t as usize).copied()).collect();
        let ids = ids.ok_or_else(|| Error::ggml("a seed beyond the prompt"))?;
        // Queries come back in ascending order of position; the caller wants its own order.
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_unstable_by_key(|&i| tokens[i]);
        let sorted: (Vec<u32>, Vec<u32>) = order.iter().map(|&i| (ids[i], tokens[i])).unzip();
        let mut engine = self.engine.write().unwrap_or_else(|p| p.into_inner());
        let per_token = engine.model().hp.head_dim_k * engine.model().hp.n_head;
        let found = engine.queries_at(&sorted.0, &sorted.1)?;
        let unsort = |layer: Vec<f32>| {
            let mut out = vec![0.0; layer.len()];
            for (at, &i) in order.iter().enumerate().filter(|_| !layer.is_empty()) {
                out[i * per_token..(i + 1) * per_token].copy_from_slice(&layer[at * per_token..(at + 1) * per_token]);
            }
            out
        };
        Ok(found.into_iter().map(unsort).collect())
    }
}

/// What prefill and lookahead left for the pass, which uses it up.
pub struct Material<'a> {
    /// Position of the first token that is compressed; earlier passes have covered those before it.
    pub first: usize,
    /// The tokens that are compressed.
    pub prompt: &'a [u32],
    /// Queries tapped while the prompt was read; the last `n_window_query` of them are the window.
    pub prompt_record: Recorded,
    /// Queries tapped while the lookahead was decoded.
    pub lookahead_record: Recorded,
}

/// The probes of a method. Queries are moved, never copied as a whole: a copy would count in the peak of the pass.
fn probes(n_prompt: usize, prompt: Recorded, lookahead: Recorded, engine: &Engine) -> Result<Probes> {
    let hp = &engine.model().hp;
    let kind = |kind| move |&pos: &u32| Probe { kind, pos };
    let mut out = Probes { samples: prompt.samples, sample_queries: prompt.sample_queries, ..Probes::default() };
    out.list.extend(prompt.pos.iter().map(kind(ProbeKind::Window)));
    out.list.extend(lookahead.pos.iter().map(kind(ProbeKind::Lookahead)));
    let n_lookahead = lookahead.pos.len();
    let mut ahead = lookahead.queries.into_iter();
    let layers = prompt.queries.into_iter().chain(std::iter::repeat_with(Vec::new)).take(hp.n_layer).enumerate();
    for (il, mut queries) in layers {
        let ahead = ahead.next().unwrap_or_default();
        let tapped = !queries.is_empty();
        queries.reserve_exact(ahead.len());
        queries.extend(ahead);
        out.queries.push(queries);
        let mut keys = Vec::new();
        if tapped && n_lookahead > 0 {
            // {head_dim_k, n_head_kv, n_lookahead} from head-major rows.
            keys = vec![0.0; hp.head_dim_k * hp.n_head_kv * n_lookahead];
            let mut rows = vec![0.0; hp.head_dim_k * n_lookahead];
            for g in 0..hp.n_head_kv {
                engine.cache.read_keys(il, g, n_prompt, &mut rows)?;
                for (t, row) in rows.chunks_exact(hp.head_dim_k).enumerate() {
                    keys[(t * hp.n_head_kv + g) * hp.head_dim_k..][..hp.head_dim_k].copy_from_slice(row);
                }
            }
        }
        out.lookahead_keys.push(keys);
    }
    Ok(out)
}

/// What all views of a pass share.
struct Scene<'a> {
    hp: &'a Hparams,
    rope: &'a [Rope],
    layers: &'a [usize],
    n_tokens: usize,
    probes: &'a Probes,
    hidden: &'a Hidden,
    attention_mass: &'a [Vec<f32>],
}

impl Scene<'_> {
    fn view<'s>(&'s self, source: &'s dyn Source) -> View<'s> {
        View {
            source,
            n_layer: self.hp.n_layer,
            layers: self.layers,
            n_head: self.hp.n_head,
            n_head_kv: self.hp.n_head_kv,
            head_dim_k: self.hp.head_dim_k,
            head_dim_v: self.hp.head_dim_v,
            n_tokens: self.n_tokens,
            kq_scale: self.hp.kq_scale,
            logit_softcap: self.hp.attn_softcap,
            sinks: &self.hp.sinks,
            rope: self.rope,
            probes: self.probes,
            hidden: self.hidden,
            attention_mass: self.attention_mass,
            surprisal: &[],
        }
    }
}

/// Free memory of all devices in use.
fn device_free(engine: &Engine) -> u64 {
    engine.model().offload.devices.iter().map(|d| d.memory().0 as u64).sum()
}

/// Compresses the prompt in the engine's cache; `room` tokens may follow before the pools must grow.
///
/// # Errors
/// When the budget cannot be met or memory cannot be had. Layers that were rewritten before an error stay rewritten.
/// [`Error::Interrupted`] when [`Engine::set_stop`] says so before anything was rewritten; the cache is as it was.
pub fn run(
    engine: &mut Engine,
    method: &Named,
    options: &PassOptions,
    material: Material,
    room: usize,
) -> Result<Report> {
    let start = Instant::now();
    if engine.model().hp.alibi_max_bias > 0.0 {
        // A merged entry would have to stand at all the distances of its tokens.
        return Err(Error::unsupported("compression", "a model with ALiBi, whose entries count by their distance"));
    }
    let Material { first, prompt, mut prompt_record, mut lookahead_record } = material;
    for pos in prompt_record.pos.iter_mut().chain(&mut lookahead_record.pos) {
        *pos -= first as u32;
    }
    prompt_record.samples.iter_mut().for_each(|sample| sample.pos -= first as u32);
    let (n_tokens, hp) = (prompt.len(), engine.model().hp.clone());
    let layers = hp.global_layers();
    let ratio = options.ratio(n_tokens);
    let budget = options.budget(&hp, n_tokens, first == 0)?;
    let n_lookahead = lookahead_record.pos.len();
    let hidden = Hidden { layers: std::mem::take(&mut prompt_record.hidden), n_proj: N_PROJ };
    let attention_mass = std::mem::take(&mut prompt_record.attention_mass);
    let probes = probes(n_tokens, prompt_record, lookahead_record, engine)?;
    let rope = hp.rope_in(engine.options().n_ctx);
    let scene = Scene {
        hp: &hp,
        rope: &rope,
        layers: &layers,
        n_tokens,
        probes: &probes,
        hidden: &hidden,
        attention_mass: &attention_mass,
    };
    engine.drop_graph();
    let moved_before = Transfers::now();
    let mirror = Mirror::new(&engine.cache);
    let bytes_remote = engine.cache.bytes_remote(n_tokens);
    let device_free = device_free(engine);
    let bytes_before = engine.cache.bytes();
    let resident_before = ggml::resident_bytes();
    ggml::reset_peak_resident();
    let allocation = method.allocate(&scene.view(&EngineSource::new(engine, prompt, &mirror, true)), &budget)?;
    // What the division of the budget needed for itself would otherwise stand beside the plans.
    ggml::trim();
    let allocate = start.elapsed();
    if engine.is_stopped() {
        return Err(Error::Interrupted);
    }

    let mut times = StageTimes { allocate, ..StageTimes::default() };
    let mut reports = Vec::with_capacity(layers.len());
    // Enough heads at once to keep every core busy, few enough to bound the memory of finished plans.
    let block = (2 * rayon::current_num_threads()).div_ceil(hp.n_head_kv).max(1);
    let mut rest = &layers[..];
    while !rest.is_empty() {
        // Until layers have been freed, every plan stands beside the full cache.
        let n = if reports.len() < N_ALONE { 1 } else { block.min(rest.len()) };
        let part;
        (part, rest) = rest.split_at(n);
        let at = Instant::now();
        let source = EngineSource::new(engine, prompt, &mirror, false);
        let view = scene.view(&source);
        let plans = part.par_iter().map(|&il| allocation.layer(&view, il)).collect::<Result<Vec<_>>>()?;
        drop(source);
        times.plan += at.elapsed();
        let at = Instant::now();
        for plan in &plans {
            reports.push(LayerReport::of(plan));
            engine.drop_graph();
            engine.cache.rewrite(plan, first, first + n_tokens, room, &mirror)?;
        }
        times.rewrite += at.elapsed();
    }
    let counters = allocation.counters();
    drop(allocation);
    ggml::trim();
    Ok(Report {
        method: method.name.clone(),
        ratio,
        first,
        n_tokens,
        n_lookahead,
        n_entries_before: layers.len() * hp.n_head_kv * n_tokens,
        layers: reports,
        n_layer: hp.n_layer,
        bytes_before,
        bytes_after: engine.cache.bytes(),
        bytes_room: engine.cache.bytes_of_room(),
        bytes_remote,
        device_freed: self::device_free(engine).saturating_sub(device_free),
        moved: Transfers::now().since(moved_before),
        resident_before,
        resident_after: ggml::resident_bytes(),
        resident_peak: ggml::peak_resident_bytes(),
        counters,
        times,
        total: start.elapsed(),
    })
}
