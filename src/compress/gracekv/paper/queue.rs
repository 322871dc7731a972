//! The one queue: every action of every layer, head and slot competes for the same budget (stage 5, section "budget flow" of arXiv 2608.07001).
//!
//! Maximise the sum of gains subject to the sum of costs <= budget, an action's predecessors first: greedily, by gain / cost.
//! What an action makes possible is computed ahead for a batch of the best candidates at once, in parallel; it is a pure function of the action,
//! so the order of actions is that of the plain greedy loop whatever the number of threads.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use rayon::prelude::*;

use super::tree::Form;
use crate::error::Result;

const BATCH: usize = 64;

/// An interval of one head, as a range of the tokens that the head does not keep exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Index of the head.
    pub head: usize,
    /// Range in the head's list of tokens.
    pub range: Range<usize>,
}

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Adds the root of a slot.
    Add,
    /// Replaces a node by its children.
    Split(Form),
}

/// One action of the queue.
#[derive(Clone, Debug)]
pub(super) struct Action {
    pub kind: Kind,
    pub node: Node,
    /// The nodes that are present afterwards instead of `node`.
    pub children: Vec<Range<usize>>,
    /// Entries it adds.
    pub cost: usize,
    /// `gain_add = omega R(slot) (D_drop - D(root))`, `gain_split = omega R(v) (D(v) - sum D(children))`.
    pub gain: f64,
    /// The actions it makes possible, once known.
    pub next: Option<Vec<Action>>,
}

impl Action {
    fn utility(&self) -> f64 {
        self.gain / self.cost.max(1) as f64
    }
}

/// Larger utility first; on ties the earlier interval, then the earlier head: a total order, because no two candidates share a node.
impl Ord for Action {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |a: &Action| (a.node.range.start, a.node.head, a.node.range.end, a.kind);
        self.utility().total_cmp(&other.utility()).then_with(|| place(other).cmp(&place(self)))
    }
}

impl PartialOrd for Action {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Action {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Action {}

/// What the queue did.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The applied actions, in their order.
    pub applied: Vec<Action>,
    /// Entries not spent.
    pub left: usize,
}

/// Applies the best actions until `budget` is spent or nothing with a positive gain is left.
///
/// Actions that cost more than what is left are skipped. `expand` returns the actions that an applied one makes possible.
///
/// # Errors
/// The first error of `expand`.
pub(super) fn run(
    start: Vec<Action>,
    budget: usize,
    expand: impl Fn(&Action) -> Result<Vec<Action>> + Sync,
) -> Result<Outcome> {
    let worthwhile = |a: &Action| a.gain > 0.0 && a.gain.is_finite();
    let mut heap: BinaryHeap<Action> = start.into_iter().filter(worthwhile).collect();
    let mut done = Outcome { left: budget, ..Outcome::default() };
    while done.left > 0 {
        let Some(mut top) = heap.pop() else { break };
        if top.cost > done.left {
            continue;
        }
        match top.next.take() {
            Some(next) => {
                heap.extend(next.into_iter().filter(worthwhile));
                done.left -= top.cost;
                done.applied.push(top);
            }
            None => {
                heap.push(top);
                expand_best(&mut heap, done.left, &expand)?;
            }
        }
    }
    Ok(done)
}

/// Fills in the successors of the best candidates.
fn expand_best(
    heap: &mut BinaryHeap<Action>,
    left: usize,
    expand: &(impl Fn(&Action) -> Result<Vec<Action>> + Sync),
) -> Result<()> {
    let mut best: Vec<Action> = (0..BATCH.min(left)).map_while(|_| heap.pop()).filter(|a| a.cost <= left).collect();
    best.par_iter_mut().filter(|a| a.next.is_none()).try_for_each(|a| {
        a.next = Some(expand(a)?);
        Ok(())
    })?;
    heap.extend(best);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Rng;
    use super::*;

    /// Pseudo-random successors of an action, a pure function of its node: gains may be equal, zero, negative or larger than the parent's.
    fn successors(a: &Action) -> Vec<Action> {
        let splittable = a.children.iter().filter(|r| r.len() > 1);
        splittable.map(|r| action(a.node.head, r.clone(), Kind::Split(Form::Halves))).collect()
    }

    fn action(head: usize, range: Range<usize>, kind: Kind) -> Action {
        let mut rng = Rng((head * 10_007 + range.start * 101 + range.end) as u64 + 7);
        let at = |r: u64| range.start + 1 + r as usize % (range.len() - 1);
        let (mut a, mut b) = (at(rng.next()), at(rng.next()));
        (a, b) = (a.min(b), a.max(b));
        let children = match kind {
            Kind::Add => vec![range.clone()],
            Kind::Split(_) if a == b => vec![range.start..a, a..range.end],
            Kind::Split(_) => vec![range.start..a, a..b, b..range.end],
        };
        let cost = if kind == Kind::Add { 1 } else { children.len() - 1 };
        let gain = (rng.next() % 12) as f64 - 2.0;
        Action { kind, node: Node { head, range }, children, cost, gain, next: None }
    }

    fn start() -> Vec<Action> {
        (0..4).flat_map(|head| (0..6).map(move |i| action(head, i * 20..(i + 1) * 20, Kind::Add))).collect()
    }

    /// The plain loop: look at every candidate, take the best.
    fn naive(mut open: Vec<Action>, mut left: usize) -> Vec<Action> {
        let mut applied = Vec::new();
        loop {
            let fits = |a: &&Action| a.gain > 0.0 && a.cost <= left;
            let Some(best) = open.iter().filter(fits).max_by(|a, b| a.cmp(b)).cloned() else { return applied };
            open.retain(|a| a != &best);
            open.extend(successors(&best));
            left -= best.cost;
            applied.push(best);
        }
    }

    #[test]
    fn order_equals_a_search_over_all_candidates() {
        for budget in [0, 1, 2, 7, 50, 120, 1000] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1 + budget % 4).build().unwrap();
            let got = pool.install(|| run(start(), budget, |a| Ok(successors(a)))).unwrap();
            let want = naive(start(), budget);
            let key = |a: &Action| (a.node.head, a.node.range.clone(), a.kind, a.cost);
            assert_eq!(got.applied.iter().map(key).collect::<Vec<_>>(), want.iter().map(key).collect::<Vec<_>>());
            assert_eq!(got.left + want.iter().map(|a| a.cost).sum::<usize>(), budget);
        }
    }

    #[test]
    fn an_error_of_a_node_reaches_the_caller() {
        let fail = |_: &Action| Err(crate::error::Error::ggml("tensor_get"));
        assert!(run(start(), 5, fail).is_err());
    }
}
