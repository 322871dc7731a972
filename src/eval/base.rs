//! The file of a model's log-probabilities that llama-perplexity writes and compares with (`--kl-divergence-base`).
//!
//! Source: llama.cpp `tools/perplexity/perplexity.cpp`. Little endian: `_logits_`, `u32` n_ctx, `i32` n_vocab, `i32` n_chunk,
//! the tokens of all chunks as `i32`; then per scored token a row of `u16`: two `f32` (scale and smallest log-probability, which
//! is at most 16 below the largest), n_vocab steps of that scale, and one word more where n_vocab is odd.

use super::perplexity::{self, Passage};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"_logits_";
const HEADER_BYTES: u64 = 20;
/// Largest distance to the favourite that is kept, in nats.
const DEPTH: f32 = 16.0;

/// Writes such a file, row by row.
pub struct Writer<W: Write> {
    out: W,
    n_vocab: usize,
}

impl<W: Write> Writer<W> {
    /// Writes everything that comes before the rows. `tokens` are those of whole chunks of `n_ctx`, as the text has them.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn new(mut out: W, n_ctx: usize, n_vocab: usize, tokens: &[u32]) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        for n in [n_ctx, n_vocab, tokens.len() / n_ctx.max(1)] {
            let n = u32::try_from(n).map_err(|_| io::Error::other("too large for this format"))?;
            out.write_all(&n.to_le_bytes())?;
        }
        tokens.iter().try_for_each(|t| out.write_all(&t.to_le_bytes()))?;
        Ok(Writer { out, n_vocab })
    }

    /// Adds rows. Shapes: `logits: {n_vocab, n}`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn push(&mut self, logits: &[f32]) -> io::Result<()> {
        let rows: Vec<Vec<u8>> = logits.par_chunks_exact(self.n_vocab).map(encode).collect();
        rows.iter().try_for_each(|row| self.out.write_all(row))
    }

    /// Gives back the output.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Such a file, read row by row.
pub struct Base {
    path: PathBuf,
    file: BufReader<File>,
    n_ctx: usize,
    n_vocab: usize,
    tokens: Vec<u32>,
    /// Rows that were read.
    n_read: usize,
}

impl Base {
    /// Opens a file that a model with this vocabulary can be compared with.
    ///
    /// # Errors
    /// When it cannot be read, is none of this kind, has another size than its head says, or belongs to another vocabulary.
    pub fn open(path: &Path, n_vocab: usize) -> Result<Base> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let n_bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let mut base =
            Base { path: path.into(), file: BufReader::new(file), n_ctx: 0, n_vocab, tokens: Vec::new(), n_read: 0 };
        let mut magic = [0; 8];
        if n_bytes < HEADER_BYTES || base.fill(&mut magic).is_err() || &magic != MAGIC {
            return Err(base.bad("no file of log-probabilities of llama-perplexity or gracekv-perplexity"));
        }
        let [n_ctx, n_vocab_there, n_chunk] = [base.number()?, base.number()?, base.number()?];
        if n_vocab_there as usize != n_vocab {
            return Err(base.bad(format!(
                "its vocabulary has {n_vocab_there} tokens, the model's has {n_vocab}; it must come from a model with the same tokenizer"
            )));
        }
        base.n_ctx = n_ctx as usize;
        let n_token = u64::from(n_ctx) * u64::from(n_chunk);
        let n_row = n_scored(n_ctx as usize) as u64 * u64::from(n_chunk);
        if n_row == 0 {
            return Err(base.bad(format!("it has {n_chunk} chunks of {n_ctx} tokens: nothing to compare with")));
        }
        // Checked before anything is allocated: the numbers may be anything.
        let needed = (row_words(n_vocab) as u64)
            .checked_mul(2)
            .and_then(|n| n.checked_mul(n_row))
            .and_then(|n| n.checked_add(HEADER_BYTES + 4 * n_token.min(u64::MAX / 8)));
        if needed != Some(n_bytes) {
            let is_long = needed.is_some_and(|needed| needed < n_bytes);
            let why = if is_long { "it is damaged" } else { "it was cut short or is damaged" };
            let needed = needed.map_or("more bytes than there are".into(), |n| format!("{n} bytes"));
            return Err(base.bad(format!("{n_chunk} chunks of {n_ctx} tokens take {needed}, it has {n_bytes}; {why}")));
        }
        let mut bytes = vec![0; n_token as usize * 4];
        base.fill(&mut bytes)?;
        base.tokens = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        match base.tokens.iter().find(|&&t| t as usize >= n_vocab) {
            Some(t) => Err(base.bad(format!("token {t} is not of its vocabulary of {n_vocab}; it is damaged"))),
            None => Ok(base),
        }
    }

    /// Tokens of a chunk.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Forgets all chunks but the first `n`.
    pub fn keep(&mut self, n: usize) {
        self.tokens.truncate(n.saturating_mul(self.n_ctx));
    }

    /// The tokens of all chunks.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The chunks as they are read; `bos` takes the place of the first token of each.
    pub fn passages(&self, bos: Option<u32>) -> Vec<Passage> {
        perplexity::cut(&self.tokens, self.n_ctx, bos).collect()
    }

    /// The log-probabilities of the next `n` scored tokens. Shapes: `{n_vocab, n}`.
    ///
    /// # Errors
    /// When the file cannot be read, or a row of it is no distribution.
    pub fn rows(&mut self, n: usize) -> Result<Vec<f32>> {
        let n_bytes = 2 * row_words(self.n_vocab);
        let mut bytes = vec![0; n * n_bytes];
        self.fill(&mut bytes)?;
        let mut out = vec![0.0; n * self.n_vocab];
        let rows = bytes.par_chunks_exact(n_bytes).zip(out.par_chunks_exact_mut(self.n_vocab));
        let wrong = rows.enumerate().filter_map(|(i, (row, out))| (!decode(row, out)).then_some(i)).min();
        if let Some(i) = wrong {
            let per_chunk = n_scored(self.n_ctx);
            let (chunk, row) = ((self.n_read + i) / per_chunk + 1, (self.n_read + i) % per_chunk + 1);
            return Err(self.bad(format!(
                "chunk {chunk}: what it holds for scored token {row} are no log-probabilities; it is damaged"
            )));
        }
        self.n_read += n;
        Ok(out)
    }

    fn number(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(|e| Error::io(&self.path, e))
    }

    fn bad(&self, what: impl Into<String>) -> Error {
        Error::Context { what: format!("{}: {}", self.path.display(), what.into()) }
    }
}

