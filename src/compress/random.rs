//! `random`: tokens drawn evenly, each head by itself (stage 5).
//!
//! The floor of every comparison. Reproducible: a head's last key is the seed, so that equal caches give equal plans.

use super::baseline::{generator, uniform, ByScore, Form, NOWHERE};
use super::registry::SMALL;
use super::select::Pinned;
use super::{Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "tokens drawn evenly, the floor of every comparison";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[SMALL];

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(ByScore { form: Form::new(options), needs: Needs::default(), paper: NOWHERE, score })
}

fn score(view: &View, (il, g): (usize, usize), _: Form, _: Pinned) -> Result<Vec<f32>> {
    let mut random = generator(view, il, g)?;
    Ok((0..view.n_tokens).map(|_| uniform(&mut random)).collect())
}
