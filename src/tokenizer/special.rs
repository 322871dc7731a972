//! Cuts a text at its special tokens before the model sees the rest.
//!
//! Stage: text -> fragments -> tokenizer model. Source: `tokenizer_st_partition` and the per-token attributes of
//! llama-vocab.cpp: longest token first, each wherever it stands in the text that is still uncut. That is not
//! leftmost-longest matching: with `ab` and `bcd`, `abcd` is `a` + `bcd`. User-defined tokens always count, control
//! and unknown ones only with `parse_special`.
//! One pass of Aho-Corasick finds the tokens that occur at all, since a vocabulary can have thousands of them.

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;

use super::vocab::{Attr, Index};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, StrArray};

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// A special token.
    Token(u32),
    /// Text for the tokenizer model, never empty.
    Text(&'t [u8]),
}

/// The special tokens of a vocabulary, ready for searching.
pub(super) struct SpecialTokens {
    /// Longest first.
    tokens: Vec<SpecialToken>,
    search: AhoCorasick,
}

struct SpecialToken {
    id: u32,
    attr: Attr,
    finder: Finder<'static>,
}

impl SpecialTokens {
    /// Collects the special tokens and gives them the whitespace rules of their model.
    pub(super) fn load(gguf: &Gguf, texts: &StrArray, attrs: &[Attr], index: &Index<'_>) -> Result<SpecialTokens> {
        let failed =
            |what: String| Error::gguf(gguf.path(), format!("key 'tokenizer.ggml.tokens': special tokens: {what}"));
        let mut attrs = attrs.to_vec();
        set_strip_rules(gguf, index, &mut attrs)?;
        let specials = attrs.iter().zip(texts.iter()).filter(|(attr, _)| attr.any(SPECIAL));
        let bytes: usize = specials.map(|(_, text)| text.len()).sum();
        if bytes > MAX_BYTES {
            return Err(failed(format!("{bytes} bytes of text, at most {MAX_BYTES} can be searched")));
        }
        Self::new(texts, &attrs).map_err(|e| failed(e.to_string()))
    }

    fn new(texts: &StrArray, attrs: &[Attr]) -> std::result::Result<SpecialTokens, aho_corasick::BuildError> {
        let mut specials: Vec<(u32, Attr, &[u8])> = (0..)
            .zip(attrs.iter().zip(texts.iter()))
            .filter(|(_, (attr, _))| attr.any(SPECIAL))
            .map(|(id, (&attr, text))| (id, attr, text))
            .collect();
        specials.sort_by_key(|(.., text)| std::cmp::Reverse(text.len()));
        let search = AhoCorasick::new(specials.iter().map(|(.., text)| text))?;
        let tokens = specials
            .into_iter()
            .map(|(id, attr, text)| SpecialToken { id, attr, finder: Finder::new(text).into_owned() })
            .collect();
        Ok(SpecialTokens { tokens, search })
    }

    /// Cuts `text` into special tokens and the text between them.
    pub(super) fn partition<'t>(&self, text: &'t [u8], parse_special: bool) -> Vec<Fragment<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut present = vec![false; self.tokens.len()];
        for found in self.search.find_overlapping_iter(text) {
            present[found.pattern().as_usize()] = true;
        }
        let mut fragments = vec![Fragment::Text(text)];
        for (token, present) in self.tokens.iter().zip(present) {
            if present && (parse_special || !token.attr.any(HIDDEN)) {
                fragments = token.cut_all(fragments);
            }
        }
        fragments
    }
}

/// The most text of all special tokens, to bound the memory of the search; vocabularies in use have up to 100 kB.
const MAX_BYTES: usize = 1 << 24;
/// What makes a token special.
const SPECIAL: Attr = HIDDEN.with(Attr::USER_DEFINED);
/// What takes part only when special tokens are asked for.
const HIDDEN: Attr = Attr::CONTROL.with(Attr::UNKNOWN);

