//! Compression methods (stage 5 of the flow): from a view of the full cache and a budget to a plan, in pure Rust on `f32` slices.
//!
//! A method works in two steps so that memory stays bounded: [`Method::allocate`] reads every layer once and decides globally
//! what each head keeps; [`Allocation::layer`] then makes the plan of one layer at a time, while earlier layers are already rewritten and freed.

mod baseline;
pub mod registry;
pub mod score;
pub mod select;
#[cfg(test)]
mod tests;
pub mod vector;

use self::select::Pinned;
use crate::cache::plan::LayerPlan;
use crate::cache::view::View;
use crate::error::{Error, Result};

pub use registry::{by_name, Entry, MethodOptions, Modifier, Named};

macro_rules! methods {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*
        /// Every method, in the order in which they are listed.
        pub static METHODS: &[Entry] = &[$(Entry {
            name: stringify!($name),
            about: $name::ABOUT,
            modifiers: $name::MODIFIERS,
            make: $name::make,
        }),*];
    };
}
methods! { gracekv, topk, snapkv, adakv, pyramidkv, h2o, tova, knorm, streaming_llm, random, cam, d2o, none }

/// Largest ratio that may be asked for: beyond any context, and short enough to be named in a message.
pub const MAX_RATIO: f64 = 1e9;

/// How much may be kept, and what is kept whatever the scores say.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Entries over all compressible layers and KV heads, everything counted (`B_total`).
    pub n_entries: usize,
    /// First tokens that are always kept, as far as the budget allows.
    pub n_sink: usize,
    /// Last tokens of the prompt that are always kept, as far as the budget allows.
    pub n_window: usize,
}

/// What prefill has to record for a method; nobody pays for what is not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Queries of the last tokens of the prompt.
    pub n_window_query: usize,
    /// Queries sampled evenly from the prompt, of one head in each group.
    pub n_sample_query: usize,
    /// Attention that each token got from all queries of the prompt.
    pub attention_mass: bool,
    /// Tokens to decode from the full cache before the pass.
    pub lookahead: bool,
    /// Projected hidden states of every prompt token.
    pub hidden: bool,
    /// Surprisal of every prompt token.
    pub surprisal: bool,
}

/// A compression method.
pub trait Method: Send + Sync {
    /// What prefill has to record.
    fn needs(&self) -> Needs;
    /// First and last tokens that every head keeps as they are, as far as they fit ([`Pinned::within`]).
    fn pinned(&self, budget: &Budget) -> Pinned {
        Pinned { n_sink: budget.n_sink, n_window: budget.n_window }
    }
    /// Reads all layers and divides the budget.
    ///
    /// # Errors
    /// [`Error::Budget`] when the budget cannot be met, or when the source cannot be read.
    fn allocate(&self, view: &View, budget: &Budget) -> Result<Box<dyn Allocation>>;
}

/// A divided budget, ready to be turned into plans layer by layer.
pub trait Allocation: Sync {
    /// The plan of layer `il`, whose keys and values `view` still holds in full.
    ///
    /// # Errors
    /// When the source cannot be read.
    fn layer(&self, view: &View, il: usize) -> Result<LayerPlan>;
    /// Entries that [`Allocation::layer`] will plan for each KV head of layer `il`.
    fn n_entries(&self, il: usize) -> Vec<usize>;
    /// Counters for the report (slots, nodes, actions of each kind), in a fixed order.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Budget {
    /// The budget of ratio `x` for `n_head_total` (layer, KV head) pairs of `n_tokens` entries each.
    ///
    /// # Errors
    /// [`Error::Budget`] when less than one entry per head would be left; the message names the largest possible ratio.
    pub fn of_ratio(x: f64, n_head_total: usize, n_tokens: usize, n_sink: usize, n_window: usize) -> Result<Self> {
        let n_entries = ((n_head_total * n_tokens) as f64 / x).floor() as usize;
        if n_entries < n_head_total {
            return Err(Error::Budget {
                what: format!("ratio {x} leaves less than one entry per head of a {n_tokens}-token prompt; the largest possible ratio is {n_tokens}"),
            });
        }
        Ok(Budget { n_entries, n_sink, n_window })
    }
}
