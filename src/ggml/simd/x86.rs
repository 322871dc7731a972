//! AVX-512 and AVX2.

use super::block::{run, Block};
use super::{BlockFn, Isa};
use std::arch::x86_64::*;

/// The loop with AVX-512, where the processor has it.
pub(super) fn avx512() -> Option<(BlockFn, bool)> {
    let has =
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    // SAFETY: the features were detected.
    has.then_some((|b, s| unsafe { block_avx512(b, s) }, true))
}

/// The loop with AVX2, where the processor has it.
pub(super) fn avx2() -> Option<(BlockFn, bool)> {
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    // SAFETY: the features were detected.
    has.then_some((|b, s| unsafe { block_avx2(b, s) }, true))
}

#[target_feature(enable = "avx512f,avx2,fma")]
fn block_avx512(b: &Block, state: &mut [f32]) {
    run::<Avx512>(b, state);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn block_avx2(b: &Block, state: &mut [f32]) {
    run::<Avx2>(b, state);
}

struct Avx512;
struct Avx2;

// SAFETY: only `block_avx512`, which has the features, uses it.
unsafe impl Isa for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const N_QUERY: usize = 4;
    const FUSED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v)
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store_sums(p: *mut f32, [a, b, c, d]: [__m512; 4]) {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let (lo, hi) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        let x = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
        let y = _mm512_castps_pd(x);
        let y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(y)));
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps::<1>(y)));
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: prefetching never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

// SAFETY: only `block_avx2`, which has the features, uses it.
unsafe impl Isa for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const N_QUERY: usize = 2;
    const FUSED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v)
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn store_sums(p: *mut f32, [a, b, c, d]: [__m256; 4]) {
        let x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)));
    }

    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: prefetching never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
