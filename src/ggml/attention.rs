//! Attention of few tokens over a ragged KV pool on the CPU, as two custom operations.
//!
//! ggml's own operations read the cache once per query head and need rectangles; here the query heads of a group share every
//! key and value row that is read, each KV head has its own number of entries, and a bias per entry (ln of a multiplicity, or
//! fitted) is added to its logit. The entries are cut into fixed chunks whose partial results are merged in order, so the
//! result does not depend on the number of threads. Source: FlashAttention's online softmax (arXiv 2205.14135), split over
//! entries as in Flash-Decoding.

use super::context::Context;
use super::custom::{guarded, source};
use super::dtype::Type;
use super::simd::{block_fn, merge, Block, BlockFn, Rows, MAX_ENTRIES};
use super::sys;
use super::tensor::Tensor;
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::sync::{Arc, RwLock};

/// Entries of one partial result; the unit of work of a thread.
pub const CHUNK_ENTRIES: usize = MAX_ENTRIES;
/// Entries converted to `f32` at a time where the loops cannot read the type, so that they stay in the first-level cache.
const CONVERTED_ENTRIES: usize = 32;

/// Consecutive rows of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub n: usize,
}

/// The rows that one KV head attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadSpan {
    /// Rows that every token of the batch sees. A ring buffer that has wrapped needs two pieces.
    pub past: [Chunk; 2],
    /// Row of the batch's first token; token `j` of the batch also sees the rows `new_row ..= new_row + j`.
    pub new_row: usize,
}

/// A bias per pool row, shared with the kernel.
pub type Bias = Vec<f32>;

/// What the kernel of one layer reads beside its tensors. The host changes it between runs; the graph stays the same.
#[derive(Debug, Default)]
pub struct LayerSpans(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    heads: Vec<HeadSpan>,
    bias: Bias,
}

impl LayerSpans {
    /// Spans of heads that attend to nothing yet.
    pub fn new() -> Arc<LayerSpans> {
        Arc::default()
    }

    /// Sets the spans of the next run, one per KV head.
    pub fn set(&self, heads: &[HeadSpan]) {
        let mut state = self.0.write().unwrap_or_else(|p| p.into_inner());
        state.heads.clear();
        state.heads.extend_from_slice(heads);
    }

    /// Replaces the biases; empty means 0 for every row, else one per row of the pool.
    pub fn set_bias(&self, bias: Bias) {
        self.0.write().unwrap_or_else(|p| p.into_inner()).bias = bias;
    }

    /// Bytes of the biases.
    pub fn bias_bytes(&self) -> usize {
        self.0.read().unwrap_or_else(|p| p.into_inner()).bias.len() * std::mem::size_of::<f32>()
    }
}

/// Everything that stays fixed for a graph.
struct Params {
    spans: Arc<LayerSpans>,
    scale: f32,
    softcap: f32,
    n_head_kv: usize,
    n_group: usize,
    n_tokens: usize,
    /// Partial results per head that the output has room for.
    n_chunk: usize,
}

/// What [`Context::ragged_attn`] attends with, beside its tensors.
#[derive(Clone, Debug)]
pub struct Ragged<'a> {
    /// KV heads.
    pub n_head_kv: usize,
    /// Upper bound of the entries of one head.
    pub n_entries: usize,
    /// Factor on `q.k`.
    pub scale: f32,
    /// Soft cap on the logits, 0 = none.
    pub softcap: f32,
    /// The rows that each head attends to when the graph runs.
    pub spans: &'a Arc<LayerSpans>,
    /// A logit per query head that only the denominator has. Shapes: `{n_head} f32`.
    pub sinks: Option<&'a Tensor>,
}

