//! What is done to keys and values before a cache is quantised: a Walsh-Hadamard transform spreads outliers over a block.
//!
//! The transform is orthogonal and its own inverse: transformed queries give the same logits with transformed keys, and the
//! transform of an attention's output undoes that of its values. Sources: QuaRot (arXiv 2404.00456), llama.cpp
//! `src/llama-kv-cache.cpp` (`attn_rot_k`, `attn_rot_v`): blocks of a key are as long as its length allows, those of a value 64.

use crate::error::Result;
use crate::ggml::{BufferType, Context, Tensor, Type};

/// Shortest block, and the length of a value's blocks.
const N_MIN: usize = 64;

/// The transform of keys or of values.
#[derive(Clone)]
pub struct Hadamard {
    /// Shapes: `{n, n} f32`, symmetric.
    pub matrix: Tensor,
}

impl Hadamard {
    /// The transform of keys; `None` where there is none.
    ///
    /// # Errors
    /// When the memory for its matrix cannot be had.
    pub fn of_keys(ty: Type, head_dim: usize, buft: BufferType) -> Result<Option<Hadamard>> {
        let mut n = N_MIN;
        while head_dim.is_multiple_of(2 * n) {
            n *= 2;
        }
        Hadamard::of_length(ty, head_dim, n, buft)
    }

    /// The transform of values; `None` where there is none.
    ///
    /// # Errors
    /// When the memory for its matrix cannot be had.
    pub fn of_values(ty: Type, head_dim: usize, buft: BufferType) -> Result<Option<Hadamard>> {
        Hadamard::of_length(ty, head_dim, N_MIN, buft)
    }

    fn of_length(ty: Type, head_dim: usize, n: usize, buft: BufferType) -> Result<Option<Hadamard>> {
        if !ty.is_quantized() || !head_dim.is_multiple_of(N_MIN) {
            return Ok(None);
        }
        let ctx = Context::new(2, 0)?;
        let matrix = ctx.tensor(Type::F32, &[n, n])?.named("hadamard");
        ctx.allocate(buft)?;
        let mut rows = vec![0.0; n * n];
        for (i, row) in rows.chunks_exact_mut(n).enumerate() {
            row[i] = 1.0;
        }
        transform(&mut rows, n);
        matrix.write(0, &rows.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
        Ok(Some(Hadamard { matrix }))
    }

    /// Transforms rows of whole blocks in place; doing it twice changes nothing.
    pub fn apply(&self, rows: &mut [f32]) {
        transform(rows, self.matrix.ne()[0]);
    }
}

/// The fast transform of each `n` numbers, `n` a power of two.
fn transform(x: &mut [f32], n: usize) {
    let scale = 1.0 / (n as f32).sqrt();
    for block in x.chunks_exact_mut(n) {
        block.iter_mut().for_each(|x| *x *= scale);
        let mut half = 1;
        while half < n {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::memory::Random;

    #[test]
    fn the_transform_is_walsh_and_its_own_inverse() {
        for n in [2usize, 64, 256] {
            let x = Random(1).vector(3 * n, 1.0);
            let mut y = x.clone();
            transform(&mut y, n);
            for (x, y) in x.chunks(n).zip(y.chunks(n)) {
                // Walsh's matrix has the sign of the bits that two indices share.
                let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let want = |i: usize| (0..n).map(|j| sign(i, j) * x[j]).sum::<f32>() / (n as f32).sqrt();
                assert!((0..n).all(|i| (y[i] - want(i)).abs() < 1e-4), "{n}");
            }
            transform(&mut y, n);
            assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 1e-5), "{n}");
        }
    }

    #[test]
    fn blocks_are_those_of_llama_cpp() {
        let length = |h: Result<Option<Hadamard>>| h.unwrap().map(|h| h.matrix.ne()[0]);
        for (head_dim, k, v) in [
            (64, Some(64), Some(64)),
            (128, Some(128), Some(64)),
            (192, Some(64), Some(64)),
            (256, Some(256), Some(64)),
            (96, None, None),
            (32, None, None),
        ] {
            assert_eq!(length(Hadamard::of_keys(Type::Q8_0, head_dim, BufferType::cpu())), k, "{head_dim}");
            assert_eq!(length(Hadamard::of_values(Type::Q4_0, head_dim, BufferType::cpu())), v, "{head_dim}");
            assert_eq!(length(Hadamard::of_keys(Type::F16, head_dim, BufferType::cpu())), None);
        }
    }
}
