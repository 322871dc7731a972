//! Quantised rows times few tokens, straight from the bytes of the file: what decoding is made of.
//!
//! ggml takes a row at a time, in vectors of 32 bytes, and converts the scale of every block with an instruction of its own. Here
//! two rows share a vector of 64 bytes, four rows meet a token at a time, and what does not depend on the row is
//! computed once per token. Results are those of ggml to the last bit, for the reasons and from the sources that
//! [`super::tile`] names: each half of a vector is the eight lanes of one row.

use super::super::dtype::Type;
use super::tile::{half, Format, SumOrder, BLOCK};

/// Rows that are multiplied at a time.
pub(in super::super) const N_ROW: usize = 4;
/// Tokens that meet a row while it is in registers.
pub(in super::super) const N_TOKEN: usize = 4;

/// Products: `[token][row]`.
pub(in super::super) type Products = [[f32; N_ROW]; N_TOKEN];

/// Multiplies rows of one type with up to [`N_TOKEN`] tokens that [`RowFormat::pack`] has prepared.
pub(in super::super) type RowFn = fn(&RowFormat, rows: [&[u8]; N_ROW], tokens: &[&[u32]], out: &mut Products);

/// How rows of a type are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct RowFormat {
    ty: Type,
    order: SumOrder,
    /// What is added to quants to make them bytes; 0 for types with a minimum.
    offset: i32,
}

impl RowFormat {
    /// The format of a type; `None` for types and orders that are not known here.
    pub(in super::super) fn of(ty: Type, order: SumOrder) -> Option<RowFormat> {
        let offset = Format::of(ty, order)?.offset();
        Some(RowFormat { ty, order, offset })
    }

    /// The type ggml quantises tokens to.
    pub(in super::super) fn activations(&self) -> Type {
        self.ty.activations()
    }

    /// Words of a token of `k` elements: its quants; what the offset takes away, per four of them or, at the beginning, per block;
    /// per block a scale and a sum.
    pub(in super::super) fn token_words(&self, k: usize) -> usize {
        2 * (k / 4 + k / BLOCK)
    }

    /// Prepares a token, quantised by ggml, for all rows.
    pub(in super::super) fn pack(&self, row: &[u8], token: &mut [u32]) {
        let (ty, has_sum) = (self.ty.activations(), self.offset == 0);
        let n_block = row.len() / ty.type_size();
        let (quants, rest) = token.split_at_mut(n_block * BLOCK / 4);
        let (offsets, rest) = rest.split_at_mut(n_block * BLOCK / 4);
        let (scales, sums) = rest.split_at_mut(n_block);
        let n_summed = if self.order == SumOrder::Lanes { 4 } else { BLOCK };
        let words = quants.chunks_exact_mut(BLOCK / 4).zip(offsets.chunks_exact_mut(BLOCK / n_summed));
        for ((block, (quants, offsets)), (scale, sum)) in
            row.chunks_exact(ty.type_size()).zip(words).zip(scales.iter_mut().zip(sums))
        {
            (*scale, *sum) = (half(block, 0).to_bits(), if has_sum { half(block, 2).to_bits() } else { 0 });
            let bytes = &block[if has_sum { 4 } else { 2 }..];
            for (word, q) in quants.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([q[0], q[1], q[2], q[3]]);
            }
            for (offset, q) in offsets.iter_mut().zip(bytes.chunks_exact(n_summed)) {
                let sum: i32 = q.iter().map(|&q| i32::from(q as i8)).sum();
                *offset = (-self.offset * sum) as u32;
            }
        }
    }
}

/// The product for this processor; `None` where it has no instruction for it.
#[cfg(target_arch = "x86_64")]
pub(in super::super) fn row_fn() -> Option<RowFn> {
    let has = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    // SAFETY: the features were detected.
    has.then_some((|f, rows, tokens, out| unsafe { vnni::run(f, rows, tokens, out) }) as RowFn)
}

