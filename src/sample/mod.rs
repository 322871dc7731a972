//! Sampling (stage 6 of the flow): from the logits of one position to one token.
//!
//! A [`Chain`] applies the samplers of [`SAMPLERS`] in order to a list of candidates, and `dist` draws one of what is left.
//! Source: llama.cpp `src/llama-sampler.cpp` and `common_sampler_init` in `common/sampling.cpp`.
//! Equal to llama.cpp, bit for bit on one C library: every filter, the generator, the order of draws.
//! Different: equal logits are ordered by token id (llama.cpp leaves their order to `std::partial_sort`), and NaN or
//! +inf logits are an error instead of an arbitrary token.

mod candidate;
mod dist;
mod logit_bias;

pub use candidate::{Candidate, Candidates};

use crate::error::{Error, Result};
use dist::Dist;

/// A step of the chain: it changes, removes or orders candidates.
pub trait Sampler: Send {
    /// Works on the candidates of one position; at least one is left.
    fn apply(&mut self, candidates: &mut Candidates);
    /// Learns the token that was chosen, or a token of the prompt.
    fn accept(&mut self, _token: u32) {}
    /// Forgets all accepted tokens.
    fn reset(&mut self) {}
}

/// A sampler that can stand in the chain.
pub struct Entry {
    /// Its name: file name and value of `--samplers`.
    pub name: &'static str,
    /// Makes it, or `None` when the parameters switch it off.
    pub new: fn(&SampleParams) -> Option<Box<dyn Sampler>>,
}

macro_rules! samplers {
    ($($name:ident),+ $(,)?) => {
        $(mod $name;)+
        /// The samplers in the order in which the chain applies them.
        pub const SAMPLERS: &[Entry] = &[$(Entry { name: stringify!($name), new: $name::new }),+];
    };
}

samplers! { penalties, top_k, top_p, min_p, temperature }

/// What the user asked of the samplers; the defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// Seed of the generator; `u32::MAX` takes a random one.
    pub seed: u32,
    /// Divides the logits; 0 or less chooses the most probable token.
    pub temperature: f32,
    /// Keeps the k most probable tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the smallest set of tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least this share of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// How many of the last tokens the penalties look at.
    pub repeat_last_n: u32,
    /// Divides positive logits of repeated tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once for each occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once when the token occurs at all; 0 is off.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SampleParams {
    fn default() -> Self {
        SampleParams {
            seed: u32::MAX,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

impl SampleParams {
    fn check(&self) -> Result<()> {
        let numbers = [
            ("temperature", self.temperature),
            ("top-p", self.top_p),
            ("min-p", self.min_p),
            ("frequency penalty", self.frequency_penalty),
            ("presence penalty", self.presence_penalty),
        ];
        for (name, x) in numbers {
            if !x.is_finite() {
                return Err(Error::Usage(format!("the {name} must be a finite number, not {x}")));
            }
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite() && self.repeat_penalty.recip().is_finite()) {
            return Err(Error::Usage(format!(
                "the repeat penalty must be finite and greater than 0, not {}",
                self.repeat_penalty
            )));
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some((token, bias)) => {
                Err(Error::Usage(format!("the logit bias of token {token} must be a number or -inf, not {bias}")))
            }
            None => Ok(()),
        }
    }
}

/// The samplers of one sequence with their state.
pub struct Chain {
    samplers: Vec<(&'static str, Box<dyn Sampler>)>,
    dist: Dist,
    candidates: Candidates,
    max_biased: Option<u32>,
}

impl Chain {
    /// Builds the chain: logit bias, the samplers that are on, and the draw.
    ///
    /// # Errors
    /// [`Error::Usage`] when a parameter is not a usable number.
    pub fn new(params: &SampleParams) -> Result<Self> {
        params.check()?;
        let bias = logit_bias::new(params).map(|s| ("logit_bias", s));
        let named = SAMPLERS.iter().filter_map(|e| (e.new)(params).map(|s| (e.name, s)));
        Ok(Chain {
            samplers: bias.into_iter().chain(named).collect(),
            dist: Dist::new(params.seed),
            candidates: Candidates::default(),
            max_biased: params.logit_bias.iter().map(|b| b.0).max(),
        })
    }

    /// Chooses the next token; the caller then tells the chain by [`Chain::accept`].
    ///
    /// # Errors
    /// [`Error::Shape`] when a logit is NaN or +inf, when none is finite, or when a biased token does not exist.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if let Some(token) = self.max_biased.filter(|&t| t as usize >= logits.len()) {
            return Err(Error::shape("logit bias", format!("a token below {}", logits.len()), token.to_string()));
        }
        self.candidates.fill(logits)?;
        for (_, sampler) in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        Ok(self.dist.draw(&self.candidates))
    }

    /// Tells every sampler that `token` stands next in the sequence: a sampled token or one of the prompt.
    pub fn accept(&mut self, token: u32) {
        for (_, sampler) in &mut self.samplers {
            sampler.accept(token);
        }
    }

    /// Forgets all tokens and starts the generator again from its seed.
    pub fn reset(&mut self) {
        for (_, sampler) in &mut self.samplers {
            sampler.reset();
        }
        self.dist.reset();
    }

    /// The seed in use, also when it was chosen at random.
    pub fn seed(&self) -> u32 {
        self.dist.seed()
    }

    /// Names of the samplers that are on, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.samplers.iter().map(|(name, _)| *name).chain(["dist"]).collect()
    }
}

#[cfg(test)]
mod tests;
