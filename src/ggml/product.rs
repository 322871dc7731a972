//! Products of quantised weights with many tokens, from tiles ([`super::simd::tile`]), as two custom operations.
//!
//! The first quantises the tokens and groups them, the second unpacks tiles of rows and multiplies. Weights stay as they are
//! in the file; what is unpacked lives in the cache of the core that works on it. Results are those of `ggml_mul_mat`.

use super::context::Context;
use super::custom::{guarded, source};
use super::device::Device;
use super::dtype::Type;
use super::simd::tile::{tile_fn, Format, Layout, TileFn, N_ROW, N_TOKEN};
use super::sys;
use super::tensor::Tensor;
use crate::error::Result;
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

/// From this many tokens on, unpacking the rows is paid back.
const MIN_TOKENS: usize = 4 * N_TOKEN;
/// What a thread unpacks before it goes through the tokens. Units: words of 4 bytes; a part of the second-level cache.
const UNPACKED_WORDS: usize = 64 << 10;

thread_local! {
    static UNPACKED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Everything that stays fixed for a product.
struct Params {
    format: Format,
    layout: Layout,
    run: TileFn,
}

/// Tokens, quantised and grouped for the product with weights of some types.
#[derive(Clone)]
pub struct Tokens {
    groups: Tensor,
    of: Tensor,
    layout: Layout,
}

impl Context {
    /// `w x` from tiles, where that is faster than ggml's product: `None` for types and processors where it is not, for few
    /// tokens, and for weights that are not in plain memory. Tokens of an earlier call are used again when they are of `x`.
    ///
    /// Shapes: `w: {k, m}`, `x: {k, n_tokens} f32`; result `{m, n_tokens} f32`.
    ///
    /// # Errors
    /// When the context is full.
    pub fn tiled_mul_mat(&self, w: &Tensor, x: &Tensor, tokens: &mut Option<Tokens>) -> Result<Option<Tensor>> {
        let (nw, nx) = (w.ne(), x.ne());
        let flat = nw[2..] == [1, 1] && nx[2..] == [1, 1] && w.is_contiguous() && x.is_contiguous();
        let fit = nw[0] == nx[0] && x.ty() == Type::F32 && nx[1] >= MIN_TOKENS;
        let (Some(format), Some(run)) = (Format::of(w.ty()), tile_fn()) else { return Ok(None) };
        // Where there is another device, the scheduler may bring products of many tokens there.
        if !(flat && fit && w.is_plain() && Device::offload().is_empty()) {
            return Ok(None);
        }
        let (k, m, n) = (nw[0], nw[1], nx[1]);
        let layout = format.layout(w.ty().activations());
        let params = Arc::new(Params { format, layout, run });
        let groups = match tokens {
            Some(t) if t.layout == layout && t.of.ptr == x.ptr => t.groups.clone(),
            _ => {
                let ne = [layout.group_words(k), n.div_ceil(N_TOKEN), 1, 1];
                let groups = self.custom(&[x], Type::I32, ne, quantise, params.clone())?;
                *tokens = Some(Tokens { groups: groups.clone(), of: x.clone(), layout });
                groups
            }
        };
        self.custom(&[w, &groups], Type::F32, [m, n, 1, 1], multiply, params).map(Some)
    }
}

/// What thread `ith` of `nth` does of `n`.
fn share(n: usize, ith: i32, nth: i32) -> std::ops::Range<usize> {
    n * ith as usize / nth as usize..n * (ith as usize + 1) / nth as usize
}

/// Quantises and groups tokens; each thread some groups. Output `{group_words, n_groups} i32`.
unsafe extern "C" fn quantise(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: `userdata` is the Params that the context keeps alive; `dst` is the node being computed.
        let (p, (x, [k, n, ..], _)) = unsafe { (&*userdata.cast::<Params>(), source(dst, 0)) };
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
unsafe extern "C" fn multiply(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, userdata: *mut c_void) {
    guarded(|| {
        // SAFETY: as in `quantise`.
        let (p, (w, [k, m, ..], ty), (groups, ..), n) =
            unsafe { (&*userdata.cast::<Params>(), source(dst, 0), source(dst, 1), (*dst).ne[1] as usize) };
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
