//! The token table: texts, scores and attributes as `tokenizer.ggml.*` gives them, checked once.
//!
//! Stage: gguf -> tokenizer. Source: `llama_vocab::impl::load` of llama-vocab.cpp.
//! Deviations: a repeated token text, a score that is no number and a byte token without a byte are refused with a
//! message (llama.cpp aborts, or reads a byte 0); a text longer than `MAX_TOKEN_LEN` is refused.

use ahash::AHashMap;

use crate::error::{Error, Result};
use crate::gguf::{Array, Gguf, StrArray, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";

/// The longest token text in bytes; the longest in use are runs of about a thousand spaces.
const MAX_TOKEN_LEN: usize = 1 << 16;

/// Attributes of a token, a set of flags; none is llama.cpp's "undefined".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attr(u8);

impl Attr {
    pub(super) const UNDEFINED: Attr = Attr(0);
    pub(super) const NORMAL: Attr = Attr(1);
    pub(super) const UNKNOWN: Attr = Attr(2);
    pub(super) const CONTROL: Attr = Attr(4);
    pub(super) const USER_DEFINED: Attr = Attr(8);
    pub(super) const BYTE: Attr = Attr(16);
    /// Whitespace before the token belongs to it.
    pub(super) const LSTRIP: Attr = Attr(32);
    /// Whitespace after the token belongs to it.
    pub(super) const RSTRIP: Attr = Attr(64);

    /// The attribute for an element of `tokenizer.ggml.token_type`.
    fn from_type(token_type: i32) -> Attr {
        match token_type {
            1 => Attr::NORMAL,
            2 => Attr::UNKNOWN,
            3 => Attr::CONTROL,
            4 => Attr::USER_DEFINED,
            6 => Attr::BYTE,
            _ => Attr::UNDEFINED,
        }
    }

    /// Both sets together.
    pub(super) const fn with(self, other: Attr) -> Attr {
        Attr(self.0 | other.0)
    }

    /// This set less `other`.
    pub(super) const fn without(self, other: Attr) -> Attr {
        Attr(self.0 & !other.0)
    }

    /// Whether any flag of `other` is set.
    pub(super) const fn any(self, other: Attr) -> bool {
        self.0 & other.0 != 0
    }
}

/// Token ids by text.
pub(super) type Index<'v> = AHashMap<&'v [u8], u32>;

/// Texts and scores of the tokens, by id.
pub(super) struct Vocab {
    /// The texts as the file spells them, an empty one as `[EMPTY_id]`.
    pub(super) texts: StrArray,
    /// Merge priorities of SPM, 0 where the file has none.
    pub(super) scores: Vec<f32>,
}

impl Vocab {
    /// Reads the table and the attribute of each token.
    pub(super) fn load(gguf: &Gguf) -> Result<(Vocab, Vec<Attr>)> {
        let tokens = gguf.require_str_array(TOKENS)?;
        let n = tokens.len();
        if n == 0 || i32::try_from(n).is_err() {
            return Err(Error::gguf(gguf.path(), format!("key '{TOKENS}' has {n} elements, expected 1 to 2^31 - 1")));
        }
        if let Some(id) = tokens.iter().position(|text| text.len() > MAX_TOKEN_LEN) {
            return Err(Error::gguf(
                gguf.path(),
                format!("key '{TOKENS}': token {id} is longer than {MAX_TOKEN_LEN} bytes"),
            ));
        }
        let vocab = Vocab { texts: named(tokens), scores: scores(gguf, n)? };
        let attrs = match gguf.i32_array(TOKEN_TYPES)? {
            Some(types) => {
                check_len(gguf, TOKEN_TYPES, types.len(), n)?;
                types[..n].iter().map(|&t| Attr::from_type(t)).collect()
            }
            None => vec![Attr::NORMAL; n],
        };
        Ok((vocab, attrs))
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The ids by text.
    pub(super) fn index(&self, gguf: &Gguf) -> Result<Index<'_>> {
        let mut index = Index::with_capacity(self.len());
        for (id, text) in (0..).zip(self.texts.iter()) {
            if let Some(first) = index.insert(text, id) {
                return Err(Error::gguf(
                    gguf.path(),
                    format!("key '{TOKENS}': tokens {first} and {id} have the same text"),
                ));
            }
        }
        Ok(index)
    }
}

/// The byte that a byte token such as `<0x0A>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    match hex {
        [a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => {
            u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
        }
        _ => None,
    }
}

fn named(tokens: &StrArray) -> StrArray {
    if tokens.iter().all(|text| !text.is_empty()) {
        return tokens.clone();
    }
    let name = |(id, text): (usize, &[u8])| match text {
        [] => format!("[EMPTY_{id}]").into_bytes(),
        _ => text.to_vec(),
    };
    tokens.iter().enumerate().map(name).collect()
}

fn scores(gguf: &Gguf, n: usize) -> Result<Vec<f32>> {
    let mut scores = match gguf.value(SCORES) {
        None => return Ok(vec![0.0; n]),
        Some(Value::Array(Array::I32(scores))) => scores.iter().map(|&s| s as f32).collect(),
        Some(_) => gguf.f32_array(SCORES)?.unwrap_or_default(),
    };
    check_len(gguf, SCORES, scores.len(), n)?;
    scores.truncate(n);
    match scores.iter().position(|s| s.is_nan()) {
        Some(id) => Err(Error::gguf(gguf.path(), format!("key '{SCORES}': the score of token {id} is not a number"))),
        None => Ok(scores),
    }
}

/// Refuses an array shorter than the vocabulary; llama.cpp takes longer ones too.
fn check_len(gguf: &Gguf, key: &str, len: usize, n_tokens: usize) -> Result<()> {
    if len >= n_tokens {
        return Ok(());
    }
    let what = format!("key '{key}' has {len} elements, expected {n_tokens}, one per token");
    Err(Error::gguf(gguf.path(), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_token_is_two_hexadecimal_digits() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(format!("<0x{byte:02X}>").as_bytes()), Some(byte));
        }
        for text in ["", "<0x>", "<0x1>", "<0x+1>", "<0x001>", "0x01", "<0x0A"] {
            assert_eq!(byte_of(text.as_bytes()), None, "{text}");
        }
    }
}
