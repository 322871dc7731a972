//! Reading a state: checked as a whole before anything is believed, rows last.

use super::super::{KvCache, Layout};
use super::{unusable, Header, Held, Identity, Mark, State, MAGIC, MAX_HEADER, N_CHECKSUM, N_PRELUDE, VERSION};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes that are hashed at a time.
const N_HASHED: usize = 1 << 20;

/// An intact file of this run's model, cache and compression, read up to its rows.
pub struct StateFile {
    /// What it holds beside the rows.
    pub state: State,
    header: Header,
    path: PathBuf,
    file: BufReader<File>,
}

impl StateFile {
    /// Opens and checks the file at `path` for `cache`, which is empty.
    ///
    /// # Errors
    /// [`Error::State`] when it is truncated, damaged, of another model, other KV types or another compression, or has more
    /// tokens than the context.
    pub fn open(path: &Path, identity: &Identity, cache: &KvCache, n_vocab: usize) -> Result<StateFile> {
        let io = |e| Error::io(path, e);
        let file = File::open(path).map_err(io)?;
        let n_file = file.metadata().map_err(io)?.len();
        let mut file = BufReader::new(file);
        let mut prelude = [0u8; N_PRELUDE as usize];
        if n_file < N_PRELUDE + N_CHECKSUM {
            return Err(unusable(path, format!("it has {n_file} bytes and is no prompt cache of this program")));
        }
        file.read_exact(&mut prelude).map_err(io)?;
        let number = |at: usize| prelude[at..at + 4].iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b));
        if prelude[..8] != MAGIC {
            return Err(unusable(path, "it is no prompt cache of this program"));
        }
        if number(8) != VERSION {
            return Err(unusable(path, format!("its version is {}, expected {VERSION}", number(8))));
        }
        if !is_intact(&mut file, n_file).map_err(io)? {
            return Err(unusable(
                path,
                format!("its {n_file} bytes do not match their checksum: it is truncated or damaged"),
            ));
        }
        let (n_header, n_rest) = (u64::from(number(12)), n_file - N_PRELUDE - N_CHECKSUM);
        if n_header > n_rest.min(MAX_HEADER) {
            return Err(unusable(path, format!("its header of {n_header} bytes is longer than the file")));
        }
        file.seek(SeekFrom::Start(N_PRELUDE)).map_err(io)?;
        let mut text = vec![0u8; n_header as usize];
        file.read_exact(&mut text).map_err(io)?;
        let header: Header =
            serde_json::from_slice(&text).map_err(|e| unusable(path, format!("its header is wrong: {e}")))?;
        identity.check(path, &header.identity)?;
        header.check(cache, n_vocab).map_err(|why| unusable(path, why))?;
        let n_body = n_rest - n_header;
        if header.n_bytes(cache) != Some(n_body) {
            let asked = header.n_bytes(cache).map_or("too many".to_string(), |n| n.to_string());
            return Err(unusable(path, format!("its header asks for {asked} bytes, {n_body} are there")));
        }
        let tokens = read_numbers(&mut file, header.n_tokens, u32::from_le_bytes).map_err(io)?;
        if tokens.iter().any(|&t| t as usize >= n_vocab) {
            return Err(unusable(path, "it has tokens that are not of the vocabulary"));
        }
        let mut marks = Vec::new();
        for &n_tokens in &header.marks {
            let logits = read_numbers(&mut file, n_vocab, f32::from_le_bytes).map_err(io)?;
            marks.push(Mark { n_tokens, logits });
        }
        let state = State {
            identity: header.identity.clone(),
            sampling: header.sampling.clone(),
            n_given: header.n_given,
            n_whole: header.n_whole,
            tokens,
            marks,
        };
        Ok(StateFile { state, header, path: path.to_path_buf(), file })
    }

    /// Tokens at the start that are compressed and cannot be taken apart; 0 = none.
    pub fn n_compressed(&self) -> usize {
        self.header.n_compressed
    }

    /// Puts the rows into `cache`, which is empty; pools get room for `room` more tokens.
    ///
    /// # Errors
    /// When the file cannot be read or the memory cannot be had.
    pub fn load(mut self, cache: &mut KvCache, room: usize) -> Result<State> {
        let Header { layers, n_tokens, n_compressed, .. } = &self.header;
        cache.prepare(layers, *n_tokens, *n_compressed, room)?;
        let n_ring = cache.n_ring();
        for (il, held) in layers.iter().enumerate() {
            // A smaller ring takes the last tokens only.
            let (held, skipped) = match held {
                Held::Ring(n) => (&Held::Ring((*n).min(n_ring)), n.saturating_sub(n_ring)),
                other => (other, 0),
            };
            for keys in [true, false] {
                let stride = cache.row_bytes(keys);
                for g in 0..cache.n_head_kv {
                    let skip = |e| Error::io(&self.path, e);
                    self.file.seek_relative((skipped * stride) as i64).map_err(skip)?;
                    for chunk in cache.used(il, g, held) {
                        let mut bytes = vec![0u8; chunk.n * stride];
                        self.file.read_exact(&mut bytes).map_err(|e| Error::io(&self.path, e))?;
                        let layer = &cache.layers[il];
                        if keys { &layer.k } else { &layer.v }.write(chunk.row * stride, &bytes)?;
                    }
                }
            }
            if let Held::Pool { entries, bias: true } = held {
                let n = entries.iter().sum();
                let biases =
                    read_numbers(&mut self.file, n, f32::from_le_bytes).map_err(|e| Error::io(&self.path, e))?;
                if biases.iter().any(|b| !b.is_finite()) {
                    return Err(unusable(&self.path, format!("a bias of layer {il} is not finite")));
                }
                cache.set_biases(il, &biases);
            }
        }
        Ok(self.state)
    }
}

impl KvCache {
    /// Gives the entries of a pool their biases, in the order of heads.
    fn set_biases(&mut self, il: usize, biases: &[f32]) {
        let layer = &mut self.layers[il];
        let Layout::Pool(heads) = &layer.layout else { return };
        layer.bias = vec![0.0; layer.k.ne()[1]];
        let mut rest = biases;
        for head in heads {
            let (own, others) = rest.split_at(head.n_entries);
            layer.bias[head.row..head.row + head.n_entries].copy_from_slice(own);
            rest = others;
        }
        layer.spans.set_bias(layer.bias.clone());
    }
}

/// Whether the last bytes are the checksum of all before.
fn is_intact(file: &mut BufReader<File>, n_file: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Xxh3Default::new();
    let mut left = n_file - N_CHECKSUM;
    let mut part = vec![0u8; N_HASHED.min(left as usize)];
    while left > 0 {
        let n = part.len().min(left as usize);
        file.read_exact(&mut part[..n])?;
        hash.update(&part[..n]);
        left -= n as u64;
    }
    let mut checksum = [0u8; N_CHECKSUM as usize];
    file.read_exact(&mut checksum)?;
    Ok(u64::from_le_bytes(checksum) == hash.digest())
}

/// `n` numbers of four bytes; the caller has compared `n` with the size of the file.
fn read_numbers<T>(file: &mut impl Read, n: usize, convert: fn([u8; 4]) -> T) -> io::Result<Vec<T>> {
    let mut bytes = vec![0u8; n * 4];
    file.read_exact(&mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| convert([b[0], b[1], b[2], b[3]])).collect())
}
