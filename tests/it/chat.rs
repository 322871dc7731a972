//! Chat templates against Jinja2 (tests/golden/README.md says how the expected texts were made).

use gracekv::tokenizer::chat::{ChatTemplate, Message, SpecialTokens};
use serde_json::Value;

const TEMPLATES: &str = include_str!("../golden/chat/templates.json");

fn templates() -> Vec<(Value, ChatTemplate)> {
    let special = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false };
    let all: Vec<Value> = serde_json::from_str(TEMPLATES).unwrap();
    all.into_iter()
        .map(|t| {
            let template = ChatTemplate::new(t["source"].as_str().unwrap(), special.clone()).unwrap();
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
    let mut n_refused = 0;
    for (t, template) in templates() {
        for case in t["cases"].as_array().unwrap() {
            let got = template.render(&messages(&case["messages"]), case["add_generation_prompt"].as_bool().unwrap());
            match case["text"].as_str() {
                Some(text) => assert_eq!(got.unwrap(), text, "{}", t["name"]),
                None => n_refused += u32::from(got.unwrap_err().to_string().contains("roles must alternate")),
            }
        }
    }
    assert_eq!(n_refused, 4, "mistral refuses a system turn");
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
