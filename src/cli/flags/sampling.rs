//! Options of the samplers.

use super::Action::{Float, Int, Switch, Text};
use super::{finite, flag, int, set, Flag};

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-s", "--seed"], "SEED", "", Int(|a, n| set(&mut a.sample.seed, if n == -1 { u32::MAX } else { int(n, 0)? })),
        "seed of the random numbers; -1 = a random one (default: -1)"),
    flag(&["--temp", "--temperature"], "N", "LLAMA_ARG_TEMPERATURE", Float(|a, x| set(&mut a.sample.temperature, finite(x)?.max(0.0) as f32)),
        "temperature; 0 = always the most probable token (default: 0.80)"),
    flag(&["--top-k"], "N", "LLAMA_ARG_TOP_K", Int(|a, n| set(&mut a.sample.top_k, int(n, i64::MIN)?)),
        "keep the k most probable tokens; 0 = all (default: 40)"),
    flag(&["--top-p"], "N", "LLAMA_ARG_TOP_P", Float(|a, x| set(&mut a.sample.top_p, finite(x)? as f32)),
        "keep the smallest set of tokens with this probability; 1.0 = all (default: 0.95)"),
    flag(&["--min-p"], "N", "LLAMA_ARG_MIN_P", Float(|a, x| set(&mut a.sample.min_p, finite(x)? as f32)),
        "keep tokens with this share of the highest probability; 0.0 = all (default: 0.05)"),
    flag(&["--repeat-last-n"], "N", "", Int(|a, n| set(&mut a.sample.repeat_last_n, u32::try_from(n).map_err(|_| format!("invalid repeat-last-n = {n}"))?)),
        "last tokens the penalties look at; 0 = disabled (default: 64)"),
    flag(&["--repeat-penalty"], "N", "LLAMA_ARG_REPEAT_PENALTY", Float(|a, x| set(&mut a.sample.repeat_penalty, positive(x)?)),
        "penalty for repeated tokens; 1.0 = disabled (default: 1.00)"),
    flag(&["--presence-penalty"], "N", "LLAMA_ARG_PRESENCE_PENALTY", Float(|a, x| set(&mut a.sample.presence_penalty, finite(x)? as f32)),
        "subtracted once from the logit of a repeated token; 0.0 = disabled (default: 0.00)"),
    flag(&["--frequency-penalty"], "N", "LLAMA_ARG_FREQUENCY_PENALTY", Float(|a, x| set(&mut a.sample.frequency_penalty, finite(x)? as f32)),
        "subtracted for every repetition of a token; 0.0 = disabled (default: 0.00)"),
    flag(&["-l", "--logit-bias"], "TOKEN_ID(+/-)BIAS", "", Text(|a, v| { a.sample.logit_bias.push(bias(&v)?); Ok(()) }),
        "adds to the logit of a token, for example 15043+1 or 15043-inf; may be given several times").accumulates(),
    flag(&["--ignore-eos"], "", "", Switch(|a, _| set(&mut a.ignore_eos, true)),
        "go on after the end of the text: end-of-generation tokens are never chosen"),
];

fn positive(x: f64) -> Result<f32, String> {
    let x = x as f32;
    if x > 0.0 && x.is_finite() && x.recip().is_finite() {
        Ok(x)
    } else {
        Err("repeat-penalty must be finite and greater than 0".to_string())
    }
}

/// `15043+1`, `15043-0.5`, `15043-inf`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parse = || {
        let at = text.find(['+', '-'])?;
        let token = text[..at].trim().parse().ok()?;
        let size: f32 = text[at + 1..].trim().parse().ok()?;
        let bias = if text[at..].starts_with('-') { -size } else { size };
        (!bias.is_nan() && bias < f32::INFINITY).then_some((token, bias))
    };
    parse().ok_or_else(|| "invalid input format".to_string())
}
