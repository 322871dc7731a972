//! `snapkv`: the tokens that the last queries of the prompt attend to, with their neighbours (stage 5).
//!
//! Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (arXiv 2404.14469), section 4: attention of
//! the observation window, pooled, the best of each head, and the window itself. Defaults as in the authors' code: window 32,
//! mean over a kernel of 5. Scores are means over the group of query heads instead of one selection per query head.
//! Deviations: `baseline`.

use super::baseline::{observed, pool, ByScore, Form, Pooling};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::Pinned;
use super::{Method, MethodOptions, Modifier, Needs};
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

/// The observation window.
pub(super) const PAPER: Pinned = Pinned { n_sink: 0, n_window: WINDOW };

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    let form = Form::new(options);
    Box::new(ByScore { form, needs: needs(form), paper: PAPER, score })
}

/// What [`observed`] reads; adakv and pyramidkv observe the same.
pub(super) fn needs(form: Form) -> Needs {
    Needs { n_window_query: WINDOW, lookahead: form.lookahead, ..Needs::default() }
}

/// Pooled scores of a head; pyramidkv divides the budget by layers with the same ones.
pub(super) fn score(view: &View, head: (usize, usize), form: Form, pinned: Pinned) -> Result<Vec<f32>> {
    let mut score = observed(view, head, WINDOW, form.lookahead)?;
    pool(&mut score, pinned.n_window, KERNEL, Pooling::Mean);
    Ok(score)
}
