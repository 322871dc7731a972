//! `topk`: exact tokens by one ranking over all layers and heads, scored by what window and lookahead queries attend to (stage 5).
//!
//! Source: the reference that merging has to beat; score as SnapKV (arXiv 2404.14469) without pooling, division of the budget
//! as Ada-KV (arXiv 2407.11550) with safeguard 0.2, but over all layers at once and with queries of decoded tokens.

use rayon::prelude::*;

use super::score::Queries;
use super::select::{check_budget, heads, select, Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// Share of an even division of the scored entries that every head gets whatever its scores are.
const FLOOR: f32 = 0.2;

/// One line for the list of methods.
pub(super) const ABOUT: &str =
    "exact tokens, one ranking over all layers and heads by what the prompt's end and lookahead read";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[];

/// The method.
pub struct TopK;

/// For the registry.
pub(super) fn make(_: &MethodOptions) -> Box<dyn Method> {
    Box::new(TopK)
}

impl Method for TopK {
    fn needs(&self) -> Needs {
        Needs { n_window_query: 32, lookahead: true, ..Needs::default() }
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let n_head_total = view.layers.len() * view.n_head_kv;
        check_budget(budget, n_head_total)?;
        if budget.n_entries >= n_head_total * view.n_tokens {
            return Ok(Box::new(Kept::all(view)));
        }
        let scores: Vec<Vec<f32>> = heads(view)
            .into_par_iter()
            .map(|(il, g)| Queries::load_answering(view, il, g)?.largest_of_all(view, il, g))
            .collect::<Result<_>>()?;
        let scores: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
        let n_exact = budget.n_entries / n_head_total;
        let pinned = Pinned::new(budget, n_exact, view.n_tokens);
        let floor = (FLOOR * (n_exact - pinned.len()) as f32) as usize;
        let floor = floor.max(usize::from(pinned.is_empty()));
        Ok(Box::new(Kept::new(view, select(&scores, pinned, floor, budget.n_entries))))
    }
}
