//! Feed-forward networks: one for all tokens, or experts that a router chooses for each.
//!
//! Source: llama.cpp `src/llama-graph.cpp` (`build_ffn`, `build_moe_ffn`), the choice among groups as in DeepSeek-V3.

use super::super::graph::Build;
use super::super::routing::Gating;
use super::super::weights::{Experts, Ffn, Layer, Linear};
use crate::error::Result;
use crate::ggml::{Act, Tensor};

/// The smallest sum of weights that is divided by: the smallest normal number of f16.
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

impl Build<'_> {
    /// What the layer has: experts or one network. Shapes: `{n_embd, n}`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn feed_forward(&mut self, x: &Tensor, l: &Layer, act: Act) -> Result<Tensor> {
        match &l.experts {
            Some(experts) => self.experts(x, experts, act),
            None => self.ffn(x, self.need(&l.ffn, "ffn")?, act),
        }
    }

    /// A feed-forward network; the gate is a matrix of its own, or the first half of what `up` gives, or missing.
    fn ffn(&self, x: &Tensor, f: &Ffn, act: Act) -> Result<Tensor> {
        let up = self.linear(&f.up, x)?;
        let y = match &f.gate {
            Some(gate) => self.ctx.glu(&self.linear(gate, x)?, &up, act)?,
            None if up.ne()[0] == 2 * f.down.w.ne()[0] => self.ctx.glu_halves(&up, act)?,
            None => self.ctx.act(&up, act)?,
        };
        self.linear(&f.down, &y)
    }

    /// The weighed sum of the chosen experts, and of the shared one.
    fn experts(&mut self, x: &Tensor, e: &Experts, act: Act) -> Result<Tensor> {
        let (r, n) = (&self.model.hp.routing, x.ne()[1]);
        let (chosen, weights) = self.route(x, e)?;
        self.graph.expand(&weights)?;
        let mut input = self.ctx.reshape(x, &[x.ne()[0], 1, n])?;
        if r.weigh_inputs {
            input = self.ctx.mul(&self.ctx.repeat(&input, [x.ne()[0], r.n_used, n, 1])?, &weights)?;
        }
        let up = self.by_expert(&e.ffn.up, &input, &chosen)?;
        let y = match &e.ffn.gate {
            Some(gate) => self.ctx.glu(&self.by_expert(gate, &input, &chosen)?, &up, act)?,
            None => self.ctx.glu_halves(&up, act)?,
        };
        let mut out = self.by_expert(&e.ffn.down, &y, &chosen)?;
        if !r.weigh_inputs {
            out = self.ctx.mul(&out, &weights)?;
        }
        let (ne, nb) = (out.ne(), out.nb());
        let of_rank = |i: usize| self.ctx.view(&out, [ne[0], n, 1, 1], [nb[2], nb[3], nb[3]], i * nb[1]);
        // One expert's rows have gaps; a sum has none.
        let mut sum = if r.n_used == 1 { self.ctx.cont(&of_rank(0)?)? } else { of_rank(0)? };
        for i in 1..r.n_used {
            sum = self.ctx.add(&sum, &of_rank(i)?)?;
        }
        let Some(shared) = &e.shared else { return Ok(sum) };
        let mut y = self.ffn(x, shared, Act::Silu)?;
        if let Some(router) = &e.shared_router {
            let router = self.ctx.reshape(router, &[router.ne()[0], 1])?;
            y = self.ctx.mul(&y, &self.ctx.sigmoid(&self.mul(&router, x)?)?)?;
        }
        self.ctx.add(&sum, &y)
    }

    /// `s w x + b` with the matrices of the chosen experts.
    fn by_expert(&self, l: &Linear, x: &Tensor, chosen: &Tensor) -> Result<Tensor> {
        let mut y = self.ctx.mul_mat_id(&l.w, x, chosen)?;
        if let Some(scale) = &l.scale {
            let n_expert = scale.ne()[0];
            let all = self.ctx.repeat(&self.ctx.reshape(scale, &[1, n_expert])?, [1, n_expert, chosen.ne()[1], 1])?;
            y = self.ctx.mul(&y, &self.ctx.gather(&all, chosen)?)?;
        }
        match &l.b {
            Some(b) => self.ctx.add_id(&y, b, chosen),
            None => Ok(y),
        }
    }

    /// The experts of each token and their weights. Shapes: `{n_used, n} i32`, `{1, n_used, n}`.
    fn route(&self, x: &Tensor, e: &Experts) -> Result<(Tensor, Tensor)> {
        let (r, ctx, n) = (&self.model.hp.routing, &self.ctx, x.ne()[1]);
        let logits = self.linear(&e.router, x)?;
        let scores = match r.gating {
            Gating::Softmax => ctx.soft_max_rows(&logits)?,
            Gating::Sigmoid => ctx.sigmoid(&logits)?,
            Gating::SoftmaxOfChosen => logits.clone(),
        };
        let mut choice = match (&e.choice_bias, r.weigh_inputs) {
            (Some(bias), _) => ctx.add(&scores, bias)?,
            (None, true) => logits,
            (None, false) => scores.clone(),
        };
        if r.n_group > 1 {
            choice = self.mask_groups(&choice)?;
        }
        let chosen = ctx.top_k(&choice, r.n_used)?;
        let mut weights = ctx.gather(&ctx.reshape(&scores, &[1, r.n_expert, n])?, &chosen)?;
        let flat = [r.n_used, n];
        if r.gating == Gating::SoftmaxOfChosen {
            weights = ctx.soft_max_rows(&ctx.reshape(&weights, &flat)?)?;
        }
        if r.normalise && r.gating != Gating::SoftmaxOfChosen {
            weights = ctx.reshape(&weights, &flat)?;
            weights = ctx.div(&weights, &ctx.clamp(&ctx.sum_rows(&weights)?, MIN_WEIGHT_SUM, f32::MAX)?)?;
        }
        let weights = ctx.reshape(&self.scale(weights, r.scale)?, &[1, r.n_used, n])?;
        Ok((chosen, weights))
    }

    /// Leaves the scores of the groups whose two best experts have the largest sum, and -inf elsewhere. Shapes: `{n_expert, n}`.
    fn mask_groups(&self, choice: &Tensor) -> Result<Tensor> {
        let (r, ctx, n) = (&self.model.hp.routing, &self.ctx, choice.ne()[1]);
        let size = r.n_expert / r.n_group;
        let groups = ctx.reshape(choice, &[size, r.n_group, n])?;
        // One row per expert, so that single scores can be picked.
        let best = ctx.top_k(&groups, 2)?;
        let best = ctx.gather(&ctx.reshape(choice, &[1, size, r.n_group, n])?, &best)?;
        let best = ctx.sum_rows(&ctx.reshape(&best, &[2, r.n_group, n])?)?;
        let kept = ctx.top_k(&ctx.reshape(&best, &[r.n_group, n])?, r.n_group_used)?;
        let scores = ctx.gather(&groups, &kept)?;
        let all = ctx.scatter(&ctx.fill(&groups, f32::NEG_INFINITY)?, &scores, &kept)?;
        ctx.reshape(&all, &[r.n_expert, n])
    }
}