impl Context {
    /// Attention of the tokens of a batch over the rows that `r.spans` names when the graph runs.
    ///
    /// Shapes: `q: {d, n_head, n_tokens} f32`, `k: {d, n_rows}`, `v: {dv, n_rows}` of any type ggml can read;
    /// result `{dv, n_head, n_tokens} f32`.
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn ragged_attn(&self, q: &Tensor, k: &Tensor, v: &Tensor, r: &Ragged) -> Result<Tensor> {
        let (nq, nk, nv) = (q.ne(), k.ne(), v.ne());
        let flat = nk[2..] == [1, 1] && nv[2..] == [1, 1] && nq[3] == 1;
        let fit = nq[0] == nk[0] && nk[1] == nv[1] && r.n_head_kv > 0 && nq[1] % r.n_head_kv == 0;
        let packed = q.is_contiguous() && k.is_contiguous() && v.is_contiguous();
        let sinks_fit = r.sinks.is_none_or(|s| s.ty() == Type::F32 && s.is_contiguous() && s.n_elements() == nq[1]);
        if !(flat && fit && packed && sinks_fit && q.ty() == Type::F32) {
            return Err(Error::shape(
                "ragged_attn",
                "contiguous queries {d, n_head, n_tokens}, pools {d, n_rows} and sinks {n_head}",
                format!("{q:?}, {k:?}, {v:?}"),
            ));
        }
        let (dv, n_head, n_tokens) = (nv[0], nq[1], nq[2]);
        // Three more than whole chunks: two pieces and the new token may each end in a part of one, and the last marks the end.
        let n_chunk = r.n_entries.div_ceil(CHUNK_ENTRIES) + 3;
        let n_group = n_head / r.n_head_kv;
        let params = Arc::new(Params {
            spans: r.spans.clone(),
            scale: r.scale,
            softcap: r.softcap,
            n_head_kv: r.n_head_kv,
            n_group,
            n_tokens,
            n_chunk,
        });
        if n_tokens > 1 {
            let args: Vec<&Tensor> = [q, k, v].into_iter().chain(r.sinks).collect();
            return self.custom(&args, Type::F32, [dv, n_head, n_tokens, 1], whole, params);
        }
        let partial =
            self.custom(&[q, k, v], Type::F32, [dv + 2, n_group, n_chunk, r.n_head_kv], partials, params.clone())?;
        let args: Vec<&Tensor> = [&partial].into_iter().chain(r.sinks).collect();
        self.custom(&args, Type::F32, [dv, n_head, 1, 1], combine, params)
    }
}

/// A pool of key or value rows.
struct Pool<'a> {
    bytes: &'a [u8],
    ty: Type,
    dim: usize,
}

impl Pool<'_> {
    /// The rows as they are, where they are f16.
    fn halves(&self, row: usize, n: usize) -> Option<Rows<'_>> {
        let stride = self.dim * std::mem::size_of::<u16>();
        let bytes = self.bytes.get(row * stride..(row + n) * stride).filter(|_| self.ty == Type::F16)?;
        // SAFETY: every bit pattern is a valid u16; `align_to` checks the alignment.
        match unsafe { bytes.align_to::<u16>() } {
            ([], halves, []) => Some(Rows::F16(halves)),
            _ => None,
        }
    }

    /// The rows as `f32` in `out`.
    fn convert<'o>(&self, row: usize, n: usize, out: &'o mut [f32]) -> Rows<'o> {
        let stride = self.ty.row_size(self.dim);
        let out = &mut out[..n * self.dim];
        // Out-of-range spans are a bug of the caller; reading zeros is better than undefined behaviour inside C.
        match self.bytes.get(row * stride..(row + n) * stride) {
            Some(bytes) if self.ty.to_f32(bytes, out) => {}
            _ => out.fill(0.0),
        }
        Rows::F32(out)
    }
}

/// The operands of one kernel call.
struct Call<'a> {
    p: &'a Params,
    q: &'a [f32],
    k: Pool<'a>,
    v: Pool<'a>,
    /// The loop, and whether it reads halves.
    block: (BlockFn, bool),
}