/// The product for this processor; `None` where it has no instruction for it.
#[cfg(not(target_arch = "x86_64"))]
pub(in super::super) fn row_fn() -> Option<RowFn> {
    None
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::{Products, RowFormat, SumOrder, Type, BLOCK, N_ROW, N_TOKEN};
    use std::arch::x86_64::*;

    const Q4_0: u8 = 0;
    const Q4_1: u8 = 1;
    const Q5_0: u8 = 2;
    const Q5_1: u8 = 3;
    const Q8_0: u8 = 4;

    /// What is asked for before it is needed, at least. Units: bytes.
    const AHEAD: usize = 2048;
    /// Lanes of the second row of a vector.
    const SECOND: u16 = 0xff00;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn run(format: &RowFormat, rows: [&[u8]; N_ROW], tokens: &[&[u32]], out: &mut Products) {
        let n_block = rows[0].len() / format.ty.type_size();
        assert!(rows.iter().all(|row| row.len() == n_block * format.ty.type_size()) && tokens.len() <= N_TOKEN);
        assert!(tokens.iter().all(|token| token.len() == format.token_words(n_block * BLOCK)));
        let size = format.ty.type_size();
        // SAFETY: rows are `n_block` blocks of `size` bytes, tokens are as long as the format has them.
        unsafe {
            match format.ty {
                _ if format.order == SumOrder::Blocks => {
                    let rows = rows.map(<[u8]>::as_ptr);
                    for (token, out) in tokens.iter().zip(out) {
                        *out = blocks(rows, token.as_ptr(), n_block);
                    }
                }
                Type::Q4_0 => all::<Q4_0>(rows, tokens, n_block, size, out),
                Type::Q4_1 => all::<Q4_1>(rows, tokens, n_block, size, out),
                Type::Q5_0 => all::<Q5_0>(rows, tokens, n_block, size, out),
                Type::Q5_1 => all::<Q5_1>(rows, tokens, n_block, size, out),
                _ => all::<Q8_0>(rows, tokens, n_block, size, out),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn all<const TY: u8>(
        rows: [&[u8]; N_ROW],
        tokens: &[&[u32]],
        n_block: usize,
        size: usize,
        out: &mut Products,
    ) {
        let rows = rows.map(<[u8]>::as_ptr);
        if let [a, b, c, d] = tokens {
            return some::<TY, 4>(rows, [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()], n_block, size, out);
        }
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(1)) {
            some::<TY, 1>(rows, [token.as_ptr()], n_block, size, out);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn some<const TY: u8, const T: usize>(
        rows: [*const u8; N_ROW],
        tokens: [*const u32; T],
        n_block: usize,
        size: usize,
        out: &mut [[f32; N_ROW]],
    ) {
        let has_min = TY == Q4_1 || TY == Q5_1;
        let mut sum = [[_mm512_setzero_ps(); T]; N_ROW / 2];
        let (mut min, ahead) = (sum, (N_ROW * n_block * size).max(AHEAD));
        for i in 0..n_block {
            let mut dy = [_mm512_setzero_ps(); T];
            for t in 0..T {
                dy[t] = _mm512_set1_ps(*tokens[t].add(n_block * BLOCK / 2 + i).cast::<f32>());
            }
            for pair in 0..N_ROW / 2 {
                let (a, b) = (rows[2 * pair].add(i * size), rows[2 * pair + 1].add(i * size));
                // Rows follow each other in memory, but four are read at once, which the processor does not foresee.
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(ahead).cast());
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(ahead).cast());
                let q = quants::<TY>(a, b);
                // The scale, and behind it the minimum or something of no meaning, again and again.
                let first = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
                let both = _mm256_mask_set1_epi32(first, 0xf0, b.cast::<i32>().read_unaligned());
                let both = _mm512_cvtph_ps(both);
                let dx = _mm512_moveldup_ps(both);
                for t in 0..T {
                    let token = tokens[t].add(i * BLOCK / 4);
                    let y = _mm512_broadcast_i64x4(_mm256_loadu_si256(token.cast()));
                    let start = match has_min {
                        true => _mm512_setzero_si512(),
                        false => {
                            let start = token.add(n_block * BLOCK / 4);
                            _mm512_broadcast_i64x4(_mm256_loadu_si256(start.cast()))
                        }
                    };
                    let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, q, y));
                    sum[pair][t] = _mm512_fmadd_ps(_mm512_mul_ps(dx, dy[t]), dot, sum[pair][t]);
                    if has_min {
                        let s = *tokens[t].add(n_block * BLOCK / 2 + n_block + i).cast::<f32>();
                        min[pair][t] = _mm512_fmadd_ps(both, _mm512_set1_ps(s), min[pair][t]);
                    }
                }
            }
        }
        for t in 0..T {
            for pair in 0..N_ROW / 2 {
                let (sum, min) = (sum[pair][t], min[pair][t]);
                let rows = [_mm512_castps512_ps256(sum), upper_half(sum)];
                let mins = [_mm512_castps512_ps256(min), upper_half(min)];
                for (r, (row, min)) in rows.into_iter().zip(mins).enumerate() {
                    let min = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(min)));
                    let sum = horizontal(row);
                    out[t][2 * pair + r] = if has_min { sum + min } else { sum };
                }
            }
        }
    }

    /// Bytes of a block of Q8_0.
    const Q8_0_SIZE: usize = 34;
    /// Blocks of each row whose sums share a vector.
    const N_SIDE: usize = 4;

    /// Rows of Q8_0 and a token, block by block.
    ///
    /// # Safety
    /// Rows have `n_block` blocks, the first one is at the lowest address; the token is as long as the format has it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn blocks(rows: [*const u8; N_ROW], token: *const u32, n_block: usize) -> [f32; N_ROW] {
        let (offsets, scales) = (token.add(n_block * BLOCK / 4), token.add(n_block * BLOCK / 2));
        let ahead = (N_ROW * n_block * Q8_0_SIZE).max(AHEAD);
        // Scales of row r and block b are element b of quarter r.
        let at: [i32; 16] =
            std::array::from_fn(|i| rows[i / N_SIDE].offset_from(rows[0]) as i32 + (i % N_SIDE * Q8_0_SIZE) as i32);
        let at = _mm512_loadu_si512(at.as_ptr().cast());
        // The first element of each quarter is the sum of a row.
        let mut sum = _mm512_setzero_ps();
        for first in (0..n_block).step_by(N_SIDE) {
            let n = N_SIDE.min(n_block - first);
            let valid = (1u8 << n) - 1;
            let mut dot = [[_mm512_setzero_si512(); N_SIDE]; N_ROW / 2];
            for b in 0..n {
                let y = _mm512_broadcast_i64x4(_mm256_loadu_si256(token.add((first + b) * BLOCK / 4).cast()));
                for pair in 0..N_ROW / 2 {
                    let [a, b_row] = [0, 1].map(|r| rows[2 * pair + r].add((first + b) * Q8_0_SIZE));
                    if b % 2 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(ahead).cast());
                        _mm_prefetch::<_MM_HINT_T0>(b_row.wrapping_add(ahead).cast());
                    }
                    dot[pair][b] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), quants::<Q8_0>(a, b_row), y);
                }
            }
            let dot = dot.map(|d| add_within_quarters(d));
            let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(dot[0], dot[1]);
            let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(dot[0], dot[1]);
            let quarter = |p: *const u32| _mm512_broadcast_i32x4(_mm_maskz_loadu_epi32(valid, p.add(first).cast()));
            let dot = _mm512_add_epi32(_mm512_add_epi32(even, odd), quarter(offsets));
            let mask = u16::from(valid) * 0x1111;
            let dx = rows[0].add(first * Q8_0_SIZE);
            let dx = _mm512_mask_i32gather_epi32::<1>(_mm512_setzero_si512(), mask, at, dx.cast());
            let dx = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dx));
            let mut d = _mm512_mul_ps(dx, _mm512_castsi512_ps(quarter(scales)));
            let mut dot = _mm512_cvtepi32_ps(dot);
            sum = _mm512_fmadd_ps(dot, d, sum);
            for _ in 1..n {
                (dot, d) = (_mm512_permute_ps::<0b00_11_10_01>(dot), _mm512_permute_ps::<0b00_11_10_01>(d));
                sum = _mm512_fmadd_ps(dot, d, sum);
            }
        }
        let mut sums = [0.0; 16];
        _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        std::array::from_fn(|r| sums[r * N_SIDE])
    }

    /// Element b of each quarter is the sum of that quarter of vector b.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add_within_quarters([a, b, c, d]: [__m512i; N_SIDE]) -> __m512i {
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }

    /// The upper half.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn upper_half(x: __m512) -> __m256 {
        _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x)))
    }

    /// The sum of the lanes, in ggml's order.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn horizontal(x: __m256) -> f32 {
        let x = _mm_add_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }

    /// The quants of a block of each of two rows, as bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn quants<const TY: u8>(a: *const u8, b: *const u8) -> __m512i {
        match TY {
            Q4_0 => nibbles(a.add(2), b.add(2)),
            Q4_1 => nibbles(a.add(4), b.add(4)),
            Q5_0 => fifth_bits(nibbles(a.add(6), b.add(6)), a.add(2), b.add(2)),
            Q5_1 => fifth_bits(nibbles(a.add(8), b.add(8)), a.add(4), b.add(4)),
            _ => {
                let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.add(2).cast()));
                let both = _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.add(2).cast()));
                _mm512_xor_si512(both, _mm512_set1_epi8(-128))
            }
        }
    }

    /// 32 quants of four bits of each row: the low ones of its 16 bytes, then the high ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn nibbles(a: *const u8, b: *const u8) -> __m512i {
        let first = _mm512_broadcast_i32x4(_mm_loadu_si128(a.cast()));
        let both = _mm512_mask_broadcast_i32x4(first, SECOND, _mm_loadu_si128(b.cast()));
        let shift = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
        _mm512_and_si512(_mm512_srlv_epi64(both, shift), _mm512_set1_epi8(15))
    }

    /// Adds the fifth bits of the quants of two rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn fifth_bits(q: __m512i, a: *const u8, b: *const u8) -> __m512i {
        let bits = |p: *const u8| u64::from(p.cast::<u32>().read_unaligned());
        _mm512_mask_add_epi8(q, bits(a) | bits(b) << 32, q, _mm512_set1_epi8(16))
    }
}
