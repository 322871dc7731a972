//! How the experts of a layer are chosen and weighed (stage 3 of the flow).
//!
//! Source: llama.cpp `build_moe_ffn`, `llama_hparams` (`n_expert`, `expert_gating_func`, `expert_weights_norm`, ..).

use super::Reader;
use crate::error::Result;

/// What turns the router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gating {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// A sigmoid for each.
    Sigmoid,
    /// Softmax over the chosen ones only.
    SoftmaxOfChosen,
}

/// The numbers of a router.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// Experts of a layer, 0 = the model has none.
    pub n_expert: usize,
    /// Experts that a token passes.
    pub n_used: usize,
    /// Groups that the experts are divided into; a token first chooses among them. 0 and 1 = none.
    pub n_group: usize,
    /// Groups that a token chooses.
    pub n_group_used: usize,
    /// Width of an expert.
    pub n_ff: usize,
    /// Width of the shared expert, 0 = there is none.
    pub n_ff_shared: usize,
    /// Scores.
    pub gating: Gating,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Whether an expert's input is weighed instead of its output; the choice is by logits then.
    pub weigh_inputs: bool,
}

impl Routing {
    /// An error where the architecture has experts and the file none.
    pub(super) fn require(&self, reader: &Reader) -> Result<()> {
        match self.n_expert {
            0 => Err(reader.bad("expert_count", "is missing or 0")),
            _ => Ok(()),
        }
    }

    /// Experts are as wide as a dense layer unless the file says otherwise.
    pub(super) fn with_default_size(mut self, n_ff: usize) -> Routing {
        if self.n_ff == 0 {
            self.n_ff = n_ff;
        }
        self
    }
}

impl Reader<'_> {
    /// Experts that divide the width of a dense layer, where the file does not say how wide one is (first Qwen files).
    pub(super) fn divide_width(&self, routing: &mut Routing) {
        if !self.has("expert_feed_forward_length") {
            routing.n_ff /= routing.n_used;
        }
    }

    /// The numbers that all models with experts share, and none without.
    pub(super) fn routing(&self, n_layer: usize) -> Result<Routing> {
        let n_expert = match self.u32("expert_count")?.unwrap_or(0) {
            0 => return Ok(Routing::default()),
            _ => self.within("expert_count", 1, 512)?,
        };
        let n_used = self.uniform("expert_used_count", 1, n_expert as u32, n_layer)?;
        let n_used = n_used.ok_or_else(|| self.bad("expert_used_count", "is missing"))?;
        let n_group = self.u32("expert_group_count")?.unwrap_or(0) as usize;
        let n_group_used = self.u32("expert_group_used_count")?.unwrap_or(0) as usize;
        if n_group > 1 && (n_expert % n_group != 0 || n_expert / n_group < 2 || !(1..n_group).contains(&n_group_used)) {
            let what = format!("is {n_group} with {n_group_used} used, which does not fit {n_expert} experts");
            return Err(self.bad("expert_group_count", what));
        }
        if n_group > 1 && n_used > n_expert / n_group * n_group_used {
            return Err(self.bad("expert_used_count", format!("is {n_used}, more than the chosen groups have")));
        }
        let width =
            |suffix: &str| Ok::<_, crate::error::Error>(self.uniform(suffix, 0, 1 << 24, n_layer)?.unwrap_or(0));
        Ok(Routing {
            n_expert,
            n_used,
            n_group,
            n_group_used,
            n_ff: width("expert_feed_forward_length")?,
            n_ff_shared: width("expert_shared_feed_forward_length")?,
            gating: Gating::Softmax,
            normalise: true,
            scale: 1.0,
            weigh_inputs: false,
        })
    }
}
