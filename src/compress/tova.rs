//! `tova`: the tokens that the last query of the prompt attends to, the same for all heads of a layer (stage 5).
//!
//! Source: Oren et al., "Transformers are Multi-State RNNs" (arXiv 2401.06104), section 3.2 (TOVA): attention of the last query,
//! averaged over the heads of a layer. Neither sinks nor a window are kept for their place.
//! Deviation: the paper drops one token with each decoded one, here the pass drops once after the prompt. Others: `baseline`.

use super::baseline::{keep_best, n_kept, observed, scores, Form, NOWHERE};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::{Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "what the prompt's last query attends to, one choice per layer (TOVA, arXiv 2401.06104)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// The method.
pub struct Tova {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(Tova { form: Form::new(options) })
}

impl Method for Tova {
    fn needs(&self) -> Needs {
        Needs { n_window_query: 1, lookahead: self.form.lookahead, ..Needs::default() }
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, NOWHERE)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let mut scores = scores(view, |il, g| observed(view, (il, g), 1, self.form.lookahead))?;
        for layer in scores.chunks_mut(view.n_head_kv) {
            // In f64, where the order of the heads leaves no trace.
            let sum = |t| layer.iter().map(|score: &Vec<f32>| f64::from(score[t])).sum::<f64>() as f32;
            let sum: Vec<f32> = (0..view.n_tokens).map(sum).collect();
            layer.fill(sum);
        }
        Ok(Box::new(keep_best(view, &scores, |_| (pinned, n_kept))))
    }
}
