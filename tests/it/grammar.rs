//! Grammars and JSON schemas: the verdicts of llama.cpp (tests/golden/README.md), laws of the token mask, hostile grammars.

use std::time::{Duration, Instant};

use gracekv::error::Result;
use gracekv::sample::{Candidates, Chain, Constraint, Grammar, SampleParams, Vocabulary};
use serde_json::Value;

use crate::support::model_path;

const VERDICTS: &str = include_str!("../golden/grammar/verdicts.json");

/// Every byte is a token; then come longer ones, two of which have the same text, a control token and two ends of text.
struct Bytes(Vec<Vec<u8>>);

const LONGER: [&str; 14] =
    ["ab", "abc", "the", " {\"", "\":", "true", "}}", "é", "日本", "\n  ", "12", "12", "<think>", "{\"a\": 1}"];

impl Bytes {
    fn new() -> Self {
        let mut pieces: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
        pieces.extend(LONGER.map(|t| t.as_bytes().to_vec()));
        pieces.extend([b"<end>".to_vec(), b"<stop>".to_vec()]);
        Bytes(pieces)
    }

    fn eog(&self) -> u32 {
        self.n_vocab() - 1
    }
}

impl Vocabulary for Bytes {
    fn n_vocab(&self) -> u32 {
        self.0.len() as u32
    }

    fn piece(&self, id: u32) -> &[u8] {
        &self.0[id as usize]
    }

    fn is_eog(&self, id: u32) -> bool {
        id + 2 >= self.n_vocab()
    }

    fn encode(&self, text: &[u8], special: bool) -> Result<Vec<u32>> {
        match self.0.iter().position(|p| special && p == text) {
            Some(id) => Ok(vec![id as u32]),
            None => Ok(text.iter().map(|&b| b.into()).collect()),
        }
    }
}

fn gbnf(text: &str) -> Constraint {
    Constraint::Gbnf { source: "--grammar".into(), text: text.into() }
}

fn schema(text: &str) -> Constraint {
    Constraint::JsonSchema { source: "--json-schema".into(), text: text.into() }
}

fn error(constraint: &Constraint) -> String {
    Grammar::new(constraint, &Bytes::new()).err().map(|e| e.to_string()).unwrap_or_default()
}

/// What the grammar says about a text, given byte by byte.
fn verdict(constraint: &Constraint, text: &str) -> &'static str {
    let Ok(mut grammar) = Grammar::new(constraint, &Bytes::new()) else { return "error" };
    for byte in text.bytes() {
        if !grammar.allows(byte.into()).unwrap() {
            return "no";
        }
        grammar.accept(byte.into()).unwrap();
    }
    match grammar.is_complete().unwrap() {
        true => "yes",
        false => "part",
    }
}

#[test]
fn verdicts_equal_those_of_llama_cpp() {
    let cases: Vec<Value> = serde_json::from_str(VERDICTS).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let constraint = case["grammar"].as_str().map(gbnf).unwrap_or_else(|| schema(&case["schema"].to_string()));
        for text in case["texts"].as_array().unwrap() {
            let (text, want) = (text[0].as_str().unwrap(), text[1].as_str().unwrap());
            let got = verdict(&constraint, text);
            if got != want {
                wrong.push(format!("{}: {text:?} is '{got}', for llama.cpp '{want}'", case["name"]));
            }
        }
    }
    assert!(cases.len() >= 90 && wrong.is_empty(), "{wrong:#?}");
}

