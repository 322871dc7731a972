//! Exact tokens outside the queue: sinks, window, the singleton floor before it and the left-over after it (stage 5, section "budget flow"
//! of arXiv 2608.07001).
//!
//! Deviations (ours): sinks and window are counted and shrink to half of a small budget; without either, every head keeps its best token,
//! so that no head ends without entries; what the queue leaves over goes to the best remaining tokens.

use std::cmp::Ordering;
use std::ops::Range;

use super::flow::Head;
use crate::compress::Budget;

/// The tokens between sinks and window, which compete for the budget.
///
/// Sinks and window together take at most half of the `n_entries / n_head_total` entries of a head.
pub(super) fn open_tokens(budget: &Budget, n_head_total: usize, n_tokens: usize) -> Range<usize> {
    let most = (budget.n_entries / n_head_total.max(1) / 2).min(n_tokens);
    let wanted = budget.n_sink + budget.n_window;
    let n_sink = if wanted <= most { budget.n_sink } else { (most * budget.n_sink).div_ceil(wanted) };
    let n_window = budget.n_window.min(most - n_sink);
    n_sink..n_tokens - n_window
}

/// Tokens of some heads, ranked by `omega * R`.
pub(super) struct Ranking<'a> {
    heads: &'a [Head],
}

impl<'a> Ranking<'a> {
    /// A ranking within `heads`.
    pub fn new(heads: &'a [Head]) -> Self {
        Ranking { heads }
    }

    /// Larger worth first, then the later token, then the earlier head.
    fn order(&self, a: &(u32, u32), b: &(u32, u32)) -> Ordering {
        let worth = |c: &(u32, u32)| self.heads[c.0 as usize].worth(c.1);
        worth(b).total_cmp(&worth(a)).then(b.1.cmp(&a.1)).then(a.0.cmp(&b.0))
    }

    /// The `n` best of `candidates`, given as `(head, token)`.
    pub fn best(&self, mut candidates: Vec<(u32, u32)>, n: usize) -> Vec<(u32, u32)> {
        if n < candidates.len() && n > 0 {
            candidates.select_nth_unstable_by(n - 1, |a, b| self.order(a, b));
        }
        candidates.truncate(n);
        candidates
    }

    /// Sinks, window and floor of every head, ascending: the tokens outside `open`, the best token of a head that has none of these, and the
    /// best tokens of all heads for `floor_share` of what then remains of `n_entries`.
    pub fn floor(&self, open: &Range<usize>, n_tokens: usize, n_entries: usize, floor_share: f32) -> Vec<Vec<u32>> {
        let always: Vec<u32> = (0..n_tokens).filter(|t| !open.contains(t)).map(|t| t as u32).collect();
        let of_head = |h: u32| open.clone().map(move |t| (h, t as u32));
        let best_of_head = |h: u32| self.best(of_head(h).collect(), 1).iter().map(|c| c.1).collect();
        let n_head = self.heads.len() as u32;
        let mut exact: Vec<Vec<u32>> = match always.is_empty() {
            true => (0..n_head).map(best_of_head).collect(),
            false => vec![always; self.heads.len()],
        };
        let spent: usize = exact.iter().map(Vec::len).sum();
        let n_floor = (f64::from(floor_share) * n_entries.saturating_sub(spent) as f64).floor() as usize;
        let is_free = |&(h, t): &(u32, u32)| exact[h as usize].binary_search(&t).is_err();
        let free: Vec<(u32, u32)> = (0..n_head).flat_map(of_head).filter(is_free).collect();
        for (h, t) in self.best(free, n_floor) {
            exact[h as usize].push(t);
        }
        exact.iter_mut().for_each(|tokens| tokens.sort_unstable());
        exact
    }