/// Tokens of a chunk that are scored.
fn n_scored(n_ctx: usize) -> usize {
    n_ctx.saturating_sub(1 + n_ctx / 2)
}

/// Words of a row.
fn row_words(n_vocab: usize) -> usize {
    4 + n_vocab.next_multiple_of(2)
}

/// One row, in single precision and rounded as llama-perplexity does it.
fn encode(logits: &[f32]) -> Vec<u8> {
    let (min, max) = logits.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &x| (l.min(x), h.max(x)));
    let min = min.max(max - DEPTH);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    let scale = (max - min) / 65535.0;
    let mut row = Vec::with_capacity(2 * row_words(logits.len()));
    row.extend(scale.to_le_bytes());
    row.extend((min - max - sum.ln() as f32).to_le_bytes());
    let steps = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    row.extend(logits.iter().flat_map(|&x| (((x - min).max(0.0) * steps).round_ties_even() as u16).to_le_bytes()));
    row.resize(2 * row_words(logits.len()), 0);
    row
}

/// Whether the row is a distribution: the smallest log-probability is raised to 16 below the largest, which adds at most
/// `n_vocab` times that to a sum of 1; rounding to a step adds less than a thousandth.
fn decode(row: &[u8], out: &mut [f32]) -> bool {
    let (head, steps) = row.split_at(8);
    let float = |at: usize| f32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (scale, min) = (float(0), float(4));
    let mut sum = 0.0;
    for (out, step) in out.iter_mut().zip(steps.as_chunks().0) {
        *out = scale * f32::from(u16::from_le_bytes(*step)) + min;
        sum += f64::from(out.exp());
    }
    let raised = out.len() as f64 * f64::from((-DEPTH).exp());
    (0.0..=1.001 * DEPTH / 65535.0).contains(&scale) && (0.99..1.01 + raised).contains(&sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::kl;

    fn logits(n_vocab: usize, n: usize) -> Vec<f32> {
        (0..n * n_vocab).map(|i| (i as f32 * 0.37).sin() * 12.0).collect()
    }

    /// Two chunks of 8 tokens: 3 scored tokens each.
    fn written(n_vocab: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let tokens: Vec<u32> = (0..16).collect();
        let mut writer = Writer::new(Vec::new(), 8, n_vocab, &tokens).unwrap();
        writer.push(&logits(n_vocab, 4)).unwrap();
        writer.push(&logits(n_vocab, 6)[4 * n_vocab..]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes) = (dir.path().join("base"), writer.into_inner());
        std::fs::write(&path, &bytes).unwrap();
        (dir, path, bytes)
    }

    #[test]
    fn what_is_written_is_read_within_half_a_step() {
        for n_vocab in [20, 51] {
            let (_dir, path, bytes) = written(n_vocab);
            assert_eq!(bytes.len(), 20 + 16 * 4 + 6 * 2 * (4 + n_vocab.next_multiple_of(2)));
            let mut base = Base::open(&path, n_vocab).unwrap();
            assert_eq!((base.n_ctx(), base.tokens()), (8, &(0..16).collect::<Vec<u32>>()[..]));
            assert_eq!(base.passages(Some(7))[1].tokens, [7, 9, 10, 11, 12, 13, 14, 15]);
            let mut want = logits(n_vocab, 6);
            want.chunks_exact_mut(n_vocab).for_each(kl::log_softmax);
            let got = [base.rows(1).unwrap(), base.rows(5).unwrap()].concat();
            for (row, got) in want.chunks(n_vocab).zip(got.chunks(n_vocab)) {
                let max = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
                for (w, g) in row.iter().zip(got) {
                    let w = w.max(max - DEPTH);
                    assert!((w - g).abs() <= 0.51 * DEPTH / 65535.0 + 2e-6, "{w} {g}");
                }
            }
            assert!(base.rows(1).is_err());
        }
    }

    #[test]
    fn equal_logits_are_a_row_of_zeros() {
        let row = encode(&[3.5; 5]);
        let mut out = [0.0; 5];
        assert!(decode(&row, &mut out));
        assert!(row[8..].iter().all(|&b| b == 0) && out.iter().all(|x| (x + 5f32.ln()).abs() < 1e-6));
    }

    /// Any record that is damaged so that it says something else is found, and where it is.
    #[test]
    fn damaged_records_are_named() {
        let (_dir, path, bytes) = written(20);
        let n_row = 2 * row_words(20);
        let numbers = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 3.0, -1.0].map(f32::to_le_bytes);
        let damages = numbers.iter().flat_map(|n| [(0, *n), (4, *n)]).chain([(8, [0xff; 4]), (8 + 2 * 12, [0xff; 4])]);
        for (at, value) in damages {
            for row in 0..6 {
                let mut bytes = bytes.clone();
                let at = 20 + 16 * 4 + row * n_row + at;
                bytes[at..at + 4].copy_from_slice(&value);
                std::fs::write(&path, &bytes).unwrap();
                let mut base = Base::open(&path, 20).unwrap();
                let error = base.rows(2).and_then(|_| base.rows(4)).unwrap_err().to_string();
                let want = format!("base: chunk {}: what it holds for scored token {}", row / 3 + 1, row % 3 + 1);
                assert!(error.contains(&want), "{value:?} at {at} of row {row}: {error}");
            }
        }
    }

    #[test]
    fn damaged_files_are_one_clear_line() {
        let (_dir, path, bytes) = written(20);
        let error = |bytes: &[u8], n_vocab: usize| {
            std::fs::write(&path, bytes).unwrap();
            let text = Base::open(&path, n_vocab).err().unwrap().to_string();
            assert!(!text.contains('\n') && text.starts_with(path.to_str().unwrap()), "{text}");
            text
        };
        for n in 0..bytes.len() {
            let text = error(&bytes[..n], 20);
            assert!(text.contains(if n < 20 { "no file of log-prob" } else { "cut short" }), "{n}: {text}");
        }
        assert!(error(&bytes, 21).contains("has 20 tokens, the model's has 21"));
        let with = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        assert!(error(&with(0, 1), 20).contains("no file of log-prob"));
        for value in [u32::MAX, 1 << 31, 3_000_000] {
            assert!(error(&with(8, value), 20).contains("cut short"));
            assert!(error(&with(16, value), 20).contains("cut short"));
        }
        assert!(error(&with(8, 2), 20).contains("2 chunks of 2 tokens: nothing to compare"));
        assert!(error(&with(16, 0), 20).contains("0 chunks of 8 tokens: nothing to compare"));
        assert!(error(&[&bytes[..], &[0]].concat(), 20).ends_with("it is damaged"));
        assert!(error(&with(24, 20), 20).contains("token 20 is not of its vocabulary"));
    }
}
