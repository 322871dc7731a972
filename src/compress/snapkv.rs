//! `snapkv`: the tokens that the last queries of the prompt attend to, with their neighbours (stage 5).
//!
//! Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (arXiv 2404.14469), section 4: attention of
//! the observation window, pooled, the best of each head, and the window itself. Defaults as in the authors' code: window 32,
//! mean over a kernel of 5. Scores are means over the group of query heads instead of one selection per query head.
//! Deviations: `baseline`.

use super::baseline::{keep_best, n_kept, observed, pool, scores, Form, Pooling};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::{Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str =
    "what the prompt's last queries attend to, pooled, equal budgets (SnapKV, arXiv 2404.14469)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// Tokens of the observation window.
pub(super) const WINDOW: usize = 32;
/// Neighbours that are pooled.
pub(super) const KERNEL: usize = 5;

/// The method.
pub struct SnapKv {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(SnapKv { form: Form::new(options) })
}

/// Pooled scores of all heads; pyramidkv divides the budget by layers with the same ones.
pub(super) fn pooled(view: &View, form: Form, pinned: Pinned) -> Result<Vec<Vec<f32>>> {
    scores(view, |il, g| {
        let mut score = observed(view, (il, g), WINDOW, form.lookahead)?;
        pool(&mut score, pinned.n_window, KERNEL, Pooling::Mean);
        Ok(score)
    })
}

impl Method for SnapKv {
    fn needs(&self) -> Needs {
        Needs { n_window_query: WINDOW, lookahead: self.form.lookahead, ..Needs::default() }
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, Pinned { n_sink: 0, n_window: WINDOW })
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let scores = pooled(view, self.form, pinned)?;
        Ok(Box::new(keep_best(view, &scores, |_| (pinned, n_kept))))
    }
}
