//! The parameters of gracekv, and its modifiers: each takes one idea away, so that a table can show what the idea is worth (stage 5).

use super::paper::{self, Scope};
use crate::compress::{MethodOptions, Modifier};

const PAPER: Modifier = Modifier::new(
    "paper",
    "the paper's form: prototype trees over semantic slots, one queue over all layers and heads",
)
.without(&["no_prototypes", "no_refit", "mean_keys", "ln_m", "contiguous", "fixed_shares", "no_ranking"]);
const NO_LOOKAHEAD: Modifier = Modifier::new("no_lookahead", "no queries of lookahead tokens");

const FIXED_SHARES: Modifier =
    Modifier::new("fixed_shares", "fixed shares for exact tokens and prototypes instead of one queue")
        .without(&["no_prototypes"]);
const NO_RANKING: Modifier = Modifier::new("no_ranking", "no exact tokens by their scores before the queue starts")
    .without(&["no_prototypes", "fixed_shares"]);
const NO_PROTOTYPES: Modifier = Modifier::new("no_prototypes", "the whole budget for exact tokens");
const NO_REFIT: Modifier = Modifier::new("no_refit", "values are not refitted together");
const MEAN_KEYS: Modifier =
    Modifier::new("mean_keys", "keys of prototypes are means instead of fitted").without(&["no_prototypes"]);
const LN_M: Modifier =
    Modifier::new("ln_m", "prototypes have the paper's bias ln m and mean values instead of fitted ones")
        .without(&["no_prototypes"]);
const CONTIGUOUS: Modifier =
    Modifier::new("contiguous", "clusters are runs of neighbours instead of k-means in the metric of the queries")
        .without(&["no_prototypes"]);

const NO_FLOOR: Modifier = of_paper("no_floor", "no exact tokens before the queue starts");
const NO_HOPS: Modifier = of_paper("no_hops", "what the most valuable tokens attend to has no value of its own");
const NO_LN_M: Modifier = of_paper("no_ln_m", "a prototype weighs as much as one token");
const FIXED_SLOTS: Modifier =
    of_paper("fixed_slots", "slots of one length instead of slots cut where the meaning changes");
const LAYER_QUEUE: Modifier =
    of_paper("layer_queue", "one queue per layer, all with the same budget").without(&["head_queue"]);
const HEAD_QUEUE: Modifier = of_paper("head_queue", "one queue per head, all with the same budget");

/// The modifiers it knows.
pub(in crate::compress) const MODIFIERS: &[Modifier] = &[
    NO_LOOKAHEAD,
    FIXED_SHARES,
    NO_RANKING,
    NO_PROTOTYPES,
    NO_REFIT,
    MEAN_KEYS,
    LN_M,
    CONTIGUOUS,
    PAPER,
    NO_FLOOR,
    NO_HOPS,
    NO_LN_M,
    FIXED_SLOTS,
    LAYER_QUEUE,
    HEAD_QUEUE,
];

const fn of_paper(name: &'static str, about: &'static str) -> Modifier {
    Modifier::new(name, about).with(PAPER.name)
}

/// Parameters of the fitted form.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Queries of lookahead tokens are probes.
    pub lookahead: bool,
    /// Share of an even division of the exact entries that every head gets whatever its scores are.
    pub floor: f32,
    /// Share of the budget that prototypes get before the queue divides it anew; 0 selects exact tokens only.
    pub prototype_share: f32,
    /// Clusters are runs of neighbouring tokens (ablation).
    pub contiguous: bool,
    /// Steps of the clustering.
    pub n_lloyd: usize,
    /// Strength of the regularisation of fitted keys and values, relative to the mean of what it is added to.
    pub ridge: f32,
    /// Weight of a sample; window and lookahead probes have the weight 1.
    pub sample_weight: f32,
    /// Tokens of the smallest cluster whose key is fitted; the others' are weighted means, no worse as far as could be measured.
    pub min_fitted: usize,
    /// Fit the biases and values of prototypes; otherwise they are `ln m` and weighted means.
    pub fit_bias: bool,
    /// There is no queue (ablation).
    pub fixed_shares: bool,
    /// Share of the exact tokens that are chosen by their scores before the queue starts. A score is the largest over the probes;
    /// the queue's errors are means, in which what a single probe reads hardly counts.
    pub ranked_share: f32,
    /// Refit the values of all entries of a head together.
    pub refit: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lookahead: true,
            floor: 0.2,
            prototype_share: 0.2,
            contiguous: false,
            n_lloyd: 6,
            ridge: 0.1,
            sample_weight: 0.5,
            min_fitted: 8,
            fit_bias: true,
            fixed_shares: false,
            ranked_share: 0.75,
            refit: true,
        }
    }
}

impl Options {
    /// What the user asks of the fitted form.
    pub(super) fn of(o: &MethodOptions) -> Self {
        let d = Options::default();
        let share = o.prototypes.unwrap_or(d.prototype_share);
        Options {
            lookahead: !o.has(NO_LOOKAHEAD),
            floor: o.floor.unwrap_or(d.floor),
            prototype_share: if o.has(NO_PROTOTYPES) { 0.0 } else { share },
            contiguous: o.has(CONTIGUOUS),
            min_fitted: if o.has(MEAN_KEYS) { usize::MAX } else { d.min_fitted },
            fit_bias: !o.has(LN_M),
            fixed_shares: o.has(FIXED_SHARES),
            ranked_share: if o.has(NO_RANKING) { 0.0 } else { d.ranked_share },
            refit: !o.has(NO_REFIT),
            ..d
        }
    }
}

/// What the user asks of the paper's form, if that is what is asked for.
pub(super) fn of_paper_form(o: &MethodOptions) -> Option<paper::Options> {
    let d = paper::Options::default();
    let floor_share = o.floor.unwrap_or(d.floor_share);
    let scope = match (o.has(LAYER_QUEUE), o.has(HEAD_QUEUE)) {
        (true, _) => Scope::Layer,
        (_, true) => Scope::Head,
        _ => Scope::Global,
    };
    o.has(PAPER).then_some(paper::Options {
        lookahead: !o.has(NO_LOOKAHEAD),
        fixed_slots: o.has(FIXED_SLOTS),
        multi_hop: !o.has(NO_HOPS),
        floor_share: if o.has(NO_FLOOR) { 0.0 } else { floor_share },
        multiplicity: !o.has(NO_LN_M),
        scope,
        ..d
    })
}

#[cfg(test)]
mod tests;
