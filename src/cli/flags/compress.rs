//! Options of the compression of the KV cache. They are ours; names follow what peers use for the same thing.

use super::Action::{Float, Int, Path, Switch, Text};
use super::{flag, int, one_of, set, share, Flag};
use crate::cli::low::{KvSize, Special, Variant};
use crate::compress::MAX_RATIO;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["--kv-ratio"], "N", "GRACEKV_ARG_KV_RATIO", Float(|a, x| set(&mut a.kv_size, ratio(x)?)),
        "make the KV cache of the prompt N times smaller once the prompt is read; 1 = leave it as it is. Lossy (default: 1)").group("kv-size"),
    flag(&["--kv-compression-ratio"], "F", "GRACEKV_ARG_KV_COMPRESSION_RATIO", Float(|a, x| set(&mut a.kv_size, removed(x)?)),
        "the same as a fraction that is removed: 0.75 is --kv-ratio 4").group("kv-size"),
    flag(&["--kv-budget-tokens", "--kv-budget"], "N", "GRACEKV_ARG_KV_BUDGET_TOKENS", Int(|a, n| set(&mut a.kv_size, KvSize::Tokens(int(n, 1)?))),
        "the same as entries that are left for each head on average").group("kv-size"),
    flag(&["--kv-method"], "NAME", "GRACEKV_ARG_KV_METHOD", Text(|a, v| {
        if v == "list" { a.special.get_or_insert(Special::Methods); } else { a.kv_method = v; }
        Ok(())
    }), "compression method, with modifiers as in gracekv+paper; 'list' prints them all (default: gracekv)"),
    flag(&["--kv-variant"], "NAME", "GRACEKV_ARG_KV_VARIANT", Text(|a, v| set(&mut a.kv_variant, one_of(&v, &[("fitted", Variant::Fitted), ("paper", Variant::Paper)])?)),
        "form of gracekv: fitted (prototypes fitted to the queries) or paper, the same as gracekv+paper (default: fitted)"),
    flag(&["--kv-lookahead"], "M", "GRACEKV_ARG_KV_LOOKAHEAD", Int(|a, n| set(&mut a.kv_lookahead, int(n, 0)?)),
        "compress after the first M tokens of the answer, whose queries show what it reads; 0 = right after the prompt (default: 32)"),
    flag(&["--kv-sink"], "N", "GRACEKV_ARG_KV_SINK", Int(|a, n| set(&mut a.kv_sink, Some(int(n, 0)?))),
        "first tokens that are always kept (default: 4)"),
    flag(&["--kv-window", "--kv-recent"], "N", "GRACEKV_ARG_KV_WINDOW", Int(|a, n| set(&mut a.kv_window, Some(int(n, 0)?))),
        "last tokens of the prompt that are always kept (default: 16)"),
    flag(&["--kv-floor"], "F", "GRACEKV_ARG_KV_FLOOR", Float(|a, x| set(&mut a.kv_floor, Some(share(x)?))),
        "share of an equal division that every head keeps at least (default: the method's own)"),
    flag(&["--kv-prototypes"], "F", "GRACEKV_ARG_KV_PROTOTYPES", Float(|a, x| set(&mut a.kv_prototypes, Some(share(x)?))),
        "share of the budget for prototypes that stand for many tokens; 0 = none (default: the method's own)"),
    flag(&["--kv-min-tokens"], "N", "GRACEKV_ARG_KV_MIN_TOKENS", Int(|a, n| set(&mut a.kv_min_tokens, int(n, 0)?)),
        "leave shorter prompts and turns as they are (default: 128)"),
    flag(&["--kv-decode-interval"], "N", "GRACEKV_ARG_KV_DECODE_INTERVAL", Int(|a, n| set(&mut a.kv_decode_interval, int(n, 0)?)),
        "compress again whenever N tokens have come since the last time; 0 = only long turns, and when the context is full (default: 0)"),
    flag(&["--kv-report"], "FILE", "GRACEKV_ARG_KV_REPORT", Path(|a, path| set(&mut a.kv_report, Some(path))),
        "write what the last pass kept, in bytes and entries, as JSON"),
    flag(&["--kv-discard-lookahead"], "", "", Switch(|a, _| set(&mut a.kv_discard_lookahead, true)),
        "throw the first M tokens away and start the answer from the compressed cache; for measurements"),
    flag(&["--kv-force"], "", "", Switch(|a, _| set(&mut a.kv_force, true)),
        "run the pass also at ratio 1; for tests"),
];

fn ratio(x: f64) -> Result<KvSize, String> {
    if (1.0..=MAX_RATIO).contains(&x) {
        return Ok(KvSize::Ratio(x));
    }
    if x > MAX_RATIO && x.is_finite() {
        return Err(format!("{x:e} is more than any cache can be made smaller; at most {MAX_RATIO:e}"));
    }
    if (1.0 / MAX_RATIO..1.0).contains(&x) {
        return Err(format!(
            "{x} looks like a fraction, but --kv-ratio is how many times smaller the cache becomes; \
             to keep {x} of it use --kv-ratio {:.4}, to remove {x} of it use --kv-compression-ratio {x}",
            Short(1.0 / x)
        ));
    }
    Err(format!("{x:?} is not a number of at least 1"))
}

fn removed(x: f64) -> Result<KvSize, String> {
    if (0.0..1.0).contains(&x) {
        return ratio(1.0 / (1.0 - x));
    }
    if (1.0..=MAX_RATIO).contains(&x) {
        return Err(format!(
            "{x} is not a fraction that can be removed; to make the cache {x} times smaller use --kv-ratio {x}"
        ));
    }
    Err(format!("{x:?} is not a fraction from 0 to below 1"))
}

/// A number without trailing zeros.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.*}", f.precision().unwrap_or(4), self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}
