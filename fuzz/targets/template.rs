//! Any text as a chat template of a model: compiled, rendered for a talk, and continued.
#![no_main]

use gracekv::tokenizer::chat::{ChatTemplate, SpecialTokens};
use gracekv_fuzz::shared::talk;
use gracekv_fuzz::start;
use libfuzzer_sys::fuzz_target;

/// Longer ones cost time and have nothing that shorter ones have not. Units: bytes.
const MAX_TEXT: usize = 1 << 20;

fuzz_target!(init: start(), |data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let special = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: true };
    let Ok(template) = ChatTemplate::new(source, special) else { return };
    let talk = talk();
    if let Ok(text) = template.render(&talk, true) {
        assert!(text.len() <= 64 * MAX_TEXT);
    }
    let _ = template.continuation(&talk[..3], &talk[3], "</s>");
});
