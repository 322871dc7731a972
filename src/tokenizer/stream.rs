//! Turns the bytes of generated pieces into text: a character split over tokens is held back until it is whole.
//!
//! Stage: sample -> text.
//! Law: what all calls give, joined, is [`String::from_utf8_lossy`] of all bytes, however they were cut.

/// Gives out whole characters of a byte stream.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The start of a character whose end has not come yet, at most three bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `bytes` and gives the text that is complete; bytes that can be no UTF-8 become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - incomplete_tail(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// Ends the stream: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// Number of bytes at the end of `bytes` that begin a character and do not finish it.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let begins = |n: &usize| {
        let error = std::str::from_utf8(&bytes[bytes.len() - n..]).err();
        error.is_some_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of every length of UTF-8, and bytes that are none.
    const BYTES: &[u8] =
        b"a\xC3\xA9\xED\x95\x9C\xF0\x9F\x8D\x95\xFFz\x80\xE2\x82\xF0\x9F\x8Dx\xC0\xAF\xED\xA0\x80\xE2\x82";

    #[test]
    fn every_cut_gives_the_lossy_text_of_the_whole() {
        let whole = String::from_utf8_lossy(BYTES);
        for size in 1..=BYTES.len() {
            for first in 0..size {
                let mut stream = Utf8Stream::new();
                let mut text = stream.push(&BYTES[..first]);
                BYTES[first..].chunks(size).for_each(|piece| text += &stream.push(piece));
                text += &stream.finish();
                assert_eq!(text, whole, "first {first}, then {size}");
            }
        }
    }

    #[test]
    fn an_unfinished_character_is_held_back() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"a\xF0\x9F\x8D"), "a");
        assert_eq!(stream.push(b"\x95b"), "\u{1F355}b");
        assert_eq!(stream.finish(), "");
    }
}
