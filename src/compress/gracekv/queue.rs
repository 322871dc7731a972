//! Steps 1 and 2 by one queue: keeping a token exact, adding a prototype and splitting one compete for every entry.
//!
//! Source: GraceKV (arXiv 2608.07001), its global queue of Add and Split over all layers and heads. A gain is the decrease of
//! a head's output error `sum_q w_q |e_q|^2`: for an exact token what the output loses without it, for a split what
//! [`split`] measures with held-out probes. Both are divided by the root of the head's output
//! `sum_q w_q |o_q|^2` (ours): absolute errors starve quiet heads, relative ones feed heads that hardly say anything.
//! The gains of a head fall, so the queue comes down to one threshold: the best actions of all heads are those above it.

use rayon::prelude::*;

use super::allocate::{evicted, most_prototypes, HeadChoice};
use super::observe::{Head, Observation};
use super::split;
use crate::cache::view::View;
use crate::error::Result;

/// Splits that are measured in a head, relative to the entries that a head has on average; at most [`MOST_SPLITS`].
const REACH: usize = 4;
/// Few heads can use more.
const MOST_SPLITS: usize = 512;

/// Divides anew what the heads of `choices` have together. The tokens of `fixed` stay exact whatever they are worth, and a
/// head keeps one prototype for all that is not exact.
///
/// # Errors
/// When the source cannot be read.
pub fn divide(
    view: &View,
    heads: &[(usize, usize)],
    fixed: Vec<Vec<u32>>,
    choices: Vec<HeadChoice>,
) -> Result<Vec<HeadChoice>> {
    let n_entries: usize = choices.iter().map(|c| c.kept.len() + c.n_prototype).sum();
    let n_split = (REACH * n_entries / heads.len().max(1)).min(MOST_SPLITS);
    let (kept, seen): (Vec<_>, Vec<_>) = choices.into_iter().map(|choice| (choice.kept, choice.seen)).unzip();
    let mut offers: Vec<Offer> =
        seen.into_iter().zip(fixed).map(|(seen, fixed)| Offer::new(view.n_tokens, fixed, seen)).collect();
    // What exact tokens alone would come to. Splits only raise it, so those that are worth less need not be measured.
    let n_fixed: usize = offers.iter().map(|offer| offer.fixed.len()).sum();
    let (least, _) = best(|least| count_all(&offers, least), n_entries.saturating_sub(n_fixed));
    let measure = |((offer, &head), kept): ((&mut Offer, _), Vec<u32>)| {
        offer.measure(view, head, &evicted(&kept, view.n_tokens), n_split, f32::from_bits(least))
    };
    offers.par_iter_mut().zip(heads).zip(kept).map(measure).collect::<Result<()>>()?;
    loop {
        let n_given: usize = offers.iter().map(|o| o.fixed.len() + usize::from(o.has_root)).sum();
        let (least, counts) = best(|least| count_all(&offers, least), n_entries.saturating_sub(n_given));
        // What a head cannot use goes to the others; limits only fall, so this ends.
        let mut is_used = true;
        offers.iter_mut().zip(&counts).for_each(|(offer, &count)| is_used &= offer.uses(count));
        if is_used {
            return Ok(offers.into_iter().zip(counts).map(|(offer, count)| offer.choice(least, count)).collect());
        }
    }
}

/// Actions of every head whose gain is at least this.
fn count_all(offers: &[Offer], least: u32) -> Vec<Count> {
    offers.par_iter().map(|offer| offer.count(least)).collect()
}

/// Actions of one head that the queue takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    n_exact: usize,
    n_split: usize,
}

/// What one head can do with entries.
struct Offer {
    seen: Option<Observation>,
    n_tokens: usize,
    /// Tokens that are exact in any case, ascending.
    fixed: Vec<u32>,
    /// Divides errors.
    unit: f32,
    /// Gains of splits, falling.
    split: Vec<u32>,
    /// Whether something is left for a prototype.
    has_root: bool,
}

impl Offer {
    /// Without splits, which [`Offer::measure`] adds.
    fn new(n_tokens: usize, fixed: Vec<u32>, seen: Option<Observation>) -> Self {
        let square = seen.as_ref().map_or(1.0, Observation::output_square);
        let (unit, has_root) = (square.sqrt().max(f32::MIN_POSITIVE), seen.is_some());
        Offer { seen, n_tokens, fixed, unit, split: Vec::new(), has_root }
    }

