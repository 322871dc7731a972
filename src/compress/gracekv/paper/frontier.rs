//! The frontier: what the queue left standing, turned into the entries of each layer (stage 5, last step).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::floor::Kept;
use super::flow::Head;
use super::queue::{Action, Kind};
use super::rotation::Rotations;
use super::tree::{mean_position, Form, Tokens};
use crate::cache::plan::{Entry, HeadPlan, LayerPlan, Row};
use crate::cache::view::View;
use crate::compress::Allocation;
use crate::error::{Error, Result};

/// The nodes that are present after `applied`, per head, as the tokens of `rest` they cover.
pub(super) fn nodes(applied: &[Action], rest: &[Vec<u32>]) -> Vec<Vec<Vec<u32>>> {
    let mut present: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new(); rest.len()];
    for action in applied {
        let head = &mut present[action.node.head];
        // The first child starts where its parent did and takes its place.
        head.extend(action.children.iter().map(|r| (r.start, r.end)));
    }
    let tokens =
        |(map, rest): (&BTreeMap<usize, usize>, &Vec<u32>)| map.iter().map(|(&a, &b)| rest[a..b].to_vec()).collect();
    present.iter().zip(rest).map(tokens).collect()
}

/// What was done, for the report.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub slots: AtomicU64,
    pub hops: AtomicU64,
    pub nodes_evaluated: AtomicU64,
    pub adds: AtomicU64,
    pub halves: AtomicU64,
    pub take_outs: AtomicU64,
    pub floor: AtomicU64,
    pub left_over: AtomicU64,
}

impl Counters {
    /// Counts the actions of one queue.
    pub fn count(&self, applied: &[Action]) {
        for action in applied {
            let counter = match action.kind {
                Kind::Add => &self.adds,
                Kind::Split(Form::Halves) => &self.halves,
                Kind::Split(Form::TakeOut) => &self.take_outs,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The divided budget of the paper's form.
pub(super) struct Frontier {
    /// All heads, layer by layer.
    pub heads: Vec<Head>,
    /// What each of them keeps.
    pub kept: Vec<Kept>,
    pub rotations: Rotations,
    pub multiplicity: bool,
    pub counters: Counters,
}

impl Frontier {
    /// Every token of every head, for a budget that holds them all.
    pub fn full(view: &View) -> Self {
        let heads =
            view.layers.iter().flat_map(|&il| (0..view.n_head_kv).map(move |g| Head { il, g, ..Head::default() }));
        let heads: Vec<Head> = heads.collect();
        let all = Kept { exact: (0..view.n_tokens as u32).collect(), nodes: Vec::new() };
        let rotations = Rotations::none(view.n_layer);
        Frontier { kept: vec![all; heads.len()], heads, rotations, multiplicity: true, counters: Counters::default() }
    }

    fn of_layer(&self, il: usize) -> impl Iterator<Item = (&Head, &Kept)> {
        self.heads.iter().zip(&self.kept).filter(move |(head, _)| head.il == il)
    }

    fn head(&self, view: &View, head: &Head, kept: &Kept) -> Result<HeadPlan> {
        let rotation = self.rotations.of(head.il);
        let mut plan = HeadPlan::keep(kept.exact.iter().copied());
        let mut positions = kept.exact.clone();
        for (i, node) in kept.nodes.iter().enumerate() {
            let root = Tokens::gather(view, head, rotation, node)?.root(0..node.len(), rotation, self.multiplicity);
            plan.new_keys.extend(root.key);
            plan.new_values.extend(root.value);
            let row = Row::New(i as u32);
            plan.entries.push(Entry { key: row, value: row, bias: root.ln_m, n_tokens: node.len() as u32 });
            positions.push(mean_position(node));
        }
        let mut order: Vec<usize> = (0..positions.len()).collect();
        order.sort_by_key(|&i| positions[i]);
        plan.entries = order.into_iter().map(|i| plan.entries[i]).collect();
        Ok(plan)
    }
}

impl Allocation for Frontier {
    fn layer(&self, view: &View, il: usize) -> Result<LayerPlan> {
        let of_layer: Vec<(&Head, &Kept)> = self.of_layer(il).collect();
        if of_layer.is_empty() {
            return Err(Error::shape("gracekv (paper)", "a layer that was allocated", format!("layer {il}")));
        }
        let heads = of_layer.par_iter().map(|(head, kept)| self.head(view, head, kept)).collect::<Result<_>>()?;
        Ok(LayerPlan { il, heads })
    }

    fn n_entries(&self, il: usize) -> Vec<usize> {
        self.of_layer(il).map(|(_, kept)| kept.n_entries()).collect()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        let read = |x: &AtomicU64| x.load(Ordering::Relaxed);
        vec![
            ("slots", read(&c.slots)),
            ("hops", read(&c.hops)),
            ("nodes_evaluated", read(&c.nodes_evaluated)),
            ("add_slot", read(&c.adds)),
            ("split_halves", read(&c.halves)),
            ("split_take_out", read(&c.take_outs)),
            ("floor_tokens", read(&c.floor)),
            ("left_over_tokens", read(&c.left_over)),
            ("prototypes", self.kept.iter().map(|k| k.nodes.len() as u64).sum()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::super::flow::direct;
    use super::super::queue::Node;
    use super::*;

    #[test]
    fn entries_stand_in_the_order_of_their_positions() {
        let fixture = Fixture::new(100);
        let view = fixture.view();
        let heads = direct(&view).unwrap();
        let kept = Kept { exact: vec![0, 14, 50, 99], nodes: vec![(10..20).collect(), (60..90).collect()] };
        let kept = vec![kept; heads.len()];
        let rotations = Rotations::new(&view);
        let frontier = Frontier { heads, kept, rotations, multiplicity: true, counters: Counters::default() };
        let plan = frontier.layer(&view, 2).unwrap();
        let want = [Row::Token(0), Row::Token(14), Row::New(0), Row::Token(50), Row::New(1), Row::Token(99)];
        assert!(plan.heads.iter().all(|h| h.entries.iter().map(|e| e.key).eq(want)));
    }

    #[test]
    fn children_take_the_place_of_their_parent() {
        let action = |cuts: &[usize]| {
            let node = Node { head: 0, range: cuts[0]..cuts[cuts.len() - 1] };
            let children = cuts.windows(2).map(|w| w[0]..w[1]).collect();
            Action { kind: Kind::Add, node, cost: 1, children, gain: 1.0, next: None }
        };
        let applied = [action(&[2, 6]), action(&[2, 3, 6]), action(&[3, 5, 6])];
        let rest = vec![(10..20).collect::<Vec<u32>>()];
        assert_eq!(nodes(&applied, &rest), [[vec![12], vec![13, 14], vec![15]]]);
    }
}
