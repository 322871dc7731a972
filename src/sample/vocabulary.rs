//! What samplers and grammars need to know about the tokens.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// The tokens of a model.
pub trait Vocabulary {
    /// Number of tokens.
    fn n_vocab(&self) -> u32;
    /// The bytes of a token, of a control token too.
    fn piece(&self, id: u32) -> &[u8];
    /// The bytes of a token at the start of a text.
    fn first_piece(&self, id: u32) -> &[u8] {
        self.piece(id)
    }
    /// Whether a token ends a generation.
    fn is_eog(&self, id: u32) -> bool;
    /// The tokens of a text without any around it; with `special`, texts of control tokens stand for these.
    ///
    /// # Errors
    /// When the vocabulary cannot express the text.
    fn encode(&self, text: &[u8], special: bool) -> Result<Vec<u32>>;
}

impl Vocabulary for Tokenizer {
    fn n_vocab(&self) -> u32 {
        self.n_vocab()
    }

    fn piece(&self, id: u32) -> &[u8] {
        self.piece(id, true)
    }

    fn first_piece(&self, id: u32) -> &[u8] {
        self.first_piece(id)
    }

    fn is_eog(&self, id: u32) -> bool {
        self.is_eog(id)
    }

    fn encode(&self, text: &[u8], special: bool) -> Result<Vec<u32>> {
        self.encode_bytes(text, false, special)
    }
}
