//! `knorm`: the tokens whose keys are short (stage 5).
//!
//! Source: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv 2406.11430), section 3:
//! keys of small L2 norm get much attention, so those of large norm are dropped, each head by itself.
//! Deviation: the paper leaves the first two layers of its models alone; here every layer keeps the same number, as in its plain
//! form. Others: `baseline`.

use super::baseline::{keep_best, n_kept, scores, Form, NOWHERE};
use super::registry::SMALL;
use super::select::{Kept, Pinned};
use super::{vector, Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "tokens whose keys have a small L2 norm (arXiv 2406.11430)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[SMALL];

/// The method.
pub struct Knorm {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(Knorm { form: Form::new(options) })
}

impl Method for Knorm {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, NOWHERE)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let scores = scores(view, |il, g| {
            Ok(view.keys(il, g)?.chunks_exact(view.head_dim_k).map(|k| -vector::dot(k, k)).collect())
        })?;
        Ok(Box::new(keep_best(view, &scores, |_| (pinned, n_kept))))
    }
}
