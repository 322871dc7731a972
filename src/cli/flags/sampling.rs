//! Options of the samplers and of the grammar.

use super::Action::{Float, Int, Path, Switch, Text};
use super::{finite, flag, int, set, Check, Flag};
use crate::cli::low::{Constraint, LowArgs, Source};
use crate::error;
use crate::sample::order::Order;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["--samplers"], "SAMPLERS", "", Text(|a, v| order(a, Order::from_names(&v))),
        "samplers in the order in which they are applied, separated by ';' (default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)"),
    flag(&["--sampler-seq", "--sampling-seq"], "SEQUENCE", "", Text(|a, v| order(a, Order::from_letters(&v))),
        "the same by letters; a is adaptive_p (default: edskypmxt)"),
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
    flag(&["--top-nsigma", "--top-n-sigma"], "N", "", Float(|a, x| set(&mut a.sample.top_n_sigma, finite(x)? as f32)),
        "keep tokens within N standard deviations of the highest logit; -1.0 = all (default: -1.00)"),
    flag(&["--xtc-probability"], "N", "", Float(|a, x| set(&mut a.sample.xtc_probability, finite(x)? as f32)),
        "how often XTC removes the top choices but one; 0.0 = never (default: 0.00)"),
    flag(&["--xtc-threshold"], "N", "", Float(|a, x| set(&mut a.sample.xtc_threshold, finite(x)? as f32)),
        "probability of a top choice of XTC; above 0.5 = disabled (default: 0.10)"),
    flag(&["--typical", "--typical-p"], "N", "", Float(|a, x| set(&mut a.sample.typ_p, finite(x)? as f32)),
        "keep the most typical tokens until they have this probability; 1.0 = all (default: 1.00)"),
    flag(&["--repeat-last-n"], "N", "", Int(|a, n| set(&mut a.sample.repeat_last_n, u32::try_from(n).map_err(|_| format!("invalid repeat-last-n = {n}"))?)),
        "last tokens the penalties look at; 0 = disabled (default: 64)"),
    flag(&["--repeat-penalty"], "N", "LLAMA_ARG_REPEAT_PENALTY", Float(|a, x| set(&mut a.sample.repeat_penalty, positive(x)?)),
        "penalty for repeated tokens; 1.0 = disabled (default: 1.00)"),
    flag(&["--presence-penalty"], "N", "LLAMA_ARG_PRESENCE_PENALTY", Float(|a, x| set(&mut a.sample.presence_penalty, finite(x)? as f32)),
        "subtracted once from the logit of a repeated token; 0.0 = disabled (default: 0.00)"),
    flag(&["--frequency-penalty"], "N", "LLAMA_ARG_FREQUENCY_PENALTY", Float(|a, x| set(&mut a.sample.frequency_penalty, finite(x)? as f32)),
        "subtracted for every repetition of a token; 0.0 = disabled (default: 0.00)"),
    flag(&["--dry-multiplier"], "N", "", Float(|a, x| set(&mut a.sample.dry_multiplier, finite(x)? as f32)),
        "DRY penalty for tokens that continue a repetition; 0.0 = disabled (default: 0.00)"),
    flag(&["--dry-base"], "N", "", Float(|a, x| dry_base(a, finite(x)? as f32)),
        "factor of the DRY penalty for every further token of the repetition (default: 1.75)"),
    flag(&["--dry-allowed-length"], "N", "", Int(|a, n| set(&mut a.sample.dry_allowed_length, int(n, i64::MIN)?)),
        "longest repetition without a DRY penalty (default: 2)"),
    flag(&["--dry-penalty-last-n"], "N", "", Int(|a, n| set(&mut a.sample.dry_penalty_last_n, u32::try_from(n).map_err(|_| format!("invalid dry-penalty-last-n = {n}"))?)),
        "last tokens that DRY searches for repetitions; 0 = disabled (default: 64)"),
    flag(&["--dry-sequence-breaker"], "STRING", "", Text(dry_breaker),
        r#"text that ends a repetition for DRY, in place of the default ones ('\n', ':', '"', '*'); none = no text; may be given several times"#).accumulates(),
    flag(&["--adaptive-target"], "N", "", Float(|a, x| set(&mut a.sample.adaptive_target, finite(x)? as f32)),
        "probability that adaptive_p prefers, if it is among the samplers; negative = disabled (default: -1.00)"),
    flag(&["--adaptive-decay"], "N", "", Float(|a, x| set(&mut a.sample.adaptive_decay, finite(x)? as f32)),
        "how long adaptive_p remembers, from 0.0 to 0.99 (default: 0.90)"),
    flag(&["--dynatemp-range"], "N", "", Float(|a, x| set(&mut a.sample.dynatemp_range, finite(x)? as f32)),
        "how far the temperature follows the entropy, up and down; 0.0 = disabled (default: 0.00)"),
    flag(&["--dynatemp-exp"], "N", "", Float(|a, x| set(&mut a.sample.dynatemp_exponent, finite(x)? as f32)),
        "exponent of the entropy for --dynatemp-range (default: 1.00)"),
    flag(&["--mirostat"], "N", "", Int(mirostat),
        "Mirostat in place of the other samplers: 1 or 2; 0 = disabled (default: 0)"),
    flag(&["--mirostat-lr"], "N", "", Float(|a, x| set(&mut a.sample.mirostat_eta, finite(x)? as f32)),
        "learning rate of Mirostat, eta (default: 0.10)"),
    flag(&["--mirostat-ent"], "N", "", Float(|a, x| set(&mut a.sample.mirostat_tau, finite(x)? as f32)),
        "surprise that Mirostat aims at, tau (default: 5.00)"),
    flag(&["-l", "--logit-bias"], "TOKEN_ID(+/-)BIAS", "", Text(|a, v| { a.sample.logit_bias.push(bias(&v)?); Ok(()) }),
        "adds to the logit of a token, for example 15043+1 or 15043-inf; may be given several times").accumulates(),
    flag(&["--ignore-eos"], "", "", Switch(|a, _| set(&mut a.ignore_eos, true)),
        "go on after the end of the text: end-of-generation tokens are never chosen"),
    flag(&["--grammar"], "GRAMMAR", "", Text(|a, v| constrain(a, Constraint::Gbnf(Source::Text(v)))),
        "grammar in GBNF that the text has to match"),
    flag(&["--grammar-file"], "FNAME", "", Path(|a, path| constrain(a, Constraint::Gbnf(Source::Binary(path)))),
        "file with the grammar"),
    flag(&["-j", "--json-schema"], "SCHEMA", "", Text(|a, v| constrain(a, Constraint::JsonSchema(Source::Text(v)))),
        "JSON schema that the text has to match, for example {\"type\": \"object\"} for any object"),
    flag(&["-jf", "--json-schema-file"], "FILE", "", Path(|a, path| constrain(a, Constraint::JsonSchema(Source::Binary(path)))),
        "file with the JSON schema"),
];

