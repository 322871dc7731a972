//! Writing a state: the header, then everything it announces, hashed on the way.

use super::super::KvCache;
use super::{Header, State, MAGIC, VERSION};
use std::io::{self, Write};
use xxhash_rust::xxh3::Xxh3Default;

/// Hashes what it passes on.
struct Hashing<W> {
    out: W,
    hash: Xxh3Default,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl State {
    /// Writes the state with the rows of `cache`, which holds exactly `tokens`.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write(&self, cache: &KvCache, out: impl Write) -> io::Result<()> {
        if cache.n_past() != self.tokens.len() {
            return Err(io::Error::other(format!("{} tokens of {} are known", self.tokens.len(), cache.n_past())));
        }
        let header = Header {
            identity: self.identity.clone(),
            sampling: self.sampling.clone(),
            n_given: self.n_given,
            n_whole: self.n_whole,
            n_tokens: self.tokens.len(),
            n_compressed: cache.n_prompt(),
            n_vocab: self.marks.first().map_or(0, |m| m.logits.len()),
            marks: self.marks.iter().map(|m| m.n_tokens).collect(),
            layers: (0..cache.layers.len()).map(|il| cache.held(il)).collect(),
        };
        let text = serde_json::to_vec(&header)?;
        let mut out = Hashing { out, hash: Xxh3Default::new() };
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(text.len() as u32).to_le_bytes())?;
        out.write_all(&text)?;
        out.write_all(&self.tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>())?;
        for mark in &self.marks {
            write_floats(&mut out, mark.logits.iter())?;
        }
        for (il, held) in header.layers.iter().enumerate() {
            let layer = &cache.layers[il];
            let mut bytes = Vec::new();
            for (keys, t) in [(true, &layer.k), (false, &layer.v)] {
                let stride = cache.row_bytes(keys);
                for chunk in (0..cache.n_head_kv).flat_map(|g| cache.used(il, g, held)) {
                    bytes.resize(chunk.n * stride, 0);
                    t.read(chunk.row * stride, &mut bytes).map_err(io::Error::other)?;
                    out.write_all(&bytes)?;
                }
            }
            if let (super::Layout::Pool(heads), false) = (&layer.layout, layer.bias.is_empty()) {
                write_floats(&mut out, heads.iter().flat_map(|h| &layer.bias[h.row..h.row + h.n_entries]))?;
            }
        }
        let checksum = out.hash.digest();
        out.out.write_all(&checksum.to_le_bytes())
    }
}

fn write_floats<'a>(out: &mut impl Write, x: impl Iterator<Item = &'a f32>) -> io::Result<()> {
    out.write_all(&x.flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
}
