//! SentencePiece-style BPE (llama, gemma, phi-3): characters merged by the score of the token they make.
//!
//! Stage: text -> token ids. Source: `llm_tokenizer_spm_session` of llama-vocab.cpp: the pair with the highest score
//! first, leftmost of equal ones; a character that is no token becomes its bytes.
//! Not on the crate `tokenizers`: its `Unigram` maximises the sum of scores, and its `BPE` orders merges by a rank per
//! pair, so tokens of equal score (user-defined ones, gemma's runs of spaces) would merge in another order, and pairs
//! of characters outside the vocabulary not at all.
//! `tokenizer.ggml.remove_extra_whitespaces` has no effect on this kind of vocabulary, there as here.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ahash::AHashMap;

use super::vocab::Vocab;

/// The character that stands for a space.
const SPACE: &[u8] = "\u{2581}".as_bytes();

/// A score-driven BPE model.
pub(super) struct Spm {
    ids: AHashMap<Box<[u8]>, u32>,
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    max_token_len: usize,
    add_space_prefix: bool,
}

impl Spm {
    /// Whether a space is put before a text.
    pub(super) fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Builds the model.
    pub(super) fn new(vocab: &Vocab, add_space_prefix: bool) -> Spm {
        let ids: AHashMap<Box<[u8]>, u32> = vocab.texts.iter().map(Box::from).zip(0..).collect();
        let byte_id = |byte: u8| {
            let name = format!("<0x{byte:02X}>");
            ids.get(name.as_bytes()).or_else(|| ids.get(&[byte][..])).copied()
        };
        Spm {
            bytes: std::array::from_fn(|byte| byte_id(byte as u8)),
            max_token_len: vocab.texts.iter().map(<[u8]>::len).max().unwrap_or(0),
            scores: vocab.scores.clone(),
            ids,
            add_space_prefix,
        }
    }

    /// Appends the tokens of `text` to `ids`; `after_special` tells that the text starts or follows a special token.
    pub(super) fn encode(
        &self,
        text: &[u8],
        after_special: bool,
        ids: &mut Vec<u32>,
    ) -> std::result::Result<(), String> {
        let mut escaped = Vec::with_capacity(text.len() + text.len() / 2 + SPACE.len());
        if self.add_space_prefix && after_special {
            escaped.extend(SPACE);
        }
        for &byte in text {
            match byte {
                b' ' => escaped.extend(SPACE),
                _ => escaped.push(byte),
            }
        }
        let mut merger = Merger::new(self, &escaped);
        merger.merge_all();
        merger.symbols.iter().filter(|s| s.len > 0).try_for_each(|s| self.push(s.text(&escaped), ids))
    }

    /// Appends the token `text`, or the tokens of its bytes.
    fn push(&self, text: &[u8], ids: &mut Vec<u32>) -> std::result::Result<(), String> {
        if let Some(&id) = self.ids.get(text) {
            ids.push(id);
            return Ok(());
        }
        for &byte in text {
            let id = self.bytes[usize::from(byte)];
            ids.push(id.ok_or_else(|| format!("the vocabulary has no token for byte 0x{byte:02X}"))?);
        }
        Ok(())
    }
}

/// A stretch of text that is or may become a token; without length once it is merged into its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

impl Symbol {
    fn text<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start..self.start + self.len]
    }
}

/// Two neighbours that make a token.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    /// Length of both; another one tells that they have changed since.
    len: usize,
}

/// The highest score is the greatest, of equal ones the leftmost. Scores are numbers, the vocabulary is checked.
impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

/// The merges of one text.
struct Merger<'m> {
    model: &'m Spm,
    text: &'m [u8],
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Bigram>,
}

