//! The KV cache (stage 4 of the flow): dense while the prompt is read, a ragged pool per layer after the pass.
//!
//! Positions are not entries: `n_past` counts tokens (the next RoPE position), the entries of a head are what it holds.
//! Every layer is one K and one V tensor of rows, `{head_dim, n_rows}`, in a buffer of its own, so that a layer can be freed alone.
//! Dense: row `g * n_ctx + pos`. Sliding window: row `g * n_ring + pos % n_ring`. Pool: each head owns a run of rows.

pub mod hadamard;
pub mod mask;
pub mod memory;
pub mod mirror;
pub mod plan;
pub mod product;
pub mod rewrite;
pub mod rope;
pub mod shift;
pub mod source;
pub mod state;
pub mod view;

use hadamard::Hadamard;

use crate::error::{Error, Result};
use crate::ggml::{BufferType, Chunk, Context, HeadSpan, LayerSpans, Tensor, Type};
use std::sync::Arc;

/// How the rows of a layer are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Every token has a row in every head.
    Dense,
    /// Only the last tokens have one (sliding-window layers).
    Ring,
    /// What the pass left, then the tokens since.
    Pool(Vec<PoolHead>),
}

/// The run of rows of one KV head in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHead {
    /// First row.
    pub row: usize,
    /// Entries that the pass left.
    pub n_entries: usize,
    /// Rows the head may use.
    pub capacity: usize,
}

/// K and V of one layer.
pub struct LayerCache {
    /// Owns the memory of `k` and `v`.
    ctx: Context,
    /// The kind of that memory.
    buft: BufferType,
    /// What is done to keys before they are stored, and to queries.
    pub hadamard_k: Option<Hadamard>,
    /// What is done to values before they are stored, and to the output of an attention.
    pub hadamard_v: Option<Hadamard>,
    /// Shapes: `{head_dim_k, n_rows}`.
    pub k: Tensor,
    /// Shapes: `{head_dim_v, n_rows}`.
    pub v: Tensor,
    /// What the attention kernel reads beside the tensors.
    pub spans: Arc<LayerSpans>,
    /// How the rows are used.
    pub layout: Layout,
    /// Logit biases of the entries that the pass left, by pool row; empty when all are 0.
    pub bias: Vec<f32>,
}

/// Sizes and types of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Tokens it can hold.
    pub n_ctx: usize,
    /// Tokens of the largest batch; a ring must hold them beside the window.
    pub n_ubatch: usize,
    /// Type of the keys.
    pub ty_k: Type,
    /// Type of the values.
    pub ty_v: Type,
}

/// What a cache has to know of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// KV heads of a layer.
    pub n_head_kv: usize,
    /// Length of a key.
    pub head_dim_k: usize,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Tokens that a sliding-window layer sees, the current one included.
    pub n_swa: usize,
    /// Which layers slide, one per layer.
    pub swa: Vec<bool>,
}

/// The cache of all layers.
pub struct KvCache {
    /// One per layer.
    pub layers: Vec<LayerCache>,
    options: CacheOptions,
    n_head_kv: usize,
    head_dim_k: usize,
    head_dim_v: usize,
    n_swa: usize,
    n_past: usize,
    n_prompt: usize,
    /// First position that the rings of sliding-window layers hold.
    ring_from: usize,
    version: u64,
}

impl KvCache {
    /// An empty dense cache for a model; `bufts` says for each layer where it lives.
    ///
    /// # Errors
    /// When rows are no multiple of the type's block size, or the memory cannot be had.
    pub fn new(shape: &CacheShape, options: CacheOptions, bufts: &[BufferType]) -> Result<KvCache> {
        for (dim, ty, what) in [(shape.head_dim_k, options.ty_k, "-ctk"), (shape.head_dim_v, options.ty_v, "-ctv")] {
            if dim % ty.block_size() != 0 {
                return Err(Error::Usage(format!(
                    "{what} {ty} needs heads of a multiple of {} numbers; this model has {dim}; use f16",
                    ty.block_size()
                )));
            }
        }
        let mut cache = KvCache {
            layers: Vec::with_capacity(shape.swa.len()),
            options,
            n_head_kv: shape.n_head_kv,
            head_dim_k: shape.head_dim_k,
            head_dim_v: shape.head_dim_v,
            n_swa: shape.n_swa,
            n_past: 0,
            n_prompt: 0,
            ring_from: 0,
            version: 0,
        };
        for (il, (&swa, &buft)) in shape.swa.iter().zip(bufts).enumerate() {
            let (n, layout) = if swa { (cache.n_ring(), Layout::Ring) } else { (options.n_ctx, Layout::Dense) };
            // Layers in one kind of memory share the matrices of the transform.
            let known = cache.layers.iter().find(|l: &&LayerCache| l.buft == buft);
            let home = match known.map(LayerCache::home) {
                Some(home) => home,
                None => Home {
                    buft,
                    hadamard_k: Hadamard::of_keys(options.ty_k, shape.head_dim_k, buft)?,
                    hadamard_v: Hadamard::of_values(options.ty_v, shape.head_dim_v, buft)?,
                },
            };
            let layer = cache.new_layer(il, n * shape.n_head_kv, layout, home)?;
            cache.layers.push(layer);
        }
        Ok(cache)
    }