fn order(a: &mut LowArgs, order: error::Result<Order>) -> Check {
    let order = order.map_err(|e| e.to_string())?;
    a.warnings.extend(order.warnings);
    set(&mut a.sample.samplers, order.names)
}

/// llama.cpp leaves the default where the base is below 1.
fn dry_base(a: &mut LowArgs, base: f32) -> Check {
    match base >= 1.0 {
        true => set(&mut a.sample.dry_base, base),
        false => {
            a.warnings.push(format!("--dry-base {base} has no effect: it must be at least 1"));
            Ok(())
        }
    }
}

fn dry_breaker(a: &mut LowArgs, text: String) -> Check {
    let breakers = a.dry_sequence_breakers.get_or_insert_default();
    match text.as_str() {
        "none" => breakers.clear(),
        _ => breakers.push(text),
    }
    Ok(())
}

fn mirostat(a: &mut LowArgs, version: i64) -> Check {
    match version {
        0..=2 => set(&mut a.sample.mirostat, int(version, 0)?),
        _ => Err(format!("{version} is no version; it can be 0, 1 or 2")),
    }
}

/// The last one counts, as in llama.cpp.
fn constrain(a: &mut LowArgs, constraint: Constraint) -> Check {
    let kind = |c: &Constraint| matches!(c, Constraint::Gbnf(_));
    if a.constraint.as_ref().is_some_and(|old| kind(old) != kind(&constraint)) {
        a.warnings.push("a grammar and a JSON schema exclude each other: the last one is used".to_owned());
    }
    set(&mut a.constraint, Some(constraint))
}

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
