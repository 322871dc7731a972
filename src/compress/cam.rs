//! `cam`: H2O's tokens, into whose values those of evicted tokens are merged (stage 5).
//!
//! Source: Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference" (ICML 2024), section 4, and the authors' code:
//! the value of an evicted token is added to those of the next m = 32 kept ones, 1/m to each, with the probability
//! min(1, A_i / mean A of those m), A = accumulated attention. Keys are those of the kept tokens.
//! Adapted from decoding to one eviction after the prompt: the paper evicts one token a step, when the recent window moves on;
//! here all that H2O evicts are merged at once, A is what all queries of the prompt gave, values are those of before any merge,
//! and m is what is left where fewer kept tokens follow. Draws come from a generator seeded by the head (`baseline`).

use rayon::prelude::*;

use super::baseline::{generator, uniform, Form, NOWHERE};
use super::registry::{LOOKAHEAD, SMALL};
use super::select::{Kept, Pinned};
use super::{h2o, vector, Allocation, Budget, Method, MethodOptions, Modifier, Needs};
use crate::cache::plan::{HeadPlan, LayerPlan, Row};
use crate::cache::view::View;
use crate::error::Result;

/// One line for the list of methods.
pub(super) const ABOUT: &str = "h2o's tokens, values of evicted ones merged into the next (CaM, ICML 2024)";
/// The modifiers it knows.
pub(super) const MODIFIERS: &[Modifier] = &[LOOKAHEAD, SMALL];

/// Kept tokens that take up the value of an evicted one.
const N_TARGET: usize = 32;

/// The method.
pub struct CaM {
    form: Form,
}

/// For the registry.
pub(super) fn make(options: &MethodOptions) -> Box<dyn Method> {
    Box::new(CaM { form: Form::new(options) })
}

/// Kept tokens, and the attention that decides which of the others are merged.
struct Merging {
    kept: Kept,
    scores: Vec<Vec<f32>>,
}

impl Merging {
    fn head(&self, view: &View, (i, il, g): (usize, usize, usize)) -> Result<HeadPlan> {
        let (tokens, score, dim) = (&self.kept.heads(il)[g], &self.scores[i * view.n_head_kv + g], view.head_dim_v);
        let mut plan = HeadPlan::keep(tokens.iter().copied());
        let (values, mut random) = (view.values(il, g)?, generator(view, il, g)?);
        let value = |t: usize| &values[t * dim..(t + 1) * dim];
        let mut merged: Vec<Option<Vec<f32>>> = vec![None; tokens.len()];
        let mut next = 0;
        for t in 0..view.n_tokens {
            if tokens.get(next) == Some(&(t as u32)) {
                next += 1;
                continue;
            }
            let targets = next..(next + N_TARGET).min(tokens.len());
            let n = targets.len() as f32;
            let mean = tokens[targets.clone()].iter().map(|&j| score[j as usize]).sum::<f32>() / n;
            if uniform(&mut random) * mean < score[t] && n > 0.0 {
                for j in targets {
                    let sum = merged[j].get_or_insert_with(|| value(tokens[j] as usize).to_vec());
                    vector::add_scaled(sum, 1.0 / n, value(t));
                }
            }
        }
        for (entry, value) in plan.entries.iter_mut().zip(merged) {
            if let Some(value) = value {
                entry.value = Row::New((plan.new_values.len() / dim) as u32);
                plan.new_values.extend(value);
            }
        }
        Ok(plan)
    }
}

impl Allocation for Merging {
    fn layer(&self, view: &View, il: usize) -> Result<LayerPlan> {
        let Some(i) = view.layers.iter().position(|&l| l == il) else { return self.kept.layer(view, il) };
        let heads = (0..view.n_head_kv).into_par_iter().map(|g| self.head(view, (i, il, g))).collect::<Result<_>>()?;
        Ok(LayerPlan { il, heads })
    }

    fn n_entries(&self, il: usize) -> Vec<usize> {
        self.kept.n_entries(il)
    }
}

impl Method for CaM {
    fn needs(&self) -> Needs {
        Needs { attention_mass: true, lookahead: self.form.lookahead, ..Needs::default() }
    }

    fn pinned(&self, budget: &Budget) -> Pinned {
        self.form.pinned(budget, NOWHERE)
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        match h2o::keep(view, budget, self.form)? {
            Some((kept, scores)) => Ok(Box::new(Merging { kept, scores })),
            None => Ok(Box::new(Kept::all(view))),
        }
    }
}
