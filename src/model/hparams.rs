//! Hyperparameters: the numbers of a model's metadata, checked before anything is built from them (stage 3 of the flow).
//!
//! Names and defaults as in llama.cpp (`src/llama-hparams.h`, `src/llama-model.cpp`).

use super::rotation::RopeOptions;
use super::routing::Routing;
use crate::cache::rope::{Rope, RopeKind};
use crate::cache::CacheShape;
use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// Upper bound on layers, as in llama.cpp (`LLAMA_MAX_LAYERS`).
const MAX_LAYERS: u32 = 512;

/// The numbers that define a model.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Context length of the training.
    pub n_ctx_train: usize,
    /// Positions that the model can tell apart, as far as it is implemented.
    pub n_pos_max: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Layers.
    pub n_layer: usize,
    /// Width of the feed-forward network.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads.
    pub n_head_kv: usize,
    /// Length of a key.
    pub head_dim_k: usize,
    /// Length of a value.
    pub head_dim_v: usize,
    /// Epsilon of the normalisations.
    pub norm_eps: f32,
    /// Factor on `q.k`.
    pub kq_scale: f32,
    /// Factor on the queries themselves, where the model's reference code applies it there; f16 rounds differently then.
    pub q_scale: f32,
    /// Soft cap on attention logits, 0 = none.
    pub attn_softcap: f32,
    /// Largest slope of ALiBi's biases, which take the place of a rotation; 0 = none.
    pub alibi_max_bias: f32,
    /// Soft cap on the output logits, 0 = none.
    pub final_softcap: f32,
    /// Factor on the token embeddings.
    pub embd_scale: f32,
    /// Factor on what attention and the feed-forward network add to the residual stream.
    pub residual_scale: f32,
    /// Factor on the output logits.
    pub logit_scale: f32,
    /// Whether attention and the feed-forward network stand side by side, where the file decides that.
    pub parallel: bool,
    /// Whether rotated queries and keys are normalised, without a weight.
    pub qk_norm_rotated: bool,
    /// Queries that grow with their position.
    pub temperature: Option<Temperature>,
    /// How experts are chosen; `n_expert` is 0 where there are none.
    pub routing: Routing,
    /// Tokens that a sliding-window layer sees, the current one included; 0 = the model has no such layers.
    pub n_swa: usize,
    /// Which layers slide, indexed by `il`.
    pub swa: Vec<bool>,
    /// How each layer rotates, indexed by `il`.
    pub rope: Vec<Rope>,
    /// Frequency divisors that take the place of those in `rope` in contexts longer than the training's; empty = none.
    pub freq_factors_long: Vec<f32>,
    /// Logits that only the denominator of the softmax has, by layer and query head; empty where a layer has none.
    pub sinks: Vec<Vec<f32>>,
}

/// Factor on the queries at a position: `1 + scale * ln(floor((pos + offset) / length) + 1)`, in layers without rotation or all.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Temperature {
    pub scale: f32,
    pub length: f32,
    pub offset: f32,
    /// Whether rotated layers have none.
    pub unrotated_only: bool,
}

impl Temperature {
    /// The factor at `pos`.
    pub fn at(&self, pos: u32) -> f32 {
        (((pos as f32 + self.offset) / self.length).floor() + 1.0).ln() * self.scale + 1.0
    }
}

/// Reads the metadata of one model, all errors naming the key.
pub struct Reader<'a> {
    gguf: &'a Gguf,
    rope: RopeOptions,
}

impl<'a> Reader<'a> {
    /// A reader of this file's metadata; `rope` goes before what it says about the rotation.
    pub fn new(gguf: &'a Gguf, rope: RopeOptions) -> Self {
        Reader { gguf, rope }
    }

    pub(super) fn rope_options(&self) -> &RopeOptions {
        &self.rope
    }

