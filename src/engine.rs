//! Runs batches through a model and its cache: splits them, fills inputs, keeps the graph from token to token, reads results.
//!
//! Between `model` and `session` in the flow. Source: llama.cpp `src/llama-context.cpp` (ubatches, graph reuse).

use crate::cache::{CacheOptions, KvCache, Layout};
use crate::error::{Error, Result};
use crate::ggml::{Backend, BufferType, Context, Scheduler, Tensor, ThreadParams, Type};
use crate::model::{graph_size, Attention, GraphSpec, Model, ModelGraph};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

mod record;

pub use record::{Recorded, Taps};

/// `-fa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashAttn {
    /// The fastest way for the batch and the device.
    #[default]
    Auto,
    /// ggml's fused attention.
    On,
    /// Matrix products and softmax.
    Off,
}

/// Sizes and threads of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens the cache can hold.
    pub n_ctx: usize,
    /// Tokens of one graph.
    pub n_ubatch: usize,
    /// Threads when one token is decoded.
    pub n_threads: usize,
    /// Threads when many tokens are read.
    pub n_threads_batch: usize,
    /// How idle threads wait, priority and placement; its thread count is the larger of the two above.
    pub threads: ThreadParams,
    /// The same for batches, where it differs.
    pub threads_batch: Option<ThreadParams>,
    /// How attention is computed.
    pub flash_attn: FlashAttn,
    /// Type of cached keys.
    pub ty_k: Type,
    /// Type of cached values.
    pub ty_v: Type,
}

/// Which tokens of a batch get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: only the cache is filled.
    Nothing,
    /// The last one.
    Last,
    /// The last ones, so many.
    Tail(usize),
    /// All.
    All,
}

/// Entries from which on `-fa auto` decodes with the attention kernel.
const KERNEL_FROM: usize = 256;

/// Dimensions that hidden states are projected to; cosines survive (Johnson-Lindenstrauss).
pub const N_PROJ: usize = 64;

/// A model with a cache, ready to run.
pub struct Engine {
    model: Arc<Model>,
    options: EngineOptions,
    sched: Scheduler,
    /// The filled cache.
    pub cache: KvCache,
    kept: Option<ModelGraph>,
    projection: Option<Tensor>,
    stop: Option<Arc<AtomicBool>>,
    /// Graphs that were run again without being built again.
    pub n_reused: u64,
}

impl Engine {
    /// An engine with an empty cache.
    ///
    /// # Errors
    /// When the options do not fit each other or the model, or the memory cannot be had.
    pub fn new(model: Arc<Model>, mut options: EngineOptions) -> Result<Engine> {
        if options.flash_attn == FlashAttn::Off && options.ty_v.is_quantized() {
            return Err(Error::Usage(format!(
                "-ctv {} needs flash attention; use -fa on or auto instead of -fa off",
                options.ty_v
            )));
        }
        if options.n_ctx > model.hp.n_pos_max {
            return Err(Error::Usage(format!(
                "-c {}: contexts of this model end at {} tokens",
                options.n_ctx, model.hp.n_pos_max
            )));
        }
        options.n_ubatch = options.n_ubatch.clamp(1, options.n_ctx.max(1));
        options.threads.n_threads = options.n_threads.max(options.n_threads_batch).max(1);
        if let Some(batch) = &mut options.threads_batch {
            (options.threads.n_threads, batch.n_threads) = (options.n_threads.max(1), options.n_threads_batch.max(1));
        }
        let devices = model.offload.devices.iter().map(|&d| Backend::device(d));
        let cpu = Backend::cpu(&options.threads, options.threads_batch.as_ref());
        let backends = devices.chain([cpu]).collect::<Result<Vec<_>>>()?;
        let sched = Scheduler::new(backends, graph_size(&model), !model.offload.ops_stay)?;
        let cache = Self::new_cache(&model, &options)?;
        Ok(Engine { model, options, sched, cache, kept: None, projection: None, stop: None, n_reused: 0 })
    }

