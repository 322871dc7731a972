//! Files that are cut off, or have other bytes here and there: models, their splits and adapters, vocabularies, prompt caches.

use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gracekv::cli::prompt_cache::{PromptCache, Settings};
use gracekv::cli::{high::HighArgs, parse, setup};
use gracekv::error::Result;
use gracekv::gguf::{Gguf, Value, Writer};
use gracekv::tokenizer::Tokenizer;
use xxhash_rust::xxh3::xxh3_64;

use crate::shared::run;
use crate::support::tiny;
use crate::{random, Try};

/// Bytes behind a state that are its checksum.
const N_CHECKSUM: usize = 8;

pub fn header_length(model: &Path) -> u64 {
    Gguf::open(model).unwrap().tensors().iter().map(|t| t.offset).min().unwrap()
}

/// The model cut off at every byte of its header.
pub fn truncated(dir: &Path) -> Try {
    let (whole, path) = (std::fs::read(tiny::path("llama")).unwrap(), dir.join("model.gguf"));
    Box::new(move |number| {
        std::fs::write(&path, &whole[..number as usize]).unwrap();
        run(&path, &[])
    })
}

/// A file whose bytes are changed for one trial at a time.
struct Changed {
    file: File,
    /// The bytes that change.
    range: Range<u64>,
}

impl Changed {
    fn open(path: &Path, range: Range<u64>) -> Changed {
        Changed { file: File::options().read(true).write(true).open(path).unwrap(), range }
    }

    fn header(path: &Path) -> Changed {
        Changed::open(path, 0..header_length(path))
    }

    /// What comes of a trial with one to three other bytes, mostly by one bit, so that numbers stay near what they were.
    fn try_with(&self, number: u64, attempt: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut old = Vec::new();
        for k in 0..1 + random(number, 0) % 3 {
            let at = self.range.start + random(number, 3 * k + 1) % (self.range.end - self.range.start);
            let mut byte = [0u8];
            self.file.read_exact_at(&mut byte, at).unwrap();
            old.push((at, byte));
            let new = match random(number, 3 * k + 2) % 4 {
                0 => random(number, 3 * k + 3) as u8,
                _ => byte[0] ^ 1 << (random(number, 3 * k + 3) % 8),
            };
            self.file.write_all_at(&[new], at).unwrap();
        }
        let done = attempt();
        for (at, byte) in old.into_iter().rev() {
            self.file.write_all_at(&byte, at).unwrap();
        }
        done
    }
}

/// The model with other bytes in the header, or in the weights.
pub fn changed(dir: &Path, model: &Path, in_header: bool) -> Try {
    let path = dir.join("model.gguf");
    std::fs::copy(model, &path).unwrap();
    let (header, end) = (header_length(model), model.metadata().unwrap().len());
    let file = Changed::open(&path, if in_header { 0..header } else { header..end });
    Box::new(move |number| file.try_with(number, || run(&path, &[])))
}

/// The second file of a model in two, with other bytes in its header.
pub fn split(dir: &Path) -> Try {
    let whole = Gguf::open(&tiny::path("llama")).unwrap();
    let bytes = std::fs::read(tiny::path("llama")).unwrap();
    let half = whole.tensors().len() / 2;
    let names = [0, 1].map(|i| dir.join(format!("model-{:05}-of-00002.gguf", i + 1)));
    for (i, tensors) in [&whole.tensors()[..half], &whole.tensors()[half..]].into_iter().enumerate() {
        let mut part = Writer::new();
        whole.keys().filter(|_| i == 0).for_each(|(key, value)| part.set(key, value.clone()).unwrap());
        part.set("split.no", Value::U16(i as u16)).unwrap();
        part.set("split.count", Value::U16(2)).unwrap();
        part.set("split.tensors.count", Value::I32(whole.tensors().len() as i32)).unwrap();
        tensors.iter().for_each(|t| part.add_tensor(&t.name, t.ty, &t.ne[..t.n_dims as usize]).unwrap());
        let data = |t: &gracekv::gguf::TensorInfo| {
            let t = whole.tensor(&t.name).unwrap();
            Ok(bytes[t.offset as usize..][..t.n_bytes as usize].to_vec())
        };
        part.write(&names[i], data).unwrap();
    }
    let [first, second] = names;
    let both = Gguf::open(&first).unwrap();
    let header = both.tensors().iter().filter(|t| t.file == 1).map(|t| t.offset).min().unwrap();
    let file = Changed::open(&second, 0..header);
    Box::new(move |number| file.try_with(number, || run(&first, &[])))
}

