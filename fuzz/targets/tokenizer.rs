//! A GGUF file as a vocabulary, or any other bytes as a text for tokenizers of every kind.
//!
//! Whatever a vocabulary holds, tokens are of it; and where every byte has a token, the tokens of a text are the text.
#![no_main]

use gracekv::gguf::Gguf;
use gracekv::tokenizer::Tokenizer;
use gracekv_fuzz::{start, tiny, Input, N_WEIGHTS};
use libfuzzer_sys::fuzz_target;

/// Names whose expressions differ in kind: with CJK, powers, thousands, cases, and the classes of punctuation.
const PRE: [&str; 14] = [
    "default",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-4o",
    "kimi-k2",
    "superbpe",
    "jais-2",
    "bloom",
    "viking",
    "tekken",
];
const TEXT: &str =
    " the  rain\tin 12345678 HARBOURs' \u{e9}\u{4e2d}\u{6587}\u{1f600}\n\n <|endoftext|><0x41>\u{2581}\0";

struct State {
    input: Input,
    fixed: Vec<Tokenizer>,
}

impl Default for State {
    fn default() -> Self {
        let input = Input::default();
        let load = |arch: &str, pre: Option<&str>| {
            let mut recipe = tiny::recipe(arch);
            pre.iter().for_each(|pre| recipe.header.set("tokenizer.ggml.pre", *pre).unwrap());
            let path = input.write(&[], 0);
            recipe.write_zeros(path);
            Tokenizer::load(&Gguf::open(path).unwrap()).unwrap()
        };
        let fixed = PRE.iter().map(|pre| load("llama", Some(pre))).chain([load("gemma3", None)]).collect();
        State { input, fixed }
    }
}

thread_local!(static STATE: State = State::default());

fn check(tokenizer: &Tokenizer, text: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokenizer.encode_bytes(text, true, true).ok()?;
    assert!(tokens.iter().all(|&id| id < tokenizer.n_vocab()));
    tokens.iter().for_each(|&id| drop(tokenizer.text(id)));
    let plain = tokenizer.encode_bytes(text, false, false).ok()?;
    let piece = |(i, &id): (usize, &u32)| if i == 0 { tokenizer.first_piece(id) } else { tokenizer.piece(id, true) };
    Some(plain.iter().enumerate().flat_map(piece).copied().collect())
}

fuzz_target!(init: start(), |data: &[u8]| {
    STATE.with(|state| {
        if data.starts_with(b"GGUF") {
            let Ok(gguf) = Gguf::open(state.input.write(data, N_WEIGHTS)) else { return };
            if let Ok(tokenizer) = Tokenizer::load(&gguf) {
                check(&tokenizer, TEXT.as_bytes());
            }
            return;
        }
        // Texts of all lengths come to each.
        let tokenizer = &state.fixed[data.len() % state.fixed.len()];
        let text = check(tokenizer, data).expect("every byte has a token");
        assert!(std::str::from_utf8(data).is_err() || text == data);
    });
});
