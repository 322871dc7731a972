//! The graph of one forward pass: what it is built for, its inputs and its results (stage 3 of the flow).

use super::Model;
use crate::cache::{KvCache, LayerCache, Layout};
use crate::error::Result;
use crate::ggml::{Context, Graph, Tensor, Tokens, Type};
use std::cell::RefCell;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// The CPU kernel over rows of the cache as they are (`ggml::attention`).
    Kernel,
    /// `ggml_flash_attn_ext`.
    Flash,
    /// Two matrix products and a softmax.
    Explicit,
}

/// Everything that decides the shape of a graph; equal specs over the same cache give the same graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSpec {
    /// Tokens of the batch.
    pub n_tokens: usize,
    /// Tokens whose logits are wanted.
    pub n_out: usize,
    /// Tokens whose queries are wanted, in every layer that sees the whole context.
    pub n_tap: usize,
    /// Layers whose projected hidden state is wanted.
    pub hidden: Vec<usize>,
    /// How attention is computed.
    pub attention: Attention,
    /// Whether the attention that each entry of a dense layer gets is summed over the batch.
    pub attention_mass: bool,
    /// Entries that a mask over a dense layer covers.
    pub n_kv: usize,
    /// Rows that a mask over a sliding-window layer covers.
    pub n_kv_ring: usize,
    /// Entries that masks over the heads of pools cover, in the order of layers and heads.
    pub n_views: Vec<usize>,
    /// Version of the cache the graph reads.
    pub version: u64,
}

impl GraphSpec {
    /// How a layer attends: the kernel is the CPU's.
    pub fn attention_of(&self, layer: &LayerCache) -> Attention {
        match self.attention {
            Attention::Kernel if !layer.on_cpu() => Attention::Flash,
            attention => attention,
        }
    }