    /// A layer of `n_rows` rows; more where a device wants to read in steps of [`mask::STEP`] entries.
    fn new_layer(&self, il: usize, n_rows: usize, layout: Layout, home: Home) -> Result<LayerCache> {
        let n_rows = match &layout {
            Layout::Pool(heads) if home.buft != BufferType::cpu() => {
                heads.iter().map(|h| h.row + h.capacity.next_multiple_of(mask::STEP)).max().unwrap_or(n_rows)
            }
            _ => n_rows,
        };
        let Home { buft, hadamard_k, hadamard_v } = home;
        let ctx = Context::new(4, 0)?;
        let k = ctx.tensor(self.options.ty_k, &[self.head_dim_k, n_rows])?.named(&format!("cache_k_l{il}"));
        let v = ctx.tensor(self.options.ty_v, &[self.head_dim_v, n_rows])?.named(&format!("cache_v_l{il}"));
        ctx.allocate(buft)?;
        ctx.clear();
        Ok(LayerCache { ctx, buft, hadamard_k, hadamard_v, k, v, spans: LayerSpans::new(), layout, bias: Vec::new() })
    }

    /// Bytes a cache of these sizes will occupy, before it is made.
    pub fn bytes_needed(shape: &CacheShape, options: &CacheOptions) -> u64 {
        (0..shape.swa.len()).map(|il| Self::layer_bytes(shape, options, il)).sum()
    }

    /// Those of one layer.
    pub fn layer_bytes(shape: &CacheShape, options: &CacheOptions, il: usize) -> u64 {
        let row = options.ty_k.row_size(shape.head_dim_k) + options.ty_v.row_size(shape.head_dim_v);
        let n_rows = if shape.swa[il] { ring_rows(shape.n_swa, options) } else { options.n_ctx };
        (n_rows * shape.n_head_kv * row) as u64
    }

    /// Rows of a head of a sliding-window layer.
    pub fn n_ring(&self) -> usize {
        ring_rows(self.n_swa, &self.options)
    }

    /// Sizes and types.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// KV heads of a layer.
    pub fn n_head_kv(&self) -> usize {
        self.n_head_kv
    }

    /// Tokens seen so far: the position of the next one.
    pub fn n_past(&self) -> usize {
        self.n_past
    }

    /// Changes whenever tensors are replaced, so that graphs over the old ones are not used again.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the pass has run.
    pub fn is_compressed(&self) -> bool {
        self.layers.iter().any(|l| matches!(l.layout, Layout::Pool(_)))
    }