    /// An optional text.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn text(&self, suffix: &str) -> Result<Option<&str>> {
        self.gguf.str(&self.gguf.arch_key(suffix))
    }

    /// The error for a key of this file.
    pub fn bad(&self, suffix: &str, what: impl std::fmt::Display) -> Error {
        Error::gguf(self.gguf.path(), format!("{} {what}", self.gguf.arch_key(suffix)))
    }

    /// Whether the file has this key.
    pub fn has(&self, suffix: &str) -> bool {
        self.gguf.value(&self.gguf.arch_key(suffix)).is_some()
    }

    /// An optional yes or no.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn flag(&self, suffix: &str) -> Result<Option<bool>> {
        self.gguf.bool(&self.gguf.arch_key(suffix))
    }

    /// An optional number.
    ///
    /// # Errors
    /// When the key holds another type.
    pub fn u32(&self, suffix: &str) -> Result<Option<u32>> {
        self.gguf.u32(&self.gguf.arch_key(suffix))
    }

    /// A number within bounds.
    ///
    /// # Errors
    /// When it is missing, of another type, or out of bounds.
    pub fn within(&self, suffix: &str, low: u32, high: u32) -> Result<usize> {
        match self.u32(suffix)? {
            Some(n) if (low..=high).contains(&n) => Ok(n as usize),
            Some(n) => Err(self.bad(suffix, format!("is {n}; expected {low} to {high}"))),
            None => Err(self.bad(suffix, "is missing")),
        }
    }

    /// A number that some files give per layer; all layers must agree.
    ///
    /// # Errors
    /// When it is missing, out of bounds, or differs between layers.
    pub fn uniform(&self, suffix: &str, low: u32, high: u32, n_layer: usize) -> Result<Option<usize>> {
        let key = self.gguf.arch_key(suffix);
        let Some(crate::gguf::Value::Array(_)) = self.gguf.value(&key) else {
            return match self.u32(suffix)? {
                Some(_) => self.within(suffix, low, high).map(Some),
                None => Ok(None),
            };
        };
        let list = self.gguf.i32_array(&key)?.unwrap_or_default();
        if list.len() < n_layer {
            return Err(self.bad(suffix, format!("has {} values for {n_layer} layers", list.len())));
        }
        let list = &list[..n_layer];
        if list.windows(2).any(|w| w[0] != w[1]) {
            return Err(Error::unsupported("model", format!("{key} differs between layers")));
        }
        let n = list.first().copied().unwrap_or_default();
        match u32::try_from(n) {
            Ok(n) if (low..=high).contains(&n) => Ok(Some(n as usize)),
            _ => Err(self.bad(suffix, format!("is {n}; expected {low} to {high}"))),
        }
    }

    /// An optional finite `f32`.
    ///
    /// # Errors
    /// When it has another type or is not finite.
    pub fn f32(&self, suffix: &str) -> Result<Option<f32>> {
        match self.gguf.f32(&self.gguf.arch_key(suffix))? {
            Some(x) if !x.is_finite() => Err(self.bad(suffix, format!("is {x}"))),
            x => Ok(x),
        }
    }

    /// The numbers every decoder has; `kind` is the pair layout of the architecture's rotation.
    ///
    /// # Errors
    /// When a number is missing, out of bounds, or does not fit another.
    pub fn base(&self, kind: RopeKind) -> Result<Hparams> {
        // Layers that predict further tokens come last and are not computed.
        let n_next = self.u32("nextn_predict_layers")?.unwrap_or(0) as usize;
        let n_layer = match self.within("block_count", 1, MAX_LAYERS)?.checked_sub(n_next) {
            Some(n) if n > 0 => n,
            _ => return Err(self.bad("nextn_predict_layers", format!("is {n_next}, all layers or more"))),
        };
        let n_embd = self.within("embedding_length", 1, 1 << 20)?;
        let n_ctx_train = self.within("context_length", 1, 1 << 30)?;
        let missing = |suffix: &'static str| {
            move || Error::gguf(self.gguf.path(), format!("{} is missing", self.gguf.arch_key(suffix)))
        };
        let n_head =
            self.uniform("attention.head_count", 1, 1 << 14, n_layer)?.ok_or_else(missing("attention.head_count"))?;
        let n_head_kv = self.uniform("attention.head_count_kv", 1, n_head as u32, n_layer)?.unwrap_or(n_head);
        let routing = self.routing(n_layer)?;
        let n_ff = match self.uniform("feed_forward_length", 1, 1 << 24, n_layer)? {
            None if routing.n_expert > 0 => 0,
            n_ff => n_ff.ok_or_else(missing("feed_forward_length"))?,
        };
        if n_head % n_head_kv != 0 {
            return Err(self
                .bad("attention.head_count_kv", format!("is {n_head_kv}, which does not divide the {n_head} heads")));
        }
        let head_dim = |suffix: &str| -> Result<usize> {
            match self.u32(suffix)? {
                Some(_) => self.within(suffix, 2, 1 << 16),
                None if n_embd % n_head == 0 => Ok(n_embd / n_head),
                None => Err(self.bad(suffix, format!("is missing and {n_embd} is no multiple of the {n_head} heads"))),
            }
        };
        let (head_dim_k, head_dim_v) = (head_dim("attention.key_length")?, head_dim("attention.value_length")?);
        let norm_eps = self.f32("attention.layer_norm_rms_epsilon")?.or(self.f32("attention.layer_norm_epsilon")?);
        let norm_eps = norm_eps.filter(|&e| e >= 0.0).ok_or_else(missing("attention.layer_norm_rms_epsilon"))?;
        let rope = self.rope(kind, head_dim_k, n_ctx_train)?;
        Ok(Hparams {
            n_vocab: self.n_vocab()?,
            n_ctx_train,
            n_pos_max: usize::MAX,
            n_embd,
            n_layer,
            n_ff,
            n_head,
            n_head_kv,
            head_dim_k,
            head_dim_v,
            norm_eps,
            kq_scale: 1.0 / (head_dim_k as f32).sqrt(),
            q_scale: 1.0,
            attn_softcap: 0.0,
            alibi_max_bias: 0.0,
            final_softcap: 0.0,
            embd_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            parallel: false,
            qk_norm_rotated: false,
            temperature: None,
            routing: routing.with_default_size(n_ff),
            n_swa: 0,
            swa: vec![false; n_layer],
            rope: vec![rope; n_layer],
            freq_factors_long: Vec::new(),
            sinks: Vec::new(),
        })
    }

    /// Reads which layers slide and how far they see: every `pattern`-th layer is global, or as the file lists it. Those that
    /// slide rotate by the base of their own, where the file has one.
    ///
    /// # Errors
    /// When the list is shorter than the layers.
    pub fn sliding_window(&self, hp: &mut Hparams, pattern: u32) -> Result<()> {
        hp.n_swa = self.u32("attention.sliding_window")?.map_or(hp.n_swa, |n| n as usize);
        if hp.n_swa == 0 {
            return Ok(());
        }
        let suffix = "attention.sliding_window_pattern";
        let key = self.gguf.arch_key(suffix);
        if let Some(crate::gguf::Value::Array(_)) = self.gguf.value(&key) {
            let list = self.gguf.bool_array(&key)?.unwrap_or_default();
            if list.len() < hp.n_layer {
                return Err(self.bad(suffix, format!("has {} values for {} layers", list.len(), hp.n_layer)));
            }
            hp.swa = list[..hp.n_layer].to_vec();
        } else {
            let pattern = self.u32(suffix)?.unwrap_or(pattern).max(1) as usize;
            hp.swa = (0..hp.n_layer).map(|il| il % pattern < pattern - 1).collect();
        }
        if let Some(base) = self.f32("rope.freq_base_swa")? {
            hp.rope.iter_mut().zip(&hp.swa).filter(|(_, &swa)| swa).for_each(|(rope, _)| rope.freq_base = base);
        }
        Ok(())
    }

    /// Reads the scales of Granite and its relatives; what the file does not say stays.
    ///
    /// # Errors
    /// When one has another type or is not finite.
    pub fn granite_scales(&self, hp: &mut Hparams) -> Result<()> {
        let read = |suffix: &str| Ok::<_, Error>(self.f32(suffix)?.filter(|&s| s != 0.0));
        hp.embd_scale = read("embedding_scale")?.unwrap_or(hp.embd_scale);
        hp.residual_scale = read("residual_scale")?.unwrap_or(hp.residual_scale);
        hp.kq_scale = read("attention.scale")?.unwrap_or(hp.kq_scale);
        hp.logit_scale = read("logit_scale")?.map_or(hp.logit_scale, f32::recip);
        Ok(())
    }

    fn n_vocab(&self) -> Result<usize> {
        let tokens = self.gguf.str_array("tokenizer.ggml.tokens")?.map(|t| t.len());
        match tokens.or(self.u32("vocab_size")?.map(|n| n as usize)) {
            Some(n) if n > 0 => Ok(n),
            _ => Err(Error::gguf(self.gguf.path(), "tokenizer.ggml.tokens is missing or empty")),
        }
    }
}

