//! Byte-level BPE (GPT-2 and its descendants): words, each byte as a character, merged by rank.
//!
//! Stage: text -> token ids. Source: `llm_tokenizer_bpe_session` of llama-vocab.cpp; the merges are done by the `BPE`
//! model of the crate `tokenizers`, whose order (lowest rank, then leftmost) is the same.
//! Merges that name no token are llama.cpp's too: it merges texts, not ids, and what is no token at the end becomes
//! its single ASCII characters, the rest is lost. Such texts get ids above the vocabulary here.
//! Invalid UTF-8: each byte becomes U+FFFD, as there (which lets overlong forms and surrogates pass).

use std::borrow::Cow;
use std::ops::Range;

use ahash::{AHashMap, AHashSet};
use tokenizers::models::bpe::BPE;
use tokenizers::Model;

use super::pretokenize::{PreTokenizer, Row};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, StrArray};

const MERGES: &str = "tokenizer.ggml.merges";

/// A byte-level BPE model.
pub(super) struct Bpe {
    pre_tokenizer: PreTokenizer,
    model: BPE,
    byte_chars: [char; 256],
    n_vocab: usize,
    /// The tokens that stand for the texts with ids from `n_vocab` on.
    substitutes: Vec<Vec<u32>>,
}

impl Bpe {
    /// Builds the model from the token texts and the merges of `gguf`.
    pub(super) fn load(gguf: &Gguf, texts: &StrArray, row: &Row) -> Result<Bpe> {
        let failed = |what: String| Error::gguf(gguf.path(), what);
        // A text that is not UTF-8 cannot be part of a word.
        let vocab: AHashMap<String, u32> = (0..)
            .zip(texts.iter())
            .filter_map(|(id, text)| Some((std::str::from_utf8(text).ok()?.to_owned(), id)))
            .collect();
        let mut merges = Merges { vocab, next_id: texts.len() as u32, list: Vec::new(), substitutes: Vec::new() };
        merges.extend(gguf.require_str_array(MERGES)?);
        let model = BPE::builder()
            .vocab_and_merges(merges.vocab, merges.list)
            .ignore_merges(row.ignore_merges)
            // Its cache belongs to the thread and outlives the model.
            .cache_capacity(0)
            .build()
            .map_err(|e| failed(format!("key '{MERGES}': {e}")))?;
        Ok(Bpe {
            pre_tokenizer: PreTokenizer::new(row).map_err(|e| failed(e.to_string()))?,
            model,
            byte_chars: byte_chars(),
            n_vocab: texts.len(),
            substitutes: merges.substitutes,
        })
    }

    /// Appends the tokens of `text` to `ids`.
    pub(super) fn encode(&self, text: &[u8], ids: &mut Vec<u32>) -> std::result::Result<(), String> {
        let text = decode(text);
        let mut encoded = String::new();
        // Where in `ids` the tokens of a word begin and end: texts have few words, many times.
        let mut known: AHashMap<&str, Range<usize>> = AHashMap::new();
        for word in self.pre_tokenizer.words(&text) {
            if let Some(range) = known.get(word) {
                ids.extend_from_within(range.clone());
                continue;
            }
            let begin = ids.len();
            encoded.clear();
            encoded.extend(word.bytes().map(|byte| self.byte_chars[usize::from(byte)]));
            for token in self.model.tokenize(&encoded).map_err(|e| e.to_string())? {
                match (token.id as usize).checked_sub(self.n_vocab) {
                    None => ids.push(token.id),
                    Some(i) => ids.extend(&self.substitutes[i]),
                }
            }
            known.insert(word, begin..ids.len());
        }
        Ok(())
    }
}

/// Merges by rank and the vocabulary they refer to.
struct Merges {
    vocab: AHashMap<String, u32>,
    next_id: u32,
    list: Vec<(String, String)>,
    substitutes: Vec<Vec<u32>>,
}

impl Merges {
    fn extend(&mut self, merges: &StrArray) {
        let mut seen = AHashSet::with_capacity(merges.len());
        for (left, right) in merges.iter().filter_map(parse_merge) {
            let pair = (self.id(left), self.id(right));
            // Of a repeated merge the first rank counts.
            if seen.insert(pair) {
                self.id(&[left, right].concat());
                self.list.push((left.to_owned(), right.to_owned()));
            }
        }
    }

    /// The id of `text`, a new one if it is no token.
    fn id(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.vocab.get(text) {
            return id;
        }
        let chars = text.chars().filter(char::is_ascii);
        self.substitutes
            .push(chars.filter_map(|c| self.vocab.get(c.encode_utf8(&mut [0; 4]) as &str).copied()).collect());
        let id = self.next_id;
        self.vocab.insert(text.to_owned(), id);
        self.next_id += 1;
        id
    }
}

/// The two parts of a merge. Without a space between two parts it can never apply, and llama.cpp keeps quiet about it.
fn parse_merge(merge: &[u8]) -> Option<(&str, &str)> {
    let space = 1 + memchr::memchr(b' ', merge.get(1..)?)?;
    let left = std::str::from_utf8(&merge[..space]).ok()?;
    let right = std::str::from_utf8(&merge[space + 1..]).ok()?;
    (!right.is_empty()).then_some((left, right))
}

/// GPT-2's character for each byte: printable Latin-1 stands for itself, the rest follows from U+0100 on.
fn byte_chars() -> [char; 256] {
    let mut next = 0x100u16;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(u32::from(next - 1)).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// Gives the bytes of token texts in GPT-2's alphabet.
pub(super) struct ByteDecoder {
    bytes: AHashMap<char, u8>,
}

impl ByteDecoder {
    /// The inverse of the byte-level alphabet.
    pub(super) fn new() -> Self {
        ByteDecoder { bytes: byte_chars().into_iter().zip(0..=255).collect() }
    }

    /// The bytes of `text`; a character outside the alphabet is shown as llama.cpp shows it.
    pub(super) fn decode(&self, text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(text.len());
        for c in decode(text).chars() {
            if let Some(&byte) = self.bytes.get(&c) {
                bytes.push(byte);
                continue;
            }
            bytes.extend(b"[UNK_BYTE_0x");
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| bytes.extend(format!("{b:02x}").bytes()));
            bytes.extend(text);
            bytes.push(b']');
        }
        bytes
    }
}

/// `bytes` as text, each byte that is no UTF-8 as U+FFFD.
fn decode(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_gpt2s_and_invertible() {
        let chars = byte_chars();
        assert_eq!(
            (chars[0], chars[10], chars[32], chars[127], chars[160], chars[173]),
            ('Ā', 'Ċ', 'Ġ', 'ġ', 'ł', 'Ń')
        );
        let bytes: Vec<u8> = (0..=255).collect();
        let text: String = chars.iter().collect();
        assert_eq!(ByteDecoder::new().decode(text.as_bytes()), bytes);
    }

    #[test]
    fn each_invalid_byte_is_replaced() {
        assert_eq!(decode(b"a\xE2\x82b\xFF"), "a\u{FFFD}\u{FFFD}b\u{FFFD}");
        assert_eq!(decode("é".as_bytes()), "é");
    }

    #[test]
    fn merges_that_cannot_apply_are_skipped() {
        for merge in ["", "a", "ab", "a ", " a"] {
            assert_eq!(parse_merge(merge.as_bytes()), None, "'{merge}'");
        }
        assert_eq!(parse_merge(b"\xC4\xA0 t"), Some(("\u{120}", "t")));
        assert_eq!(parse_merge(b"a \xFF"), None);
    }
}
