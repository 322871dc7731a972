//! What the published baselines share: equal budgets, windows, what the prompt's end attends to, pooling (stage 5).
//!
//! Budget: [`Budget::n_entries`] counts every entry of every head, window and sinks included; where the papers give each head
//! the same number it is the quotient, and a remainder smaller than the number of heads stays unused.
//! Windows and sinks are the papers'. Those that do not fit shrink to half and a quarter of a head's entries
//! ([`Pinned::within`]); the observation window, whose queries score, never does.
//! The papers' models have one KV head per query head; here scores are means over the query heads that share a KV head.

use rayon::prelude::*;

use super::registry::{LOOKAHEAD, SMALL};
use super::score::Queries;
use super::select::{check_budget, heads, select, Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Needs};
use crate::cache::memory::Random;
use crate::cache::view::View;
use crate::error::Result;

/// What modifiers make of a baseline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// Queries of decoded lookahead tokens, at their own positions, join the scoring.
    pub lookahead: bool,
    /// Sinks and window are those of the budget instead of the paper's.
    pub small: bool,
}

impl Form {
    /// What the user asked for.
    pub fn new(options: &MethodOptions) -> Self {
        Form { lookahead: options.has(LOOKAHEAD), small: options.has(SMALL) }
    }

    /// The paper's sinks and window, or those of the budget.
    pub fn pinned(self, budget: &Budget, paper: Pinned) -> Pinned {
        match self.small {
            true => Pinned { n_sink: budget.n_sink, n_window: budget.n_window },
            false => paper,
        }
    }
}

/// Nothing is kept for its place alone.
pub const NOWHERE: Pinned = Pinned { n_sink: 0, n_window: 0 };

/// Entries of each head where all have the same number; `None` when every token fits.
///
/// # Errors
/// [`Error::Budget`](crate::error::Error::Budget) when there is less than one.
pub fn n_kept(view: &View, budget: &Budget) -> Result<Option<usize>> {
    let n_head = view.layers.len() * view.n_head_kv;
    check_budget(budget, n_head)?;
    let n_kept = budget.n_entries / n_head.max(1);
    Ok(Some(n_kept).filter(|&n| n < view.n_tokens))
}

/// `score` of every head of [`View::layers`], layer by layer. Shapes: `{n_tokens}` each.
///
/// # Errors
/// Those of `score`.
pub fn scores(view: &View, score: impl Fn(usize, usize) -> Result<Vec<f32>> + Sync) -> Result<Vec<Vec<f32>>> {
    heads(view).into_par_iter().map(|(il, g)| score(il, g)).collect()
}

/// Each head of the `i`-th layer keeps what is pinned and its best other tokens, so many in all as `of_layer(i)` says.
pub fn keep_best(view: &View, scores: &[Vec<f32>], of_layer: impl Fn(usize) -> (Pinned, usize) + Sync) -> Kept {
    let best = |(i, score): (usize, &Vec<f32>)| {
        let (pinned, n) = of_layer(i / view.n_head_kv);
        select(&[score], pinned, 0, n).swap_remove(0)
    };
    Kept::new(view, scores.par_iter().enumerate().map(best).collect())
}

/// The scores of one KV head of a layer, given what will be pinned. Shapes: `{n_tokens}`.
pub type Score = fn(&View, (usize, usize), Form, Pinned) -> Result<Vec<f32>>;

/// A method that scores the tokens of each head by itself and keeps as many in every head.
pub struct ByScore {
    /// What the user asked for.
    pub form: Form,
    /// What the score reads.
    pub needs: Needs,
    /// Sinks and window of the paper.
    pub paper: Pinned,
    /// The score; larger is better.
    pub score: Score,
}

impl Method for ByScore {
    fn needs(&self) -> Needs {
        self.needs
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, self.paper)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let scores = scores(view, |il, g| (self.score)(view, (il, g), self.form, pinned))?;
        Ok(Box::new(keep_best(view, &scores, |_| (pinned, n_kept))))
    }
}

/// The mean probability that the last `n_window` queries of the prompt give each token, and those of the lookahead with them.
///
/// # Errors
/// When there are no such queries, or the source cannot be read.
pub fn observed(view: &View, (il, g): (usize, usize), n_window: usize, lookahead: bool) -> Result<Vec<f32>> {
    Queries::load_in_place(view, il, g, n_window, lookahead)?.mean_of_all(view, il, g)
}

/// How scores of neighbours are pooled.
#[derive(Clone, Copy, Debug)]
pub enum Pooling {
    /// Their mean, where places before the first and behind the last token count as 0.
    Mean,
    /// Their maximum.
    Max,
}

/// Pools the scores of the tokens before the window over `kernel` neighbours each (odd).
pub fn pool(score: &mut [f32], n_window: usize, kernel: usize, pooling: Pooling) {
    let n = score.len() - n_window.min(score.len());
    let plain = score[..n].to_vec();
    for (i, out) in score[..n].iter_mut().enumerate() {
        let near = &plain[i.saturating_sub(kernel / 2)..(i + kernel / 2 + 1).min(n)];
        *out = match pooling {
            Pooling::Mean => near.iter().sum::<f32>() / kernel as f32,
            Pooling::Max => near.iter().fold(f32::MIN, |a, &b| a.max(b)),
        };
    }
}

/// A generator whose seed is a head's last key: equal for equal caches, whatever the order of heads and threads.
///
/// # Errors
/// When the source cannot be read.
pub fn generator(view: &View, il: usize, g: usize) -> Result<Random> {
    let mut key = vec![0.0; view.head_dim_k];
    view.source.keys(il, g, view.n_tokens - 1, &mut key)?;
    // FNV-1a over the bits.
    let seed = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, x| (h ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01b3));
    Ok(Random(seed))
}

/// The next number of a generator in `0..1`, in steps of 2^-24.
pub fn uniform(random: &mut Random) -> f32 {
    (random.bits() >> 40) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_leaves_the_window_alone_and_counts_nothing_beyond_the_ends() {
        let mut mean = [1.0, 2.0, 6.0, 3.0, 9.0];
        pool(&mut mean, 1, 3, Pooling::Mean);
        assert_eq!(mean, [1.0, 3.0, 11.0 / 3.0, 3.0, 9.0]);
        let mut max = [-1.0, -2.0, 6.0, 3.0, 9.0];
        pool(&mut max, 1, 3, Pooling::Max);
        assert_eq!(max, [-1.0, 6.0, 6.0, 6.0, 9.0]);
    }
}
