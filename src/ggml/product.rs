//! Products of quantised weights as custom operations: with many tokens from tiles ([`super::simd::tile`]), with few of them
//! straight from the rows ([`super::simd::row`]).
//!
//! One operation quantises the tokens and arranges them, another one multiplies. Weights stay as they are in the file; what is
//! unpacked lives in the cache of the core that works on it. Results are those of `ggml_mul_mat`.

use super::context::Context;
use super::custom::{guarded, source, Kernel};
use super::device::Device;
use super::dtype::Type;
use super::simd::row::{self, row_fn, RowFn, RowFormat};
use super::simd::tile::{tile_fn, Format, Layout, SumOrder, TileFn, N_ROW, N_TOKEN};
use super::sys;
use super::tensor::Tensor;
use crate::error::Result;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// From this many tokens on, unpacking the rows is paid back.
const MIN_TOKENS: usize = 4 * N_TOKEN;
/// What a thread unpacks before it goes through the tokens. Units: words of 4 bytes; a part of the second-level cache.
const UNPACKED_WORDS: usize = 64 << 10;
/// Parts of the rows that each thread takes, one by one, where there are few tokens.
const PARTS: usize = 8;

thread_local! {
    static UNPACKED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Everything that stays fixed for a product from tiles.
struct FromTiles {
    format: Format,
    layout: Layout,
    run: TileFn,
}

/// Everything that stays fixed for a product from rows.
struct FromRows {
    format: RowFormat,
    run: RowFn,
    work: Work,
}

/// How tokens are arranged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arranged {
    Tiles(Layout),
    Rows(RowFormat),
}

/// Tokens, quantised and arranged for the product with weights of some types.
#[derive(Clone)]
pub struct Tokens {
    arranged: Tensor,
    of: Tensor,
    how: Arranged,
}

impl Context {
    /// `w x` by operations of our own, where that is faster than ggml's product: `None` for types and processors where it is not,
    /// and for weights that are not in plain memory. Tokens of an earlier call are used again when they are of `x`.
    ///
    /// Shapes: `w: {k, m}`, `x: {k, n_tokens} f32`; result `{m, n_tokens} f32`.
    ///
    /// # Errors
    /// When the context is full.
    pub fn quantized_mul_mat(
        &self,
        w: &Tensor,
        x: &Tensor,
        order: SumOrder,
        tokens: &mut Option<Tokens>,
    ) -> Result<Option<Tensor>> {
        let (nw, nx) = (w.ne(), x.ne());
        let flat = nw[2..] == [1, 1] && nx[2..] == [1, 1] && w.is_contiguous() && x.is_contiguous();
        // Where there is another device, the scheduler may bring products of many tokens there.
        let ours = flat && nw[0] == nx[0] && x.ty() == Type::F32 && w.is_plain() && Device::offload().is_empty();
        let (k, n) = (nw[0], nx[1]);
        if !ours {
            return Ok(None);
        }
        if n >= MIN_TOKENS {
            let (Some(format), Some(run)) = (Format::of(w.ty(), order), tile_fn()) else { return Ok(None) };
            let layout = format.layout(w.ty().activations());
            let ne = [layout.group_words(k), n.div_ceil(N_TOKEN), 1, 1];
            let steps = (group_tokens as Kernel, multiply_tiles as Kernel);
            return self.product(w, x, (Arranged::Tiles(layout), ne), steps, FromTiles { format, layout, run }, tokens);
        }
        let (Some(format), Some(run)) = (RowFormat::of(w.ty(), order), row_fn()) else { return Ok(None) };
        let ne = [format.token_words(k), n, 1, 1];
        let steps = (arrange_tokens as Kernel, multiply_rows as Kernel);
        self.product(w, x, (Arranged::Rows(format), ne), steps, FromRows { format, run, work: Work::default() }, tokens)
    }