/// An adapter with other bytes in its header.
pub fn lora(dir: &Path) -> Try {
    let path = dir.join("lora.gguf");
    tiny::lora("llama", &["blk.0.attn_q.weight", "blk.1.ffn_down.weight"], &path, |_| ());
    adapter(&path, "--lora")
}

/// A control vector with other bytes in its header.
pub fn control_vector(dir: &Path) -> Try {
    let path = dir.join("control.gguf");
    tiny::control_vector(&path, |_| ());
    adapter(&path, "--control-vector")
}

fn adapter(path: &Path, option: &'static str) -> Try {
    let (file, model, name) = (Changed::header(path), tiny::path("llama"), path.to_str().unwrap().to_owned());
    run(&model, &[option, &name]).unwrap();
    Box::new(move |number| file.try_with(number, || run(&model, &[option, &name])))
}

/// A real vocabulary cut off at every byte, the last one first.
pub fn truncated_vocab(dir: &Path, vocab: &Path) -> Try {
    let path = dir.join("vocab.gguf");
    std::fs::copy(vocab, &path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    let n = file.metadata().unwrap().len();
    Box::new(move |number| {
        file.set_len(n - 1 - number).unwrap();
        Gguf::open(&path).map(drop)
    })
}

/// A real vocabulary with other bytes, from the file to a tokenizer and a text.
pub fn changed_vocab(dir: &Path, vocab: &Path) -> Try {
    let path = dir.join("vocab.gguf");
    std::fs::copy(vocab, &path).unwrap();
    let file = Changed::open(&path, 0..path.metadata().unwrap().len());
    let read = move || {
        let tokenizer = Tokenizer::load(&Gguf::open(&path)?)?;
        tokenizer.encode("the rain in the harbour <s> \u{4e2d}\u{6587} 12345", true, true).map(drop)
    };
    Box::new(move |number| file.try_with(number, &read))
}

/// A prompt cache with another byte, or cut off, in a run that goes on from it; `sealed`, with the checksum that belongs to that.
pub fn prompt_cache(dir: &Path, sealed: bool) -> Try {
    let (model, path) = (tiny::path("llama"), dir.join("cache"));
    let cache = path.to_str().unwrap().to_owned();
    let resume = move || {
        let fixed = ["-c", "256", "-t", "1", "-m"].map(OsString::from);
        let args = fixed.into_iter().chain([model.clone().into(), "--prompt-cache".into(), cache.clone().into()]);
        let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
        let loaded = setup::load(&args, &mut |_| ())?;
        let mut session = setup::session(&args, &loaded)?;
        let settings = Settings::new(&args, &session)?.expect("--prompt-cache is given");
        let mut cache = PromptCache::open(settings, &session, &mut |_, _| ())?;
        let prompt = loaded.tokenizer.encode("the rain in the harbour", true, true)?;
        let (logits, _) = cache.read(&mut session, &prompt, &mut |_, _| (), |_| Ok(()))?;
        cache.filled(&session, &logits)
    };
    resume().unwrap();
    let whole = std::fs::read(&path).unwrap();
    Box::new(move |number| {
        let mut bytes = whole.clone();
        let n = bytes.len() - N_CHECKSUM;
        // Half of the changes are in the numbers before the rows.
        let n = if sealed && number.is_multiple_of(2) { n.min(1024) } else { n };
        let at = random(number, 1) as usize % n;
        match random(number, 2) % 4 {
            // An empty file is a new one.
            0 => bytes.truncate(at.max(1)),
            _ => bytes[at] ^= 1 << (random(number, 3) % 8),
        }
        if sealed {
            bytes.truncate(bytes.len().saturating_sub(N_CHECKSUM).max(1));
            let seal = xxh3_64(&bytes).to_le_bytes();
            bytes.extend(seal);
        }
        std::fs::write(&path, bytes).unwrap();
        resume()
    })
}