impl<'a> Call<'a> {
    /// # Safety
    /// `dst` must be a running custom node made by [`Context::ragged_attn`] with the arguments q, k, v.
    unsafe fn new(dst: *const sys::ggml_tensor, p: &'a Params) -> Call<'a> {
        // SAFETY: by the caller, the sources are live tensors with memory during the run.
        unsafe {
            let pool = |i: usize| {
                let (bytes, [dim, ..], ty) = source(dst, i);
                Pool { bytes, ty, dim }
            };
            let q = source(dst, 0).0;
            Call {
                p,
                q: std::slice::from_raw_parts(q.as_ptr().cast(), q.len() / 4),
                k: pool(1),
                v: pool(2),
                block: block_fn(),
            }
        }
    }

    /// The scaled queries of token `j` that share KV head `g`. Shapes: `{d, n_group}`.
    fn queries(&self, g: usize, j: usize, out: &mut Vec<f32>) {
        let (d, r) = (self.k.dim, self.p.n_group);
        let at = (j * self.p.n_head_kv + g) * r * d;
        out.clear();
        out.extend(self.q[at..at + r * d].iter().map(|x| x * self.p.scale));
    }

    /// One chunk's partial results. Shapes: `state: {2 + dv, n_group}`.
    fn chunk(&self, q: &[f32], chunk: Chunk, bias: &[f32], scratch: &mut Scratch, state: &mut [f32]) {
        reset(state, self.v.dim);
        let (block, reads_halves) = self.block;
        let mut add = |row: usize, n: usize, k: Rows, v: Rows| {
            let bias = bias.get(row..row + n).unwrap_or(&[]);
            block(&Block { q, k, v, bias, d: self.k.dim, dv: self.v.dim, n, softcap: self.p.softcap }, state);
        };
        if reads_halves {
            if let (Some(k), Some(v)) = (self.k.halves(chunk.row, chunk.n), self.v.halves(chunk.row, chunk.n)) {
                return add(chunk.row, chunk.n, k, v);
            }
        }
        scratch.k.resize(CONVERTED_ENTRIES * self.k.dim, 0.0);
        scratch.v.resize(CONVERTED_ENTRIES * self.v.dim, 0.0);
        for at in (0..chunk.n).step_by(CONVERTED_ENTRIES) {
            let (row, n) = (chunk.row + at, CONVERTED_ENTRIES.min(chunk.n - at));
            add(row, n, self.k.convert(row, n, &mut scratch.k), self.v.convert(row, n, &mut scratch.v));
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    k: Vec<f32>,
    v: Vec<f32>,
}

fn reset(state: &mut [f32], dv: usize) {
    for s in state.chunks_exact_mut(dv + 2) {
        s.fill(0.0);
        s[0] = f32::NEG_INFINITY;
    }
}

/// The sinks, which are source `i` of a node where there are any.
///
/// # Safety
/// `dst` must be a running node made by [`Context::ragged_attn`].
unsafe fn sinks<'a>(dst: *const sys::ggml_tensor, i: usize) -> Option<&'a [f32]> {
    // SAFETY: by the caller, the source is null or a live tensor of f32 with memory during the run.
    unsafe {
        let t = (*dst).src[i];
        (!t.is_null()).then(|| std::slice::from_raw_parts((*t).data.cast(), sys::ggml_nelements(t) as usize))
    }
}

/// Begins a result with what the denominator has before any entry: the sink's exponential, whose value is nothing.
fn begin(state: &mut [f32], dv: usize, sinks: Option<&[f32]>) {
    reset(state, dv);
    for (s, &sink) in state.chunks_exact_mut(dv + 2).zip(sinks.unwrap_or_default()) {
        (s[0], s[1]) = (sink, 1.0);
    }
}

/// The chunks of a head for token `j` of the batch, in the order in which they are merged.
fn chunks(head: &HeadSpan, j: usize) -> impl Iterator<Item = Chunk> + '_ {
    let new = Chunk { row: head.new_row, n: j + 1 };
    // The batch's rows follow the last past piece in a dense head or a pool: one run of rows, cut at the same places as in
    // a batch of one token, so that results do not depend on the batch size.
    let [a, b] = head.past;
    let follows = |c: Chunk| c.row + c.n == new.row;
    let pieces = match (b.n > 0, follows(a), follows(b)) {
        (false, true, _) => [Chunk { row: a.row, n: a.n + new.n }, Chunk::default(), Chunk::default()],
        (true, _, true) => [a, Chunk { row: b.row, n: b.n + new.n }, Chunk::default()],
        _ => [a, b, new],
    };
    pieces.into_iter().flat_map(|p| {
        (0..p.n).step_by(CHUNK_ENTRIES).map(move |at| Chunk { row: p.row + at, n: CHUNK_ENTRIES.min(p.n - at) })
    })
}

/// One token: each thread computes a run of the chunks. Output `{dv + 2, n_group, n_chunk, n_head_kv}`.
unsafe extern "C" fn partials(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: `userdata` is the Params that the context keeps alive; `dst` is the node being computed.
        let (p, call) = unsafe { (&*userdata.cast::<Params>(), Call::new(dst, &*userdata.cast::<Params>())) };
        let state = p.spans.0.read().unwrap_or_else(|e| e.into_inner());
        let mut scratch = Scratch::default();
        let size = p.n_group * (call.v.dim + 2);
        let heads = || state.heads.iter().take(p.n_head_kv).enumerate();
        let chunks = |head| chunks(head, 0).take(p.n_chunk - 1);
        let n_all: usize = heads().map(|(_, head)| chunks(head).count()).sum();
        // Neighbours, because the rows behind a chunk are already on their way when it is done.
        let mine = n_all * ith as usize / nth as usize..n_all * (ith as usize + 1) / nth as usize;
        let (mut item, mut q) = (0, Vec::new());
        for (g, head) in heads() {
            call.queries(g, 0, &mut q);
            let mut n = 0;
            for chunk in chunks(head) {
                if mine.contains(&item) {
                    // SAFETY: every (g, n) block of the output is written by exactly one thread and lies inside the tensor.
                    let out = unsafe {
                        std::slice::from_raw_parts_mut((*dst).data.cast::<f32>().add((g * p.n_chunk + n) * size), size)
                    };
                    call.chunk(&q, chunk, &state.bias, &mut scratch, out);
                }
                item += 1;
                n += 1;
            }
            if ith == 0 {
                // SAFETY: as above; block `n` marks the end (a sum below zero) and is written by thread 0 alone.
                unsafe { *(*dst).data.cast::<f32>().add((g * p.n_chunk + n) * size + 1) = -1.0 };
            }
        }
    });
}