    /// The two operations.
    fn product<P: Any + Send + Sync>(
        &self,
        w: &Tensor,
        x: &Tensor,
        (how, ne): (Arranged, [usize; 4]),
        (arrange, multiply): (Kernel, Kernel),
        params: P,
        tokens: &mut Option<Tokens>,
    ) -> Result<Option<Tensor>> {
        let params = Arc::new(params);
        let arranged = match tokens {
            Some(t) if t.how == how && t.of.ptr == x.ptr => t.arranged.clone(),
            _ => {
                let arranged = self.custom(&[x], Type::I32, ne, arrange, params.clone())?;
                *tokens = Some(Tokens { arranged: arranged.clone(), of: x.clone(), how });
                arranged
            }
        };
        self.custom(&[w, &arranged], Type::F32, [w.ne()[1], x.ne()[1], 1, 1], multiply, params).map(Some)
    }
}

/// Work that threads take part by part, so that one that is interrupted keeps nobody waiting.
#[derive(Default)]
struct Work {
    next: AtomicUsize,
    n_done: AtomicUsize,
}

impl Work {
    /// Calls `f` with parts of `0..n`, each `size` long but the last, until nothing is left. Each of `nth` threads calls this once.
    fn for_parts(&self, n: usize, size: usize, nth: i32, mut f: impl FnMut(Range<usize>)) {
        loop {
            let first = self.next.fetch_add(size, Ordering::Relaxed);
            if first >= n {
                break;
            }
            f(first..(first + size).min(n));
        }
        // The last one leaves it as it was; nobody asks again before the barrier behind the node.
        if self.n_done.fetch_add(1, Ordering::AcqRel) + 1 == nth as usize {
            self.n_done.store(0, Ordering::Relaxed);
            self.next.store(0, Ordering::Relaxed);
        }
    }
}

/// What thread `ith` of `nth` does of `n`.
fn share(n: usize, ith: i32, nth: i32) -> std::ops::Range<usize> {
    n * ith as usize / nth as usize..n * (ith as usize + 1) / nth as usize
}

/// Quantises and groups tokens; each thread some groups. Output `{group_words, n_groups} i32`.
unsafe extern "C" fn group_tokens(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: `userdata` is the FromTiles that the context keeps alive; `dst` is the node being computed.
        let (p, (x, [k, n, ..], _)) = unsafe { (&*userdata.cast::<FromTiles>(), source(dst, 0)) };
        let (words, mut row) = (p.layout.group_words(k), vec![0; p.layout.ty().row_size(k)]);
        for g in share(n.div_ceil(N_TOKEN), ith, nth) {
            // SAFETY: the groups of the output are `words` long, and this one is written by this thread alone.
            let group = unsafe { std::slice::from_raw_parts_mut((*dst).data.cast::<u32>().add(g * words), words) };
            if (g + 1) * N_TOKEN > n {
                group.fill(0);
            }
            for t in 0..N_TOKEN.min(n - g * N_TOKEN) {
                let at = (g * N_TOKEN + t) * k * 4;
                assert!(p.layout.ty().quantize_activations(&x[at..at + k * 4], &mut row));
                p.layout.pack(t, &row, group);
            }
        }
    });
}

