//! The vocabulary as llguidance wants it: a trie of the bytes of all tokens.
//!
//! Tokens of the same bytes are one to the library, so each has a twin there. It knows one end-of-text token that no model
//! has: the real ones, of which there may be several or none, are decided by [`super::Grammar`].

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::Vocabulary;

/// The tokens of one model.
pub(super) struct Trie {
    env: TokEnv,
    /// The first token with the same bytes.
    twins: Vec<u32>,
    is_eog: Vec<bool>,
}

impl Trie {
    pub(super) fn new(vocabulary: &dyn Vocabulary) -> Self {
        let n_vocab = vocabulary.n_vocab();
        let is_eog: Vec<bool> = (0..n_vocab).map(|id| vocabulary.is_eog(id)).collect();
        let mut first: HashMap<&[u8], u32> = HashMap::new();
        let mut words = vec![Vec::new(); n_vocab as usize + 1];
        let mut twins: Vec<u32> = (0..n_vocab).collect();
        for id in (0..n_vocab).filter(|&id| !is_eog[id as usize]) {
            let piece = vocabulary.piece(id);
            // 0xFF begins the library's own names of tokens, and is in no text; llama.cpp refuses a piece that begins with NUL.
            if piece.is_empty() || piece[0] == 0 || piece.contains(&0xFF) {
                continue;
            }
            let twin = *first.entry(piece).or_insert(id);
            twins[id as usize] = twin;
            if twin == id {
                words[id as usize] = piece.to_vec();
            }
        }
        let info = TokRxInfo::new(n_vocab + 1, n_vocab);
        Trie { env: Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words))), twins, is_eog }
    }

    pub(super) fn env(&self) -> TokEnv {
        self.env.clone()
    }

    pub(super) fn is_eog(&self, id: u32) -> bool {
        self.is_eog.get(id as usize).copied().unwrap_or_default()
    }

    pub(super) fn twin(&self, id: u32) -> u32 {
        self.twins.get(id as usize).copied().unwrap_or(id)
    }
}