    /// Entries that the mask of each head of a layer covers; none where the layer is no pool or the kernel attends.
    pub fn views(&self, cache: &KvCache, il: usize) -> Vec<usize> {
        let layer = &cache.layers[il];
        match (&layer.layout, self.attention_of(layer)) {
            (Layout::Pool(_), Attention::Kernel) => Vec::new(),
            (Layout::Pool(heads), _) => (0..heads.len()).map(|g| cache.n_view(il, g, self.n_tokens)).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a mask is read in a layer.
    pub fn is_masked(&self, layer: &LayerCache) -> bool {
        self.attention_of(layer) != Attention::Kernel || (self.attention_mass && layer.layout == Layout::Dense)
    }
}

/// What the host fills for the layers in one kind of memory, and in that memory: views of it are then no copies of their own.
pub struct Home {
    /// The layers.
    pub layers: Vec<usize>,
    /// Cache row of each (head, token) of each layer. Shapes: `{n_head_kv * n_tokens, layers.len()} i64`.
    pub rows: Tensor,
    /// Where ggml's operations attend to pools: the masks of all heads, one after the other, each
    /// `{n_view, n_tokens}`. Shapes: `{sum of their sizes} f16`.
    pub mask_pool: Option<Tensor>,
}

/// Tensors that the host fills before each run.
pub struct Inputs {
    /// Shapes: `{n_tokens} i32`.
    pub tokens: Tensor,
    /// Shapes: `{n_tokens} i32`.
    pub pos: Tensor,
    /// Factors on the queries, where the model has any. Shapes: `{1, 1, n_tokens} f32`.
    pub q_scale: Option<Tensor>,
    /// One per kind of memory that caches live in.
    pub homes: Vec<Home>,
    /// Tokens whose logits are wanted. Shapes: `{n_out} i32`.
    pub out_ids: Option<Tensor>,
    /// Tokens whose queries are wanted. Shapes: `{n_tap} i32`.
    pub tap_ids: Option<Tensor>,
    /// Shapes: `{n_kv, n_tokens} f16`.
    pub mask_dense: Option<Tensor>,
    /// Shapes: `{n_kv_ring, n_tokens} f16`.
    pub mask_ring: Option<Tensor>,
    /// Ones, for sums over the queries of a KV head. Shapes: `{1, n_group * n_tokens, n_head_kv} f32`.
    pub ones: Option<Tensor>,
}

/// Tensors that the host reads after a run.
#[derive(Default)]
pub struct Outputs {
    /// Shapes: `{n_vocab, n_out} f32`.
    pub logits: Option<Tensor>,
    /// Per tapped layer: index and rotated queries. Shapes: `{head_dim_k * n_head, n_tap} f32`.
    pub queries: Vec<(usize, Tensor)>,
    /// Per dense layer, where asked for: attention that each entry gets from the batch. Shapes: `{n_kv, 1, n_head_kv} f32`.
    pub attention_mass: Vec<(usize, Tensor)>,
    /// Per sampled layer: projected hidden states. Shapes: `{n_proj, n_tokens} f32`.
    pub hidden: Vec<(usize, Tensor)>,
}

/// A graph with its inputs and results.
pub struct ModelGraph {
    /// What it was built for.
    pub spec: GraphSpec,
    /// The operations.
    pub graph: Graph,
    /// What the host fills.
    pub inputs: Inputs,
    /// What the host reads.
    pub outputs: Outputs,
}

/// The state of building a graph; `blocks` holds the parts that architectures are made of.
pub struct Build<'a> {
    /// The model.
    pub model: &'a Model,
    /// The cache the graph reads and writes.
    pub cache: &'a KvCache,
    /// What is built.
    pub spec: &'a GraphSpec,
    /// Random projection of hidden states. Shapes: `{n_embd, n_proj} f32`.
    pub projection: Option<&'a Tensor>,
    /// The arena of the operations.
    pub ctx: Context,
    /// The operations so far.
    pub graph: Graph,
    /// What the last product quantised, for others with the same tokens.
    pub quantized: RefCell<Option<Tokens>>,
    /// What the host fills.
    pub inputs: Inputs,
    /// What the host reads.
    pub outputs: Outputs,
}

/// Upper bound on the nodes of a graph.
pub fn graph_size(model: &Model) -> usize {
    let hp = &model.hp;
    // Attention over a pool by ggml's own operations takes a few nodes per KV head, an adapter of a weight four.
    let n_adapted: usize = model.adapters.loras.iter().map(|lora| lora.n_weights()).sum();
    let n_of_experts = if hp.routing.n_expert > 0 { 60 + 2 * hp.routing.n_used } else { 0 };
    hp.n_layer * (90 + 10 * hp.n_head_kv + n_of_experts) + 5 * n_adapted + 256
}

impl ModelGraph {
    /// Builds the graph of a forward pass.
    ///
    /// # Errors
    /// When shapes do not fit, which a checked model cannot cause.
    pub fn build(model: &Model, cache: &KvCache, spec: GraphSpec, projection: Option<&Tensor>) -> Result<ModelGraph> {
        let size = graph_size(model);
        let ctx = Context::new(size * 2, size)?;
        let graph = Graph::new(&ctx, size)?;
        let inputs = Inputs::new(&ctx, model, cache, &spec)?;
        let (quantized, outputs) = (RefCell::default(), Outputs::default());
        let mut b = Build { model, cache, spec: &spec, projection, ctx, graph, quantized, inputs, outputs };
        model.arch().graph(&mut b)?;
        let Build { graph, inputs, outputs, .. } = b;
        Ok(ModelGraph { spec, graph, inputs, outputs })
    }
}

impl Inputs {
    fn new(ctx: &Context, model: &Model, cache: &KvCache, spec: &GraphSpec) -> Result<Inputs> {
        let n = spec.n_tokens;
        let ids = |n: usize, name: &str| Ok::<_, crate::error::Error>(ctx.input(Type::I32, &[n])?.named(name));
        let mask =
            |n_kv: usize, name: &str| Ok::<_, crate::error::Error>(ctx.input(Type::F16, &[n_kv, n])?.named(name));
        let ones = |ctx: &Context| {
            let (g, r) = (model.hp.n_head_kv, model.hp.n_group());
            Ok::<_, crate::error::Error>(ctx.input(Type::F32, &[1, r * n, g])?.named("ones"))
        };
        let has = |layout: &Layout| cache.layers.iter().any(|l| l.layout == *layout && spec.is_masked(l));
        let mut homes: Vec<Home> = Vec::new();
        for (il, layer) in cache.layers.iter().enumerate() {
            let buft = layer.buffer_type();
            if homes.iter().any(|h| cache.layers[h.layers[0]].buffer_type() == buft) {
                continue;
            }
            let layers: Vec<usize> =
                (il..cache.layers.len()).filter(|&il| cache.layers[il].buffer_type() == buft).collect();
            let n_masked: usize = layers.iter().flat_map(|&il| spec.views(cache, il)).map(|n_view| n_view * n).sum();
            let rows = ctx.input(Type::I64, &[n * cache.n_head_kv(), layers.len()])?.named("inp_rows");
            ctx.pin(&rows, buft);
            let mask_pool = match n_masked {
                0 => None,
                n => Some(ctx.input(Type::F16, &[n])?.named("mask_pool")),
            };
            mask_pool.iter().for_each(|t| ctx.pin(t, buft));
            homes.push(Home { layers, rows, mask_pool });
        }
        Ok(Inputs {
            tokens: ids(n, "inp_tokens")?,
            pos: ids(n, "inp_pos")?,
            q_scale: match &model.hp.temperature {
                Some(_) => Some(ctx.input(Type::F32, &[1, 1, n])?.named("inp_q_scale")),
                None => None,
            },
            out_ids: if spec.n_out > 0 && spec.n_out < n { Some(ids(spec.n_out, "inp_out_ids")?) } else { None },
            tap_ids: if spec.n_tap > 0 && spec.n_tap < n { Some(ids(spec.n_tap, "inp_tap_ids")?) } else { None },
            mask_dense: if has(&Layout::Dense) { Some(mask(spec.n_kv, "mask_dense")?) } else { None },
            mask_ring: if has(&Layout::Ring) { Some(mask(spec.n_kv_ring, "mask_ring")?) } else { None },
            ones: if spec.attention_mass { Some(ones(ctx)?) } else { None },
            homes,
        })
    }
}
