//! `h2o`: half of the entries for the tokens with the largest accumulated attention, half for the most recent (stage 5).
//!
//! Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models" (arXiv
//! 2306.14048), section 4 (greedy eviction by accumulated attention) and section 5 (equal parts), each head by itself.
//! Deviation: the paper evicts one token with each further query, whose attention the evicted ones no longer get; here the pass
//! evicts once, and all queries of the prompt saw all of it. Others: `baseline`.

use super::baseline::{keep_best, n_kept, scores, Form, NOWHERE};
use super::registry::{LOOKAHEAD, SMALL};
use super::score::Queries;
use super::select::{Kept, Pinned};
use super::{Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::view::{ProbeKind, View};
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "largest accumulated attention and most recent, half each (H2O, arXiv 2306.14048)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// As many recent tokens as [`Pinned::within`] lets stand: half of a head's entries.
const RECENT_HALF: Pinned = Pinned { n_sink: 0, n_window: usize::MAX };

/// The method.
pub struct H2o {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(H2o { form: Form::new(options) })
}

/// The attention that each token of every head got from all queries of the prompt, and from those of the lookahead where asked
/// for. Shapes: `{n_tokens}` per head.
pub(super) fn accumulated(view: &View, form: Form) -> Result<Vec<Vec<f32>>> {
    let ahead = form.lookahead && view.probes.list.iter().any(|probe| probe.kind == ProbeKind::Lookahead);
    scores(view, |il, g| {
        let mut score = view.mass(il, g)?.to_vec();
        if ahead {
            let queries = Queries::load(view, il, g, &[ProbeKind::Lookahead])?;
            let (n, mean) = (queries.rows.nrows() as f32, queries.mean_of_all(view, il, g)?);
            score.iter_mut().zip(mean).for_each(|(score, mean)| *score += n * mean);
        }
        Ok(score)
    })
}

/// What the heads keep, and the scores that decided; `None` when every token fits.
///
/// # Errors
/// When the budget cannot be met, or nothing was recorded.
pub(super) fn keep(view: &View, budget: &Budget, form: Form) -> Result<Option<(Kept, Vec<Vec<f32>>)>> {
    let Some(n_kept) = n_kept(view, budget)? else { return Ok(None) };
    let pinned = form.pinned(budget, RECENT_HALF).within(n_kept, view.n_tokens);
    let scores = accumulated(view, form)?;
    Ok(Some((keep_best(view, &scores, |_| (pinned, n_kept)), scores)))
}

impl Method for H2o {
    fn needs(&self) -> Needs {
        Needs { attention_mass: true, lookahead: self.form.lookahead, ..Needs::default() }
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        // How many are recent depends on the entries of a head.
        self.form.pinned(budget, NOWHERE)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        Ok(Box::new(keep(view, budget, self.form)?.map_or_else(|| Kept::all(view), |(kept, _)| kept)))
    }
}
