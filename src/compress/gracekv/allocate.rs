//! Steps 1 and 2: which tokens stay exact, and how many prototypes each head gets for the others.
//!
//! Fixed shares of the budget come first: the best tokens by one ranking, and prototypes where attention mass is left. The
//! [`queue`] then divides all but a floor anew, which is most of the exact tokens.

use rayon::prelude::*;

use super::observe::Observation;
use super::{queue, Options};
use crate::cache::view::View;
use crate::compress::select::{check_budget, heads, select, Pinned};
use crate::compress::Budget;
use crate::error::Result;

/// What one head gets.
pub struct HeadChoice {
    /// Tokens that stay exact, ascending.
    pub kept: Vec<u32>,
    /// Prototypes for all the others.
    pub n_prototype: usize,
    /// What the probes see; nothing is needed when every token of every head stays.
    pub seen: Option<Observation>,
}

/// The tokens that are not in `kept`; both ascending.
pub(super) fn evicted(kept: &[u32], n_tokens: usize) -> Vec<u32> {
    let mut kept = kept.iter().peekable();
    (0..n_tokens as u32).filter(|t| kept.next_if_eq(&t).is_none()).collect()
}

/// Divides `budget` over the heads of [`View::layers`].
///
/// # Errors
/// When there is less than one entry per head, no probe, or the source cannot be read.
pub fn allocate(view: &View, budget: &Budget, options: &Options) -> Result<Vec<HeadChoice>> {
    let (heads, n_tokens) = (heads(view), view.n_tokens);
    check_budget(budget, heads.len())?;
    if budget.n_entries >= heads.len() * n_tokens {
        let all = |_| HeadChoice { kept: (0..n_tokens as u32).collect(), n_prototype: 0, seen: None };
        return Ok(heads.iter().map(all).collect());
    }
    let observe = |&(il, g): &(usize, usize)| Observation::new(view, il, g, options.sample_weight);
    let (seen, scores): (Vec<_>, Vec<_>) =
        heads.par_iter().map(observe).collect::<Result<Vec<_>>>()?.into_iter().unzip();

    let n_prototype = n_prototype(budget.n_entries, heads.len(), n_tokens, options.prototype_share);
    let n_exact = budget.n_entries - n_prototype;
    let kept = exact(&scores, budget, options.floor, n_exact, n_exact);
    let mass: Vec<f64> = kept.iter().zip(&seen).map(|(kept, seen)| 1.0 - seen.mass_of(kept)).collect();
    let most: Vec<usize> = kept.iter().map(|kept| most_prototypes(n_tokens - kept.len())).collect();
    let shares = apportion(n_prototype, &mass, &most);
    let choices = kept.into_iter().zip(shares).zip(seen);
    let choices: Vec<HeadChoice> =
        choices.map(|((kept, n_prototype), seen)| HeadChoice { kept, n_prototype, seen: Some(seen) }).collect();
    if n_prototype == 0 || options.fixed_shares {
        return Ok(choices);
    }
    let n_ranked = (options.ranked_share * n_exact as f32) as usize;
    let floor = exact(&scores, budget, options.floor, n_exact, n_ranked);
    drop(scores);
    queue::divide(view, &heads, floor, choices)
}

/// Step 1, the exact part: window and sinks, a floor per head, the rest by one ranking over all layers and heads, until
/// there are `n_total`. Window, sinks and floor are what they are for `n_exact` tokens, also when fewer are asked for.
fn exact(scores: &[Vec<f32>], budget: &Budget, floor: f32, n_exact: usize, n_total: usize) -> Vec<Vec<u32>> {
    let max: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
    let (n_head, n_tokens) = (max.len(), max.first().map_or(0, |m| m.len()));
    let average = n_exact / n_head.max(1);
    let pinned = Pinned::new(budget, average, n_tokens);
    let mut floor = (floor * (average - pinned.len()) as f32) as usize;
    if pinned.is_empty() && average > 0 {
        floor = floor.max(1);
    }
    select(&max, pinned, floor, n_total)
}

/// Entries for prototypes: the share, at least one per head so that no token is lost without a trace.
fn n_prototype(n_entries: usize, n_head: usize, n_tokens: usize, share: f32) -> usize {
    if share <= 0.0 {
        return 0;
    }
    let n = (f64::from(share) * n_entries as f64).round() as usize;
    n.min(n_head * n_tokens - n_entries).max(n_head).min(n_entries)
}

/// Half of the tokens they stand for, as two tokens that share an entry save one; at least one.
pub fn most_prototypes(n_evicted: usize) -> usize {
    (n_evicted / 2).max(n_evicted.min(1))
}

/// Step 2: `n` prototypes in proportion to the attention mass of what each head evicts (ours: weighted as everywhere), between
/// one and `most` each; `n` is 0 or enough for one each.
///
/// Heads that reach `most` pass on what is left; the last few go to the heads with the largest mass (ours: nothing is lost to rounding).
fn apportion(n: usize, mass: &[f64], most: &[usize]) -> Vec<usize> {
    let mut share: Vec<usize> = most.iter().map(|&most| most.min(1).min(n)).collect();
    loop {
        let left = n.saturating_sub(share.iter().sum());
        let open: Vec<usize> = (0..share.len()).filter(|&i| share[i] < most[i]).collect();
        if left == 0 || open.is_empty() {
            return share;
        }
        let total: f64 = open.iter().map(|&i| mass[i]).sum();
        let before: usize = share.iter().sum();
        for &i in &open {
            let part = if total > 0.0 { mass[i] / total } else { 1.0 / open.len() as f64 };
            share[i] += ((left as f64 * part) as usize).min(most[i] - share[i]);
        }
        if share.iter().sum::<usize>() == before {
            let mut order = open;
            order.sort_by(|&a, &b| mass[b].total_cmp(&mass[a]));
            order.iter().take(left).for_each(|&i| share[i] += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apportion_spends_everything_that_fits() {
        let mass = [0.5, 0.25, 0.125, 0.0, 0.9];
        let most = [100, 10, 100, 5, 0];
        assert_eq!(apportion(0, &mass, &most), [0; 5]);
        for n in 4..=230 {
            let share = apportion(n, &mass, &most);
            assert!(share.iter().zip(&most).all(|(s, m)| s <= m && *s >= (*m).min(1)), "{n}: {share:?}");
            assert_eq!(share.iter().sum::<usize>(), n.min(215), "{share:?}");
        }
        assert_eq!(apportion(39, &mass, &most), [22, 10, 6, 1, 0]);
    }

    #[test]
    fn evicted_is_the_complement_of_kept() {
        assert_eq!(evicted(&[0, 3, 4, 9], 10), [1, 2, 5, 6, 7, 8]);
        assert_eq!(evicted(&[0, 3, 4, 9], 12).len(), 8);
    }
}