    /// Bytes of all buffers and biases.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|l| l.bytes()).sum()
    }

    /// Tokens that fit what is allocated: the context, or after a pass the pools.
    pub fn room(&self) -> usize {
        let pool = self.layers.iter().filter_map(|l| match &l.layout {
            Layout::Pool(heads) => heads.iter().map(|h| h.capacity - h.n_entries - self.n_since()).min(),
            _ => None,
        });
        let context = (!self.is_compressed()).then(|| self.options.n_ctx - self.n_past);
        pool.chain(context).min().unwrap_or(0)
    }

    /// Tokens that may follow at all: their entries fill no more memory than a dense cache of this context, and no position
    /// reaches `n_pos_max`, which may be beyond the context once a pass has run.
    pub fn n_left(&self, n_pos_max: usize) -> usize {
        let heads = self.layers.iter().filter_map(|l| match &l.layout {
            Layout::Pool(heads) => Some(heads),
            _ => None,
        });
        let n_entries: Vec<usize> = heads.flatten().map(|h| h.n_entries).collect();
        // A ring that holds the whole context has no room for more than that.
        let is_held =
            self.layers.iter().any(|l| l.layout == Layout::Ring) && self.n_ring() < self.n_swa + self.options.n_ubatch;
        if n_entries.is_empty() || is_held {
            return self.options.n_ctx - self.n_past;
        }
        let mean = n_entries.iter().sum::<usize>().div_ceil(n_entries.len()) + self.n_since();
        let n_pos_max = n_pos_max.max(self.options.n_ctx);
        self.options.n_ctx.saturating_sub(mean).min(n_pos_max.saturating_sub(self.n_past))
    }

    /// Tokens that a pass has covered.
    pub fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Tokens since the pass.
    fn n_since(&self) -> usize {
        self.n_past - self.n_prompt
    }

    /// Entries of a head that a token sees before it is added itself.
    pub fn n_entries(&self, il: usize, g: usize) -> usize {
        match &self.layers[il].layout {
            Layout::Dense => self.n_past,
            Layout::Ring => self.n_past.min(self.n_swa.saturating_sub(1)),
            Layout::Pool(heads) => heads[g].n_entries + self.n_since(),
        }
    }

    /// Forgets the tokens from `n_past` on.
    ///
    /// # Errors
    /// When the pass has already merged some of them, or a sliding window has dropped what would become visible again.
    pub fn truncate(&mut self, n_past: usize) -> Result<()> {
        let dropped = self.n_past.saturating_sub(n_past);
        if n_past < self.n_prompt {
            return Err(Error::Context {
                what: format!("the first {} tokens are compressed and cannot be taken back", self.n_prompt),
            });
        }
        let has_ring = self.layers.iter().any(|l| l.layout == Layout::Ring);
        if has_ring && n_past > 0 && dropped > 0 && n_past.saturating_sub(self.n_swa) < self.ring_from {
            return Err(Error::Context {
                what: format!("{dropped} tokens cannot be taken back from a sliding window of {}", self.n_swa),
            });
        }
        self.n_past = self.n_past.min(n_past);
        self.ring_from = self.ring_from.min(self.n_past);
        Ok(())
    }

    /// The row of each (token, head) of a batch at `pos` in each of `layers`, for `set_rows`.
    /// Shapes: `{n_head_kv, n_tokens, layers.len()}`, heads innermost.
    pub fn rows(&self, pos: &[u32], layers: &[usize]) -> Vec<i64> {
        let mut out = Vec::with_capacity(layers.len() * pos.len() * self.n_head_kv);
        for layer in layers.iter().map(|&il| &self.layers[il]) {
            for &p in pos {
                for g in 0..self.n_head_kv {
                    let p = p as usize;
                    let row = match &layer.layout {
                        Layout::Dense => g * self.options.n_ctx + p,
                        Layout::Ring => g * self.n_ring() + p % self.n_ring(),
                        Layout::Pool(heads) => heads[g].row + heads[g].n_entries + (p - self.n_prompt),
                    };
                    out.push(row as i64);
                }
            }
        }
        out
    }

    /// Tells the attention kernel which rows the next tokens see; they start at `n_past`.
    pub fn set_spans(&self) {
        for layer in &self.layers {
            let heads: Vec<HeadSpan> = (0..self.n_head_kv).map(|g| self.span(layer, g)).collect();
            layer.spans.set(&heads);
        }
    }

    fn span(&self, layer: &LayerCache, g: usize) -> HeadSpan {
        let none = Chunk::default();
        match &layer.layout {
            Layout::Dense => {
                let row = g * self.options.n_ctx;
                HeadSpan { past: [Chunk { row, n: self.n_past }, none], new_row: row + self.n_past }
            }
            Layout::Pool(heads) => {
                let (row, n) = (heads[g].row, heads[g].n_entries + self.n_since());
                HeadSpan { past: [Chunk { row, n }, none], new_row: row + n }
            }
            Layout::Ring => {
                let (ring, base) = (self.n_ring(), g * self.n_ring());
                let n = self.n_past.min(self.n_swa - 1);
                let (from, to) = ((self.n_past - n) % ring, self.n_past % ring);
                let past = match from + n <= ring {
                    true => [Chunk { row: base + from, n }, none],
                    false => [Chunk { row: base + from, n: ring - from }, Chunk { row: base, n: n - (ring - from) }],
                };
                HeadSpan { past, new_row: base + to }
            }
        }
    }

    /// Counts `n` tokens that a graph has just added.
    pub fn advance(&mut self, n: usize) {
        self.n_past += n;
        self.ring_from = self.ring_from.max(self.n_past.saturating_sub(self.n_ring()));
    }
}

fn ring_rows(n_swa: usize, options: &CacheOptions) -> usize {
    (n_swa + options.n_ubatch).next_multiple_of(256).min(options.n_ctx.max(1))
}

/// Where a layer lives, and what goes with that.
struct Home {
    buft: BufferType,
    hadamard_k: Option<Hadamard>,
    hadamard_v: Option<Hadamard>,
}

impl LayerCache {
    fn home(&self) -> Home {
        Home { buft: self.buft, hadamard_k: self.hadamard_k.clone(), hadamard_v: self.hadamard_v.clone() }
    }

    /// The kind of memory it lives in.
    pub fn buffer_type(&self) -> BufferType {
        self.buft
    }

    /// Whether the CPU holds it, whose attention kernel reads its rows as they are.
    pub fn on_cpu(&self) -> bool {
        self.buft == BufferType::cpu()
    }

    /// Bytes of its buffers and biases.
    pub fn bytes(&self) -> u64 {
        (self.ctx.buffer_bytes() + self.spans.bias_bytes()) as u64
    }

    /// Rows over all heads.
    pub fn n_rows(&self) -> usize {
        self.k.ne()[1]
    }
}
