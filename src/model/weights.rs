//! Weights: the tensors of a model by their role, and how each part of a layer is loaded (stage 3 of the flow).
//!
//! Names as in llama.cpp (`llama_layer`, `LLM_TENSOR_NAMES`). Biases are loaded wherever a file has them.

use super::hparams::Hparams;
use super::loader::Loader;
use crate::error::Result;
use crate::ggml::Tensor;

/// A matrix, a factor on its products (NVFP4 has one) and the bias added to them.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Linear {
    pub w: Tensor,
    /// Shapes: `{1}`, of experts `{n_expert}`.
    pub scale: Option<Tensor>,
    pub b: Option<Tensor>,
}

/// Weight and bias of a normalisation.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Norm {
    pub w: Tensor,
    pub b: Option<Tensor>,
}

/// A feed-forward network. Without `gate`, `up` may hold the gate in its first half.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Ffn {
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

/// Experts of a layer and what chooses among them. Shapes of the matrices: `{n_in, n_out, n_expert}`.
#[derive(Clone)]
pub struct Experts {
    /// Shapes: `{n_embd, n_expert}`.
    pub router: Linear,
    /// Added to the scores for the choice only. Shapes: `{n_expert}`.
    pub choice_bias: Option<Tensor>,
    /// The networks.
    pub ffn: Ffn,
    /// The network that every token passes.
    pub shared: Option<Ffn>,
    /// Scores the shared network. Shapes: `{n_embd}`.
    pub shared_router: Option<Tensor>,
}

/// Multi-head latent attention: one latent key and value for all heads.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Latent {
    pub q_a: Option<(Linear, Norm)>,
    pub q: Linear,
    pub kv_a: Linear,
    pub kv_a_norm: Norm,
    /// Shapes: `{head_dim - n_rot, n_latent, n_head}`.
    pub k_b: Tensor,
    /// Shapes: `{n_latent, head_dim_v, n_head}`.
    pub v_b: Tensor,
}

/// Tensors of one layer; `None` where the architecture has none.
#[derive(Clone, Default)]
#[allow(missing_docs)]
pub struct Layer {
    pub attn_norm: Option<Norm>,
    /// What attention reads where the feed-forward network reads `attn_norm`.
    pub attn_norm_2: Option<Norm>,
    pub wqkv: Option<Linear>,
    pub wq: Option<Linear>,
    pub wk: Option<Linear>,
    pub wv: Option<Linear>,
    pub wo: Option<Linear>,
    pub latent: Option<Latent>,
    pub attn_q_norm: Option<Norm>,
    pub attn_k_norm: Option<Norm>,
    /// A logit per query head that only the denominator of the softmax has. Shapes: `{n_head}`.
    pub attn_sinks: Option<Tensor>,
    pub attn_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn: Option<Ffn>,
    pub experts: Option<Experts>,
    pub ffn_post_norm: Option<Norm>,
}

/// All tensors of a model.
#[derive(Clone)]
pub struct Weights {
    /// Token embeddings. Shapes: `{n_embd, n_vocab}`.
    pub tok_embd: Tensor,
    /// Embeddings of positions. Shapes: `{n_embd, n_ctx_train}`.
    pub pos_embd: Option<Tensor>,
    /// Final normalisation. Shapes: `{n_embd}`.
    pub output_norm: Norm,
    /// Output matrix, the token embeddings where they are tied. Shapes: `{n_embd, n_vocab}`.
    pub output: Linear,
    /// Frequency divisors of the rotation. Shapes: `{n_rot / 2}`.
    pub rope_freqs: Option<Tensor>,
    /// Those of contexts beyond the length of the training. Shapes: `{n_rot / 2}`.
    pub rope_freqs_long: Option<Tensor>,
    /// One per layer.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// What every decoder has outside its layers, then each layer by `load`. Tied embeddings serve as output matrix.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn load(
        loader: &mut Loader,
        hp: &Hparams,
        mut load: impl FnMut(&mut Layer, &mut Block) -> Result<()>,
    ) -> Result<Weights> {
        let table = [hp.n_embd, hp.n_vocab];
        let output = match loader.has("output.weight") {
            true => loader.linear("output", &table)?,
            false => {
                Linear { w: loader.tied_output(&table)?, scale: None, b: loader.optional("output.bias", &table[1..])? }
            }
        };
        let n_freqs = [hp.rope.first().map_or(0, |r| r.n_rot) / 2];
        let (freqs, short) = ("rope_freqs.weight", "rope_factors_short.weight");
        let mut weights = Weights {
            tok_embd: loader.tensor("token_embd.weight", &table)?,
            pos_embd: None,
            output_norm: loader.norm("output_norm", &[hp.n_embd])?,
            output,
            rope_freqs: loader.optional(if loader.has(freqs) { freqs } else { short }, &n_freqs)?,
            rope_freqs_long: loader.optional("rope_factors_long.weight", &n_freqs)?,
            layers: vec![Layer::default(); hp.n_layer],
        };
        for (il, layer) in weights.layers.iter_mut().enumerate() {
            load(layer, &mut Block { loader, hp, il })?;
        }
        Ok(weights)
    }

    /// The weights of a decoder whose layers are attention and a feed-forward network, each behind a normalisation.
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub fn plain(loader: &mut Loader, hp: &Hparams, gate: Gate) -> Result<Weights> {
        Weights::load(loader, hp, |l, b| {
            l.attn_norm = b.norm("attn_norm")?;
            b.attn(l)?;
            l.ffn_norm = b.norm("ffn_norm")?;
            l.ffn = b.ffn(gate)?;
            Ok(())
        })
    }
}

