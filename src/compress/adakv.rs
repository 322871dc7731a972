//! `adakv`: SnapKV's scores, budgets of a layer's heads by where its best tokens are (stage 5).
//!
//! Source: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation" (arXiv 2407.11550), section 3: the
//! best tokens over all heads of a layer are counted for each head, and a share of an even division is mixed in as a safeguard.
//! Defaults as in the authors' code: window 32, maximum over a kernel of 7 (of the mean of the group), safeguard 0.2.
//! Deviation: budgets of heads are rounded down and what is left goes to the best tokens left in the layer; the authors' code
//! rounds to the nearest, which can exceed the budget. Others: `baseline`.

use rayon::prelude::*;

use super::baseline::{n_kept, observed, pool, scores, Form, Pooling};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::{select, select_above, Kept, Pinned};
use super::{snapkv, Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "snapkv's scores, one ranking over the heads of each layer (Ada-KV, arXiv 2407.11550)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// Neighbours that are pooled.
const KERNEL: usize = 7;
/// Weight of an even division.
const SAFEGUARD: f64 = 0.2;

/// The method.
pub struct AdaKv {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(AdaKv { form: Form::new(options) })
}

/// The tokens of each head of a layer with `n_kept` entries per head.
fn divide(scores: &[Vec<f32>], pinned: Pinned, n_kept: usize) -> Vec<Vec<u32>> {
    let scores: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
    let (n_total, even) = (n_kept * scores.len(), (n_kept - pinned.len()) as f64);
    let safe = (SAFEGUARD * even).max(f64::from(u8::from(pinned.is_empty())));
    let best = select(&scores, pinned, 0, n_total);
    let floor = |best: &Vec<u32>| ((best.len() - pinned.len()) as f64 * (1.0 - safe / even) + safe) as usize;
    let floors: Vec<usize> = best.iter().map(floor).collect();
    select_above(&scores, pinned, &floors, n_total)
}

impl Method for AdaKv {
    fn needs(&self) -> Needs {
        snapkv::needs(self.form)
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, snapkv::PAPER)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let scores = scores(view, |il, g| {
            let mut score = observed(view, (il, g), snapkv::WINDOW, self.form.lookahead)?;
            pool(&mut score, pinned.n_window, KERNEL, Pooling::Max);
            Ok(score)
        })?;
        let tokens = scores.par_chunks(view.n_head_kv).flat_map(|layer| divide(layer, pinned, n_kept)).collect();
        Ok(Box::new(Kept::new(view, tokens)))
    }
}