/// Multiplies; each thread some tiles. Output `{m, n_tokens} f32`.
unsafe extern "C" fn multiply_tiles(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: as in `group_tokens`.
        let (p, (w, [k, m, ..], ty), (groups, ..), n) =
            unsafe { (&*userdata.cast::<FromTiles>(), source(dst, 0), source(dst, 1), (*dst).ne[1] as usize) };
        // SAFETY: words of four bytes, in memory that ggml aligns to more.
        let groups = unsafe { std::slice::from_raw_parts(groups.as_ptr().cast::<u32>(), groups.len() / 4) };
        let (tile_words, group_words) = (p.format.tile_words(k), p.layout.group_words(k));
        let rows_bytes = N_ROW * ty.row_size(k);
        let mine = share(m.div_ceil(N_ROW), ith, nth);
        let n_at_once = (UNPACKED_WORDS / tile_words).max(1);
        UNPACKED.with_borrow_mut(|unpacked| {
            unpacked.resize(unpacked.len().max(n_at_once * tile_words), 0);
            for first in mine.clone().step_by(n_at_once) {
                let tiles = first..(first + n_at_once).min(mine.end);
                for (tile, i) in unpacked.chunks_exact_mut(tile_words).zip(tiles.clone()) {
                    let rows = &w[i * rows_bytes..((i + 1) * rows_bytes).min(w.len())];
                    p.format.pack(ty, k, rows, tile);
                }
                for (g, group) in groups.chunks_exact(group_words).enumerate() {
                    for (tile, i) in unpacked.chunks_exact(tile_words).zip(tiles.clone()) {
                        let mut out = [[0.0; N_ROW]; N_TOKEN];
                        (p.run)(&p.format, tile, group, &mut out);
                        let n_rows = N_ROW.min(m - i * N_ROW);
                        for (t, out) in out.iter().enumerate().take(n - g * N_TOKEN) {
                            let at = (g * N_TOKEN + t) * m + i * N_ROW;
                            // SAFETY: rows and tokens lie inside the output; this tile is written by this thread alone.
                            let to =
                                unsafe { std::slice::from_raw_parts_mut((*dst).data.cast::<f32>().add(at), n_rows) };
                            to.copy_from_slice(&out[..n_rows]);
                        }
                    }
                }
            }
        });
    });
}

/// Quantises and arranges tokens; each thread some. Output `{token_words, n_tokens} i32`.
unsafe extern "C" fn arrange_tokens(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: `userdata` is the FromRows that the context keeps alive; `dst` is the node being computed.
        let (p, (x, [k, n, ..], _)) = unsafe { (&*userdata.cast::<FromRows>(), source(dst, 0)) };
        let mine = share(n, ith, nth);
        if mine.is_empty() {
            return;
        }
        let (words, ty) = (p.format.token_words(k), p.format.activations());
        let mut row = vec![0; ty.row_size(k)];
        for t in mine {
            // SAFETY: the tokens of the output are `words` long, and this one is written by this thread alone.
            let token = unsafe { std::slice::from_raw_parts_mut((*dst).data.cast::<u32>().add(t * words), words) };
            assert!(ty.quantize_activations(&x[t * k * 4..(t + 1) * k * 4], &mut row));
            p.format.pack(&row, token);
        }
    });
}

/// Multiplies; threads take some rows at a time. Output `{m, n_tokens} f32`.
unsafe extern "C" fn multiply_rows(dst: *mut sys::ggml_tensor, _ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: as in `arrange_tokens`.
        let (p, (w, [k, m, ..], ty), (tokens, ..), n) =
            unsafe { (&*userdata.cast::<FromRows>(), source(dst, 0), source(dst, 1), (*dst).ne[1] as usize) };
        // SAFETY: words of four bytes, in memory that ggml aligns to more.
        let tokens = unsafe { std::slice::from_raw_parts(tokens.as_ptr().cast::<u32>(), tokens.len() / 4) };
        let (row_size, words) = (ty.row_size(k), p.format.token_words(k));
        let row = |i: usize| &w[i.min(m - 1) * row_size..][..row_size];
        let tokens: Vec<&[u32]> = tokens.chunks_exact(words).collect();
        let part = m.div_ceil(PARTS * nth as usize).next_multiple_of(row::N_ROW);
        p.work.for_parts(m, part, nth, |rows| {
            for first in rows.clone().step_by(row::N_ROW) {
                let (four, n_rows) = (std::array::from_fn(|r| row(first + r)), row::N_ROW.min(rows.end - first));
                for (i, tokens) in tokens.chunks(row::N_TOKEN).enumerate() {
                    let mut out = [[0.0; row::N_ROW]; row::N_TOKEN];
                    (p.run)(&p.format, four, tokens, &mut out);
                    for (t, out) in out.iter().enumerate().take(n - i * row::N_TOKEN) {
                        let at = (i * row::N_TOKEN + t) * m + first;
                        // SAFETY: rows and tokens lie inside the output; these are written by this thread alone.
                        let to = unsafe { std::slice::from_raw_parts_mut((*dst).data.cast::<f32>().add(at), n_rows) };
                        to.copy_from_slice(&out[..n_rows]);
                    }
                }
            }
        });
    });
}