/// Where the gate of a feed-forward network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// There is none.
    None,
    /// A matrix of its own.
    Own,
    /// The first half of `ffn_up`.
    InUp,
}

/// A layer that is being loaded.
pub struct Block<'l, 'g> {
    loader: &'l mut Loader<'g>,
    hp: &'l Hparams,
    /// Its index.
    pub il: usize,
}

impl Block<'_, '_> {
    fn name(&self, what: &str) -> String {
        format!("blk.{}.{what}", self.il)
    }

    /// A normalisation over `n_embd`.
    ///
    /// # Errors
    /// When it is missing or has another shape.
    pub fn norm(&mut self, what: &str) -> Result<Option<Norm>> {
        self.loader.norm(&self.name(what), &[self.hp.n_embd]).map(Some)
    }

    /// A normalisation over `n_embd` that may be missing.
    ///
    /// # Errors
    /// When it has another shape.
    pub fn optional_norm(&mut self, what: &str) -> Result<Option<Norm>> {
        match self.loader.has(&self.name(&format!("{what}.weight"))) {
            true => self.norm(what),
            false => Ok(None),
        }
    }

    fn linear(&mut self, what: &str, n_in: usize, n_out: usize) -> Result<Linear> {
        self.loader.linear(&self.name(what), &[n_in, n_out])
    }

    /// Projections of attention, q, k and v in one matrix or in three.
    ///
    /// # Errors
    /// When one is missing or has another shape.
    pub fn attn(&mut self, l: &mut Layer) -> Result<()> {
        let hp = self.hp;
        let (nq, nk, nv) = (hp.head_dim_k * hp.n_head, hp.head_dim_k * hp.n_head_kv, hp.head_dim_v * hp.n_head_kv);
        if self.loader.has(&self.name("attn_qkv.weight")) {
            l.wqkv = Some(self.linear("attn_qkv", hp.n_embd, nq + nk + nv)?);
        } else {
            l.wq = Some(self.linear("attn_q", hp.n_embd, nq)?);
            l.wk = Some(self.linear("attn_k", hp.n_embd, nk)?);
            l.wv = Some(self.linear("attn_v", hp.n_embd, nv)?);
        }
        l.wo = Some(self.linear("attn_output", hp.head_dim_v * hp.n_head, hp.n_embd)?);
        Ok(())
    }

