//! Text to token ids and back, from the vocabulary in a GGUF file.
//!
//! Stage: gguf -> tokenizer -> model graph, and sample -> text at the end. Source: `llama_vocab` of llama-vocab.cpp.
//! Kinds: byte-level BPE (`gpt2`) and SentencePiece-style BPE (`llama`); every other kind is refused by its name.
//! Ids equal llama.cpp's; what differs is said in the files. A second BOS in a prompt is the caller's to report.

use std::borrow::Cow;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, StrArray};

mod bpe;
pub mod chat;
mod pretokenize;
mod special;
mod special_ids;
mod spm;
pub mod stream;
mod vocab;

pub use stream::Utf8Stream;

use special::{Fragment, SpecialTokens};
use special_ids::SpecialIds;
use vocab::{Attr, Vocab};

/// The tokenizer of one model.
pub struct Tokenizer {
    path: PathBuf,
    texts: StrArray,
    /// What each token adds to a text.
    pieces: StrArray,
    attrs: Vec<Attr>,
    ids: SpecialIds,
    special: SpecialTokens,
    model: Model,
    add_bos: bool,
    add_eos: bool,
}

enum Model {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
}

/// What the kind of a vocabulary decides where metadata is silent.
struct Kind {
    bpe: Option<&'static pretokenize::Row>,
    add_bos: bool,
    /// Default ids of BOS and EOS.
    ids: [Option<u32>; 2],
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata of `gguf` describes.
    ///
    /// # Errors
    /// The kind of vocabulary or its pre-tokenizer is not supported, or the metadata is incomplete or contradictory.
    pub fn load(gguf: &Gguf) -> Result<Tokenizer> {
        let kind = Kind::of(gguf)?;
        let (vocab, mut attrs) = Vocab::load(gguf)?;
        let index = vocab.index(gguf)?;
        let ids = SpecialIds::load(gguf, &index, &mut attrs, kind.ids)?;
        let special = SpecialTokens::load(gguf, &vocab.texts, &attrs, &index)?;
        let add_bos = gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(kind.add_bos);
        let add_eos = gguf.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        for (add, id, name) in [(add_bos, ids.bos, "bos"), (add_eos, ids.eos, "eos")] {
            if add && id.is_none() {
                let key = format!("tokenizer.ggml.{name}_token_id");
                let what = format!("key '{key}' is missing for add_{name}_token; set it with --override-kv");
                return Err(Error::gguf(gguf.path(), what));
            }
        }
        let model = match kind.bpe {
            Some(row) => Model::Bpe(Box::new(bpe::Bpe::load(gguf, &vocab.texts, row)?)),
            None => {
                let prefix = gguf.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                Model::Spm(Box::new(spm::Spm::new(&vocab, prefix)))
            }
        };
        Ok(Tokenizer {
            path: gguf.path().to_path_buf(),
            pieces: pieces(gguf, &vocab.texts, &attrs, kind.bpe.is_some())?,
            texts: vocab.texts,
            attrs,
            ids,
            special,
            model,
            add_bos,
            add_eos,
        })
    }

