//! What gracekv-perplexity and gracekv-eval do with gracekv-run's options: one table for both.
//!
//! An option that neither is listed here nor belongs to a category that is used as a whole has no effect and is answered by
//! one warning; where results would be others than those that were asked for, it is refused.

use super::{adapter, device, model, rotation, source, Action, Flag};

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It does here what it does in gracekv-run.
    Obeyed,
    /// It has no effect.
    Ignored,
    /// It is an error that gives this reason.
    Refused(&'static str),
}

/// Categories that are used as a whole: what is computed, and where.
const WHOLE: &[&[Flag]] = &[source::FLAGS, rotation::FLAGS, model::FLAGS, device::FLAGS, adapter::FLAGS];

/// Options of other categories that are used.
const OBEYED: &[&str] = &[
    "ctx-size",
    "batch-size",
    "ubatch-size",
    "flash-attn",
    "cache-type-k",
    "cache-type-v",
    "memory-f32",
    // The values of these are read by the tools themselves.
    "kv-ratio",
    "kv-method",
    "kv-variant",
    "kv-lookahead",
    "kv-sink",
    "kv-window",
    "kv-floor",
    "kv-prototypes",
    "kv-min-tokens",
    "kv-force",
    "help",
    "version",
    "list-devices",
    "color",
    "simple-io",
    "verbose",
    "verbosity",
    "log-disable",
    "log-file",
    "log-colors",
    "log-prefix",
    "log-timestamps",
];

/// Options that ask for other results.
const REFUSED: &[(&str, &str)] = &[
    ("prompt", "texts come from files, see -h"),
    ("file", "texts come from other options, see -h"),
    ("binary-file", "texts come from other options, see -h"),
    ("kv-compression-ratio", "name the ratios to compare with --kv-ratio"),
    ("kv-budget-tokens", "name the ratios to compare with --kv-ratio"),
    ("kv-report", "gracekv-run writes it"),
    ("completion-bash", "it is of gracekv-run"),
    ("grammar", "answers are not constrained"),
    ("grammar-file", "answers are not constrained"),
    ("json-schema", "answers are not constrained"),
    ("json-schema-file", "answers are not constrained"),
];

/// What becomes of an option in a program that uses those named in `also`, too.
pub fn in_measurement(flag: &Flag, also: &[&str]) -> Use {
    let id = flag.id();
    let is_known = matches!(flag.action, Action::NoEffect(_) | Action::Refused(_));
    let is_whole = WHOLE.iter().copied().flatten().any(|f| f.id() == id);
    match REFUSED.iter().find(|(name, _)| *name == id) {
        _ if is_known || is_whole || OBEYED.contains(&id) || also.contains(&id) => Use::Obeyed,
        Some((_, why)) => Use::Refused(why),
        None => Use::Ignored,
    }
}
