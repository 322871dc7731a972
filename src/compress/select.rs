//! Choosing tokens by score: one ranking over any number of heads, with sinks, window and a floor per head (stage 5).
//!
//! Ties go to the earlier token, then to the earlier head. NaN ranks last.

use super::{Allocation, Budget};
use crate::cache::plan::{HeadPlan, LayerPlan};
use crate::cache::view::View;
use crate::error::{Error, Result};

/// All (layer, KV head) pairs that may be compressed, layer by layer: the order of every list of heads in this module.
pub fn heads(view: &View) -> Vec<(usize, usize)> {
    view.layers.iter().flat_map(|&il| (0..view.n_head_kv).map(move |g| (il, g))).collect()
}

/// Tokens that every head keeps whatever their score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// First tokens of the prompt.
    pub n_sink: usize,
    /// Last tokens of the prompt.
    pub n_window: usize,
}

impl Pinned {
    /// Sinks and window of `budget`, within `n_exact` tokens.
    pub fn new(budget: &Budget, n_exact: usize, n_tokens: usize) -> Self {
        Pinned { n_sink: budget.n_sink, n_window: budget.n_window }.within(n_exact, n_tokens)
    }

    /// The same, shrunk to a quarter and a half of the `n_exact` tokens that a head keeps on average.
    pub fn within(self, n_exact: usize, n_tokens: usize) -> Self {
        let n_window = self.n_window.min(n_exact / 2).min(n_tokens);
        let n_sink = self.n_sink.min(n_exact / 4).min(n_tokens - n_window);
        Pinned { n_sink, n_window }
    }

