//! Any text as a grammar in GBNF, or as a JSON schema where it begins as one, which a text then follows token by token.
#![no_main]

use gracekv::gguf::Gguf;
use gracekv::sample::{Constraint, Grammar};
use gracekv::tokenizer::Tokenizer;
use gracekv_fuzz::{start, tiny};
use libfuzzer_sys::fuzz_target;

thread_local!(static TOKENIZER: Tokenizer = Tokenizer::load(&Gguf::open(&tiny::path("llama")).unwrap()).unwrap());

fn follow(constraint: &Constraint, tokenizer: &Tokenizer) -> gracekv::error::Result<()> {
    let mut grammar = Grammar::new(constraint, tokenizer)?;
    // Some tokens that the grammar allows, whatever they are.
    let mut next = 1;
    for _ in 0..16 {
        let n_vocab = tokenizer.n_vocab();
        let Some(token) =
            (0..n_vocab).map(|i| (next + 37 * i) % n_vocab).find(|&t| matches!(grammar.allows(t), Ok(true)))
        else {
            grammar.is_complete()?;
            return Ok(());
        };
        grammar.accept(token)?;
        next = token + 1;
    }
    Ok(())
}

fuzz_target!(init: start(), |data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (source, text) = ("input".to_owned(), text.to_owned());
    let constraint = match text.starts_with('{') {
        true => Constraint::JsonSchema { source, text },
        false => Constraint::Gbnf { source, text },
    };
    TOKENIZER.with(|tokenizer| {
        let _ = follow(&constraint, tokenizer);
    });
});
