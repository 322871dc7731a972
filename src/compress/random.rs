//! `random`: tokens drawn evenly, each head by itself (stage 5).
//!
//! The floor of every comparison. Reproducible: a head's last key is the seed, so that equal caches give equal plans.

use super::baseline::{generator, keep_best, n_kept, scores, uniform, Form, NOWHERE};
use super::registry::SMALL;
use super::select::{Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "tokens drawn evenly, the floor of every comparison";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[SMALL];

/// The method.
pub struct Evenly {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(Evenly { form: Form::new(options) })
}

impl Method for Evenly {
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
            let mut random = generator(view, il, g)?;
            Ok((0..view.n_tokens).map(|_| uniform(&mut random)).collect())
        })?;
        Ok(Box::new(keep_best(view, &scores, |_| (pinned, n_kept))))
    }
}
