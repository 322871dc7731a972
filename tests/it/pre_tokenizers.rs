//! Every pre-tokenizer that llama.cpp knows, on a vocabulary whose tokens are the neighbours of one text: where a text is cut
//! decides which of them can be joined, so ids show every cut. What llama-tokenize gives is in `tests/golden/tokenizer/pre.json`.

use std::path::{Path, PathBuf};

use gracekv::gguf::{Array, Gguf, Writer};
use gracekv::tokenizer::Tokenizer;
use serde_json::Value;

use crate::support;

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/tokenizer/pre.json")).unwrap()
}

/// A vocabulary with this pre-tokenizer: all bytes, and every pair of neighbours in the text.
fn vocabulary(name: &str, text: &str) -> PathBuf {
    let mut above = 0x100..;
    let alphabet: Vec<String> = (0..256u32)
        .map(|b| if matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) { b } else { above.next().unwrap() })
        .map(|c| char::from_u32(c).unwrap().to_string())
        .collect();
    let (mut tokens, mut merges) = (alphabet.clone(), Vec::new());
    for pair in text.as_bytes().windows(2) {
        let [a, b] = [pair[0], pair[1]].map(|b| alphabet[usize::from(b)].as_str());
        if !tokens.contains(&format!("{a}{b}")) {
            tokens.push(format!("{a}{b}"));
            merges.push(format!("{a} {b}"));
        }
    }
    tokens.push("<|end|>".into());
    let end = tokens.len() as u32 - 1;
    let types = tokens.iter().map(|t| if t == "<|end|>" { 3 } else { 1 }).collect();
    let mut header = Writer::new();
    header.set("general.architecture", "llama").unwrap();
    header.set("tokenizer.ggml.model", "gpt2").unwrap();
    header.set("tokenizer.ggml.pre", name).unwrap();
    header.set("tokenizer.ggml.tokens", Array::Str(tokens.iter().collect())).unwrap();
    header.set("tokenizer.ggml.token_type", Array::I32(types)).unwrap();
    header.set("tokenizer.ggml.merges", Array::Str(merges.iter().collect())).unwrap();
    header.set("tokenizer.ggml.bos_token_id", end).unwrap();
    header.set("tokenizer.ggml.eos_token_id", end).unwrap();
    header.set("tokenizer.ggml.add_bos_token", false).unwrap();
    // llama-tokenize checks that there is something to load.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pre-{name}.gguf"));
    header.write(&path, |_| Ok(Vec::new())).unwrap();
    path
}

#[test]
fn every_pre_tokenizer_cuts_where_llama_cpp_does() {
    let golden = golden();
    let text = golden["text"].as_str().unwrap();
    let mut wrong = Vec::new();
    for (name, row) in golden["names"].as_object().unwrap() {
        let tokenizer = Tokenizer::load(&Gguf::open(&vocabulary(name, text)).unwrap()).unwrap();
        let want: Vec<u32> = golden["ids"][row.as_u64().unwrap() as usize]
            .as_str()
            .unwrap()
            .split(' ')
            .map(|id| id.parse().unwrap())
            .collect();
        let found = tokenizer.encode(text, false, false).unwrap();
        if found != want {
            let n = found.iter().zip(&want).take_while(|(a, b)| a == b).count();
            let shown =
                |ids: &[u32]| ids[n..].iter().take(6).map(|&id| tokenizer.text(id).into_owned()).collect::<Vec<_>>();
            wrong.push(format!("{name}: from token {n} on {:?}, not {:?}", shown(&found), shown(&want)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// These are not byte-level: the models that have them are not supported.
#[test]
fn the_others_are_refused_by_name() {
    for name in ["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace"] {
        let e = support::error(Tokenizer::load(&Gguf::open(&vocabulary(name, "a b")).unwrap()));
        assert_eq!(e, format!("unsupported pre-tokenizer (tokenizer.ggml.pre): '{name}'"));
    }
}
