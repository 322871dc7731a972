//! Texts with parts removed, doubled, put elsewhere or replaced by pieces that have a meaning there.

use std::ffi::OsString;
use std::path::Path;

use gracekv::cli::{high::HighArgs, parse, setup};
use gracekv::eval::data;
use gracekv::eval::records::{Record, Records, FILE};
use gracekv::gguf::Gguf;
use gracekv::sample::{Constraint, Grammar};
use gracekv::tokenizer::chat::{ChatTemplate, SpecialTokens};
use gracekv::tokenizer::Tokenizer;
use serde_json::json;

use crate::shared::{grammars, record, settings, talk, templates};
use crate::support::tiny;
use crate::{random, Try};

/// A text with some parts removed, doubled, put elsewhere or replaced by pieces that have a meaning there.
fn mutated(texts: &[String], pieces: &[&str], number: u64) -> String {
    let pick = |place: u64, n: usize| random(number, place) as usize % n.max(1);
    let mut text: Vec<char> = texts[pick(0, texts.len())].chars().collect();
    for k in 1..=1 + random(number, 1) % 4 {
        let place = 10 * k;
        let from = pick(place, text.len());
        let to = (from + pick(place + 1, 40)).min(text.len());
        let part: Vec<char> = text[from..to].to_vec();
        let piece: Vec<char> = pieces[pick(place + 2, pieces.len())].chars().collect();
        let at = pick(place + 3, text.len());
        match random(number, place + 4) % 6 {
            0 => drop(text.drain(from..to)),
            1 => drop(text.splice(at..at, part)),
            2 => drop(text.splice(from..to, piece)),
            3 => drop(text.splice(at..at, piece.repeat(1 + pick(place + 5, 300)))),
            4 => drop(text.splice(at..at, char::from_u32(random(number, place + 6) as u32 % 0x11_0000))),
            _ => drop(text.splice(at..at, piece)),
        }
    }
    text.into_iter().collect()
}

/// Templates of models and pieces of their language.
pub fn chat_template() -> Try {
    const PIECES: [&str; 24] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if x %}",
        "{% endif %}",
        "{% set ns.x = ns %}",
        "{% set ns = namespace(x=[]) %}",
        "|tojson",
        "|string",
        "[",
        "]",
        "(",
        ")",
        " not ",
        "loop.cycle()",
        "messages",
        "range(100000)",
        "{% macro f() %}{{ f() }}{% endmacro %}",
        "{% generation %}",
        "ns.x",
        "*1000000",
    ];
    let (texts, talk) = (templates(), talk());
    Box::new(move |number| {
        let special = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false };
        ChatTemplate::new(&mutated(&texts, &PIECES, number), special)?.render(&talk, true).map(drop)
    })
}

/// Grammars with verdicts of llama.cpp and pieces of their language, over a vocabulary of a tiny model.
pub fn grammar() -> Try {
    const PIECES: [&str; 20] = [
        "root ::= ",
        "::=",
        "(",
        ")",
        "[",
        "]",
        "*",
        "+",
        "?",
        "{1000}",
        "{0,}",
        "|",
        "\"",
        "[^\\n]",
        "\\u0041",
        "<",
        ">",
        "\n",
        "#",
        "x ::= x x",
    ];
    let texts = grammars();
    let tokenizer = Tokenizer::load(&Gguf::open(&tiny::path("llama")).unwrap()).unwrap();
    Box::new(move |number| {
        let constraint = Constraint::Gbnf { source: "--grammar".into(), text: mutated(&texts, &PIECES, number) };
        let mut grammar = Grammar::new(&constraint, &tokenizer)?;
        for token in tokenizer.encode("hello 12", false, false)? {
            if !grammar.allows(token)? {
                return Ok(());
            }
            grammar.accept(token)?;
        }
        Ok(())
    })
}

/// Lines of a set of questions as LongBench has them.
pub fn data_set(dir: &Path) -> Try {
    const PIECES: [&str; 12] =
        ["{", "}", "[", "]", "\"", ":", ",", "null", "1e999", "\\ud800", "\n", "\"answers\": [[]]"];
    let line = r#"{"input": "who?", "context": "the cat sat", "answers": ["the cat"], "length": 3, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "1"}"#;
    let path = dir.join("data.jsonl").to_str().unwrap().to_owned();
    Box::new(move |number| {
        std::fs::write(&path, mutated(&[format!("{line}\n{line}\n")], &PIECES, number)).unwrap();
        data::open(std::slice::from_ref(&path)).map(drop)
    })
}

/// The answers that a run of gracekv-eval goes on from.
pub fn answers(dir: &Path) -> Try {
    const PIECES: [&str; 12] =
        ["{", "}", "[", "]", "\"", ":", ",", "null", "1e999", "-1", "\n", "{\"settings\": {\"seed\": 1}}\n"];
    let (record, settings) = (record(), settings());
    let whole = format!("{}\n{}\n", json!({ "settings": settings }), record.to_json());
    let dir = dir.to_owned();
    Box::new(move |number| {
        std::fs::write(dir.join(FILE), mutated(std::slice::from_ref(&whole), &PIECES, number)).unwrap();
        let mut records = Records::open(&dir, &settings)?;
        records.push(Record { task: "new".into(), ..record.clone() })
    })
}

/// Values for keys of the model, from the command line to the loaded model.
pub fn override_kv() -> Try {
    const PIECES: [&str; 12] =
        ["=", ":", ",", "int:", "float:", "bool:", "str:", "-1", "4294967296", "1e300", "llama.", "\""];
    let model = tiny::path("llama");
    let texts: Vec<String> = Gguf::open(&model)
        .unwrap()
        .keys()
        .flat_map(|(key, _)| ["int:3", "float:0.5", "bool:true", "str:gpt2"].map(|value| format!("{key}={value}")))
        .collect();
    Box::new(move |number| {
        let value = mutated(&texts, &PIECES, number);
        let args = ["-c", "256", "-t", "1", "-m"].map(OsString::from).into_iter().chain([model.clone().into()]);
        let args = args.chain(["--override-kv".into(), value.into()]);
        let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
        let loaded = setup::load(&args, &mut |_| ())?;
        setup::session(&args, &loaded)?.prefill(&[1, 2, 3], |_| Ok(())).map(drop)
    })
}