/// The set of allowed tokens is what a token-by-token check says, and that is what the bytes of each token say.
#[test]
fn masks_agree_with_single_tokens_and_with_their_bytes() {
    let vocabulary = Bytes::new();
    let cases: Vec<Value> = serde_json::from_str(VERDICTS).unwrap();
    for case in &cases {
        let constraint = case["grammar"].as_str().map(gbnf).unwrap_or_else(|| schema(&case["schema"].to_string()));
        let Ok(mut grammar) = Grammar::new(&constraint, &vocabulary) else { continue };
        let text = case["texts"][0][0].as_str().unwrap();
        for (n, byte) in text.bytes().map(Some).chain([None]).enumerate().take(12) {
            let mut candidates = Candidates::default();
            candidates.fill(&vec![0.0; vocabulary.0.len()]).unwrap();
            grammar.apply(&mut candidates).unwrap();
            for c in candidates.list() {
                let (allowed, piece) = (c.logit == 0.0, vocabulary.piece(c.id));
                assert_eq!(allowed, grammar.allows(c.id).unwrap(), "{}: {piece:?} after {n} bytes", case["name"]);
                if allowed && !vocabulary.is_eog(c.id) {
                    let mut whole = text.as_bytes()[..n].to_vec();
                    whole.extend_from_slice(piece);
                    let mut fresh = Grammar::new(&constraint, &vocabulary).unwrap();
                    whole.iter().for_each(|&b| fresh.accept(b.into()).unwrap());
                }
            }
            match byte.filter(|&b| grammar.allows(b.into()).unwrap()) {
                Some(byte) => grammar.accept(byte.into()).unwrap(),
                None => break,
            }
        }
    }
}

