//! Tiles: quantised rows, unpacked once so that they meet many tokens, and the product of a tile with four tokens.
//!
//! ggml multiplies most quantised types row by row and token by token, and unpacks the row each time. Here [`N_ROW`] rows are
//! unpacked to bytes with four neighbours of each row side by side, as the dot product of AVX-512 VNNI takes them, and every
//! token meets them there.
//!
//! Results are those of ggml to the last bit: activations are quantised by ggml, to the type it would have chosen, and sums of floats
//! have its [order](SumOrder). Which batch a token is in would else decide between two tokens that are nearly as likely. Source: ggml-cpu `ggml_vec_dot_q4_1_q8_1`, `.._q5_1_..`,
//! for AVX2, `tinyBLAS_Q0_AVX` of llamafile's sgemm, and `acc_C` of `amx/mmq.cpp`. K-quants have tiles in ggml itself.

use super::super::dtype::Type;
use half::f16;

/// Rows of a tile.
pub(in super::super) const N_ROW: usize = 16;
/// Tokens of a group.
pub(in super::super) const N_TOKEN: usize = 4;
/// Elements that an instruction multiplies in each lane.
const N_SIDE: usize = 4;
/// Elements of a block, whose sums are in [`N_LANE`] lanes.
pub(super) const BLOCK: usize = 32;
/// Lanes.
const N_LANE: usize = BLOCK / N_SIDE;

/// Writes the quants of one block, and returns its scale and, of [`Kind::Min`], its minimum.
type Unpack = fn(&[u8], &mut [u8]) -> [f32; 2];

/// What quants mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A scale times a number, to which this was added to make it a byte.
    Offset(i32),
    /// A scale times a number, plus a minimum.
    Min,
}

/// The order of the sums of floats in a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SumOrder {
    /// Eight lanes, which each see four neighbours of every block of 32 elements: ggml's products with weights as the file has them.
    Lanes,
    /// Block by block, whose products are summed as integers: ggml's products with weights arranged for AMX.
    Blocks,
}

/// How rows of a type become tiles.
#[derive(Clone, Copy)]
pub(in super::super) struct Format {
    kind: Kind,
    order: SumOrder,
    unpack: Unpack,
}

/// How the tokens of a group are stored: what both sides of a product have to agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Layout {
    ty: Type,
    kind: Kind,
    order: SumOrder,
}

impl Format {
    /// The format of a type; `None` where ggml's own product is as fast, or a type and order are not known here.
    pub(in super::super) fn of(ty: Type, order: SumOrder) -> Option<Format> {
        let (kind, unpack): (_, Unpack) = match ty {
            _ if order == SumOrder::Blocks && ty != Type::Q8_0 => return None,
            Type::Q4_0 => (Kind::Offset(8), unpack_q4_0),
            Type::Q4_1 => (Kind::Min, unpack_q4_1),
            Type::Q5_0 => (Kind::Offset(16), unpack_q5_0),
            Type::Q5_1 => (Kind::Min, unpack_q5_1),
            Type::Q8_0 => (Kind::Offset(128), unpack_q8_0),
            _ => return None,
        };
        Some(Format { kind, order, unpack })
    }

    /// What is added to quants to make them bytes; 0 for types with a minimum.
    pub(super) fn offset(&self) -> i32 {
        match self.kind {
            Kind::Offset(offset) => offset,
            Kind::Min => 0,
        }
    }

    /// What the tokens have to look like when ggml multiplies with activations of type `ty`.
    pub(in super::super) fn layout(&self, ty: Type) -> Layout {
        Layout { ty, kind: self.kind, order: self.order }
    }

    /// Words of a tile of rows of `k` elements.
    pub(in super::super) fn tile_words(&self, k: usize) -> usize {
        k / BLOCK * self.kind.tile_words()
    }

    /// Unpacks up to [`N_ROW`] rows of `ty`; missing rows are zeros. Shapes: `rows: {k, n}`.
    pub(in super::super) fn pack(&self, ty: Type, k: usize, rows: &[u8], tile: &mut [u32]) {
        let (size, words) = (ty.type_size(), self.kind.tile_words());
        let row_size = ty.row_size(k);
        if rows.len() < N_ROW * row_size {
            tile.fill(0);
        }
        let mut q = [0; BLOCK];
        for (r, row) in rows.chunks_exact(row_size).enumerate() {
            for (bytes, part) in row.chunks_exact(size).zip(tile.chunks_exact_mut(words)) {
                let scales = (self.unpack)(bytes, &mut q);
                let (quants, rest) = part.split_at_mut(N_LANE * N_ROW);
                for (word, q) in quants[r..].iter_mut().step_by(N_ROW).zip(q.chunks_exact(N_SIDE)) {
                    *word = u32::from_le_bytes([q[0], q[1], q[2], q[3]]);
                }
                for (word, scale) in rest[r..].iter_mut().step_by(N_ROW).zip(scales) {
                    *word = scale.to_bits();
                }
            }
        }
    }
}