/// One token: merges the partial results in order. Output `{dv, n_head}`.
unsafe extern "C" fn combine(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: as in `partials`; source 0 is its output.
        let (p, parts, dv, sinks) = unsafe {
            let src = (*dst).src[0];
            let p = &*userdata.cast::<Params>();
            (
                p,
                std::slice::from_raw_parts((*src).data.cast::<f32>(), sys::ggml_nelements(src) as usize),
                (*dst).ne[0] as usize,
                sinks(dst, 1),
            )
        };
        let size = p.n_group * (dv + 2);
        let mut total = vec![0.0; dv + 2];
        for h in (ith as usize..p.n_head_kv * p.n_group).step_by(nth as usize) {
            let (g, r) = (h / p.n_group, h % p.n_group);
            begin(&mut total, dv, sinks.map(|s| &s[h..=h]));
            for n in 0..p.n_chunk {
                let block = &parts[(g * p.n_chunk + n) * size..][..size];
                if block[1] < 0.0 {
                    break;
                }
                merge(&block[r * (dv + 2)..][..dv + 2], &mut total);
            }
            // SAFETY: head `h` is written by this thread alone and lies inside the tensor.
            let out = unsafe { std::slice::from_raw_parts_mut((*dst).data.cast::<f32>().add(h * dv), dv) };
            normalise(&total, out);
        }
    });
}

/// Several tokens: thread `ith` computes every `nth`-th (token, KV head) whole. Output `{dv, n_head, n_tokens}`.
unsafe extern "C" fn whole(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: as in `partials`.
        let (p, call, sinks) =
            unsafe { (&*userdata.cast::<Params>(), Call::new(dst, &*userdata.cast::<Params>()), sinks(dst, 3)) };
        let state = p.spans.0.read().unwrap_or_else(|e| e.into_inner());
        let mut scratch = Scratch::default();
        let (dv, r) = (call.v.dim, p.n_group);
        let (mut q, mut part, mut total) = (Vec::new(), vec![0.0; r * (dv + 2)], vec![0.0; r * (dv + 2)]);
        for item in (ith as usize..p.n_tokens * p.n_head_kv).step_by(nth as usize) {
            let (j, g) = (item / p.n_head_kv, item % p.n_head_kv);
            let Some(head) = state.heads.get(g) else { continue };
            call.queries(g, j, &mut q);
            begin(&mut total, dv, sinks.map(|s| &s[g * r..(g + 1) * r]));
            for chunk in chunks(head, j) {
                call.chunk(&q, chunk, &state.bias, &mut scratch, &mut part);
                for (from, to) in part.chunks_exact(dv + 2).zip(total.chunks_exact_mut(dv + 2)) {
                    merge(from, to);
                }
            }
            for (i, t) in total.chunks_exact(dv + 2).enumerate() {
                // SAFETY: (token, head) is written by this thread alone and lies inside the tensor.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(
                        (*dst).data.cast::<f32>().add(((j * p.n_head_kv + g) * r + i) * dv),
                        dv,
                    )
                };
                normalise(t, out);
            }
        }
    });
}

fn normalise(state: &[f32], out: &mut [f32]) {
    let inv = if state[1] > 0.0 { 1.0 / state[1] } else { 0.0 };
    for (o, s) in out.iter_mut().zip(&state[2..]) {
        *o = s * inv;
    }
}
