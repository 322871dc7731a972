//! What hostile input in bulk and the fuzz targets begin with: a run of the program, an answer, and golden texts.

use std::ffi::OsString;
use std::path::Path;

use gracekv::cli::{high::HighArgs, parse, setup};
use gracekv::error::Result;
use gracekv::eval::records::Record;
use gracekv::tokenizer::chat::Message;
use serde_json::{json, Map, Value};

/// What `gracekv-run` does with a model, up to the first token.
pub fn run(model: &Path, more: &[&str]) -> Result<()> {
    gracekv::ggml::set_log(false);
    let fixed = ["-c", "256", "-t", "1", "--temp", "0", "-m"].map(OsString::from);
    let args = fixed.into_iter().chain([model.into()]).chain(more.iter().map(OsString::from));
    let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
    let loaded = setup::load(&args, &mut |_| ())?;
    let mut session = setup::session(&args, &loaded)?;
    let mut chain = setup::chain(&args, &loaded, &mut |_| ())?;
    let tokens = loaded.tokenizer.encode("the rain in the harbour", true, true)?;
    let logits = session.prefill(&tokens, |_| Ok(()))?;
    let token = chain.sample(&logits)?;
    session.step(token).map(drop)
}

/// The settings of a run of gracekv-eval that goes on from answers.
pub fn settings() -> Map<String, Value> {
    json!({ "seed": 1 }).as_object().unwrap().clone()
}

/// An answer of that run.
pub fn record() -> Record {
    Record {
        task: "vt".into(),
        sample: 1,
        method: "gracekv".into(),
        ratio: 4.0,
        score: 0.5,
        chance: 0.0,
        kv_bytes: 1000,
        pass_ms: 1.5,
        n_tokens: 100,
        text: "a".into(),
        answers: vec!["a".into()],
    }
}

/// A talk for templates.
pub fn talk() -> [Message; 4] {
    let talk = [("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "bye")];
    talk.map(|(role, content)| Message::new(role, content))
}

/// Templates of models.
pub fn templates() -> Vec<String> {
    strings(include_str!("../../golden/chat/templates.json"), "source")
}

/// Grammars with verdicts of llama.cpp.
pub fn grammars() -> Vec<String> {
    strings(include_str!("../../golden/grammar/verdicts.json"), "grammar")
}

/// All texts under a key.
fn strings(golden: &str, key: &str) -> Vec<String> {
    fn collect(value: &Value, key: &str, out: &mut Vec<String>) {
        match value {
            Value::Array(list) => list.iter().for_each(|v| collect(v, key, out)),
            Value::Object(fields) => fields.iter().for_each(|(name, v)| match v.as_str() {
                Some(text) if name == key => out.push(text.to_owned()),
                _ => collect(v, key, out),
            }),
            _ => {}
        }
    }
    let mut out = Vec::new();
    collect(&serde_json::from_str(golden).unwrap(), key, &mut out);
    assert!(!out.is_empty(), "no {key}");
    out
}