impl Kind {
    /// Words of a block of a tile: quants, then scales.
    fn tile_words(self) -> usize {
        let n_scale = match self {
            Kind::Offset(_) => 1,
            Kind::Min => 2,
        };
        (N_LANE + n_scale) * N_ROW
    }

    /// Words of a block of a group: quants, scales, and what the offset or the minimum adds.
    fn group_words(self, order: SumOrder) -> usize {
        let n_added = match (self, order) {
            (Kind::Offset(_), SumOrder::Lanes) => N_LANE,
            _ => 1,
        };
        (N_LANE + 1 + n_added) * N_TOKEN
    }
}

impl Layout {
    /// Words of a group of tokens of `k` elements.
    pub(in super::super) fn group_words(&self, k: usize) -> usize {
        k / BLOCK * self.kind.group_words(self.order)
    }

    /// The type ggml quantises the tokens to.
    pub(in super::super) fn ty(&self) -> Type {
        self.ty
    }

    /// Spreads token `t` of a group, a row of the layout's type, over the group.
    pub(in super::super) fn pack(&self, t: usize, row: &[u8], group: &mut [u32]) {
        let (words, has_sum) = (self.kind.group_words(self.order), self.ty == Type::Q8_1);
        for (block, part) in row.chunks_exact(self.ty.type_size()).zip(group.chunks_exact_mut(words)) {
            let quants = &block[if has_sum { 4 } else { 2 }..];
            let (of_quants, rest) = part.split_at_mut(N_LANE * N_TOKEN);
            for (word, q) in of_quants[t..].iter_mut().step_by(N_TOKEN).zip(quants.chunks_exact(N_SIDE)) {
                *word = u32::from_le_bytes([q[0], q[1], q[2], q[3]]);
            }
            rest[t] = half(block, 0).to_bits();
            let added = rest[N_TOKEN + t..].iter_mut().step_by(N_TOKEN);
            match self.kind {
                Kind::Min => added.for_each(|word| *word = half(block, 2).to_bits()),
                Kind::Offset(offset) => {
                    let sum = |q: &[u8]| q.iter().map(|&q| i32::from(q as i8)).sum::<i32>();
                    let n_summed = if self.order == SumOrder::Lanes { N_SIDE } else { BLOCK };
                    added.zip(quants.chunks_exact(n_summed)).for_each(|(word, q)| *word = (-offset * sum(q)) as u32);
                }
            }
        }
    }
}

pub(super) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Two quants of four bits from each byte: the low ones, then the high ones.
fn nibbles(bytes: &[u8], q: &mut [u8]) {
    let (low, high) = q.split_at_mut(bytes.len());
    for ((b, l), h) in bytes.iter().zip(low).zip(high) {
        (*l, *h) = (b & 15, b >> 4);
    }
}

/// A fifth bit for 32 quants.
fn fifth_bits(bits: &[u8], q: &mut [u8]) {
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (((bits >> i) & 1) << 4) as u8;
    }
}

fn unpack_q4_0(b: &[u8], q: &mut [u8]) -> [f32; 2] {
    nibbles(&b[2..18], q);
    [half(b, 0), 0.0]
}

fn unpack_q4_1(b: &[u8], q: &mut [u8]) -> [f32; 2] {
    nibbles(&b[4..20], q);
    [half(b, 0), half(b, 2)]
}

fn unpack_q5_0(b: &[u8], q: &mut [u8]) -> [f32; 2] {
    nibbles(&b[6..22], q);
    fifth_bits(&b[2..6], q);
    [half(b, 0), 0.0]
}

fn unpack_q5_1(b: &[u8], q: &mut [u8]) -> [f32; 2] {
    nibbles(&b[8..24], q);
    fifth_bits(&b[4..8], q);
    [half(b, 0), half(b, 2)]
}

fn unpack_q8_0(b: &[u8], q: &mut [u8]) -> [f32; 2] {
    q.iter_mut().zip(&b[2..34]).for_each(|(q, b)| *q = b ^ 128);
    [half(b, 0), 0.0]
}

/// Products of a tile with a group: `[token][row]`.
pub(in super::super) type Products = [[f32; N_ROW]; N_TOKEN];

/// Multiplies a tile with a group.
pub(in super::super) type TileFn = fn(&Format, tile: &[u32], group: &[u32], out: &mut Products);

/// The product for this processor; `None` where it has no instruction for it.
#[cfg(target_arch = "x86_64")]
pub(in super::super) fn tile_fn() -> Option<TileFn> {
    let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni");
    // SAFETY: the features were detected.
    has.then_some((|f, tile, group, out| unsafe { vnni::run(f, tile, group, out) }) as TileFn)
}

