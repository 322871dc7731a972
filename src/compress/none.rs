//! `none`: keeps every entry, so that the pass itself can be run and measured at ratio 1 (stage 5).

use super::select::Kept;
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::{Error, Result};

/// One line for the list of methods.
pub(super) const ABOUT: &str = "every entry as it is; only for ratio 1";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[];

/// The method.
pub struct KeepAll;

/// For the registry.
pub(super) fn make(_: &MethodOptions) -> Box<dyn Method> {
    Box::new(KeepAll)
}

impl Method for KeepAll {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let n_all = view.layers.len() * view.n_head_kv * view.n_tokens;
        if budget.n_entries < n_all {
            let what = format!("method 'none' keeps all {n_all} entries, but only {} are allowed", budget.n_entries);
            return Err(Error::Budget { what });
        }
        Ok(Box::new(Kept::all(view)))
    }
}
