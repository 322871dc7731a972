//! `pyramidkv`: SnapKV's scores, more entries for lower layers (stage 5).
//!
//! Source: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling" (arXiv 2406.02069),
//! section 4: entries beside the window fall in equal steps from the lowest layer to the highest, whose share is 1/beta of the
//! average; where the lowest layer would get more than there is, it gets all and the highest the more. Defaults: beta 20,
//! scores and window as in `snapkv`.
//! Deviations: steps are exact and each layer's number is rounded down (the authors' code rounds the step, which exceeds the
//! budget); layers count among those that are compressed. Others: `baseline`.

use super::baseline::{keep_best, n_kept, scores, Form};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::{Kept, Pinned};
use super::{snapkv, Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "snapkv's scores, more entries for lower layers (PyramidKV, arXiv 2406.02069)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// How many times fewer than the average the highest layer gets.
const BETA: usize = 20;

/// The method.
pub struct PyramidKv {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(PyramidKv { form: Form::new(options) })
}

/// Entries of each head of the `i`-th of `n_layer` layers, `n_kept` on average, of which `n_pinned` everywhere.
fn n_of_layer(i: usize, n_layer: usize, n_kept: usize, n_pinned: usize, n_tokens: usize) -> usize {
    let (average, most) = (n_kept - n_pinned, n_tokens - n_pinned);
    // A head keeps something even where nothing is pinned.
    let low = (average / BETA).max(usize::from(n_pinned == 0));
    let high = (2 * average - low).min(most);
    let low = 2 * average - high;
    let n_step = (n_layer - 1).max(1);
    match n_layer {
        1 => n_kept,
        _ => n_pinned + (high * (n_step - i) + low * i) / n_step,
    }
}

impl Method for PyramidKv {
    fn needs(&self) -> Needs {
        snapkv::needs(self.form)
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, snapkv::PAPER)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let Some(n_kept) = n_kept(view, budget)? else { return Ok(Box::new(Kept::all(view))) };
        let pinned = self.pinned(budget).within(n_kept, view.n_tokens);
        let scores = scores(view, |il, g| snapkv::score(view, (il, g), self.form, pinned))?;
        let of_layer = |i| n_of_layer(i, view.layers.len(), n_kept, pinned.len(), view.n_tokens);
        Ok(Box::new(keep_best(view, &scores, |i| (pinned, of_layer(i)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_fall_in_steps_and_never_exceed_the_average() {
        for (n_layer, n_kept, n_pinned, n_tokens) in
            [(30, 64, 32, 2000), (30, 1, 0, 50), (24, 1500, 32, 2000), (5, 7, 3, 90), (1, 9, 4, 90), (2, 9, 0, 10)]
        {
            let n: Vec<usize> = (0..n_layer).map(|i| n_of_layer(i, n_layer, n_kept, n_pinned, n_tokens)).collect();
            assert!(n.is_sorted_by(|a, b| a >= b), "{n:?}");
            assert!(n.iter().all(|&n| (n_pinned.max(1)..=n_tokens).contains(&n)), "{n:?}");
            let sum: usize = n.iter().sum();
            assert!(sum <= n_layer * n_kept && sum + n_layer > n_layer * n_kept, "{n:?}");
        }
        assert_eq!((n_of_layer(0, 30, 132, 32, 2000), n_of_layer(29, 30, 132, 32, 2000)), (32 + 195, 32 + 5));
    }
}