/// The product for this processor; `None` where it has no instruction for it.
#[cfg(not(target_arch = "x86_64"))]
pub(in super::super) fn tile_fn() -> Option<TileFn> {
    None
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::{Format, Kind, Products, SumOrder, N_LANE, N_ROW, N_TOKEN};
    use std::arch::x86_64::*;

    /// Lanes whose sums are in registers at a time, for all tokens.
    const HALF: usize = N_LANE / 2;

    type Sums = [[__m512; HALF]; N_TOKEN];

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn run(format: &Format, tile: &[u32], group: &[u32], out: &mut Products) {
        let words = (format.kind.tile_words(), format.kind.group_words(format.order));
        assert_eq!(tile.len() / words.0, group.len() / words.1);
        match (format.kind, format.order) {
            (Kind::Offset(_), SumOrder::Lanes) => sum::<false>(tile, group, words, out),
            (Kind::Offset(_), SumOrder::Blocks) => sum_blocks(tile, group, words, out),
            (Kind::Min, _) => sum::<true>(tile, group, words, out),
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn sum_blocks(tile: &[u32], group: &[u32], words: (usize, usize), out: &mut Products) {
        let mut sum = [_mm512_setzero_ps(); N_TOKEN];
        for (tile, group) in tile.chunks_exact(words.0).zip(group.chunks_exact(words.1)) {
            // SAFETY: offsets are below the lengths of the blocks.
            unsafe {
                let (w, x) = (tile.as_ptr(), group.as_ptr());
                let splat = |i: usize| _mm512_set1_epi32(*x.add(i) as i32);
                let mut dot: [__m512i; N_TOKEN] = std::array::from_fn(|t| splat((N_LANE + 1) * N_TOKEN + t));
                for lane in 0..N_LANE {
                    let w = _mm512_loadu_si512(w.add(lane * N_ROW).cast());
                    for t in 0..N_TOKEN {
                        dot[t] = _mm512_dpbusd_epi32(dot[t], w, splat(lane * N_TOKEN + t));
                    }
                }
                let d = _mm512_loadu_ps(w.add(N_LANE * N_ROW).cast());
                for t in 0..N_TOKEN {
                    let d = _mm512_mul_ps(d, _mm512_set1_ps(*x.add(N_LANE * N_TOKEN + t).cast::<f32>()));
                    sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), d, sum[t]);
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(sum) {
            // SAFETY: a row of the output is a vector.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn sum<const MIN: bool>(tile: &[u32], group: &[u32], words: (usize, usize), out: &mut Products) {
        let mut min = [_mm512_setzero_ps(); N_TOKEN];
        let low = lanes::<MIN, 0>(tile, group, words, &mut min);
        let high = lanes::<MIN, 1>(tile, group, words, &mut min);
        for (t, out) in out.iter_mut().enumerate() {
            let [a, b, c, d] = std::array::from_fn(|j| _mm512_add_ps(high[t][j], low[t][j]));
            let mut sum = _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d));
            if MIN {
                sum = _mm512_add_ps(sum, min[t]);
            }
            // SAFETY: a row of the output is a vector.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }

    /// The sums of one half of the lanes, of all rows; `min` becomes the sum of the minima's parts, with the first half.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn lanes<const MIN: bool, const H: usize>(
        tile: &[u32],
        group: &[u32],
        words: (usize, usize),
        min: &mut [__m512; N_TOKEN],
    ) -> Sums {
        let mut sum: Sums = [[_mm512_setzero_ps(); HALF]; N_TOKEN];
        for (tile, group) in tile.chunks_exact(words.0).zip(group.chunks_exact(words.1)) {
            // SAFETY: offsets are below the lengths of the blocks.
            unsafe {
                let (w, x) = (tile.as_ptr(), group.as_ptr());
                let row = |i: usize| _mm512_loadu_ps(w.add((N_LANE + i) * N_ROW).cast());
                let splat = |i: usize| _mm512_set1_epi32(*x.add(i) as i32);
                let splat_f32 = |i: usize| _mm512_set1_ps(*x.add(i).cast::<f32>());
                let d = row(0);
                let d: [__m512; N_TOKEN] = std::array::from_fn(|t| _mm512_mul_ps(d, splat_f32(N_LANE * N_TOKEN + t)));
                for l in 0..HALF {
                    let lane = H * HALF + l;
                    let w = _mm512_loadu_si512(w.add(lane * N_ROW).cast());
                    for t in 0..N_TOKEN {
                        let start = if MIN { _mm512_setzero_si512() } else { splat((N_LANE + 1 + lane) * N_TOKEN + t) };
                        let dot = _mm512_dpbusd_epi32(start, w, splat(lane * N_TOKEN + t));
                        sum[t][l] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), d[t], sum[t][l]);
                    }
                }
                if MIN && H == 0 {
                    let m = row(1);
                    for (t, min) in min.iter_mut().enumerate() {
                        *min = _mm512_fmadd_ps(m, splat_f32((N_LANE + 1) * N_TOKEN + t), *min);
                    }
                }
            }
        }
        sum
    }
}
