//! All trees of one budget: binds nodes of the queue to the cache and to their evaluation (stage 5, section "budget flow" of arXiv 2608.07001).
//!
//! `R(I) = sum of R_t over I` (the paper leaves it open).

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::distortion::Gauge;
use super::flow::Head;
use super::options::Options;
use super::queue::{Action, Kind, Node};
use super::rotation::Rotations;
use super::slots::Slots;
use super::tree::{evaluate, Evaluation, Tokens};
use crate::cache::view::View;
use crate::error::Result;

/// The trees of some heads over the tokens they do not keep exactly.
pub(super) struct Forest<'a> {
    pub view: &'a View<'a>,
    pub heads: &'a [Head],
    /// Per head its tokens that are not exact, ascending.
    pub rest: &'a [Vec<u32>],
    pub rotations: &'a Rotations,
    pub slots: &'a Slots,
    pub options: &'a Options,
    /// Counts the nodes that were evaluated.
    pub n_evaluated: &'a AtomicU64,
}

impl Forest<'_> {
    /// `gain_add(slot) = omega R(slot) (D_drop - D(root))`, cost 1, for every slot of every head that has tokens left.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn roots(&self) -> Result<Vec<Action>> {
        let mut nodes = Vec::new();
        for (head, rest) in self.rest.iter().enumerate() {
            let mut start = 0;
            for &end in &self.slots.ends {
                let range = start..rest.partition_point(|&t| (t as usize) < end);
                start = range.end;
                if !range.is_empty() {
                    nodes.push(Node { head, range });
                }
            }
        }
        nodes.into_par_iter().map(|node| self.add(node)).collect()
    }

    fn add(&self, node: Node) -> Result<Action> {
        let evaluation = self.evaluate(&node)?;
        let gain = self.weight(&node) * (evaluation.dropped - evaluation.distortion);
        let next = self.split(&node, evaluation).into_iter().collect();
        Ok(Action { kind: Kind::Add, children: vec![node.range.clone()], node, cost: 1, gain, next: Some(next) })
    }

    /// The splits that an applied action makes possible: `gain_split(v) = omega R(v) (D(v) - sum D(children))`, cost `children - 1`.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn expand(&self, action: &Action) -> Result<Vec<Action>> {
        let mut next = Vec::new();
        for range in action.children.iter().filter(|r| r.len() > 1) {
            let node = Node { head: action.node.head, range: range.clone() };
            let evaluation = self.evaluate(&node)?;
            next.extend(self.split(&node, evaluation));
        }
        Ok(next)
    }

    fn split(&self, node: &Node, evaluation: Evaluation) -> Option<Action> {
        let split = evaluation.split?;
        let first = node.range.start;
        Some(Action {
            kind: Kind::Split(split.form),
            children: split.children.iter().map(|r| first + r.start..first + r.end).collect(),
            node: node.clone(),
            cost: split.cost(),
            gain: self.weight(node) * (evaluation.distortion - split.distortion),
            next: None,
        })
    }

    /// `omega R(I)`.
    fn weight(&self, node: &Node) -> f64 {
        let head = &self.heads[node.head];
        let tokens = &self.rest[node.head][node.range.clone()];
        f64::from(head.omega) * tokens.iter().map(|&t| f64::from(head.relevance[t as usize])).sum::<f64>()
    }

    fn evaluate(&self, node: &Node) -> Result<Evaluation> {
        self.n_evaluated.fetch_add(1, Ordering::Relaxed);
        let head = &self.heads[node.head];
        let tokens = &self.rest[node.head][node.range.clone()];
        let rotation = self.rotations.of(head.il);
        let last = tokens.last().copied().unwrap_or(0);
        let gauge = Gauge::new(head, self.view.head_dim_k, last, self.view.logit_softcap, self.options)?;
        let tokens = Tokens::gather(self.view, head, rotation, tokens)?;
        Ok(evaluate(&tokens, &gauge, rotation, &self.slots.curvature, self.options.multiplicity))
    }
}

#[cfg(test)]
mod tests;