    /// Number of pinned tokens of a head.
    pub fn len(&self) -> usize {
        self.n_sink + self.n_window
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Checks that `budget` gives each of `n_head_total` heads an entry.
///
/// # Errors
/// [`Error::Budget`] otherwise.
pub fn check_budget(budget: &Budget, n_head_total: usize) -> Result<()> {
    if budget.n_entries < n_head_total {
        let what = format!("{} entries for {n_head_total} heads; each needs at least one", budget.n_entries);
        return Err(Error::Budget { what });
    }
    Ok(())
}

/// The tokens that heads with these scores keep, ascending: the pinned ones, the best `floor` of each head, and the best of
/// all until there are `n_total`.
///
/// Shapes: `scores: {n_tokens}` per head.
pub fn select(scores: &[&[f32]], pinned: Pinned, floor: usize, n_total: usize) -> Vec<Vec<u32>> {
    select_above(scores, pinned, &vec![floor; scores.len()], n_total)
}

/// [`select`] with a floor for each head.
pub fn select_above(scores: &[&[f32]], pinned: Pinned, floors: &[usize], n_total: usize) -> Vec<Vec<u32>> {
    let mut taken: Vec<Vec<bool>> = scores
        .iter()
        .map(|s| (0..s.len()).map(|t| t < pinned.n_sink || t + pinned.n_window >= s.len()).collect())
        .collect();
    for ((score, taken), &floor) in scores.iter().zip(&mut taken).zip(floors) {
        take_best(&[score], std::slice::from_mut(taken), floor);
    }
    let n_taken: usize = taken.iter().flatten().filter(|&&t| t).count();
    take_best(scores, &mut taken, n_total.saturating_sub(n_taken));
    taken.iter().map(|taken| (0..).zip(taken).filter(|(_, &t)| t).map(|(t, _)| t).collect()).collect()
}

/// Order-preserving integer of a score.
fn rank(score: f32) -> u32 {
    match score.to_bits() {
        _ if score.is_nan() => 0,
        bits if bits >> 31 == 1 => !bits,
        bits => bits | 1 << 31,
    }
}

/// Takes the `n` best tokens that are not taken yet, or all of them when there are fewer.
fn take_best(scores: &[&[f32]], taken: &mut [Vec<bool>], n: usize) {
    let free = |taken: &[Vec<bool>], f: &mut dyn FnMut(u32)| {
        for (score, taken) in scores.iter().zip(taken) {
            score.iter().zip(taken).filter(|(_, &taken)| !taken).for_each(|(&s, _)| f(rank(s)));
        }
    };
    // The rank of the n-th best, its upper half first: two counts of 2^16 bins instead of a sorted copy of all scores.
    let mut bins = vec![0usize; 1 << 16];
    free(taken, &mut |r| bins[(r >> 16) as usize] += 1);
    if n == 0 || bins.iter().sum::<usize>() <= n {
        taken.iter_mut().flatten().for_each(|t| *t |= n > 0);
        return;
    }
    let (high, n_low) = nth_bin(&bins, n);
    bins.fill(0);
    free(taken, &mut |r| bins[(r & 0xffff) as usize] += usize::from(r >> 16 == high));
    let (low, mut n_tied) = nth_bin(&bins, n_low);
    let threshold = high << 16 | low;
    for t in 0..scores.iter().map(|s| s.len()).max().unwrap_or(0) {
        for (score, taken) in scores.iter().zip(taken.iter_mut()) {
            if t >= score.len() || taken[t] || rank(score[t]) < threshold {
                continue;
            }
            let tied = rank(score[t]) == threshold;
            taken[t] = !tied || n_tied > 0;
            n_tied -= usize::from(tied && n_tied > 0);
        }
    }
}

/// The bin that holds the `n`-th largest, and how many of that bin belong to the `n` largest.
fn nth_bin(bins: &[usize], mut n: usize) -> (u32, usize) {
    for (bin, &count) in bins.iter().enumerate().rev() {
        if count >= n {
            return (bin as u32, n);
        }
        n -= count;
    }
    (0, n)
}

/// The allocation of a method that only selects: the kept tokens of each KV head of each layer.
pub struct Kept {
    layers: Vec<usize>,
    n_head_kv: usize,
    tokens: Vec<Vec<u32>>,
}

impl Kept {
    /// From the tokens of the heads of [`View::layers`], layer by layer.
    pub fn new(view: &View, tokens: Vec<Vec<u32>>) -> Self {
        Kept { layers: view.layers.to_vec(), n_head_kv: view.n_head_kv, tokens }
    }

    /// Every token of every head.
    pub fn all(view: &View) -> Self {
        let tokens = heads(view).iter().map(|_| (0..view.n_tokens as u32).collect()).collect();
        Kept::new(view, tokens)
    }

    /// The tokens of each head of layer `il`, ascending; empty for a layer that is not compressed.
    pub fn heads(&self, il: usize) -> &[Vec<u32>] {
        match self.layers.iter().position(|&l| l == il) {
            Some(i) => &self.tokens[i * self.n_head_kv..(i + 1) * self.n_head_kv],
            None => &[],
        }
    }
}

impl Allocation for Kept {
    fn layer(&self, _view: &View, il: usize) -> Result<LayerPlan> {
        let heads = self.heads(il).iter().map(|tokens| HeadPlan::keep(tokens.iter().copied())).collect();
        Ok(LayerPlan { il, heads })
    }

    fn n_entries(&self, il: usize) -> Vec<usize> {
        self.heads(il).iter().map(Vec::len).collect()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("exact", self.tokens.iter().map(|tokens| tokens.len() as u64).sum())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_what_sorting_everything_selects() {
        let mut seed = 1u64;
        for (n_total, floor, levels) in
            [(40, 0, 1000), (40, 3, 1000), (55, 2, 4), (500, 9, 7), (4000, 0, 50), (30, 1, 1)]
        {
            let scores: Vec<Vec<f32>> = (0..5)
                .map(|_| {
                    let next = |_| {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        ((seed >> 33) % levels) as f32 - 2.0
                    };
                    (0..100).map(next).collect()
                })
                .collect();
            let pinned = Pinned { n_sink: 1, n_window: 2 };
            let views: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
            let got = select(&views, pinned, floor, n_total);
            assert_eq!(got, select_by_sorting(&scores, pinned, floor, n_total));
            assert_eq!(got.iter().map(Vec::len).sum::<usize>(), n_total.min(500));
        }
    }

    fn select_by_sorting(scores: &[Vec<f32>], pinned: Pinned, floor: usize, n_total: usize) -> Vec<Vec<u32>> {
        let n = scores[0].len();
        let mut all: Vec<(usize, usize)> = (0..n).flat_map(|t| (0..scores.len()).map(move |h| (t, h))).collect();
        all.sort_by(|a, b| scores[b.1][b.0].total_cmp(&scores[a.1][a.0]));
        let mut kept = vec![Vec::new(); scores.len()];
        let pin = |t: usize| t < pinned.n_sink || t >= n - pinned.n_window;
        for (h, kept) in kept.iter_mut().enumerate() {
            kept.extend((0..n as u32).filter(|&t| pin(t as usize)));
            kept.extend(all.iter().filter(|a| a.1 == h && !pin(a.0)).take(floor).map(|a| a.0 as u32));
        }
        for &(t, h) in &all {
            if kept.iter().map(Vec::len).sum::<usize>() < n_total && !kept[h].contains(&(t as u32)) {
                kept[h].push(t as u32);
            }
        }
        kept.iter_mut().for_each(|k| k.sort_unstable());
        kept
    }
}
