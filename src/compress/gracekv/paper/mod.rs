//! GraceKV in the paper's form (stage 5 of the flow): trees of prototypes over semantic slots, one global queue (`gracekv+paper`).
//!
//! Source: H. Tian, Y. Liu, T. Wang, "Every Cache Entry Earns Its Place: Global Allocation of Resolution and Coverage for KV Cache
//! Compression", arXiv 2608.07001. Flow: `flow` (relevance R) and `sensitivity` (omega) -> `slots` -> `floor` (exact tokens) -> `forest`,
//! `tree`, `distortion` (gains) -> `queue` -> `frontier` (plan). Deviations stand in each file's head; common to all: sinks and window are
//! counted in the budget, and probes include lookahead queries.

mod attention;
mod distortion;
mod floor;
mod flow;
mod forest;
mod frontier;
mod options;
mod queue;
mod rotation;
mod sensitivity;
mod slots;
mod tree;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::Ordering;

use rayon::prelude::*;

pub use options::{Options, Scope};

use crate::cache::view::View;
use crate::compress::{Allocation, Budget, Method, Needs};
use crate::error::{Error, Result};
use floor::{Kept, Ranking};
use flow::Head;
use forest::Forest;
use frontier::{Counters, Frontier};
use rotation::Rotations;
use slots::Slots;

/// The paper's form of GraceKV.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paper {
    /// Parameters and ablations.
    pub options: Options,
}

impl Method for Paper {
    fn needs(&self) -> Needs {
        Needs {
            n_window_query: self.options.n_window_query,
            n_sample_query: 0,
            lookahead: self.options.lookahead,
            hidden: !self.options.fixed_slots,
            attention_mass: false,
            surprisal: self.options.surprisal && !self.options.fixed_slots,
        }
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let o = &self.options;
        o.check()?;
        let n_head_total = view.layers.len() * view.n_head_kv;
        if view.n_tokens == 0 || budget.n_entries < n_head_total {
            let what = format!(
                "{} entries for {n_head_total} heads of a {}-token prompt; every head needs one",
                budget.n_entries, view.n_tokens
            );
            return Err(Error::Budget { what });
        }
        if budget.n_entries >= n_head_total * view.n_tokens {
            return Ok(Box::new(Frontier::full(view)));
        }
        let open = floor::open_tokens(budget, n_head_total, view.n_tokens);
        let mut heads = flow::direct(view)?;
        let counters = Counters::default();
        counters.hops.store(flow::relevance(view, &mut heads, open.clone(), o)?, Ordering::Relaxed);
        let slots = Slots::cut(view.hidden, view.surprisal, view.n_tokens, o)?;
        counters.slots.store(slots.ends.len() as u64, Ordering::Relaxed);
        let pass = Pass { view, options: o, open, slots, rotations: Rotations::new(view), counters };
        let groups = shares(o.scope, view.n_head_kv, n_head_total, budget.n_entries);
        let kept: Vec<Vec<Kept>> =
            groups.into_par_iter().map(|(r, n)| pass.divide(&heads[r], n)).collect::<Result<_>>()?;
        let kept = kept.into_iter().flatten().collect();
        heads.iter_mut().for_each(Head::forget_probes);
        let Pass { rotations, counters, .. } = pass;
        Ok(Box::new(Frontier { heads, kept, rotations, multiplicity: o.multiplicity, counters }))
    }
}

/// The heads that share a budget, and their share: even, the first ones take what does not divide.
fn shares(scope: Scope, n_head_kv: usize, n_head_total: usize, n_entries: usize) -> Vec<(Range<usize>, usize)> {
    let size = match scope {
        Scope::Global => n_head_total,
        Scope::Layer => n_head_kv,
        Scope::Head => 1,
    };
    let n_group = n_head_total / size.max(1);
    let share = |i: usize| n_entries / n_group + usize::from(i < n_entries % n_group);
    (0..n_group).map(|i| (i * size..(i + 1) * size, share(i))).collect()
}

/// What all queues of one pass share.
struct Pass<'a> {
    view: &'a View<'a>,
    options: &'a Options,
    open: Range<usize>,
    slots: Slots,
    rotations: Rotations,
    counters: Counters,
}

impl Pass<'_> {
    /// Divides `n_entries` among `heads`: floor, queue, left-over.
    fn divide(&self, heads: &[Head], n_entries: usize) -> Result<Vec<Kept>> {
        let ranking = Ranking::new(heads);
        let exact = ranking.floor(&self.open, self.view.n_tokens, n_entries, self.options.floor_share);
        let free = |exact: &Vec<u32>| {
            self.open.clone().map(|t| t as u32).filter(|t| exact.binary_search(t).is_err()).collect()
        };
        let rest: Vec<Vec<u32>> = exact.iter().map(free).collect();
        let n_exact: usize = exact.iter().map(Vec::len).sum();
        let forest = Forest {
            view: self.view,
            heads,
            rest: &rest,
            rotations: &self.rotations,
            slots: &self.slots,
            options: self.options,
            n_evaluated: &self.counters.nodes_evaluated,
        };
        let done = queue::run(forest.roots()?, n_entries - n_exact, |action| forest.expand(action))?;
        let kept = exact.into_iter().zip(frontier::nodes(&done.applied, &rest));
        let mut kept: Vec<Kept> = kept.map(|(exact, nodes)| Kept { exact, nodes }).collect();
        let left_over = ranking.spend(&mut kept, &self.open, done.left);

        let always = (self.view.n_tokens - self.open.len()) * heads.len();
        self.counters.count(&done.applied);
        self.counters.floor.fetch_add((n_exact - always) as u64, Ordering::Relaxed);
        self.counters.left_over.fetch_add(left_over, Ordering::Relaxed);
        Ok(kept)
    }
}