    /// Latent attention with keys and values of `head_dim` behind the latent; queries pass `n_lora_q` numbers, or none where the
    /// file projects them at once.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn latent_attn(&mut self, l: &mut Layer, head_dim: [usize; 2], n_lora_q: usize) -> Result<()> {
        let (hp, [dk, dv]) = (self.hp, head_dim);
        let (n_latent, n_rot) = (hp.head_dim_v, hp.head_dim_k - hp.head_dim_v);
        let n_lora_q = if self.loader.has(&self.name("attn_q_a.weight")) { n_lora_q } else { 0 };
        let q_a = match n_lora_q {
            0 => None,
            n => Some((self.linear("attn_q_a", hp.n_embd, n)?, self.loader.norm(&self.name("attn_q_a_norm"), &[n])?)),
        };
        l.latent = Some(Latent {
            q: match n_lora_q {
                0 => self.linear("attn_q", hp.n_embd, dk * hp.n_head)?,
                n => self.linear("attn_q_b", n, dk * hp.n_head)?,
            },
            q_a,
            kv_a: self.linear("attn_kv_a_mqa", hp.n_embd, n_latent + n_rot)?,
            kv_a_norm: self.loader.norm(&self.name("attn_kv_a_norm"), &[n_latent])?,
            k_b: self.loader.tensor(&self.name("attn_k_b.weight"), &[dk - n_rot, n_latent, hp.n_head])?,
            v_b: self.loader.tensor(&self.name("attn_v_b.weight"), &[n_latent, dv, hp.n_head])?,
        });
        l.wo = Some(self.linear("attn_output", dv * hp.n_head, hp.n_embd)?);
        Ok(())
    }

    /// Normalisations of queries and keys over each head, one weight for all heads or one for each.
    ///
    /// # Errors
    /// When one has another shape, or is missing and `required`.
    pub fn head_norms(&mut self, l: &mut Layer, per_head: bool, required: bool) -> Result<()> {
        if !required && !self.loader.has(&self.name("attn_q_norm.weight")) {
            return Ok(());
        }
        let (hp, n) = (self.hp, if per_head { 2 } else { 1 });
        l.attn_q_norm = Some(self.loader.norm(&self.name("attn_q_norm"), &[hp.head_dim_k, hp.n_head][..n])?);
        l.attn_k_norm = Some(self.loader.norm(&self.name("attn_k_norm"), &[hp.head_dim_k, hp.n_head_kv][..n])?);
        Ok(())
    }

    /// Normalisations of queries and keys over all heads at once.
    ///
    /// # Errors
    /// When one is missing or has another shape.
    pub fn row_norms(&mut self, l: &mut Layer) -> Result<()> {
        let hp = self.hp;
        l.attn_q_norm = Some(self.loader.norm(&self.name("attn_q_norm"), &[hp.head_dim_k * hp.n_head])?);
        l.attn_k_norm = Some(self.loader.norm(&self.name("attn_k_norm"), &[hp.head_dim_k * hp.n_head_kv])?);
        Ok(())
    }

    /// Sinks of the softmax.
    ///
    /// # Errors
    /// When they are missing or have another shape.
    pub fn sinks(&mut self) -> Result<Option<Tensor>> {
        self.loader.tensor(&self.name("attn_sinks.weight"), &[self.hp.n_head]).map(Some)
    }

    /// The feed-forward network.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn ffn(&mut self, gate: Gate) -> Result<Option<Ffn>> {
        self.network("", self.hp.n_ff, gate).map(Some)
    }

    fn network(&mut self, suffix: &str, n_ff: usize, gate: Gate) -> Result<Ffn> {
        let n_embd = self.hp.n_embd;
        let n_up = if gate == Gate::InUp { 2 * n_ff } else { n_ff };
        Ok(Ffn {
            gate: match gate {
                Gate::Own => Some(self.linear(&format!("ffn_gate{suffix}"), n_embd, n_ff)?),
                _ => None,
            },
            up: self.linear(&format!("ffn_up{suffix}"), n_embd, n_up)?,
            down: self.linear(&format!("ffn_down{suffix}"), n_ff, n_embd)?,
        })
    }

    /// Experts, with a shared one where the numbers name its size.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn experts(&mut self) -> Result<Option<Experts>> {
        let (n_embd, r) = (self.hp.n_embd, &self.hp.routing);
        let (n, n_ff) = (r.n_expert, r.n_ff);
        let all = |block: &mut Self, what: &str, n_in: usize, n_out: usize| {
            block.loader.linear(&block.name(what), &[n_in, n_out, n])
        };
        let fused = self.loader.has(&self.name("ffn_gate_up_exps.weight"));
        Ok(Some(Experts {
            router: self.linear("ffn_gate_inp", n_embd, n)?,
            choice_bias: self.loader.optional(&self.name("exp_probs_b.bias"), &[n])?,
            ffn: match fused {
                true => Ffn {
                    gate: None,
                    up: all(self, "ffn_gate_up_exps", n_embd, 2 * n_ff)?,
                    down: all(self, "ffn_down_exps", n_ff, n_embd)?,
                },
                false => Ffn {
                    gate: Some(all(self, "ffn_gate_exps", n_embd, n_ff)?),
                    up: all(self, "ffn_up_exps", n_embd, n_ff)?,
                    down: all(self, "ffn_down_exps", n_ff, n_embd)?,
                },
            },
            shared: match r.n_ff_shared {
                0 => None,
                n_ff => Some(self.network("_shexp", n_ff, Gate::Own)?),
            },
            shared_router: self.loader.optional(&self.name("ffn_gate_inp_shexp.weight"), &[n_embd])?,
        }))
    }
}