    /// The tokens of `text`.
    ///
    /// `add_special` puts BOS and EOS around it where the model wants them; `parse_special` takes the texts of control
    /// tokens for these tokens instead of plain text.
    ///
    /// # Errors
    /// The text is longer than 2^31 - 1 bytes, or the vocabulary has no tokens for a byte of it.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        self.encode_bytes(text.as_bytes(), add_special, parse_special)
    }

    /// Like [`Tokenizer::encode`] for bytes that may be no UTF-8: SPM has tokens for any byte, byte-level BPE takes
    /// each wrong byte for U+FFFD.
    ///
    /// # Errors
    /// As for `encode`.
    pub fn encode_bytes(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        if i32::try_from(text.len()).is_err() {
            let what = format!("the text has {} bytes, at most 2^31 - 1 can be tokenized", text.len());
            return Err(Error::Context { what });
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        ids.extend(self.ids.bos.filter(|_| add_special && self.add_bos));
        let mut after_special = true;
        for fragment in self.special.partition(text, parse_special) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => match &self.model {
                    Model::Bpe(bpe) => bpe.encode(text, &mut ids),
                    Model::Spm(spm) => spm.encode(text, after_special, &mut ids),
                }
                .map_err(|what| Error::gguf(&self.path, what))?,
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        ids.extend(self.ids.eos.filter(|_| add_special && self.add_eos));
        Ok(ids)
    }

    /// The bytes that token `id` adds to a text, which can be part of a character.
    ///
    /// Without `special`, control and unknown tokens add nothing; an id outside the vocabulary never does.
    pub fn piece(&self, id: u32, special: bool) -> &[u8] {
        match self.attrs.get(id as usize) {
            Some(attr) if special || !attr.any(Attr::CONTROL.with(Attr::UNKNOWN)) => {
                self.pieces.get(id as usize).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// The bytes of token `id` at the start of a text: without the space that the tokenizer puts before every text.
    pub fn first_piece(&self, id: u32) -> &[u8] {
        let piece = self.piece(id, true);
        match &self.model {
            Model::Spm(spm) if spm.adds_space_prefix() => piece.strip_prefix(b" ").unwrap_or(piece),
            _ => piece,
        }
    }

    /// The text of token `id` as the vocabulary spells it, empty outside the vocabulary.
    pub fn text(&self, id: u32) -> Cow<'_, str> {
        String::from_utf8_lossy(self.texts.get(id as usize).unwrap_or_default())
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> u32 {
        self.attrs.len() as u32
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.ids.eot
    }

    /// The token that ends a message.
    pub fn eom(&self) -> Option<u32> {
        self.ids.eom
    }

    /// All tokens that end a generation, in ascending order.
    pub fn eog(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.eog.iter().copied()
    }

    /// Whether token `id` ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.ids.eog.contains(&id)
    }

    /// Whether token `id` is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.attrs.get(id as usize).is_some_and(|attr| attr.any(Attr::CONTROL))
    }

    /// Whether a text starts with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether a text ends with EOS.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }
}

impl Kind {
    fn of(gguf: &Gguf) -> Result<Kind> {
        match gguf.require_str("tokenizer.ggml.model")? {
            "llama" => Ok(Kind { bpe: None, add_bos: true, ids: [Some(1), Some(2)] }),
            "gpt2" => {
                let row = pretokenize::row(gguf.str("tokenizer.ggml.pre")?.unwrap_or_default())?;
                let ids = [Some(11).filter(|_| row.default_bos), Some(11)];
                Ok(Kind { bpe: Some(row), add_bos: row.add_bos, ids })
            }
            name => Err(Error::unsupported("tokenizer (tokenizer.ggml.model)", name)),
        }
    }
}

/// What each token adds to a text: `token_to_piece` of llama-vocab.cpp with special tokens shown.
fn pieces(gguf: &Gguf, texts: &StrArray, attrs: &[Attr], bpe: bool) -> Result<StrArray> {
    const VERBATIM: Attr = Attr::CONTROL.with(Attr::UNKNOWN).with(Attr::USER_DEFINED);
    let decoder = bpe::ByteDecoder::new();
    let piece = |(id, (text, attr)): (usize, (&[u8], &Attr))| {
        Ok(if attr.any(VERBATIM) {
            text.to_vec()
        } else if attr.any(Attr::NORMAL) {
            if bpe {
                decoder.decode(text)
            } else {
                spm::unescape(text)
            }
        } else if attr.any(Attr::BYTE) {
            vec![vocab::byte_of(text).ok_or_else(|| {
                let text = String::from_utf8_lossy(text);
                let what = format!("token {id} is of type byte, its text is '{text}', expected '<0x00>' to '<0xFF>'");
                Error::gguf(gguf.path(), what)
            })?]
        } else {
            Vec::new()
        })
    };
    texts.iter().zip(attrs).enumerate().map(piece).collect()
}
