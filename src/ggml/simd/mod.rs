//! Vectors of our own operations, chosen for the instruction set when the program starts.
//!
//! Attention has one set of vector operations per instruction set; the loops over them are in [`block`], and what they compute
//! differs between instruction sets only by rounding. Products of quantised weights
//! are in [`tile`] and, with few tokens, in [`row`], of plain ones in [`matrix`].

// Every line of these functions is a vector or pointer operation under the contract of the function itself.
#![allow(unsafe_op_in_unsafe_fn)]
// Register tiles: one index walks several arrays.
#![allow(clippy::needless_range_loop)]

mod block;
pub(super) mod matrix;
pub(super) mod row;
pub(super) mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use block::{merge, Block, Rows, MAX_ENTRIES};

use std::sync::OnceLock;

/// Processes a block: adds it to the state.
pub(super) type BlockFn = fn(&Block, state: &mut [f32]);

/// The fastest loop for this processor, and whether it reads [`Rows::F16`].
pub(super) fn block_fn() -> (BlockFn, bool) {
    static CHOSEN: OnceLock<(BlockFn, bool)> = OnceLock::new();
    *CHOSEN.get_or_init(choose)
}

#[cfg(target_arch = "x86_64")]
fn choose() -> (BlockFn, bool) {
    x86::avx512().or_else(x86::avx2).unwrap_or((block::run::<Portable>, false))
}

#[cfg(not(target_arch = "x86_64"))]
fn choose() -> (BlockFn, bool) {
    (block::run::<Portable>, false)
}

/// A vector of `f32` and what the loops do with it.
///
/// # Safety
/// Functions may only run on a processor with the instruction set; pointers must lead to as many elements as are used.
unsafe trait Isa {
    type V: Copy;
    const LANES: usize;
    /// Queries that meet four keys in registers.
    const N_QUERY: usize;
    /// Fused multiply-add in one instruction.
    const FUSED: bool;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Writes the sum of the lanes of each of four vectors.
    unsafe fn store_sums(p: *mut f32, v: [Self::V; 4]);
    /// Asks for the cache line at an address, which need not exist.
    fn prefetch(p: *const u8);
}

/// An element of a row.
trait Element: Copy + Default {
    /// # Safety
    /// As [`Isa`].
    unsafe fn load<I: Isa>(p: *const Self) -> I::V;

    /// The first `n` elements, then zeros.
    ///
    /// # Safety
    /// As [`Isa`].
    #[inline(always)]
    unsafe fn load_first<I: Isa>(p: *const Self, n: usize) -> I::V {
        let mut padded = [Self::default(); 16];
        // SAFETY: the caller vouches for `n` elements; vectors have at most 16 lanes and n is below that.
        unsafe {
            std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), n);
            Self::load::<I>(padded.as_ptr())
        }
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const f32) -> I::V {
        I::load(p)
    }
}

impl Element for u16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const u16) -> I::V {
        I::load_f16(p)
    }
}

/// Any processor; rows are converted before.
struct Portable;

// SAFETY: plain arithmetic.
unsafe impl Isa for Portable {
    type V = [f32; 8];
    const LANES: usize = 8;
    const N_QUERY: usize = 2;
    // On 64-bit ARM it is part of the baseline; elsewhere `mul_add` would call a slow library function.
    const FUSED: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 8] {
        [x; 8]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 8] {
        p.cast::<[f32; 8]>().read_unaligned()
    }

    unsafe fn load_f16(_: *const u16) -> [f32; 8] {
        unreachable!("halves are converted before")
    }

    // Rows that were just converted are in the cache.
    fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 8]) {
        p.cast::<[f32; 8]>().write_unaligned(v)
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 8], b: [f32; 8], mut c: [f32; 8]) -> [f32; 8] {
        for l in 0..8 {
            c[l] = if Self::FUSED { a[l].mul_add(b[l], c[l]) } else { a[l] * b[l] + c[l] };
        }
        c
    }

    #[inline(always)]
    unsafe fn store_sums(p: *mut f32, v: [[f32; 8]; 4]) {
        let sum = v.map(|v| (v[0] + v[4]) + (v[1] + v[5]) + ((v[2] + v[6]) + (v[3] + v[7])));
        p.cast::<[f32; 4]>().write_unaligned(sum)
    }
}