impl<'m> Merger<'m> {
    fn new(model: &'m Spm, text: &'m [u8]) -> Self {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        let mut start = 0;
        while start < text.len() {
            let len = char_len(text[start]).min(text.len() - start);
            let i = symbols.len();
            symbols.push(Symbol { start, len, prev: i.checked_sub(1), next: Some(i + 1) });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        let mut merger = Merger { model, text, symbols, queue: BinaryHeap::new() };
        let bigrams: Vec<Bigram> =
            (1..merger.symbols.len()).filter_map(|i| merger.bigram(Some(i - 1), Some(i))).collect();
        merger.queue = bigrams.into();
        merger
    }

    fn merge_all(&mut self) {
        while let Some(Bigram { left, right, len, .. }) = self.queue.pop() {
            let [l, r] = [&self.symbols[left], &self.symbols[right]];
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            let (prev, next) = (l.prev, r.next);
            self.symbols[right].len = 0;
            self.symbols[left].len = len;
            self.symbols[left].next = next;
            if let Some(next) = next {
                self.symbols[next].prev = Some(left);
            }
            let found = [self.bigram(prev, Some(left)), self.bigram(Some(left), next)];
            self.queue.extend(found.into_iter().flatten());
        }
    }

    /// The bigram of two neighbours, if they make a token.
    fn bigram(&self, left: Option<usize>, right: Option<usize>) -> Option<Bigram> {
        let (left, right) = (left?, right?);
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        if len > self.model.max_token_len {
            return None;
        }
        let id = *self.model.ids.get(&self.text[start..start + len])?;
        Some(Bigram { score: self.model.scores[id as usize], left, right, len })
    }
}

/// The text of a token with its spaces.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in memchr::memmem::find_iter(text, SPACE) {
        plain.extend(&text[from..at]);
        plain.push(b' ');
        from = at + SPACE.len();
    }
    plain.extend(&text[from..]);
    plain
}

/// Length of the character that starts with `byte`; llama.cpp takes a stray continuation byte for a character.
fn char_len(byte: u8) -> usize {
    match byte {
        0x00..=0xBF => 1,
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::StrArray;

    fn model(tokens: &[(&str, f32)], add_space_prefix: bool) -> Spm {
        let texts: StrArray = tokens.iter().map(|(text, _)| text).collect();
        let scores = tokens.iter().map(|&(_, score)| score).collect();
        Spm::new(&Vocab { texts, scores }, add_space_prefix)
    }

    fn encode(model: &Spm, text: &[u8], after_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(text, after_special, &mut ids).unwrap();
        ids
    }

    #[test]
    fn the_best_pair_is_merged_first_and_of_equal_ones_the_leftmost() {
        let m = model(&[("a", 0.0), ("b", 0.0), ("aa", -1.0), ("ab", -1.0), ("ba", -0.5)], false);
        assert_eq!(encode(&m, b"aab", false), [2, 1], "aa before ab");
        assert_eq!(encode(&m, b"aba", false), [0, 4], "ba has the better score");
        assert_eq!(encode(&m, b"aaa", false), [2, 0]);
    }

    #[test]
    fn a_space_prefix_follows_a_special_token_only() {
        let m = model(&[("\u{2581}", 0.0), ("a", 0.0), ("\u{2581}a", 1.0)], true);
        assert_eq!(encode(&m, b"a", true), [2]);
        assert_eq!(encode(&m, b"a", false), [1]);
        assert_eq!(encode(&m, b" a", true), [0, 2]);
    }

    #[test]
    fn what_is_no_token_becomes_bytes_and_without_them_an_error() {
        let m = model(&[("<0xC3>", 0.0), ("<0xA9>", 0.0), ("\u{7F}", 0.0)], false);
        assert_eq!(encode(&m, "é\u{7F}".as_bytes(), false), [0, 1, 2]);
        assert_eq!(encode(&m, b"\xA9\xC3", false), [1, 0], "invalid UTF-8 as it is");
        let error = m.encode(b"a", false, &mut Vec::new()).unwrap_err();
        assert_eq!(error, "the vocabulary has no token for byte 0x61");
    }
}