    /// Spends `left` more entries on exact tokens, taking them out of the prototypes that cover them; returns how many were added.
    ///
    /// A prototype that loses its last token gives its entry back; one that keeps a single token becomes that token.
    pub fn spend(&self, kept: &mut [Kept], open: &Range<usize>, mut left: usize) -> u64 {
        let mut added = 0;
        loop {
            kept.iter_mut().for_each(Kept::settle);
            if left == 0 {
                return added;
            }
            let all = (0..self.heads.len() as u32).flat_map(|h| open.clone().map(move |t| (h, t as u32)));
            let best =
                self.best(all.filter(|&(h, t)| kept[h as usize].exact.binary_search(&t).is_err()).collect(), left);
            if best.is_empty() {
                return added;
            }
            let before: usize = kept.iter().map(Kept::n_entries).sum();
            added += best.len() as u64;
            let mut taken = vec![Vec::new(); kept.len()];
            best.into_iter().for_each(|(h, t)| taken[h as usize].push(t));
            kept.iter_mut().zip(taken).for_each(|(kept, tokens)| kept.take(tokens));
            left = (left + before).saturating_sub(kept.iter().map(Kept::n_entries).sum());
        }
    }
}

/// What one head keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept {
    /// Exact tokens, ascending.
    pub exact: Vec<u32>,
    /// The tokens of each prototype, ascending.
    pub nodes: Vec<Vec<u32>>,
}

impl Kept {
    /// Entries it takes.
    pub fn n_entries(&self) -> usize {
        self.exact.len() + self.nodes.len()
    }

    /// Makes exact tokens of prototypes that stand for one.
    fn settle(&mut self) {
        let exact = &mut self.exact;
        self.nodes.retain(|node| {
            exact.extend(node.first().filter(|_| node.len() == 1));
            node.len() > 1
        });
        self.exact.sort_unstable();
    }

    fn take(&mut self, mut tokens: Vec<u32>) {
        tokens.sort_unstable();
        self.nodes.iter_mut().for_each(|node| node.retain(|t| tokens.binary_search(t).is_err()));
        self.nodes.retain(|node| !node.is_empty());
        self.exact.extend(tokens);
        self.exact.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads() -> Vec<Head> {
        let relevance = |h: usize| (0..20).map(|t| ((t * 7 + h * 3) % 11) as f32).collect();
        (0..3).map(|h| Head { omega: 1.0 + h as f32, relevance: relevance(h), ..Head::default() }).collect()
    }

    #[test]
    fn sinks_and_window_leave_half_of_a_small_budget() {
        for n_entries in 3..60 {
            for (n_sink, n_window) in [(0, 0), (4, 16), (4, 0), (0, 16), (40, 40)] {
                let open = open_tokens(&Budget { n_entries, n_sink, n_window }, 3, 20);
                let kept = 20 - open.len();
                assert!(kept <= n_entries / 6 && open.start <= n_sink && 20 - open.end <= n_window);
                assert!(n_entries / 6 < n_sink + n_window || kept == n_sink + n_window);
            }
        }
    }

    #[test]
    fn the_floor_is_a_sorted_prefix_of_the_global_ranking() {
        let heads = heads();
        let exact = Ranking::new(&heads).floor(&(2..18), 20, 42, 0.5);
        let mut all: Vec<(f32, u32, usize)> =
            (0..3).flat_map(|h| (2..18).map(move |t| (h, t))).map(|(h, t)| (heads[h].worth(t), t, h)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(a.2.cmp(&b.2)));
        for (h, exact) in exact.iter().enumerate() {
            let mut want: Vec<u32> = all[..15].iter().filter(|c| c.2 == h).map(|c| c.1).chain([0, 1, 18, 19]).collect();
            want.sort_unstable();
            assert_eq!(*exact, want);
        }
    }

    #[test]
    fn spending_is_exact_and_covers_nothing_twice() {
        let heads = heads();
        for left in 0..60 {
            let kept = Kept { exact: vec![0, 19], nodes: vec![(3..6).collect(), (6..8).collect(), (12..18).collect()] };
            let mut kept = vec![kept; 3];
            Ranking::new(&heads).spend(&mut kept, &(1..19), left);
            let total: usize = kept.iter().map(Kept::n_entries).sum();
            assert_eq!(total, (15 + left).min(60), "left {left}");
            for k in &kept {
                let mut tokens: Vec<u32> = k.exact.iter().chain(k.nodes.iter().flatten()).copied().collect();
                let n = tokens.len();
                tokens.sort_unstable();
                tokens.dedup();
                assert_eq!(tokens.len(), n);
                assert!(k.nodes.iter().all(|node| node.len() > 1));
            }
        }
    }
}
