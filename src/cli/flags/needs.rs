//! Options that do something only beside others: who types one alone is told so in one line, and the run goes on.
//!
//! What the environment or a configuration file says holds for many runs and is no mistake of this one.

use crate::cli::low::LowArgs;

/// Some options and what they need.
pub struct Need {
    /// Names ([`super::Flag::id`]) of the options.
    pub options: &'static [&'static str],
    /// Whether what they need is there.
    pub is_met: fn(&LowArgs) -> bool,
    /// What is missing, or stands in the way.
    pub why: &'static str,
}

const fn need(options: &'static [&'static str], is_met: fn(&LowArgs) -> bool, why: &'static str) -> Need {
    Need { options, is_met, why }
}

/// Options of the compression; `--kv-report` speaks for itself at the end of a run.
const COMPRESSION: &[&str] = &[
    "kv-method",
    "kv-variant",
    "kv-lookahead",
    "kv-sink",
    "kv-window",
    "kv-floor",
    "kv-prototypes",
    "kv-min-tokens",
    "kv-decode-interval",
    "kv-discard-lookahead",
];
const CHAT: &[&str] = &["system-prompt", "system-prompt-file", "chat-template", "chat-template-file", "single-turn"];

/// All of them.
#[rustfmt::skip]
pub const NEEDS: &[Need] = &[
    // A ratio of 1 that was typed says that nothing is to be compressed.
    need(COMPRESSION, |a| a.kv_force || ["kv-ratio", "kv-compression-ratio", "kv-budget-tokens"].iter().any(|id| a.given.contains(id)), "without --kv-ratio"),
    need(&["kv-ratio", "kv-compression-ratio", "kv-budget-tokens"], |a| a.kv_method != "none", "with --kv-method none, which keeps everything"),
    need(&["kv-floor", "kv-prototypes"], |a| a.kv_method.starts_with("gracekv"), "on another method than gracekv"),
    need(&["prompt-cache-all", "prompt-cache-ro"], |a| a.prompt_cache.is_some(), "without --prompt-cache"),
    need(&["prompt-cache-all"], |a| a.prompt_cache.is_none() || !a.prompt_cache_ro, "beside --prompt-cache-ro"),
    need(CHAT, |a| a.conversation != Some(false), "with -no-cnv"),
    need(&["keep"], |a| a.context_shift, "without --context-shift"),
    need(&["control-vector-layer-range"], |a| !a.control_vectors.is_empty(), "without --control-vector"),
    need(&["hf-file"], |a| a.hf_repo.is_some(), "without --hf-repo"),
    need(&["model", "model-url"], |a| a.hf_repo.is_none(), "beside --hf-repo"),
    need(&["fit-target", "fit-ctx"], |a| a.devices.fit, "with --fit off"),
];

/// A line for each option on the command line that does nothing.
pub fn unmet(low: &LowArgs) -> impl Iterator<Item = String> + '_ {
    let lacking = NEEDS.iter().filter(|need| !(need.is_met)(low));
    lacking.flat_map(|need| {
        let typed = need.options.iter().filter(|id| low.typed.contains(*id));
        typed.map(|id| format!("--{id} has no effect {}", need.why))
    })
}
