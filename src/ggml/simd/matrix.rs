//! Products of small matrices of `f32`: what attention of probes over a tile of a head is made of.
//!
//! Neither operand is copied: rows of `b` are short enough to stay in the second-level cache, where they are read in order.

/// `c = a b`, or `c += a b`. Shapes: `a: {k, m}`, `b: {n, k}`, `c: {n, m}`, whose rows may stand apart; the last may end early.
pub type ProductFn = fn(a: &[f32], b: &[f32], c: &mut [f32], size: ProductSize);

/// What a [`ProductFn`] is told.
#[derive(Clone, Copy, Debug)]
pub struct ProductSize {
    /// `[m, k, n]`.
    pub ne: [usize; 3],
    /// Elements from one row of `c` to the next.
    pub apart: usize,
    /// Whether the product is added to what `c` holds.
    pub add: bool,
}

/// The product for this processor; `None` where a library's is as fast.
#[cfg(target_arch = "x86_64")]
pub fn product_fn() -> Option<ProductFn> {
    // SAFETY: the feature was detected.
    is_x86_feature_detected!("avx512f").then_some((|a, b, c, size| unsafe { avx512::run(a, b, c, size) }) as ProductFn)
}

/// The product for this processor; `None` where a library's is as fast.
#[cfg(not(target_arch = "x86_64"))]
pub fn product_fn() -> Option<ProductFn> {
    None
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::ProductSize;
    use std::arch::x86_64::*;

    /// Elements of a vector.
    const LANES: usize = 16;
    /// Rows and vectors whose sums are in registers at a time: 24 of the 32, one element of `a` for four vectors of `b`.
    const TILE: (usize, usize) = (6, 4);

    #[target_feature(enable = "avx512f")]
    pub(super) fn run(a: &[f32], b: &[f32], c: &mut [f32], size: ProductSize) {
        let ProductSize { ne: [m, k, n], apart, .. } = size;
        if m == 0 || n == 0 {
            return;
        }
        assert!(a.len() == m * k && b.len() == k * n && apart >= n && c.len() >= (m - 1) * apart + n);
        let mut row = 0;
        while row < m {
            let n_row = if m - row >= TILE.0 { TILE.0 } else { 1 };
            let (a, c) = (&a[row * k..(row + n_row) * k], &mut c[row * apart..]);
            let mut col = 0;
            while col < n {
                let n_col = if n - col >= TILE.1 * LANES { TILE.1 * LANES } else { LANES.min(n - col) };
                // SAFETY: the tile lies inside all three, as their lengths were checked.
                unsafe {
                    let (a, b, c) = (a.as_ptr(), b.as_ptr().add(col), c.as_mut_ptr().add(col));
                    match (n_row, n_col > LANES) {
                        (1, false) => tile::<1, 1>(a, b, c, size, n_col),
                        (1, true) => tile::<1, { TILE.1 }>(a, b, c, size, n_col),
                        (_, false) => tile::<{ TILE.0 }, 1>(a, b, c, size, n_col),
                        (_, true) => tile::<{ TILE.0 }, { TILE.1 }>(a, b, c, size, n_col),
                    }
                }
                col += n_col;
            }
            row += n_row;
        }
    }

    /// `R` rows of `n_col` columns, which fill `V` vectors or, where `V` is 1, a part of one.
    ///
    /// # Safety
    /// `a` leads to `R` rows of `k`; `b` to `k` rows of `n_col` elements, `n` apart, and `c` to `R` rows, `apart`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn tile<const R: usize, const V: usize>(
        a: *const f32,
        mut b: *const f32,
        c: *mut f32,
        size: ProductSize,
        n_col: usize,
    ) {
        let ProductSize { ne: [_, k, n], apart, add } = size;
        let mask = |v: usize| ((1u32 << (n_col - v * LANES).min(LANES)) - 1) as u16;
        let mask: [u16; V] = std::array::from_fn(mask);
        let mut sum = [[_mm512_setzero_ps(); V]; R];
        // SAFETY: by the caller; lanes outside the masks are not read or written.
        unsafe {
            for i in 0..k {
                let b_row: [__m512; V] = std::array::from_fn(|v| _mm512_maskz_loadu_ps(mask[v], b.add(v * LANES)));
                for (r, sum) in sum.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*a.add(r * k + i));
                    for (sum, b) in sum.iter_mut().zip(b_row) {
                        *sum = _mm512_fmadd_ps(x, b, *sum);
                    }
                }
                b = b.wrapping_add(n);
            }
            for (r, sum) in sum.iter().enumerate() {
                for (v, sum) in sum.iter().enumerate() {
                    let c = c.add(r * apart + v * LANES);
                    let before = if add { _mm512_maskz_loadu_ps(mask[v], c) } else { _mm512_setzero_ps() };
                    _mm512_mask_storeu_ps(c, mask[v], _mm512_add_ps(before, *sum));
                }
            }
        }
    }
}
