//! What a prompt cache of this run has to fit.

use crate::cache::state::Identity;
use crate::cli::high::HighArgs;
use crate::cli::setup::asked_pass;
use crate::error::Result;
use crate::pass::Target;
use crate::sample::SampleParams;
use crate::session::Session;
use std::path::PathBuf;

/// What the user asked for, and what a file has to fit.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// `--prompt-cache-ro`: it is not written.
    pub read_only: bool,
    /// `--prompt-cache-all`: it holds the answer, too.
    pub all: bool,
    /// Model, types and compression of this run.
    pub identity: Identity,
    /// How this run chooses tokens, if it would choose the same ones again; empty otherwise.
    pub sampling: String,
}

impl Settings {
    /// The settings of a run; `None` without `--prompt-cache`.
    ///
    /// # Errors
    /// When the model's file cannot be opened again.
    pub fn new(args: &HighArgs, session: &Session) -> Result<Option<Settings>> {
        let low = &args.low;
        let Some(path) = low.prompt_cache.clone() else { return Ok(None) };
        let identity = Identity {
            model: session.engine.model().fingerprint()?,
            kv: session.engine.cache.types(),
            compression: compression(args),
        };
        let (read_only, all) = (low.prompt_cache_ro, low.prompt_cache_all);
        Ok(Some(Settings { path, read_only, all, identity, sampling: sampling(args) }))
    }
}

/// The settings of the compression, as options of the command line.
fn compression(args: &HighArgs) -> String {
    let low = &args.low;
    let Some(o) = asked_pass(args) else { return "none".to_string() };
    let size = match o.target {
        Target::Ratio(x) => format!("--kv-ratio {x}"),
        Target::Tokens(n) => format!("--kv-budget-tokens {n}"),
    };
    let mut text = format!(
        "{} {size} --kv-lookahead {} --kv-sink {} --kv-window {} --kv-min-tokens {}",
        low.kv_method, o.n_lookahead, o.n_sink, o.n_window, o.n_min_tokens
    );
    for (name, share) in [("--kv-floor", low.kv_floor), ("--kv-prototypes", low.kv_prototypes)] {
        text += &share.map_or(String::new(), |x| format!(" {name} {x}"));
    }
    if low.kv_decode_interval > 0 {
        text += &format!(" --kv-decode-interval {}", low.kv_decode_interval);
    }
    for (name, on) in [("--kv-discard-lookahead", low.kv_discard_lookahead), ("--kv-force", o.force)] {
        text += &if on { format!(" {name}") } else { String::new() };
    }
    text
}

/// Every setting of a greedy choice; empty where chance has a part in it.
fn sampling(args: &HighArgs) -> String {
    let (low, p) = (&args.low, &args.low.sample);
    let is_greedy = p.temperature <= 0.0 && p.dynatemp_range <= 0.0 && p.samplers.contains(&"temperature");
    if !is_greedy || p.xtc_probability > 0.0 || p.mirostat != 0 || p.adaptive_target >= 0.0 {
        return String::new();
    }
    let params = SampleParams { seed: 0, ..p.clone() };
    format!("{params:?}, ignore_eos: {}, breakers: {:?}, {:?}", low.ignore_eos, args.dry_breakers, args.constraint)
}
