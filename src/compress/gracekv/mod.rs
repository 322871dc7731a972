//! `gracekv`: exact tokens where the answer reads, fitted prototypes for all the rest (stage 5, the default method).
//!
//! Source: GraceKV (arXiv 2608.07001), whose resolution (exact tokens) and coverage (merged entries) share one budget.
//! Deviations, each measured to be better: probes include queries of decoded tokens; merged tokens are close in the metric
//! of the queries, not in position; key, bias and value of an entry are fitted to the probes' attention instead of averaged;
//! the values of all entries are refitted together. Steps: [`allocate`] and [`queue`] 1 exact part, 2 prototypes per head, by
//! what [`split`] measures; [`observe`] the attention of a head; [`cluster`] 3; [`fit`] 4; [`refit`] 5.

pub mod allocate;
pub mod cholesky;
pub mod cluster;
pub mod fit;
pub mod observe;
mod options;
pub mod paper;
pub mod queue;
pub mod refit;
pub mod split;
#[cfg(test)]
mod tests;

use rayon::prelude::*;

pub use self::options::Options;
pub(super) use self::options::MODIFIERS;

use self::allocate::HeadChoice;
use self::fit::Prototype;
use self::observe::Head;
use super::{Allocation, Budget, Method, MethodOptions, Needs};
use crate::cache::plan::{Entry, HeadPlan, LayerPlan, Row};
use crate::cache::view::View;
use crate::error::Result;

/// Queries of the middle of the prompt that stand for what later text may read. The more the better, and each costs time: with 256
/// the pass takes 9 % of reading 7,500 tokens.
const N_SAMPLE: usize = 256;

/// One line for the list of methods.
pub(super) const ABOUT: &str =
    "exact tokens where the answer reads, fitted prototypes for the rest, one budget (arXiv 2608.07001)";
/// The method.
#[derive(Default)]
pub struct GraceKv {
    /// Parameters.
    pub options: Options,
}

/// For the registry.
pub(super) fn make(o: &MethodOptions) -> Box<dyn Method> {
    match options::of_paper_form(o) {
        Some(options) => Box::new(paper::Paper { options }),
        None => Box::new(GraceKv { options: Options::of(o) }),
    }
}

impl Method for GraceKv {
    fn needs(&self) -> Needs {
        Needs { n_window_query: 32, n_sample_query: N_SAMPLE, lookahead: self.options.lookahead, ..Needs::default() }
    }

    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>> {
        let heads = allocate::allocate(view, budget, &self.options)?;
        let (layers, n_head_kv, n_tokens) = (view.layers.to_vec(), view.n_head_kv, view.n_tokens);
        Ok(Box::new(Fitted { options: self.options.clone(), layers, n_head_kv, n_tokens, heads }))
    }
}

/// What every head gets.
struct Fitted {
    options: Options,
    layers: Vec<usize>,
    n_head_kv: usize,
    n_tokens: usize,
    heads: Vec<HeadChoice>,
}

impl Fitted {
    fn heads(&self, il: usize) -> &[HeadChoice] {
        match self.layers.iter().position(|&l| l == il) {
            Some(i) => &self.heads[i * self.n_head_kv..(i + 1) * self.n_head_kv],
            None => &[],
        }
    }
}

impl Allocation for Fitted {
    fn layer(&self, view: &View, il: usize) -> Result<LayerPlan> {
        let heads = self.heads(il).par_iter().enumerate();
        let heads = heads.map(|(g, choice)| plan_head(view, il, g, choice, &self.options)).collect::<Result<_>>()?;
        Ok(LayerPlan { il, heads })
    }

    fn n_entries(&self, il: usize) -> Vec<usize> {
        self.heads(il).iter().map(|head| head.kept.len() + head.n_prototype).collect()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let count = |f: fn(&HeadChoice) -> usize| self.heads.iter().map(|head| f(head) as u64).sum::<u64>();
        let n_exact = count(|head| head.kept.len());
        let n_merged = (self.heads.len() * self.n_tokens) as u64 - n_exact;
        vec![("exact", n_exact), ("prototype", count(|head| head.n_prototype)), ("not_exact", n_merged)]
    }
}

/// Steps 3 to 5 for one head.
fn plan_head(view: &View, il: usize, g: usize, choice: &HeadChoice, options: &Options) -> Result<HeadPlan> {
    let evicted = allocate::evicted(&choice.kept, view.n_tokens);
    let needless = evicted.is_empty() || (choice.n_prototype == 0 && !options.refit);
    let (Some(seen), false) = (&choice.seen, needless) else {
        return Ok(HeadPlan::keep(choice.kept.iter().copied()));
    };
    let head = Head::load(view, il, g, seen)?;
    let prototypes = match choice.n_prototype {
        0 => Vec::new(),
        n => {
            let cluster_of = match options.contiguous {
                true => cluster::runs(evicted.len(), n),
                false => cluster::cluster(&head, &evicted, n, options.n_lloyd),
            };
            fit::fit(&head, &evicted, &cluster_of, n, options)
        }
    };
    Ok(assemble(&head, &choice.kept, prototypes, options))
}

/// The plan of a head: exact tokens and clusters of one token in the order of the tokens, then the merged ones.
fn assemble(head: &Head, kept: &[u32], prototypes: Vec<Prototype>, options: &Options) -> HeadPlan {
    let mut tokens: Vec<u32> = kept.iter().copied().chain(prototypes.iter().filter_map(|p| p.token)).collect();
    tokens.sort_unstable();

    let mut plan = HeadPlan::keep(tokens.iter().copied());
    let mut bias = vec![0.0; tokens.len()];
    // Used up one by one: at low ratios there are thousands, and the refit needs memory of its own.
    for (i, prototype) in (0..).zip(prototypes.into_iter().filter(|p| p.token.is_none())) {
        let (key, value) = (Row::New(i), Row::New(i));
        plan.entries.push(Entry { key, value, bias: prototype.bias, n_tokens: prototype.n_tokens });
        plan.new_keys.extend(prototype.key);
        plan.new_values.extend(prototype.value);
        bias.push(prototype.bias);
    }
    if options.refit {
        let values = head.values.of_and(&tokens, &plan.new_values);
        let entries = refit::Entries { tokens: &tokens, new_keys: &plan.new_keys, bias: &bias };
        if let Some(values) = refit::refit(head, &entries, values, options.ridge) {
            (0..).zip(&mut plan.entries).for_each(|(i, entry)| entry.value = Row::New(i));
            plan.new_values = values.into_raw_vec_and_offset().0;
        }
    }
    plan
}
