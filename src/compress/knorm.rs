//! `knorm`: the tokens whose keys are short (stage 5).
//!
//! Source: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv 2406.11430), section 3:
//! keys of small L2 norm get much attention, so those of large norm are dropped, each head by itself.
//! Deviation: the paper leaves the first two layers of its models alone; here every layer keeps the same number, as in its plain
//! form. Others: `baseline`.

use super::baseline::{ByScore, Form, NOWHERE};
use super::registry::SMALL;
use super::select::Pinned;
use super::{vector, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "tokens whose keys have a small L2 norm (arXiv 2406.11430)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[SMALL];

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(ByScore { form: Form::new(options), needs: Needs::default(), paper: NOWHERE, score })
}

fn score(view: &View, (il, g): (usize, usize), _: Form, _: Pinned) -> Result<Vec<f32>> {
    Ok(view.keys(il, g)?.chunks_exact(view.head_dim_k).map(|k| -vector::dot(k, k)).collect())
}
