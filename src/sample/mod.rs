//! Sampling (stage 6 of the flow): from the logits of one position to one token.
//!
//! A [`Chain`] applies samplers in the order of [`SampleParams::samplers`] to a list of candidates, and a selector takes
//! one of what is left; a grammar then accepts the token or has it chosen again.
//! Source: llama.cpp `src/llama-sampler.cpp`, `common_sampler_init` and `common_sampler_sample` in `common/sampling.cpp`.
//! Equal to llama.cpp, bit for bit on one C library: every filter, the generators, the order of draws.
//! Different: equal logits are ordered by token id (llama.cpp leaves their order to `std::partial_sort`), NaN or +inf
//! logits are an error instead of an arbitrary token, and a random seed is drawn once for all generators.

mod adaptive_p;
mod candidate;
mod dist;
pub mod grammar;
mod logit_bias;
mod mirostat;
mod model;
pub mod order;
mod params;
mod rng;
mod vocabulary;

pub use candidate::{Candidate, Candidates};
pub use dry::breakers;
pub use grammar::{Constraint, Grammar};
pub use params::SampleParams;
pub use vocabulary::Vocabulary;

use crate::error::{Error, Result};

/// A step of the chain: it changes, removes or orders candidates.
pub trait Sampler: Send {
    /// Works on the candidates of one position; at least one is left.
    fn apply(&mut self, candidates: &mut Candidates);
    /// Learns the token that was chosen, or a token of the prompt.
    fn accept(&mut self, _token: u32) {}
    /// Forgets all accepted tokens.
    fn reset(&mut self) {}
}

/// The last step of the chain.
trait Selector: Send {
    /// Chooses one of the candidates, of which at least one is not forbidden.
    fn select(&mut self, candidates: &mut Candidates) -> u32;
    /// Learns the token that was chosen, or a token of the prompt.
    fn accept(&mut self, _token: u32) {}
    /// Forgets all tokens and starts its generator again.
    fn reset(&mut self);
}

/// A sampler that can stand in the chain.
pub struct Entry {
    /// Its name: file name and word of `--samplers`.
    pub name: &'static str,
    /// Its letter in `--sampler-seq`.
    pub letter: char,
    /// Its name in the description of a chain.
    pub label: &'static str,
    /// Makes it, or `None` when the parameters switch it off.
    pub new: fn(&SampleParams) -> Option<Box<dyn Sampler>>,
}

macro_rules! samplers {
    ($($name:ident $letter:literal $label:literal),+ $(,)?) => {
        $(mod $name;)+
        /// The samplers that can stand in the chain.
        pub const SAMPLERS: &[Entry] =
            &[$(Entry { name: stringify!($name), letter: $letter, label: $label, new: $name::new }),+];
        /// Their order without `--samplers`.
        pub const DEFAULT_ORDER: &[&str] = &[$(stringify!($name)),+];
    };
}

samplers! {
    penalties 'e' "penalties",
    dry 'd' "dry",
    top_n_sigma 's' "top-n-sigma",
    top_k 'k' "top-k",
    typ_p 'y' "typical",
    top_p 'p' "top-p",
    min_p 'm' "min-p",
    xtc 'x' "xtc",
    temperature 't' "temp-ext",
}

/// The samplers of one sequence with their state.
pub struct Chain {
    samplers: Vec<Box<dyn Sampler>>,
    selector: Box<dyn Selector>,
    labels: Vec<String>,
    params: SampleParams,
    candidates: Candidates,
    max_biased: Option<u32>,
    grammar: Option<Grammar>,
}

impl Chain {
    /// Builds the chain: logit bias, the samplers in their order, and the draw.
    ///
    /// # Errors
    /// [`Error::Usage`] when a parameter is not a usable number.
    pub fn new(params: &SampleParams) -> Result<Self> {
        params.check()?;
        let params = SampleParams { seed: rng::resolve(params.seed), ..params.clone() };
        let mut steps = Steps::default();
        if !params.logit_bias.is_empty() {
            steps.push("logit-bias", logit_bias::new(&params));
        }
        let (label, selector) = match params.mirostat {
            0 => steps.ordered(&params),
            version => steps.mirostat(&params, version),
        };
        steps.labels.push(label.to_owned());
        Ok(Chain {
            samplers: steps.samplers,
            selector,
            labels: steps.labels,
            candidates: Candidates::default(),
            max_biased: params.logit_bias.iter().map(|b| b.0).max(),
            params,
            grammar: None,
        })
    }

