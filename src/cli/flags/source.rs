//! Options that say which model file is used, and where it comes from.

use super::Action::{Path, Switch, Text};
use super::{flag, set, Flag};
use crate::cli::low::Special;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-m", "--model"], "FNAME", "LLAMA_ARG_MODEL", Path(|a, path| set(&mut a.model, Some(path))),
        "model file (GGUF); of a split model the first part"),
    flag(&["-hf", "-hfr", "--hf-repo"], "<user>/<model>[:quant]", "LLAMA_ARG_HF_REPO", Text(|a, v| set(&mut a.hf_repo, Some(v))),
        "model from a Hugging Face repository, kept in the cache that other tools share; without a quant Q4_K_M, else Q8_0, else the first file. MODEL_ENDPOINT or HF_ENDPOINT names another hub"),
    flag(&["-hff", "--hf-file"], "FILE", "LLAMA_ARG_HF_FILE", Text(|a, v| set(&mut a.hf_file, Some(v))),
        "file of the repository, instead of a quant"),
    flag(&["-hft", "--hf-token"], "TOKEN", "HF_TOKEN", Text(|a, v| set(&mut a.hf_token, Some(v))),
        "Hugging Face access token, for private and gated repositories"),
    flag(&["-mu", "--model-url"], "MODEL_URL", "LLAMA_ARG_MODEL_URL", Text(|a, v| set(&mut a.model_url, Some(v))),
        "model from a URL, kept under its name in the cache or as -m says"),
    flag(&["--offline"], "", "LLAMA_ARG_OFFLINE", Switch(|a, on| set(&mut a.offline, on)),
        "fetch nothing, use what the cache has"),
    flag(&["-cl", "--cache-list"], "", "", Switch(|a, _| { a.special.get_or_insert(Special::CacheList); Ok(()) }),
        "list the models in the cache and exit"),
];