    /// While this is set, a batch that the CPU is reading ends with [`Error::Interrupted`] and leaves the cache as it was before its
    /// ubatch; a single token is always finished.
    pub fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Whether the stop is set.
    pub fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Runs `f` without looking at the stop.
    pub fn unstopped<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let stop = self.stop.take();
        let result = f(self);
        self.stop = stop;
        result
    }

    fn new_cache(model: &Model, o: &EngineOptions) -> Result<KvCache> {
        let options = CacheOptions { n_ctx: o.n_ctx, n_ubatch: o.n_ubatch, ty_k: o.ty_k, ty_v: o.ty_v };
        let bufts: Vec<_> = (0..model.hp.n_layer).map(|il| model.offload.cache_buffer_type(il)).collect();
        KvCache::new(&model.hp.cache_shape(), options, &bufts)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Sizes and threads.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Bytes of the compute buffers.
    pub fn compute_bytes(&self) -> usize {
        self.sched.buffer_bytes()
    }

    /// Forgets everything; the cache is dense again.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn clear(&mut self) -> Result<()> {
        if self.cache.is_compressed() {
            self.drop_graph();
            self.cache = Self::new_cache(&self.model, &self.options)?;
        }
        self.cache.truncate(0)
    }

    /// Lets go of the kept graph, and with it of the cache tensors it refers to.
    pub fn drop_graph(&mut self) {
        self.kept = None;
    }

    /// Appends tokens to the cache. After each ubatch calls `on_ubatch` with the range of `tokens` it was and the logits that
    /// were asked for, `{n_vocab, n}` of its last `n` tokens; an error of the callback ends the run.
    ///
    /// # Errors
    /// When the tokens do not fit the context or are not of the vocabulary, or ggml fails.
    pub fn decode(
        &mut self,
        tokens: &[u32],
        want: Want,
        taps: &Taps,
        record: &mut Recorded,
        mut on_ubatch: impl FnMut(Range<usize>, &mut Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        let room = self.cache.room().min(self.model.hp.n_pos_max - self.cache.n_past());
        if tokens.len() > room {
            return Err(Error::Context {
                what: format!(
                    "{} tokens do not fit: {room} of the context of {} are left",
                    tokens.len(),
                    self.options.n_ctx
                ),
            });
        }
        if let Some(bad) = tokens.iter().find(|&&t| t as usize >= self.model.hp.n_vocab) {
            return Err(Error::Context {
                what: format!("token {bad} is not of the vocabulary of {}", self.model.hp.n_vocab),
            });
        }
        for at in (0..tokens.len()).step_by(self.options.n_ubatch) {
            let part = &tokens[at..(at + self.options.n_ubatch).min(tokens.len())];
            let n_wanted = match want {
                Want::Nothing => 0,
                Want::Last => 1,
                Want::Tail(n) => n,
                Want::All => tokens.len(),
            };
            let first_wanted = tokens.len().saturating_sub(n_wanted);
            let n_out = (at + part.len()).saturating_sub(first_wanted.max(at));
            let pos: Vec<u32> = (0..part.len()).map(|j| (self.cache.n_past() + j) as u32).collect();
            let mut logits = self.ubatch(part, &pos, n_out, taps, record)?;
            self.cache.advance(part.len());
            on_ubatch(at..at + part.len(), &mut logits)?;
        }
        Ok(())
    }

    /// Appends tokens and gives the logits of the last one. Shapes: `{n_vocab}`.
    ///
    /// # Errors
    /// As [`Engine::decode`].
    pub fn decode_last(&mut self, tokens: &[u32], taps: &Taps, record: &mut Recorded) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        self.decode(tokens, Want::Last, taps, record, |_, logits| {
            // A megabyte with some vocabularies: not copied.
            out = std::mem::take(logits);
            Ok(())
        })?;
        Ok(out)
    }

    /// Queries of tokens that are in the dense cache, decoded again at their own positions. Shapes: per layer `{head_dim_k, n_head, n}`.
    ///
    /// # Errors
    /// When the cache is no longer dense, or has layers whose window has dropped what the tokens saw.
    pub fn queries_at(&mut self, tokens: &[u32], pos: &[u32]) -> Result<Vec<Vec<f32>>> {
        let dense = self.cache.layers.iter().all(|l| l.layout == Layout::Dense);
        if !dense || pos.iter().any(|&p| p as usize >= self.cache.n_past()) || tokens.len() != pos.len() {
            return Err(Error::unsupported("decoding again", "a cache that does not hold the whole context"));
        }
        let mut record = Recorded::default();
        for (t, p) in tokens.chunks(self.options.n_ubatch).zip(pos.chunks(self.options.n_ubatch)) {
            self.ubatch(t, p, 0, &Taps { queries: p.to_vec(), ..Taps::default() }, &mut record)?;
        }
        Ok(record.queries)
    }

    /// Our kernel reads the cache once for all query heads of a group, but it is more exact than ggml's f16 sums, and a short
    /// context gains nothing from it: there ggml's own operation gives the very numbers of llama.cpp.
    fn attention(&self, n_tokens: usize, end: usize, appends: bool) -> Attention {
        let compressed = self.cache.is_compressed();
        match self.options.flash_attn {
            FlashAttn::Off => Attention::Explicit,
            // The kernel knows no distances.
            _ if self.model.hp.alibi_max_bias > 0.0 => Attention::Flash,
            FlashAttn::Auto if appends && n_tokens == 1 && (compressed || end > KERNEL_FROM) => Attention::Kernel,
            FlashAttn::Auto if appends && compressed && !self.has_ring() => Attention::Kernel,
            FlashAttn::Auto | FlashAttn::On => Attention::Flash,
        }
    }

    fn has_ring(&self) -> bool {
        self.cache.layers.iter().any(|l| l.layout == Layout::Ring)
    }

    fn ubatch(
        &mut self,
        tokens: &[u32],
        pos: &[u32],
        n_out: usize,
        taps: &Taps,
        record: &mut Recorded,
    ) -> Result<Vec<f32>> {
        let appends = pos.first().is_some_and(|&p| p as usize == self.cache.n_past());
        let is_tapped = |pos: &u32| [&taps.queries, &taps.samples].iter().any(|of| of.binary_search(pos).is_ok());
        let tap_ids: Vec<i32> = (0..pos.len()).filter(|&j| is_tapped(&pos[j])).map(|j| j as i32).collect();
        let end = pos.iter().max().map_or(0, |&p| p as usize + 1);
        let attention = self.attention(tokens.len(), end, appends);
        let mut spec = GraphSpec {
            n_tokens: tokens.len(),
            n_out,
            n_tap: tap_ids.len(),
            hidden: taps.hidden.clone(),
            attention,
            attention_mass: taps.attention_mass,
            n_kv: 0,
            n_kv_ring: 0,
            n_views: Vec::new(),
            version: self.cache.version(),
        };
        if self.cache.layers.iter().any(|l| spec.is_masked(l)) {
            (spec.n_kv, spec.n_kv_ring) = (self.cache.n_kv(end), self.cache.n_kv_ring(end));
            spec.n_views = (0..self.cache.layers.len()).flat_map(|il| spec.views(&self.cache, il)).collect();
        }
        let mut g = self.graph_for(spec)?;
        let result = self.run(&mut g, tokens, pos, &tap_ids, taps, record);
        self.kept = Some(g);
        result
    }

    /// The kept graph when it fits, else a new one.
    fn graph_for(&mut self, spec: GraphSpec) -> Result<ModelGraph> {
        match self.kept.take() {
            Some(g) if g.spec == spec && self.sched.is_allocated(&g.graph) => {
                self.n_reused += 1;
                Ok(g)
            }
            _ => {
                if !spec.hidden.is_empty() && self.projection.is_none() {
                    self.projection = Some(random_projection(self.model.hp.n_embd, BufferType::cpu())?);
                }
                let mut g = ModelGraph::build(&self.model, &self.cache, spec, self.projection.as_ref())?;
                self.sched.allocate(&mut g.graph)?;
                Ok(g)
            }
        }
    }

    fn run(
        &mut self,
        g: &mut ModelGraph,
        tokens: &[u32],
        pos: &[u32],
        tap_ids: &[i32],
        taps: &Taps,
        record: &mut Recorded,
    ) -> Result<Vec<f32>> {
        self.fill(g, tokens, pos, tap_ids)?;
        let is_batch = tokens.len() > 1;
        let n_threads = if is_batch { self.options.n_threads_batch } else { self.options.n_threads };
        self.sched.set_threads(n_threads, is_batch);
        self.sched.set_stop(self.stop.clone().filter(|_| is_batch));
        self.sched.compute(&mut g.graph)?;
        let tapped: Vec<u32> = tap_ids.iter().map(|&j| pos[j as usize]).collect();
        record.add((&mut self.sched, g), &self.model.hp, taps, &tapped, self.cache.n_past() + pos.len())?;
        let Some(t) = &g.outputs.logits else { return Ok(Vec::new()) };
        let mut logits = vec![0.0; t.n_elements()];
        self.sched.read(&g.graph, t, &mut logits)?;
        Ok(logits)
    }

    fn fill(&mut self, g: &ModelGraph, tokens: &[u32], pos: &[u32], tap_ids: &[i32]) -> Result<()> {
        let as_i32 = |x: &[u32]| x.iter().map(|&v| v as i32).collect::<Vec<_>>();
        let (sched, cache, inputs) = (&mut self.sched, &self.cache, &g.inputs);
        sched.write(&g.graph, &inputs.tokens, &as_i32(tokens))?;
        // What no operation of the graph reads, ggml gives no memory: positions without rotation, for example.
        if inputs.pos.has_memory() {
            sched.write(&g.graph, &inputs.pos, &as_i32(pos))?;
        }
        if let (Some(t), Some(temperature)) = (&inputs.q_scale, self.model.hp.temperature) {
            if t.has_memory() {
                sched.write(&g.graph, t, &pos.iter().map(|&p| temperature.at(p)).collect::<Vec<_>>())?;
            }
        }
        for home in &inputs.homes {
            sched.write(&g.graph, &home.rows, &cache.rows(pos, &home.layers))?;
        }
        if let Some(t) = &inputs.out_ids {
            let n = tokens.len();
            let ids: Vec<i32> = (n - g.spec.n_out..n).map(|j| j as i32).collect();
            sched.write(&g.graph, t, &ids)?;
        }
        if let Some(t) = &inputs.tap_ids {
            sched.write(&g.graph, t, tap_ids)?;
        }
        // Without logits the last layer does not attend, and a mask that only it would use has no memory.
        let n_attending = self.model.hp.n_layer - usize::from(g.spec.n_out == 0 && !g.spec.attention_mass);
        let attends = |il: &usize| *il < n_attending && g.spec.is_masked(&cache.layers[*il]);
        let has = |layout: Layout| (0..n_attending).any(|il| attends(&il) && cache.layers[il].layout == layout);
        if let Some(t) = inputs.ones.as_ref().filter(|_| has(Layout::Dense)) {
            sched.write(&g.graph, t, &vec![1.0f32; t.n_elements()])?;
        }
        if let Some(t) = inputs.mask_dense.as_ref().filter(|_| has(Layout::Dense)) {
            let mask = match self.model.hp.alibi_max_bias > 0.0 {
                true => cache.mask_alibi(pos, g.spec.n_kv),
                false => cache.mask_dense(pos, g.spec.n_kv),
            };
            sched.write(&g.graph, t, &mask)?;
        }
        if let Some(t) = inputs.mask_ring.as_ref().filter(|_| has(Layout::Ring)) {
            sched.write(&g.graph, t, &cache.mask_ring(pos, g.spec.n_kv_ring))?;
        }
        for home in &inputs.homes {
            let Some(t) = home.mask_pool.as_ref().filter(|_| home.layers.iter().any(attends)) else { continue };
            let mut masks = Vec::with_capacity(t.n_elements());
            for &il in &home.layers {
                let views = g.spec.views(cache, il).into_iter().enumerate();
                masks.extend(views.flat_map(|(head, n_view)| cache.mask_pool(il, head, pos.len(), n_view)));
            }
            sched.write(&g.graph, t, &masks)?;
        }
        cache.set_spans();
        Ok(())
    }
}

/// A fixed matrix of +-1/sqrt(n_proj). Shapes: `{n_embd, N_PROJ} f32`.
fn random_projection(n_embd: usize, buft: BufferType) -> Result<Tensor> {
    let ctx = Context::new(2, 0)?;
    let t = ctx.tensor(Type::F32, &[n_embd, N_PROJ])?.named("hidden_projection");
    ctx.allocate(buft)?;
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(n_embd * N_PROJ * 4);
    for _ in 0..n_embd * N_PROJ {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let sign = if x >> 63 == 0 { 1.0f32 } else { -1.0 };
        bytes.extend_from_slice(&(sign / (N_PROJ as f32).sqrt()).to_le_bytes());
    }
    t.write(0, &bytes)?;
    Ok(t)
}
