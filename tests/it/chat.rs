//! Chat templates against Jinja2 (tests/golden/README.md says how the expected texts were made).

use std::collections::BTreeSet;

use gracekv::tokenizer::chat::{builtin_names, ChatTemplate, Choice, Message, SpecialTokens};
use serde_json::{Map, Value};

use crate::support::model_path;

const TEMPLATES: &str = include_str!("../golden/chat/templates.json");

fn templates() -> Vec<(Value, ChatTemplate)> {
    let all: Vec<Value> = serde_json::from_str(TEMPLATES).unwrap();
    all.into_iter()
        .map(|t| {
            let template = ChatTemplate::new(t["source"].as_str().unwrap(), special()).unwrap();
            (t, template)
        })
        .collect()
}

fn messages(list: &Value) -> Vec<Message> {
    let text = |m: &Value, key: &str| m[key].as_str().unwrap().to_string();
    list.as_array().unwrap().iter().map(|m| Message::new(text(m, "role"), text(m, "content"))).collect()
}

#[test]
fn rendering_equals_jinja2() {
    for (t, template) in templates() {
        for case in t["cases"].as_array().unwrap() {
            let got = template.render(&messages(&case["messages"]), case["add_generation_prompt"].as_bool().unwrap());
            match case["text"].as_str() {
                Some(text) => assert_eq!(got.unwrap(), text, "{}", t["name"]),
                None => assert!(got.unwrap_err().to_string().contains("roles must alternate")),
            }
        }
    }
}

/// A conversation that goes on in the cache is the text of the whole conversation, except that the cache keeps the
/// model's own answer, which some templates shorten.
#[test]
fn continuation_completes_the_conversation() {
    let expected = |name: &str| {
        match name {
        "chatml" | "qwen" => "\n<|im_start|>user\nAnd \"2\" + <é>?<|im_end|>\n<|im_start|>assistant\n",
        "llama3" => "<|start_header_id|>user<|end_header_id|>\n\nAnd \"2\" + <é>?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "mistral" => "[INST] And \"2\" + <é>? [/INST]",
        "gemma" => "\n<start_of_turn>user\nAnd \"2\" + <é>?<end_of_turn>\n<start_of_turn>model\n",
        "phi3" => "\n<|user|>\nAnd \"2\" + <é>?<|end|>\n<|assistant|>\n",
        _ => "",
    }
    };
    for (t, template) in templates().iter().filter(|(t, _)| t["name"] != "control") {
        let talk = messages(&t["cases"][4]["messages"]);
        let end = t["answer_end"].as_str().unwrap();
        let text = template.continuation(&talk[..2], &talk[2], end).unwrap();
        assert_eq!(text, expected(t["name"].as_str().unwrap()), "{}", t["name"]);
        let first = template.continuation(&[], &talk[0], end).unwrap();
        assert_eq!(first, t["cases"][0]["text"].as_str().unwrap());
    }
}

#[test]
fn a_template_that_rewrites_the_past_is_refused() {
    let (_, control) = templates().pop().unwrap();
    let talk = [Message::new("user", "a"), Message::new("assistant", "b"), Message::new("user", "c")];
    assert!(control.continuation(&talk[..2], &talk[2], "</x>").is_err());
}

/// Fuel grows with the conversation: no template runs dry on a long document.
#[test]
fn a_long_conversation_is_rendered() {
    let talk = [Message::new("user", "word ".repeat(800_000))];
    for (t, template) in templates() {
        let text = template.render(&talk, true).unwrap();
        assert!(t["name"] == "control" || text.len() >= 4_000_000 - 1, "{}", t["name"]);
    }
}

/// The conversations of render.cpp, and whether the answer is to be prepared.
fn talks() -> [(Vec<Message>, bool); 4] {
    let user = |text: &str| Message::new("user", text);
    let first = user(" What is 1 + 1?\n");
    let talk = vec![first.clone(), Message::new("assistant", " Two. "), user("And \"2\" + <é>?")];
    let with_system: Vec<_> = [Message::new("system", "Be brief. ")].into_iter().chain(talk.clone()).collect();
    [(vec![first], true), (talk, true), (with_system.clone(), true), (with_system, false)]
}

fn special() -> SpecialTokens {
    SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false }
}

/// Renders the conversations and compares them with the texts of `want`.
fn compare(name: &str, template: &ChatTemplate, want: &Value) {
    let today = |format: &regex::Captures| jiff::fmt::strtime::format(&format[1], &jiff::Zoned::now()).unwrap();
    let mark = regex::Regex::new(r"\{today:([^}]+)\}").unwrap();
    for ((talk, add_generation_prompt), want) in talks().iter().zip(want.as_array().unwrap()) {
        let got = template.render(talk, *add_generation_prompt);
        match want.as_str() {
            Some(want) => assert_eq!(got.unwrap(), mark.replace_all(want, today), "{name}"),
            None => assert!(got.is_err(), "{name}: {got:?}"),
        }
    }
}

#[test]
fn built_in_templates_render_as_in_llama_cpp() {
    let golden: Map<String, Value> = serde_json::from_str(include_str!("../golden/chat/builtin.json")).unwrap();
    for (name, want) in &golden {
        compare(name, &ChatTemplate::builtin(name, special()).unwrap(), want);
    }
    let names: BTreeSet<&str> = builtin_names().collect();
    assert_eq!(names, golden.keys().map(String::as_str).collect());
}

/// The templates of known models, where llama.cpp's copies of them were fetched.
#[test]
fn templates_of_models_render_as_in_llama_cpp() {
    let golden: Map<String, Value> = serde_json::from_str(include_str!("../golden/chat/models.json")).unwrap();
    assert!(golden.len() >= 15);
    let variables: Map<String, Value> = serde_json::from_str(r#"{"date_string": "26 Jul 2024"}"#).unwrap();
    for (name, want) in &golden {
        let Some(path) = model_path(&format!("templates/{name}")) else { return };
        let source = std::fs::read_to_string(path).unwrap();
        let template = ChatTemplate::with_variables(&source, special(), variables.clone()).unwrap();
        compare(name, &template, want);
    }
}

/// `--no-jinja`: the format is recognised, or not, as llama.cpp does.
#[test]
fn formats_are_recognised_as_in_llama_cpp() {
    let golden: Map<String, Value> = serde_json::from_str(include_str!("../golden/chat/no_jinja.json")).unwrap();
    let (talk, add_generation_prompt) = talks()[2].clone();
    for (name, want) in &golden {
        let Some(path) = model_path(&format!("templates/{name}")) else { return };
        let source = std::fs::read_to_string(path).unwrap();
        let choice = Choice { given: Some(&source), own: None, jinja: false };
        match (ChatTemplate::open(choice, special(), Map::new()), want.as_str()) {
            (Ok((template, _)), Some(want)) => {
                assert_eq!(template.render(&talk, add_generation_prompt).unwrap(), want, "{name}");
            }
            (Err(e), None) => assert!(e.to_string().contains("try using --jinja"), "{name}: {e}"),
            (got, want) => panic!("{name}: {} instead of {want:?}", got.is_ok()),
        }
    }
}
