//! Writes the inputs that fuzzing starts from, a folder per target, into the folder that `SEEDS` names.
//!
//! They are what the tests have: tiny models, llama.cpp's chat templates, and the grammars that it gave verdicts on. A target in
//! form, since what is built for coverage links with libFuzzer only.
#![allow(clippy::unwrap_used)]
#![no_main]

use std::path::{Path, PathBuf};

use gracekv::eval::records::{Record, FILE};
use gracekv::gguf::Gguf;
use gracekv_fuzz::shared::{self, record, settings};
use gracekv_fuzz::{cached, tiny};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

/// Models that differ in vocabulary, tensors and numbers.
const MODELS: [&str; 6] = ["llama", "gemma3", "phi3", "gpt-oss", "deepseek2", "qwen2moe"];

struct Corpus(PathBuf);

impl Corpus {
    fn new(dir: &Path, target: &str) -> Corpus {
        let dir = dir.join(target);
        std::fs::create_dir_all(&dir).unwrap();
        Corpus(dir)
    }

    fn add(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }
}

fuzz_target!(init: write(), |_data: &[u8]| ());

fn write() {
    let dir = PathBuf::from(std::env::var_os("SEEDS").expect("SEEDS names a folder"));
    models(&dir);
    let (templates, grammars) = (Corpus::new(&dir, "template"), Corpus::new(&dir, "grammar"));
    shared::templates().iter().enumerate().for_each(|(i, text)| templates.add(format!("{i}"), text));
    shared::grammars().iter().enumerate().for_each(|(i, text)| grammars.add(format!("{i}"), text));
    schemas(&grammars);
    let caches = Corpus::new(&dir, "prompt_cache");
    cached::files().iter().enumerate().for_each(|(i, bytes)| caches.add(format!("{i}"), bytes));
    lines(&Corpus::new(&dir, "lines"));
    std::process::exit(0);
}

/// Headers of models, of which the target of the reader gets those without weights.
fn models(dir: &Path) {
    let (readers, models, tokenizers) =
        (Corpus::new(dir, "gguf"), Corpus::new(dir, "model"), Corpus::new(dir, "tokenizer"));
    let scratch = dir.join("model.gguf");
    for name in MODELS {
        tiny::recipe(name).write_zeros(&scratch);
        let start = Gguf::open(&scratch).unwrap().tensors().iter().map(|t| t.offset).min().unwrap();
        models.add(name, &std::fs::read(&scratch).unwrap()[..start as usize]);
        let mut recipe = tiny::recipe(name);
        recipe.tensors.retain(|t| t.ne.len() == 1 && t.name.starts_with("blk.0"));
        recipe.write_zeros(&scratch);
        readers.add(name, std::fs::read(&scratch).unwrap());
    }
    for name in ["llama", "gemma3"] {
        let mut recipe = tiny::recipe(name);
        recipe.tensors.clear();
        recipe.write_zeros(&scratch);
        tokenizers.add(name, std::fs::read(&scratch).unwrap());
    }
    tokenizers.add(
        "text",
        "The rain, 12,345 drops \u{e9}\u{301} \u{4e2d}\u{6587}\u{3042} it's IT'S \u{1f469}\u{200d}\u{1f680}\r\n\t  end",
    );
    std::fs::remove_file(scratch).unwrap();
}

fn schemas(grammars: &Corpus) {
    for (name, schema) in [
        (
            "object",
            json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 300 } }, "required": ["a"] }),
        ),
        ("array", json!({ "type": "array", "items": { "enum": ["a", 1, null] }, "minItems": 1, "maxItems": 3 })),
        ("pattern", json!({ "type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)?$", "maxLength": 9 })),
        (
            "refs",
            json!({ "$defs": { "n": { "properties": { "next": { "$ref": "#/$defs/n" } } } }, "$ref": "#/$defs/n" }),
        ),
        ("choice", json!({ "anyOf": [{ "const": 1.5 }, { "type": ["string", "null"], "format": "date" }] })),
    ] {
        grammars.add(format!("schema-{name}"), schema.to_string());
    }
}

fn lines(lines: &Corpus) {
    let longbench = json!({
        "input": "who?", "context": "the cat sat", "answers": ["the cat"], "length": 3, "dataset": "qasper", "language": "en",
        "all_classes": null, "_id": "1",
    });
    let ours = json!({
        "task": "qa_1", "context": "the cat sat", "question": "who?", "answer_prefix": "", "answer": "the cat",
        "max_new_tokens": 8, "metric": "f1", "all_classes": ["a", "b"],
    });
    lines.add("questions", format!("{longbench}\n{ours}\n\n"));
    let record = Record { text: "a\n\u{e9}".into(), ..record() };
    lines.add(FILE, format!("{}\n{}\n", json!({ "settings": settings() }), record.to_json()));
}
