//! What one distribution over the vocabulary loses against another, the base: log-probabilities of a compressed cache against
//! those of the full one, or of a model against those of another, token by token.
//!
//! Source: llama.cpp `tools/perplexity/perplexity.cpp` (`--kl-divergence`), here in `f64` sums over unquantised log-probabilities.

use rayon::prelude::*;

/// What is known about one scored token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scored {
    /// Its place in the continuation; 0 is the first token after the prompt.
    pub index: usize,
    /// Negative log-likelihood.
    pub nll: f64,
    /// The same by the distribution it is compared with.
    pub nll_base: f64,
    /// Kullback-Leibler divergence from the distribution it is compared with; rounding can leave it slightly below 0.
    pub kl: f64,
    /// Whether both give the same token the highest probability.
    pub same_top: bool,
    /// Change of the token's probability.
    pub delta_p: f64,
}

/// Logits to log-probabilities, in place.
pub fn log_softmax(logits: &mut [f32]) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    let lz = f64::from(max) + sum.ln();
    logits.iter_mut().for_each(|x| *x = (f64::from(*x) - lz) as f32);
}

/// Negative log-likelihoods of `targets`. Shapes: `logits: {n_vocab, targets.len()}`.
pub fn nll(logits: &[f32], targets: &[u32]) -> Vec<f64> {
    let n_vocab = logits.len() / targets.len().max(1);
    let one = |(row, &target): (&[f32], &u32)| {
        let max = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        let sum: f64 = row.iter().map(|&x| f64::from((x - max).exp())).sum();
        f64::from(max) + sum.ln() - f64::from(row[target as usize])
    };
    logits.par_chunks_exact(n_vocab.max(1)).zip(targets).map(one).collect()
}

/// Log-probabilities of a base file below which they are no longer those of the model.
pub const BASE_FLOOR: f32 = -16.0;

/// Scores `targets`, the first of which has place `first`, under `log_p`, against what `base` said; of `base` only
/// log-probabilities above `floor` count.
///
/// Shapes: `base, log_p: {n_vocab, targets.len()}`.
pub fn score(base: &[f32], log_p: &[f32], targets: &[u32], first: usize, floor: f32) -> Vec<Scored> {
    let n_vocab = (log_p.len() / targets.len().max(1)).max(1);
    let rows = base.par_chunks_exact(n_vocab).zip(log_p.par_chunks_exact(n_vocab)).zip(targets);
    let one = |i: usize, base: &[f32], log_p: &[f32], target: u32| {
        let divergence = |(&p, &q): (&f32, &f32)| match p > floor {
            true => f64::from(p.exp()) * (f64::from(p) - f64::from(q)),
            false => 0.0,
        };
        let (p, q) = (f64::from(base[target as usize]), f64::from(log_p[target as usize]));
        Scored {
            index: first + i,
            nll: -q,
            nll_base: -p,
            kl: base.iter().zip(log_p).map(divergence).sum(),
            same_top: super::argmax(base) == super::argmax(log_p),
            delta_p: q.exp() - p.exp(),
        }
    };
    rows.enumerate().map(|(i, ((base, log_p), &target))| one(i, base, log_p, target)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(seed: f32) -> Vec<f32> {
        let mut x: Vec<f32> = (0..3 * 50).map(|i| (i as f32 * seed).sin() * 9.0).collect();
        x.chunks_exact_mut(50).for_each(log_softmax);
        x
    }

    #[test]
    fn log_probabilities_sum_to_one_and_do_not_move() {
        let mut x = logits(0.7);
        assert!(x
            .chunks_exact(50)
            .all(|row| (row.iter().map(|&v| f64::from(v).exp()).sum::<f64>() - 1.0).abs() < 1e-6));
        let before = x.clone();
        x.chunks_exact_mut(50).for_each(log_softmax);
        assert!(x.iter().zip(&before).all(|(a, b)| (a - b).abs() < 2e-6));
        let got = nll(&before, &[7, 8, 49]);
        assert!((got[2] + f64::from(before[149])).abs() < 1e-6);
    }

    #[test]
    fn divergence_is_that_of_the_definition_and_zero_only_for_equals() {
        let (p, q) = (logits(0.7), logits(1.3));
        let targets = [0, 11, 49];
        for s in score(&p, &p, &targets, 5, f32::MIN) {
            assert_eq!((s.kl, s.same_top, s.delta_p), (0.0, true, 0.0));
        }
        for (i, s) in score(&p, &q, &targets, 5, f32::MIN).iter().enumerate() {
            let (p, q) = (&p[i * 50..][..50], &q[i * 50..][..50]);
            let want: f64 = (0..50).map(|v| f64::from(p[v]).exp() * f64::from(p[v] - q[v])).sum();
            assert!((s.kl - want).abs() < 1e-5 && want > 0.1, "{} {want}", s.kl);
            assert_eq!((s.index, s.nll), (5 + i, f64::from(-q[targets[i] as usize])));
        }
    }
}