impl Hparams {
    /// Puts the factor on `q.k` on the queries themselves.
    pub fn scale_queries(&mut self) {
        (self.q_scale, self.kq_scale) = (self.kq_scale, 1.0);
    }

    /// Query heads per KV head.
    pub fn n_group(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Whether a context of `n_ctx` tokens is longer than those of the training (`n_ctx_orig_yarn`).
    pub fn is_long(&self, n_ctx: usize) -> bool {
        self.rope.first().is_some_and(|rope| n_ctx > rope.n_ctx_orig)
    }

    /// How each layer rotates in a context of `n_ctx` tokens.
    pub fn rope_in(&self, n_ctx: usize) -> Vec<Rope> {
        let mut rope = self.rope.clone();
        if self.is_long(n_ctx) && !self.freq_factors_long.is_empty() {
            rope.iter_mut().for_each(|rope| rope.freq_factors.clone_from(&self.freq_factors_long));
        }
        rope
    }

    /// What a cache for this model has to know.
    pub fn cache_shape(&self) -> CacheShape {
        CacheShape {
            n_head_kv: self.n_head_kv,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            n_swa: self.n_swa,
            swa: self.swa.clone(),
        }
    }

    /// Layers that see the whole context, ascending.
    pub fn global_layers(&self) -> Vec<usize> {
        (0..self.n_layer).filter(|&il| !self.swa[il]).collect()
    }
}
