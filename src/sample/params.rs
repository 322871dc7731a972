//! What the user asked of the samplers.
//!
//! Source: `common_params_sampling` of llama.cpp (`common/common.h`), whose defaults these are.

use std::fmt;

use super::DEFAULT_ORDER;
use crate::error::{Error, Result};

/// Parameters of all samplers.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// Seed of the generators; `u32::MAX` takes a random one.
    pub seed: u32,
    /// Names of the samplers in the order in which they are applied; `adaptive_p` always stands last.
    pub samplers: Vec<&'static str>,
    /// Divides the logits; 0 or less chooses the most probable token.
    pub temperature: f32,
    /// How far the temperature follows the entropy, up and down; 0 is off.
    pub dynatemp_range: f32,
    /// Bends the way from the lowest to the highest temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most probable tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the smallest set of tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least this share of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Keeps tokens within this many standard deviations of the highest logit; 0 or less keeps all.
    pub top_n_sigma: f32,
    /// Keeps the most typical tokens until they have this probability; 1 keeps all.
    pub typ_p: f32,
    /// How often top choices are excluded; 0 is never.
    pub xtc_probability: f32,
    /// Probability that makes a token a top choice; above 0.5 there are never two.
    pub xtc_threshold: f32,
    /// How many of the last tokens the penalties look at.
    pub repeat_last_n: u32,
    /// Divides positive logits of repeated tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once for each occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once when the token occurs at all; 0 is off.
    pub presence_penalty: f32,
    /// Penalty of a repetition that reaches the allowed length; 0 is off.
    pub dry_multiplier: f32,
    /// Factor of the penalty for each token beyond the allowed length.
    pub dry_base: f32,
    /// Longest repetition without a penalty.
    pub dry_allowed_length: i32,
    /// How many of the last tokens are searched for repetitions.
    pub dry_penalty_last_n: u32,
    /// Token sequences that end a repetition: the first token and the others.
    pub dry_breakers: Vec<(u32, Vec<u32>)>,
    /// Probability that adaptive-p prefers; below 0 it only draws.
    pub adaptive_target: f32,
    /// Weight of the past of adaptive-p.
    pub adaptive_decay: f32,
    /// Version of Mirostat; 0 is off.
    pub mirostat: i32,
    /// Surprise that Mirostat aims at. Units: bits.
    pub mirostat_tau: f32,
    /// Learning rate of Mirostat.
    pub mirostat_eta: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SampleParams {
    fn default() -> Self {
        SampleParams {
            seed: u32::MAX,
            samplers: DEFAULT_ORDER.to_vec(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            top_n_sigma: -1.0,
            typ_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_breakers: Vec::new(),
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
        }
    }
}

impl SampleParams {
    /// Refuses numbers with which a sampler could not compute.
    pub(super) fn check(&self) -> Result<()> {
        let numbers = [
            ("temperature", self.temperature),
            ("dynamic temperature range", self.dynatemp_range),
            ("dynamic temperature exponent", self.dynatemp_exponent),
            ("top-p", self.top_p),
            ("min-p", self.min_p),
            ("top-n-sigma", self.top_n_sigma),
            ("typical p", self.typ_p),
            ("XTC probability", self.xtc_probability),
            ("XTC threshold", self.xtc_threshold),
            ("frequency penalty", self.frequency_penalty),
            ("presence penalty", self.presence_penalty),
            ("DRY multiplier", self.dry_multiplier),
            ("DRY base", self.dry_base),
            ("adaptive-p target", self.adaptive_target),
            ("adaptive-p decay", self.adaptive_decay),
            ("Mirostat target entropy", self.mirostat_tau),
            ("Mirostat learning rate", self.mirostat_eta),
        ];
        if let Some((name, x)) = numbers.iter().find(|(_, x)| !x.is_finite()) {
            return Err(Error::Usage(format!("the {name} must be a finite number, not {x}")));
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite() && self.repeat_penalty.recip().is_finite()) {
            return Err(Error::Usage(format!(
                "the repeat penalty must be finite and greater than 0, not {}",
                self.repeat_penalty
            )));
        }
        if !(0..=2).contains(&self.mirostat) {
            return Err(Error::Usage(format!("Mirostat is 0 (off), 1 or 2, not {}", self.mirostat)));
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some((token, bias)) => {
                Err(Error::Usage(format!("the logit bias of token {token} must be a number or -inf, not {bias}")))
            }
            None => Ok(()),
        }
    }
}

/// The lines in which llama.cpp prints them.
impl fmt::Display for SampleParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\trepeat_last_n = {}, repeat_penalty = {:.3}, frequency_penalty = {:.3}, presence_penalty = {:.3}",
            self.repeat_last_n, self.repeat_penalty, self.frequency_penalty, self.presence_penalty
        )?;
        writeln!(
            f,
            "\tdry_multiplier = {:.3}, dry_base = {:.3}, dry_allowed_length = {}, dry_penalty_last_n = {}",
            self.dry_multiplier, self.dry_base, self.dry_allowed_length, self.dry_penalty_last_n
        )?;
        writeln!(
            f,
            "\ttop_k = {}, top_p = {:.3}, min_p = {:.3}, xtc_probability = {:.3}, xtc_threshold = {:.3}, typical_p = {:.3}, top_n_sigma = {:.3}, temp = {:.3}",
            self.top_k, self.top_p, self.min_p, self.xtc_probability, self.xtc_threshold, self.typ_p, self.top_n_sigma, self.temperature
        )?;
        write!(
            f,
            "\tmirostat = {}, mirostat_lr = {:.3}, mirostat_ent = {:.3}, adaptive_target = {:.3}, adaptive_decay = {:.3}",
            self.mirostat, self.mirostat_eta, self.mirostat_tau, self.adaptive_target, self.adaptive_decay
        )
    }
}