impl SpecialToken {
    fn cut_all<'t>(&self, fragments: Vec<Fragment<'t>>) -> Vec<Fragment<'t>> {
        let mut cut = Vec::with_capacity(fragments.len() + 2);
        for fragment in fragments {
            match fragment {
                Fragment::Text(text) => self.cut(text, &mut cut),
                token => cut.push(token),
            }
        }
        cut
    }

    fn cut<'t>(&self, mut text: &'t [u8], out: &mut Vec<Fragment<'t>>) {
        while let Some(at) = self.finder.find(text) {
            let (mut before, mut after) = (&text[..at], &text[at + self.finder.needle().len()..]);
            if self.attr.any(Attr::LSTRIP) {
                while let [rest @ .., last] = before {
                    if !is_space(*last) {
                        break;
                    }
                    before = rest;
                }
            }
            if self.attr.any(Attr::RSTRIP) {
                while let [first, rest @ ..] = after {
                    if !is_space(*first) {
                        break;
                    }
                    after = rest;
                }
            }
            push_text(before, out);
            out.push(Fragment::Token(self.id));
            text = after;
        }
        push_text(text, out);
    }
}

fn push_text<'t>(text: &'t [u8], out: &mut Vec<Fragment<'t>>) {
    if !text.is_empty() {
        out.push(Fragment::Text(text));
    }
}

/// C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Attributes that files do not carry and llama.cpp derives from the names of model and tokenizer.
fn set_strip_rules(gguf: &Gguf, index: &Index<'_>, attrs: &mut [Attr]) -> Result<()> {
    let pre = gguf.str("tokenizer.ggml.pre")?.unwrap_or_default();
    let name = gguf.str("general.name")?.unwrap_or_default().to_ascii_lowercase();
    let id_of = |text: &str| index.get(text.as_bytes()).map(|&id| id as usize);

    if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|p| pre.contains(p)) {
        if let Some(id) = id_of("<mask>") {
            attrs[id] = attrs[id].with(Attr::LSTRIP);
        }
    } else if name.contains("phi-3") || name.contains("phi3") {
        for attr in attrs.iter_mut().filter(|attr| attr.any(SPECIAL)) {
            *attr = attr.with(Attr::RSTRIP);
        }
        for id in ["<unk>", "<s>", "<|endoftext|>"].into_iter().filter_map(id_of) {
            attrs[id] = attrs[id].without(Attr::RSTRIP);
        }
    } else if name.contains("modern-bert") {
        if let Some(id) = id_of("[MASK]") {
            attrs[id] = attrs[id].with(Attr::LSTRIP);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fragment::{Text, Token};

    fn tokens(list: &[(&str, Attr)]) -> SpecialTokens {
        let texts: StrArray = list.iter().map(|(text, _)| text).collect();
        let attrs: Vec<Attr> = list.iter().map(|&(_, attr)| attr).collect();
        SpecialTokens::new(&texts, &attrs).unwrap()
    }

    #[test]
    fn the_longest_token_wins_wherever_it_stands() {
        let special = tokens(&[("ab", Attr::USER_DEFINED), ("bcd", Attr::USER_DEFINED)]);
        assert_eq!(special.partition(b"abcd", false), [Text(b"a"), Token(1)]);
        assert_eq!(special.partition(b"abbcd", false), [Token(0), Token(1)]);
        assert_eq!(special.partition(b"xabx", false), [Text(b"x"), Token(0), Text(b"x")]);
        assert_eq!(special.partition(b"", false), []);
    }

    #[test]
    fn control_tokens_need_parse_special_and_normal_ones_never_count() {
        let special = tokens(&[("<c>", Attr::CONTROL), ("n", Attr::NORMAL), ("<u>", Attr::UNKNOWN)]);
        assert_eq!(special.partition(b"n<c><u>", false), [Text(b"n<c><u>")]);
        assert_eq!(special.partition(b"n<c><u>", true), [Text(b"n"), Token(0), Token(2)]);
    }

    #[test]
    fn stripped_whitespace_disappears_on_the_side_of_the_attribute() {
        let special =
            tokens(&[("<l>", Attr::USER_DEFINED.with(Attr::LSTRIP)), ("<r>", Attr::USER_DEFINED.with(Attr::RSTRIP))]);
        assert_eq!(special.partition(b"a \n<l> b", false), [Text(b"a"), Token(0), Text(b" b")]);
        assert_eq!(special.partition(b"a <r>\t\n b", false), [Text(b"a "), Token(1), Text(b"b")]);
        assert_eq!(special.partition(b" <l><r> ", false), [Token(0), Token(1)]);
    }
}