#[test]
fn the_answer_ends_where_the_grammar_is_complete() {
    let vocabulary = Bytes::new();
    let grammar = Grammar::new(&gbnf(r#"root ::= "ab" [0-9]"#), &vocabulary).unwrap();
    let params = SampleParams { seed: 1, temperature: 2.0, ..SampleParams::default() };
    let mut chain = Chain::new(&params).unwrap().with_grammar(Some(grammar));
    let logits = vec![0.0; vocabulary.0.len()];
    for _ in 0..2 {
        chain.accept_prompt(7);
        let mut text = Vec::new();
        let end = loop {
            let token = chain.sample(&logits).unwrap();
            chain.accept(token).unwrap();
            if vocabulary.is_eog(token) {
                break token;
            }
            text.extend_from_slice(vocabulary.piece(token));
        };
        assert!(text.len() == 3 && text.starts_with(b"ab") && text[2].is_ascii_digit(), "{text:?}");
        assert!(vocabulary.is_eog(end));
        assert!(vocabulary.is_eog(chain.sample(&logits).unwrap()), "only an end can follow");
    }
}

/// A token that fits is the one that the chain draws without a grammar: it is checked first, and chosen again only if it does not fit.
#[test]
fn a_token_that_fits_is_not_chosen_again() {
    let vocabulary = Bytes::new();
    let params = SampleParams { seed: 5, temperature: 3.0, ..SampleParams::default() };
    let mut free = Chain::new(&params).unwrap();
    let grammar = Grammar::new(&gbnf("root ::= [^\\x00]*"), &vocabulary).unwrap();
    let mut bound = Chain::new(&params).unwrap().with_grammar(Some(grammar));
    let logits: Vec<f32> =
        (0..vocabulary.n_vocab()).map(|i| if (97..123).contains(&i) { 4.0 } else { -60.0 }).collect();
    for _ in 0..50 {
        let token = free.sample(&logits).unwrap();
        assert_eq!(bound.sample(&logits).unwrap(), token);
        bound.accept(token).unwrap();
    }
}

#[test]
fn tokens_can_be_named() {
    let vocabulary = Bytes::new();
    let id = LONGER.iter().position(|t| *t == "<think>").unwrap() as u32 + 256;
    let text = format!("root ::= <think> \"a\" !<[{id}]> <[65]> | \"b\"");
    let mut grammar = Grammar::new(&gbnf(&text), &vocabulary).unwrap();
    let allowed =
        |grammar: &mut Grammar| (0..vocabulary.n_vocab()).filter(|&t| grammar.allows(t).unwrap()).collect::<Vec<_>>();
    assert_eq!(allowed(&mut grammar), [98, id]);
    grammar.accept(id).unwrap();
    assert_eq!(allowed(&mut grammar), [97]);
    grammar.accept(97).unwrap();
    assert!(!grammar.allows(id).unwrap() && grammar.allows(66).unwrap() && grammar.allows(257).unwrap());
    grammar.accept(257).unwrap();
    assert_eq!(allowed(&mut grammar), [65]);
    grammar.accept(65).unwrap();
    assert_eq!(allowed(&mut grammar), [vocabulary.eog() - 1, vocabulary.eog()]);
    assert!(error(&gbnf("root ::= <no such token>")).contains("1:10: '<no such token>' is not one token"));
    assert!(error(&gbnf("root ::= <[99999]>")).starts_with("failed to parse grammar: --grammar: "));
}

#[test]
fn faults_are_named_with_their_place() {
    let at = |text: &str| error(&gbnf(text)).replace("failed to parse grammar: --grammar:", "");
    assert_eq!(at("root ::= \"abc"), "1:14: unexpected end of the grammar in a text or a set");
    assert_eq!(at("root ::= a\n\na ::= (\"x\" | [b-a])"), "3:15: a range of characters from a higher to a lower one");
    assert_eq!(at("root ::= é \"x"), "1:10: expecting a line break or the end of the grammar, found 'é'");
    assert_eq!(at("root ::= \"é\" b"), "1:14: undefined rule 'b'");
    assert_eq!(at("# x\nroot ::= x\nx ::= y\ny ::= x \"a\""), "3:1: left recursion: rule 'x' begins with itself");
    assert_eq!(at("root ::= \"a\"{3,2}"), "1:13: a repetition of 3 to 2");
    assert_eq!(at("root ::= \"\\U00110000\""), "1:11: 0x110000 is no character");
    assert_eq!(at("a ::= \"a\""), "1:1: the grammar has no 'root' rule");
    let json = error(&schema("{\"type\": "));
    assert!(json.starts_with("failed to parse grammar: --json-schema: the schema is not JSON: EOF"), "{json}");
    assert!(error(&schema("3")).ends_with("a schema is an object, true or false"));
    assert!(error(&schema(r#"{"type": "nothing"}"#)).starts_with("failed to parse grammar: --json-schema: "));
    assert!(error(&schema(r##"{"$ref": "#/$defs/none"}"##)).starts_with("failed to parse grammar: --json-schema: "));
}

/// One line within seconds, whatever the grammar is: no panic, no stack overflow, no endless work.
#[test]
fn hostile_grammars_end_in_one_line_or_work() {
    let deep = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    let mut chain: String = (0..5_000).map(|i| format!("r{i} ::= r{} \"a\" | \"b\"\n", i + 1)).collect();
    chain.push_str("r5000 ::= \"c\"\nroot ::= r0");
    let nested_counts = format!("root ::= {}\"a\"{}", "(".repeat(8), "){1000,2000}".repeat(8));
    let exponential: String = (0..40).map(|i| format!("r{i} ::= r{n} r{n}\n", n = i + 1)).collect();
    let many = format!("root ::= {}", vec!["\"abcdefgh\" [a-z]"; 20_000].join(" | "));
    let grammars = [
        deep(60),
        deep(100_000),
        chain,
        nested_counts,
        exponential + "r40 ::= \"a\"?\nroot ::= r0",
        many,
        format!("root ::= \"{}\"", "a".repeat(600_000)),
        format!("root ::= [{}]", "a-z".repeat(200_000)),
        "#".repeat(2 << 20),
        format!("root ::= {}", "\"a\"* ".repeat(5_000)),
        "root ::= \"a\"".to_owned() + &"?".repeat(3_000),
        "root ::= (\"a\"* \"a\"* \"a\"*)* \"b\"".into(),
        "root ::= s\ns ::= \"a\" s s | \"\"".into(),
        "root ::= \"a\"{18446744073709551616}".into(),
        "root ::= \"a\"{0,18446744073709551615} \"b\"".into(),
        "root ::= [\\x00-\\U0010FFFF]".into(),
        "root ::= [\\uD800-\\uDFFF]".into(),
        "root ::= <[18446744073709551616]>".into(),
        "%llguidance {}\nstart: \"a\" | start".into(),
        "%llguidance nonsense".into(),
    ];
    for text in grammars {
        let (start, head) = (Instant::now(), text.chars().take(60).collect::<String>());
        match Grammar::new(&gbnf(&text), &Bytes::new()) {
            Err(e) => assert_eq!(e.to_string().lines().count(), 1, "{head}: {e}"),
            Ok(mut grammar) => {
                for _ in 0..40 {
                    let mut candidates = Candidates::default();
                    candidates.fill(&[0.0; 272]).unwrap();
                    let next = grammar.apply(&mut candidates);
                    let step = next.and_then(|()| match grammar.allows(97)? {
                        true => grammar.accept(97),
                        false => Ok(()),
                    });
                    if let Err(e) = step {
                        assert_eq!(e.to_string().lines().count(), 1, "{head}: {e}");
                        break;
                    }
                }
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{head} took {:?}", start.elapsed());
    }
}

#[test]
fn hostile_schemas_end_in_one_line_or_work() {
    let nested = |n: usize| r#"{"type":"array","items":"#.repeat(n) + "{}" + &"}".repeat(n);
    let wide: String = (0..3_000).map(|i| format!("\"p{i}\":{{\"type\":\"string\"}},")).collect();
    for text in [
        nested(100),
        nested(100_000),
        format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", wide.trim_end_matches(',')),
        r#"{"type":"string","minLength":1000000000}"#.into(),
        r#"{"type":"array","minItems":1000000000}"#.into(),
        r#"{"type":"string","pattern":"((a{1000}){1000}){1000}"}"#.into(),
        r#"{"type":"string","pattern":"(a|b"}"#.into(),
        r##"{"$ref":"#"}"##.into(),
        r#"{"$ref":"http://example.com/x.json"}"#.into(),
        r#"{"type":"integer","minimum":5,"maximum":1}"#.into(),
        r#"{"type":"number","multipleOf":0}"#.into(),
        r#"{"enum":[]}"#.into(),
        "[1,2]".into(),
        String::new(),
    ] {
        let (start, head) = (Instant::now(), text.chars().take(60).collect::<String>());
        if let Err(e) = Grammar::new(&schema(&text), &Bytes::new()) {
            assert_eq!(e.to_string().lines().count(), 1, "{head}: {e}");
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{head} took {:?}", start.elapsed());
    }
}

/// A real model under a schema and under a grammar: what it writes is JSON, whatever the sampling.
#[test]
fn a_model_writes_json() {
    let Some(model) = model_path("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let schema = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":30},"year":{"type":"integer"},
        "tags":{"type":"array","items":{"type":"string","maxLength":12},"maxItems":3}},
        "required":["name","year","tags"],"additionalProperties":false}"#;
    let grammar = r#"root ::= "{" ws "\"name\":" ws string "," ws "\"year\":" ws [1-9] [0-9]{3} "," ws "\"tags\":" ws "[" string "]" ws "}"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt]){1,30} "\""
ws ::= [ \n]?"#;
    for (option, text) in [("-j", schema), ("--grammar", grammar)] {
        for sampling in [&["--temp", "0"][..], &["--temp", "1.5", "-s", "3"], &["--mirostat", "2", "-s", "4"]] {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
                .arg("-m")
                .arg(&model)
                .args([
                    "-p",
                    "A book as JSON:\n",
                    "-n",
                    "200",
                    "-no-cnv",
                    "--no-display-prompt",
                    "-c",
                    "512",
                    "--no-warmup",
                ])
                .args([option, text])
                .args(sampling)
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let json =
                text.strip_suffix(" [end of text]\n\n\n").unwrap_or_else(|| panic!("{sampling:?}: no end: {text}"));
            let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{sampling:?}: {e}: {json}"));
            assert!(value["name"].is_string() && value["year"].is_i64() && value["tags"].is_array(), "{json}");
        }
    }
}

/// A text that cannot go on is told in our words.
#[test]
fn a_vocabulary_that_cannot_go_on_is_named() {
    let vocabulary = Bytes(["a", "<end>", "<stop>"].map(|t| t.as_bytes().to_vec()).to_vec());
    let mut grammar = Grammar::new(&gbnf("root ::= \"ab\""), &vocabulary).unwrap();
    grammar.accept(0).unwrap();
    let mut candidates = Candidates::default();
    candidates.fill(&[0.0; 3]).unwrap();
    let e = grammar.apply(&mut candidates).unwrap_err().to_string();
    assert!(e.ends_with("no token of this vocabulary can come next"), "{e}");
}
