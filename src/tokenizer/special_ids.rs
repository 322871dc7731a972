//! The tokens with a role: beginning and end of text, and all that end a generation.
//!
//! Stage: gguf -> tokenizer. Source: "special tokens" of `llama_vocab::impl::load` in llama-vocab.cpp. Roles come from
//! metadata; where it has none, from texts that models are known to use.
//! Deviations: an id of a role used here that is out of range is refused (llama.cpp warns and takes a default that
//! fits one model); of several texts for one role the first of the list wins (there, the order of a hash map).

use std::collections::BTreeSet;

use super::vocab::{Attr, Index};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// Ids of the tokens with a role.
#[derive(Debug)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    /// Tokens that end a generation.
    pub(super) eog: BTreeSet<u32>,
}

/// A role that a token can have by its text. Keys without `tokenizer.ggml.` and `_token_id`, the deprecated one last.
struct Role {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    ends_generation: bool,
    /// Whether an id out of range is an error.
    strict: bool,
}

const EOT: usize = 0;
const EOM: usize = 1;
const ROLES: [Role; 8] = [
    Role {
        keys: &["eot"],
        texts: &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
        ends_generation: true,
        strict: true,
    },
    Role { keys: &["eom"], texts: &["<|eom_id|>"], ends_generation: true, strict: true },
    Role {
        keys: &["fim_pre", "prefix"],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends_generation: false,
        strict: false,
    },
    Role {
        keys: &["fim_suf", "suffix"],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends_generation: false,
        strict: false,
    },
    Role {
        keys: &["fim_mid", "middle"],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends_generation: false,
        strict: false,
    },
    Role {
        keys: &["fim_pad"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends_generation: true,
        strict: false,
    },
    Role {
        keys: &["fim_rep"],
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends_generation: true,
        strict: false,
    },
    Role { keys: &["fim_sep"], texts: &["<|file_sep|>"], ends_generation: true, strict: false },
];

/// Texts of tokens that end a generation whatever the metadata says.
const EOG_TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens of gpt-oss that frame its channels: shown and matched in every text.
const ALWAYS_SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialIds {
    /// Finds the roles, given the defaults for beginning and end of text, and corrects `attrs` where the text of a
    /// token says what it is.
    pub(super) fn load(
        gguf: &Gguf,
        index: &Index<'_>,
        attrs: &mut [Attr],
        defaults: [Option<u32>; 2],
    ) -> Result<SpecialIds> {
        let n = attrs.len();
        let [bos, eos] = defaults.map(|id| id.filter(|&id| (id as usize) < n));
        let mut ids = SpecialIds {
            bos: metadata_id(gguf, "bos", n, true)?.or(bos),
            eos: metadata_id(gguf, "eos", n, true)?.or(eos),
            eot: None,
            eom: None,
            eog: BTreeSet::new(),
        };
        for (i, role) in ROLES.iter().enumerate() {
            let id = role.find(gguf, index, attrs)?;
            match i {
                EOT => ids.eot = id,
                EOM => ids.eom = id,
                _ => {}
            }
            ids.eog.extend(id.filter(|_| role.ends_generation));
        }
        for id in EOG_TEXTS.iter().filter_map(|text| id_of(index, text)) {
            ids.eog.insert(id);
            make_control(attrs, id);
        }
        for id in ALWAYS_SHOWN.iter().filter_map(|text| id_of(index, text)) {
            attrs[id as usize] = Attr::USER_DEFINED;
        }
        ids.eog.extend(ids.eos);
        ids.drop_false_ends(index, attrs);
        Ok(ids)
    }

    /// Takes out tokens that end a generation in most models and not in this one.
    fn drop_false_ends(&mut self, index: &Index<'_>, attrs: &mut [Attr]) {
        let ends = |text| id_of(index, text).filter(|id| self.eog.contains(id)).is_some();
        let call = ends("<|call|>") || ends("<|calls|>");
        let end = call && (ends("<|return|>") || ends("<|flush|>"));
        let normal_s = ends("<|tool_response>") || ends("<|plamo:eos|>");
        for (text, drop, attr) in [("<|end|>", end, Attr::USER_DEFINED), ("</s>", normal_s, Attr::NORMAL)] {
            if let Some(id) = id_of(index, text).filter(|_| drop) {
                if self.eog.remove(&id) {
                    attrs[id as usize] = attr;
                }
            }
        }
    }
}

impl Role {
    fn find(&self, gguf: &Gguf, index: &Index<'_>, attrs: &mut [Attr]) -> Result<Option<u32>> {
        let mut found = None;
        for key in self.keys {
            found = metadata_id(gguf, key, attrs.len(), self.strict)?.or(found);
        }
        if found.is_none() {
            found = self.texts.iter().find_map(|text| id_of(index, text));
            found.into_iter().for_each(|id| make_control(attrs, id));
        }
        Ok(found)
    }
}

fn id_of(index: &Index<'_>, text: &str) -> Option<u32> {
    index.get(text.as_bytes()).copied()
}

fn make_control(attrs: &mut [Attr], id: u32) {
    let attr = &mut attrs[id as usize];
    *attr = attr.with(Attr::CONTROL);
}

/// The id of `role` in metadata; one out of range is an error if `strict`, else none.
fn metadata_id(gguf: &Gguf, role: &str, n_vocab: usize, strict: bool) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{role}_token_id");
    match gguf.u32(&key)? {
        Some(id) if id as usize >= n_vocab && strict => Err(Error::gguf(
            gguf.path(),
            format!("key '{key}' is {id}, the vocabulary has {n_vocab} tokens; set it with --override-kv"),
        )),
        id => Ok(id.filter(|&id| (id as usize) < n_vocab)),
    }
}
