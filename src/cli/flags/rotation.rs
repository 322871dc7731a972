//! Options that change how positions are rotated: RoPE scaling and YaRN.

use super::Action::{Float, Int, Text};
use super::{finite, flag, int, one_of, set, Flag};
use crate::model::RopeScaling;

const SCALINGS: &[(&str, RopeScaling)] =
    &[("none", RopeScaling::None), ("linear", RopeScaling::Linear), ("yarn", RopeScaling::Yarn)];

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["--rope-scaling"], "{none,linear,yarn}", "LLAMA_ARG_ROPE_SCALING_TYPE", Text(|a, v| set(&mut a.rope.scaling, Some(one_of(&v, SCALINGS)?))),
        "how positions beyond the training are scaled: none, linear or yarn (default: from the model, else linear)"),
    flag(&["--rope-scale"], "N", "LLAMA_ARG_ROPE_SCALE", Float(|a, x| set(&mut a.rope.freq_scale, positive(x)?.map(f32::recip))),
        "stretch the context by a factor of N; 0 = from the model (default: 0)"),
    flag(&["--rope-freq-base"], "N", "LLAMA_ARG_ROPE_FREQ_BASE", Float(|a, x| set(&mut a.rope.freq_base, positive(x)?)),
        "base of the frequencies; 0 = from the model (default: 0)"),
    flag(&["--rope-freq-scale"], "N", "LLAMA_ARG_ROPE_FREQ_SCALE", Float(|a, x| set(&mut a.rope.freq_scale, positive(x)?)),
        "the same as --rope-scale 1/N; 0 = from the model (default: 0)"),
    flag(&["--yarn-orig-ctx"], "N", "LLAMA_ARG_YARN_ORIG_CTX", Int(|a, n| set(&mut a.rope.yarn_orig_ctx, Some(int(n, 0)?).filter(|&n| n > 0))),
        "YaRN: context of the training; 0 = from the model (default: 0)"),
    flag(&["--yarn-ext-factor"], "N", "LLAMA_ARG_YARN_EXT_FACTOR", Float(|a, x| set(&mut a.rope.yarn_ext_factor, not_negative(x)?)),
        "YaRN: how much of the high frequencies is kept; -1 = all with --rope-scaling yarn, else nothing (default: -1)"),
    flag(&["--yarn-attn-factor"], "N", "LLAMA_ARG_YARN_ATTN_FACTOR", Float(|a, x| set(&mut a.rope.yarn_attn_factor, not_negative(x)?)),
        "magnitude of rotated queries and keys; -1 = from the model; YaRN has its own (default: -1)"),
    flag(&["--yarn-beta-slow"], "N", "LLAMA_ARG_YARN_BETA_SLOW", Float(|a, x| set(&mut a.rope.yarn_beta_slow, not_negative(x)?)),
        "YaRN: turns within the training context below which a frequency is scaled; -1 = 1 (default: -1)"),
    flag(&["--yarn-beta-fast"], "N", "LLAMA_ARG_YARN_BETA_FAST", Float(|a, x| set(&mut a.rope.yarn_beta_fast, not_negative(x)?)),
        "YaRN: turns within the training context above which a frequency is kept; -1 = 32 (default: -1)"),
];

/// `None` for 0, which leaves it to the model.
fn positive(x: f64) -> Result<Option<f32>, String> {
    let number = x as f32;
    match x {
        0.0 => Ok(None),
        x if x > 0.0 && number.is_finite() && number.recip().is_finite() => Ok(Some(number)),
        _ => Err(format!("{x} is not a positive number")),
    }
}

/// `None` for a negative number, which leaves it to the model.
fn not_negative(x: f64) -> Result<Option<f32>, String> {
    Ok(Some(finite(x)? as f32).filter(|&x| x >= 0.0))
}
