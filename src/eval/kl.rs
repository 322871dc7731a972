//! What one distribution over the vocabulary loses against another: log-probabilities of the full cache against those of a
//! compressed one, token by token.
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
    /// Kullback-Leibler divergence of the distribution it was drawn from to the full cache's.
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

/// Scores `targets`, the first of which has place `first`, under `log_p`, given what the full cache said.
///
/// Shapes: `full, log_p: {n_vocab, targets.len()}`.
pub fn score(full: &[f32], log_p: &[f32], targets: &[u32], first: usize) -> Vec<Scored> {
    let n_vocab = (log_p.len() / targets.len().max(1)).max(1);
    let rows = full.par_chunks_exact(n_vocab).zip(log_p.par_chunks_exact(n_vocab)).zip(targets);
    let one = |i: usize, full: &[f32], log_p: &[f32], target: u32| {
        let divergence = |(&p, &q): (&f32, &f32)| f64::from(p.exp()) * (f64::from(p) - f64::from(q));
        let (p, q) = (f64::from(full[target as usize]), f64::from(log_p[target as usize]));
        Scored {
            index: first + i,
            nll: -q,
            // Rounding can leave a sum of this kind slightly below its smallest value.
            kl: full.iter().zip(log_p).map(divergence).sum::<f64>().max(0.0),
            same_top: super::argmax(full) == super::argmax(log_p),
            delta_p: q.exp() - p.exp(),
        }
    };
    rows.enumerate().map(|(i, ((full, log_p), &target))| one(i, full, log_p, target)).collect()
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
        for s in score(&p, &p, &targets, 5) {
            assert_eq!((s.kl, s.same_top, s.delta_p), (0.0, true, 0.0));
        }
        for (i, s) in score(&p, &q, &targets, 5).iter().enumerate() {
            let (p, q) = (&p[i * 50..][..50], &q[i * 50..][..50]);
            let want: f64 = (0..50).map(|v| f64::from(p[v]).exp() * f64::from(p[v] - q[v])).sum();
            assert!((s.kl - want).abs() < 1e-5 && want > 0.1, "{} {want}", s.kl);
            assert_eq!((s.index, s.nll), (5 + i, f64::from(-q[targets[i] as usize])));
        }
    }
}
