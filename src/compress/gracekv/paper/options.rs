//! The parameters of the paper's form (stage 5 of the flow), each with its default and where that comes from.
//!
//! Source: arXiv 2608.07001. The paper leaves most values open; those marked (ours) were chosen here.

use crate::error::{Error, Result};

/// What shares one queue and one budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All layers and heads compete for one budget (the paper).
    #[default]
    Global,
    /// Every layer gets the same budget (ablation).
    Layer,
    /// Every head gets the same budget (ablation).
    Head,
}

/// Parameters of [`Paper`](super::Paper); the ablations are options too.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Last prompt queries used as probes beside the lookahead queries; 16 (ours).
    pub n_window_query: usize,
    /// Queries of lookahead tokens are probes (ours); on.
    pub lookahead: bool,

    /// Slots of `slot_target` tokens instead of slots cut where the meaning changes (ablation); off.
    pub fixed_slots: bool,
    /// Shortest slot, in tokens; 16.
    pub slot_min: usize,
    /// Longest slot, in tokens; 128.
    pub slot_max: usize,
    /// Mean length of a slot, in tokens; 64.
    pub slot_target: usize,
    /// Window sizes over which curvature is measured, in tokens; 4, 8, 16 (ours).
    pub curvature_windows: Vec<usize>,
    /// How much a disagreement between layers and windows lowers the curvature (`lambda_stab`); 0.5 (ours).
    pub lambda_stab: f32,
    /// Ask prefill for the surprisal of every token and use it for boundaries; off, because it costs the output matrix.
    pub surprisal: bool,
    /// Weight of surprisal against curvature (`lambda_s`); 0.5 (ours).
    pub lambda_surprisal: f32,

    /// Follow the attention of the most valuable tokens (multi-hop); on.
    pub multi_hop: bool,
    /// Share of the multi-hop score in the relevance (`lambda_graph`); 0.2 (ours).
    pub lambda_graph: f32,
    /// Tokens followed per hop; 16 (ours).
    pub n_seed: usize,
    /// Hops; 2 (ours). Each decodes its seeds once more.
    pub n_hop: usize,
    /// What a hop is worth against the one before; 0.5 (ours).
    pub hop_decay: f32,
    /// Layers whose attention is followed, evenly spaced; 4 (ours).
    pub n_hop_layer: usize,

    /// Share of the budget beyond sinks and window that goes to exact tokens before the queue starts; 0.6
    /// (0.3 to 0.85 measured alike on text, needles want 0.6; 0 is the ablation without floor).
    pub floor_share: f32,
    /// Give a prototype the weight of the tokens it stands for (`+ ln m` on its logit); on.
    pub multiplicity: bool,
    /// Weight of the error in the attention mass (`lambda_Z`); 1 (ours).
    pub lambda_z: f32,
    /// Weight of the error in the attention output (`lambda_M`); 1 (ours).
    pub lambda_m: f32,
    /// What shares one queue and one budget.
    pub scope: Scope,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            n_window_query: 16,
            lookahead: true,
            fixed_slots: false,
            slot_min: 16,
            slot_max: 128,
            slot_target: 64,
            curvature_windows: vec![4, 8, 16],
            lambda_stab: 0.5,
            surprisal: false,
            lambda_surprisal: 0.5,
            multi_hop: true,
            lambda_graph: 0.2,
            n_seed: 16,
            n_hop: 2,
            hop_decay: 0.5,
            n_hop_layer: 4,
            floor_share: 0.6,
            multiplicity: true,
            lambda_z: 1.0,
            lambda_m: 1.0,
            scope: Scope::Global,
        }
    }
}

impl Options {
    /// Checks that the values make sense together.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first one that does not.
    pub fn check(&self) -> Result<()> {
        let share = |x: f32| (0.0..=1.0).contains(&x);
        let weight = |x: f32| x >= 0.0 && x.is_finite();
        let rules = [
            (self.n_window_query > 0, "n_window_query must be at least 1"),
            (self.slot_min > 0 && self.slot_max + 1 >= 2 * self.slot_min, "slot_max must be at least 2 * slot_min - 1"),
            (
                (self.slot_min..=self.slot_max).contains(&self.slot_target),
                "slot_target must lie between slot_min and slot_max",
            ),
            (self.curvature_windows.iter().all(|&w| w > 1), "curvature windows must be longer than one token"),
            (share(self.lambda_graph), "lambda_graph must lie between 0 and 1"),
            (share(self.hop_decay), "hop_decay must lie between 0 and 1"),
            (share(self.floor_share), "floor_share must lie between 0 and 1"),
            (weight(self.lambda_stab) && weight(self.lambda_surprisal), "boundary weights must not be negative"),
            (weight(self.lambda_z) && weight(self.lambda_m), "distortion weights must not be negative"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(Error::Usage(format!("gracekv (paper): {what}"))),
            None => Ok(()),
        }
    }
}