    /// Adds a grammar that the answers have to match.
    pub fn with_grammar(mut self, grammar: Option<Grammar>) -> Self {
        self.grammar = grammar;
        self
    }

    /// Chooses the next token; the caller then tells the chain by [`Chain::accept`].
    ///
    /// A token that the grammar forbids is chosen again among those that it allows.
    ///
    /// # Errors
    /// [`Error::Shape`] when a logit is NaN or +inf, when none is finite, or when a biased token does not exist;
    /// [`Error::Usage`] when every token is forbidden or the grammar becomes too complex.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if let Some(token) = self.max_biased.filter(|&t| t as usize >= logits.len()) {
            return Err(Error::shape("logit bias", format!("a token below {}", logits.len()), token.to_string()));
        }
        self.candidates.fill(logits)?;
        let token = self.choose()?;
        let Some(grammar) = &mut self.grammar else { return Ok(token) };
        if grammar.allows(token)? {
            return Ok(token);
        }
        self.candidates.fill(logits)?;
        grammar.apply(&mut self.candidates)?;
        self.choose()
    }

    /// Applies the chain to the candidates.
    fn choose(&mut self) -> Result<u32> {
        for sampler in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        if self.candidates.max_logit() == f32::NEG_INFINITY {
            return Err(Error::Usage("no token can follow: the logit bias and the grammar forbid every one".into()));
        }
        Ok(self.selector.select(&mut self.candidates))
    }

    /// Tells every sampler and the grammar that `token` was chosen.
    ///
    /// # Errors
    /// [`Error::Usage`] when the grammar does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.learn(token);
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(token))
    }

    /// Tells every sampler that `token` of a prompt stands next; the grammar expects a new answer after it.
    pub fn accept_prompt(&mut self, token: u32) {
        self.learn(token);
        if let Some(grammar) = &mut self.grammar {
            grammar.restart();
        }
    }

    fn learn(&mut self, token: u32) {
        for sampler in &mut self.samplers {
            sampler.accept(token);
        }
        self.selector.accept(token);
    }

    /// Forgets all tokens and starts the generators again from the seed.
    pub fn reset(&mut self) {
        for sampler in &mut self.samplers {
            sampler.reset();
        }
        self.selector.reset();
    }

    /// The seed in use, also when it was chosen at random.
    pub fn seed(&self) -> u32 {
        self.params.seed
    }

    /// The parameters of all samplers.
    pub fn params(&self) -> &SampleParams {
        &self.params
    }

    /// Names of the samplers in order as llama.cpp prints them: one that is off has a `?` before it.
    pub fn names(&self) -> &[String] {
        &self.labels
    }
}

/// A chain in the making.
#[derive(Default)]
struct Steps {
    samplers: Vec<Box<dyn Sampler>>,
    labels: Vec<String>,
}

type Draw = (&'static str, Box<dyn Selector>);

impl Steps {
    fn push(&mut self, label: &str, sampler: Option<Box<dyn Sampler>>) {
        let mark = if sampler.is_some() { "" } else { "?" };
        self.labels.push(format!("{mark}{label}"));
        self.samplers.extend(sampler);
    }

    fn ordered(&mut self, params: &SampleParams) -> Draw {
        for entry in params.samplers.iter().filter_map(|name| SAMPLERS.iter().find(|e| e.name == *name)) {
            self.push(entry.label, (entry.new)(params));
        }
        match params.samplers.contains(&order::ADAPTIVE_P.0) {
            true => ("adaptive-p", Box::new(adaptive_p::AdaptiveP::new(params))),
            false => ("dist", Box::new(dist::Dist::new(params.seed))),
        }
    }

    fn mirostat(&mut self, params: &SampleParams, version: i32) -> Draw {
        let temperature = temperature::Temperature::fixed(params.temperature);
        self.push("temp", (params.temperature != 1.0).then(|| Box::new(temperature) as Box<dyn Sampler>));
        let (label, version) = match version {
            1 => ("mirostat", mirostat::Version::One),
            _ => ("mirostat-v2", mirostat::Version::Two),
        };
        (label, Box::new(mirostat::Mirostat::new(version, params)))
    }
}

#[cfg(test)]
mod tests;
