//! Texts to hide something in: sentences of files, or sentences that say nothing.

use super::draw::Draw;
use crate::error::{Error, Result};
use std::path::Path;

/// A text as sentences, read in a circle.
pub struct Haystack {
    /// Each with its number of words.
    sentences: Vec<(String, usize)>,
}

impl Haystack {
    /// The texts of these files, one after the other.
    ///
    /// # Errors
    /// When a file cannot be read, is no UTF-8, or has no words.
    pub fn open(files: &[String]) -> Result<Self> {
        let mut sentences = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(file).map_err(|e| Error::io(Path::new(file), e))?;
            let own = Self::new(&text);
            if own.sentences.is_empty() {
                return Err(Error::Context { what: format!("{file}: a haystack needs words, this file has none") });
            }
            sentences.extend(own.sentences);
        }
        Ok(Haystack { sentences })
    }

    /// The sentences of a text, without line breaks.
    pub fn new(text: &str) -> Self {
        let mut sentences: Vec<(String, usize)> = Vec::new();
        let mut is_open = false;
        for word in text.split_whitespace() {
            match sentences.last_mut().filter(|_| is_open) {
                Some((last, n)) => {
                    last.push(' ');
                    last.push_str(word);
                    *n += 1;
                }
                None => sentences.push((word.to_owned(), 1)),
            }
            is_open = !word.ends_with(['.', '?', '!']);
        }
        Haystack { sentences }
    }

    /// Sentences that say nothing, for want of a text.
    pub fn filler() -> Self {
        Self::new(&filler(2520).join(" "))
    }

    /// `n_words` words from a random sentence on, with the needles at random depths between sentences, in their order.
    pub fn hide(&self, draw: &mut Draw, n_words: usize, needles: &[String]) -> String {
        let start = draw.below(self.sentences.len());
        let mut depths: Vec<usize> = needles.iter().map(|_| draw.below(1001)).collect();
        depths.sort_unstable();

        let mut parts: Vec<&str> = Vec::new();
        let mut left = n_words;
        for (sentence, n) in self.sentences.iter().cycle().skip(start) {
            if *n >= left {
                parts.extend(first_words(sentence, left));
                break;
            }
            parts.push(sentence);
            left -= n;
        }
        let places: Vec<usize> = depths.iter().map(|depth| parts.len() * depth / 1000).collect();
        for (place, needle) in places.iter().zip(needles).rev() {
            parts.insert(*place, needle);
        }
        parts.join(" ")
    }
}

/// The first `n` words; `None` for none.
fn first_words(sentence: &str, n: usize) -> Option<&str> {
    let end = sentence.match_indices(' ').nth(n.checked_sub(1)?).map_or(sentence.len(), |(at, _)| at);
    Some(&sentence[..end])
}

/// `n` sentences that say nothing.
pub fn filler(n: usize) -> Vec<String> {
    const SUBJECTS: [&str; 8] = [
        "The river",
        "A small train",
        "The old library",
        "Every morning the baker",
        "The wind",
        "A grey cat",
        "The market",
        "Our neighbour",
    ];
    const VERBS: [&str; 7] = [
        "passes",
        "wakes up near",
        "keeps an eye on",
        "leaves a trace at",
        "returns to",
        "is often seen by",
        "tells a story about",
    ];
    const OBJECTS: [&str; 9] = [
        "the bridge",
        "the long road",
        "the harbour wall",
        "a row of quiet houses",
        "the empty square",
        "the edge of the forest",
        "the last lamp",
        "a field of barley",
        "the stone steps",
    ];
    (0..n).map(|i| format!("{} {} {}.", SUBJECTS[i % 8], VERBS[i / 3 % 7], OBJECTS[i / 5 % 9])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_lose_nothing_but_line_breaks() {
        let got = Haystack::new("One two. Three?  Four\nfive! six").sentences;
        let want = [("One two.", 2), ("Three?", 1), ("Four five!", 2), ("six", 1)];
        assert_eq!(got, want.map(|(s, n)| (s.to_owned(), n)));
        assert_eq!(filler(500).len(), 500);
    }

    #[test]
    fn words_are_counted_and_needles_keep_their_order() {
        let haystack = Haystack::new("a b c. d e. f g h i.");
        let needles = ["ONE.".to_owned(), "TWO.".to_owned()];
        for n in 0..40 {
            let text = haystack.hide(&mut Draw::new(3, "test", n), n, &needles);
            assert_eq!(text.split_whitespace().count(), n + 2, "{text}");
            assert!(text.find("ONE.").unwrap() < text.find("TWO.").unwrap());
        }
    }
}
