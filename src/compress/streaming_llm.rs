//! `streaming_llm`: the first and the most recent tokens, the same for every head (stage 5).
//!
//! Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453), section 3.2.
//! Deviation: keys keep the positions of their tokens, as in every method here; the paper renumbers them within the cache.

use super::select::{check_budget, heads, Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str =
    "the first tokens (attention sinks) and the most recent ones (StreamingLLM, arXiv 2309.17453)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[];

/// The method.
pub struct StreamingLlm;

/// For the registry.
pub(super) fn make(_: &MethodOptions) -> Box<dyn Method> {
    Box::new(StreamingLlm)
}

impl Method for StreamingLlm {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let heads = heads(view);
        check_budget(budget, heads.len())?;
        let n_tokens = view.n_tokens;
        let n_kept = (budget.n_entries / heads.len().max(1)).min(n_tokens);
        let n_sink = Pinned::new(budget, n_kept, n_tokens).n_sink;
        let recent = n_tokens - (n_kept - n_sink)..n_tokens;
        let kept: Vec<u32> = (0..n_sink).chain(recent).map(|t| t as u32).collect();
        Ok(Box::new(Kept::new(view, vec![kept; heads.len()])))
    }
}
