//! Options of the context and its KV cache.

use super::Action::{Choice, Int, Path, Switch, Text};
use super::{flag, int, one_of, set, Flag};

/// Types of cached keys and values that llama.cpp offers.
const CACHE_TYPES: &[(&str, &str)] = &[
    ("f32", "f32"),
    ("f16", "f16"),
    ("bf16", "bf16"),
    ("q8_0", "q8_0"),
    ("q4_0", "q4_0"),
    ("q4_1", "q4_1"),
    ("iq4_nl", "iq4_nl"),
    ("q5_0", "q5_0"),
    ("q5_1", "q5_1"),
];

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-c", "--ctx-size"], "N", "LLAMA_ARG_CTX_SIZE", Int(|a, n| set(&mut a.n_ctx, int(n, 0)?)),
        "size of the context in tokens; 0 = what the model was trained with (default: 0)"),
    flag(&["-n", "--predict", "--n-predict"], "N", "LLAMA_ARG_N_PREDICT", Int(|a, n| set(&mut a.n_predict, int(n, i64::MIN)?)),
        "tokens to generate; -1 = no limit, -2 = until the context is full; when a script talks, what it says counts, too, as in llama-completion (default: -1)"),
    flag(&["-b", "--batch-size"], "N", "LLAMA_ARG_BATCH", Int(|a, n| set(&mut a.n_batch, int(n, 1)?)),
        "largest logical batch of prompt tokens (default: 2048)"),
    flag(&["-ub", "--ubatch-size"], "N", "LLAMA_ARG_UBATCH", Int(|a, n| set(&mut a.n_ubatch, int(n, 1)?)),
        "largest batch that is computed at once (default: 512)"),
    flag(&["-fa", "--flash-attn"], "[on|off|auto]", "LLAMA_ARG_FLASH_ATTN", Choice(|a, v| set(&mut a.flash_attn, v)),
        "flash attention; without a value it means on (default: auto)"),
    flag(&["-ctk", "--cache-type-k"], "TYPE", "LLAMA_ARG_CACHE_TYPE_K", Text(|a, v| set(&mut a.cache_type_k, one_of(&v, CACHE_TYPES)?)),
        "type of cached keys: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 (default: f16)"),
    flag(&["-ctv", "--cache-type-v"], "TYPE", "LLAMA_ARG_CACHE_TYPE_V", Text(|a, v| set(&mut a.cache_type_v, one_of(&v, CACHE_TYPES)?)),
        "type of cached values: as --cache-type-k (default: f16)"),
    flag(&["--memory-f32"], "", "", Switch(|a, _| { a.cache_type_k = "f32"; set(&mut a.cache_type_v, "f32") }),
        "same as -ctk f32 -ctv f32"),
    flag(&["--prompt-cache"], "FNAME", "", Path(|a, path| set(&mut a.prompt_cache, Some(path))),
        "file that holds the state after the prompt, compressed or not, for a faster start with the same beginning"),
    flag(&["--prompt-cache-all"], "", "", Switch(|a, _| set(&mut a.prompt_cache_all, true)),
        "save the state after the answer, too"),
    flag(&["--prompt-cache-ro"], "", "", Switch(|a, _| set(&mut a.prompt_cache_ro, true)),
        "use the prompt cache but do not write it"),
    flag(&["--context-shift"], "", "LLAMA_ARG_CONTEXT_SHIFT", Switch(|a, on| set(&mut a.context_shift, on)),
        "when the context is full, drop half of what follows the first --keep tokens and go on (default: disabled)").off_by(&["--no-context-shift"]),
    flag(&["--keep"], "N", "", Int(|a, n| set(&mut a.n_keep, int(n, i64::MIN)?)),
        "tokens of the prompt that a context shift keeps; -1 = all (default: 0)"),
];