    /// Measures splits of the `evicted` tokens: at most `n`, and none once all that follow gain less than `least`.
    fn measure(&mut self, view: &View, (il, g): (usize, usize), evicted: &[u32], n: usize, least: f32) -> Result<()> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let head = Head::load(view, il, g, seen)?;
        let gains = split::gains(head, view.n_group(), evicted, n, least * self.unit)?;
        self.split = gains.into_iter().map(|gain| bits(gain / self.unit)).collect();
        Ok(())
    }

    /// The gain of keeping a token.
    fn exact(&self, token: u32) -> u32 {
        self.seen.as_ref().map_or(0, |seen| bits(seen.error_of(token) / self.unit))
    }

    /// Actions whose gain is at least this.
    fn count(&self, least: u32) -> Count {
        let [n_all, n_fixed] = match &self.seen {
            Some(seen) => seen.count_errors(&self.fixed, |error| bits(error / self.unit) >= least),
            None if least == 0 => [self.n_tokens, self.fixed.len()],
            None => [0, 0],
        };
        Count { n_exact: n_all - n_fixed, n_split: self.split.partition_point(|&gain| gain >= least) }
    }

    /// Whether the head can use all that it takes; if not, its limits are lowered.
    fn uses(&mut self, count: Count) -> bool {
        let n_merged = self.n_tokens - self.fixed.len() - count.n_exact;
        if n_merged == 0 {
            self.split.clear();
            return !std::mem::take(&mut self.has_root);
        }
        let n_split = most_prototypes(n_merged) - 1;
        if count.n_split > n_split {
            self.split.truncate(n_split);
        }
        count.n_split <= n_split
    }

    fn choice(self, least: u32, count: Count) -> HeadChoice {
        let mut n_tied = count.n_exact - self.count(least + 1).n_exact;
        let mut fixed = self.fixed.iter().peekable();
        let is_kept = |&t: &u32| {
            let (is_fixed, gain) = (fixed.next_if_eq(&&t).is_some(), self.exact(t));
            let is_tied = !is_fixed && gain == least && n_tied > 0;
            n_tied -= usize::from(is_tied);
            is_fixed || gain > least || is_tied
        };
        let kept = (0..self.n_tokens as u32).filter(is_kept).collect();
        HeadChoice { kept, n_prototype: usize::from(self.has_root) + count.n_split, seen: self.seen }
    }
}

/// A gain as a number that has the same order.
fn bits(gain: f32) -> u32 {
    gain.max(0.0).to_bits()
}

/// The `n` best actions of all heads: the gain of the last one, and what each head takes. Of equal ones the first.
///
/// `count` gives the actions of each head whose gains are at least this.
fn best(count: impl Fn(u32) -> Vec<Count>, n: usize) -> (u32, Vec<Count>) {
    let total = |counts: &[Count]| counts.iter().map(|c| c.n_exact + c.n_split).sum::<usize>();
    // The largest gain that still has `n` actions at or above it.
    let (mut least, mut above) = (0, f32::INFINITY.to_bits());
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        *(if total(&count(middle)) >= n { &mut least } else { &mut above }) = middle;
    }
    let mut taken = count(above);
    let mut n_tied = n.saturating_sub(total(&taken));
    for (taken, most) in taken.iter_mut().zip(count(least)) {
        for (n, most) in [(&mut taken.n_exact, most.n_exact), (&mut taken.n_split, most.n_split)] {
            let more = n_tied.min(most - *n);
            *n += more;
            n_tied -= more;
        }
    }
    (least, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_actions_are_those_that_sorting_finds() {
        let mut x = 1u64;
        let mut random = |below: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % below
        };
        for n_value in [3, 40, 100_000] {
            // Per head: exact tokens in any order, splits that fall; few values make many ties.
            let mut gains = |n: usize| (0..n).map(|_| bits(random(n_value) as f32 / 7.0)).collect::<Vec<u32>>();
            let heads: Vec<[Vec<u32>; 2]> = [30, 5, 0, 80].iter().map(|&n| [gains(n), gains(n / 3)]).collect();
            let count = |least: u32| {
                let of = |gains: &[u32]| gains.iter().filter(|&&gain| gain >= least).count();
                heads.iter().map(|[exact, split]| Count { n_exact: of(exact), n_split: of(split) }).collect()
            };
            let mut sorted: Vec<u32> = heads.iter().flatten().flatten().copied().collect();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            for n in (0..=sorted.len()).step_by(if cfg!(miri) { 29 } else { 1 }) {
                let (least, counts) = best(count, n);
                let taken = counts.iter().zip(&heads).flat_map(|(c, [exact, split])| {
                    [(c.n_exact, exact), (c.n_split, split)].map(|(n, gains)| {
                        let mut gains = gains.clone();
                        gains.sort_unstable_by(|a, b| b.cmp(a));
                        gains.truncate(n);
                        gains
                    })
                });
                let mut taken: Vec<u32> = taken.flatten().collect();
                taken.sort_unstable_by(|a, b| b.cmp(a));
                assert_eq!(taken, sorted[..n]);
                assert!(taken.iter().all(|&gain| gain >= least));
            }
        }
    }
}
