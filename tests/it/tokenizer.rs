//! The tokenizer against llama.cpp's ids, its laws, and metadata that no model should have.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gracekv::error::{Error, Result};
use gracekv::gguf::{Array, Gguf, StrArray, Value, Writer};
use gracekv::tokenizer::{Tokenizer, Utf8Stream};

/// `path` under `models/`; `None`, with a message, where it was not fetched and need not be there.
fn model(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(path);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("GRACEKV_REQUIRE_MODELS").is_some();
    assert!(!required, "{} is missing and GRACEKV_REQUIRE_MODELS is set", path.display());
    eprintln!("skipped: {} is missing", path.display());
    None
}

fn load(path: &Path) -> Result<Tokenizer> {
    Tokenizer::load(&Gguf::open(path)?)
}

/// Vocabularies that llama.cpp has cases for.
const VOCABULARIES: [&str; 13] = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// Vocabularies of llama.cpp that are refused, and their kind.
const REFUSED: [(&str, &str); 3] = [("bert-bge", "bert"), ("gemma-4", "gemma4"), ("nomic-bert-moe", "t5")];

/// `.inp` has texts, each ended by a separator line; `.out` has a line of ids for each.
#[test]
fn vocabularies_of_llama_cpp_give_its_ids() {
    const SEPARATOR: &str = "\n__ggml_vocab_test__\n";
    let Some(folder) = model("vocab") else { return };
    for name in VOCABULARIES {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = load(&path).unwrap();
        let texts = fs::read_to_string(path.with_extension("gguf.inp")).unwrap();
        let ids = fs::read_to_string(path.with_extension("gguf.out")).unwrap();
        let texts: Vec<&str> = texts.strip_suffix(SEPARATOR).unwrap().split(SEPARATOR).collect();
        assert_eq!(texts.len(), ids.lines().count(), "{name}");
        for (text, line) in texts.iter().zip(ids.lines()) {
            let want: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), want, "{name}: {text:?}");
        }
    }
}

#[test]
fn other_kinds_of_vocabulary_are_refused_by_name() {
    let Some(folder) = model("vocab") else { return };
    for (name, kind) in REFUSED {
        let error = load(&folder.join(format!("ggml-vocab-{name}.gguf"))).err().unwrap();
        assert_eq!(error.to_string(), format!("unsupported tokenizer (tokenizer.ggml.model): '{kind}'"));
    }
}

/// Ids of three models from `llama-tokenize`, see `made_with` in the file.
#[test]
fn models_give_the_ids_of_llama_tokenize() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/tokenizer/greedy_ids.json")).unwrap();
    for entry in golden["models"].as_array().unwrap() {
        let Some(path) = model(entry["file"].as_str().unwrap()) else { continue };
        let tokenizer = load(&path).unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(prompt, true, true).unwrap(), want, "{prompt:?}");
        }
    }
}

/// Words and spaces beside special and added tokens, where tokenizers like to differ.
#[test]
fn text_beside_special_tokens_gives_the_ids_of_llama_tokenize() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/tokenizer/special_ids.json")).unwrap();
    let Some(folder) = model("vocab") else { return };
    for (name, cases) in golden.as_object().unwrap() {
        let tokenizer = load(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let want: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text, true, true).unwrap(), want, "{name}: {text:?}");
        }
    }
}

/// A megabyte without a boundary between words, the worst case of every stage.
#[test]
fn a_megabyte_of_one_word_takes_time_in_proportion() {
    let Some(folder) = model("vocab") else { return };
    for name in ["gpt-2", "llama-bpe", "qwen2", "llama-spm"] {
        let tokenizer = load(&folder.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
        for part in ["a", "etaoinshrdlu", " ", "\n", "7", "-", "\u{540d}", "\u{1f355}\u{1f389}"] {
            let text = part.repeat((1 << 20) / part.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, false, false).unwrap();
            // It takes a fraction of a second; quadratic work would take a quarter of an hour.
            assert!(start.elapsed().as_secs() < 30, "{name} {part:?}: {:?}", start.elapsed());
            let first = tokenizer.first_piece(ids[0]).iter();
            let back: Vec<u8> =
                first.chain(ids[1..].iter().flat_map(|&id| tokenizer.piece(id, true))).copied().collect();
            assert!(back == text.as_bytes(), "{name} {part:?}");
        }
    }
}

type Metadata = Vec<(&'static str, Value)>;

fn strings<S: AsRef<[u8]>>(texts: impl IntoIterator<Item = S>) -> Value {
    Value::Array(Array::Str(texts.into_iter().collect::<StrArray>()))
}

/// GPT-2's character of each byte, in the order of bytes.
fn byte_alphabet() -> Vec<String> {
    let printable = |b: u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut above = 0x100..;
    (0..256)
        .map(|b| if printable(b) { b } else { above.next().unwrap() })
        .map(|c| char::from_u32(c).unwrap().to_string())
        .collect()
}

/// A byte-level BPE vocabulary: all bytes, a few merges and a token of each special kind.
fn bpe() -> Metadata {
    let mut tokens = byte_alphabet();
    tokens.extend(["th", "the", "Ġthe", "íķ", "<ctl>", "<usr>", "<unk>"].map(String::from));
    let types = (0..256 + 7).map(|id| match id {
        260 => 3,
        261 => 4,
        262 => 2,
        _ => 1,
    });
    vec![
        ("general.architecture", "llama".into()),
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "gpt-2".into()),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types.collect()))),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.merges", strings(["t h", "th e", "Ġ the", "í ķ"])),
        ("tokenizer.ggml.bos_token_id", 260u32.into()),
        ("tokenizer.ggml.eos_token_id", 260u32.into()),
    ]
}

/// A SentencePiece-style vocabulary: all bytes, some characters and what they make.
fn spm() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    tokens.extend(["▁", "t", "h", "e", "th", "▁th", "▁the", "한", "▁▁", "<usr>"].map(String::from));
    let types = (0..tokens.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        268 => 4,
        _ => 1,
    });
    let scores = (0..tokens.len()).map(|id| -(id as f32));
    vec![
        ("general.architecture", "llama".into()),
        ("tokenizer.ggml.model", "llama".into()),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types.collect()))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(scores.collect()))),
        ("tokenizer.ggml.tokens", strings(tokens)),
    ]
}

fn build(metadata: &Metadata) -> Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut writer = Writer::new();
    metadata.iter().for_each(|(key, value)| writer.set(key, value.clone()).unwrap());
    writer.write(&path, |_| -> Result<Vec<u8>> { unreachable!("there are no tensors") })?;
    load(&path)
}

/// `metadata` with `key` set to `value`, or without it.
fn with(mut metadata: Metadata, key: &'static str, value: Option<Value>) -> Metadata {
    metadata.retain(|(k, _)| *k != key);
    metadata.extend(value.map(|value| (key, value)));
    metadata
}

/// Texts of words, marks, whitespace, scripts and emoji in many orders.
fn texts() -> impl Iterator<Item = String> {
    const PARTS: [&str; 24] = [
        "the",
        " the",
        "Then",
        " ",
        "   ",
        "\n",
        "\r\n",
        "\t",
        "\0",
        "'s",
        "12345",
        "½",
        "é",
        "e\u{301}",
        "한국",
        "漢字",
        "ไทย",
        "🍕",
        "👩\u{200D}👧",
        "\u{3000}",
        "\u{85}",
        "\u{2581}",
        "<usr>",
        "!?",
    ];
    let mut state = 1u64;
    (0..400).map(move |i| {
        let mut text = String::new();
        for _ in 0..i % 12 {
            // Numerical Recipes' generator: any fixed sequence will do.
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            text += PARTS[(state >> 33) as usize % PARTS.len()];
        }
        text
    })
}

fn joined(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| tokenizer.piece(id, true)).copied().collect()
}

#[test]
fn pieces_of_byte_level_bpe_join_to_the_text() {
    let tokenizer = build(&bpe()).unwrap();
    for text in texts() {
        let ids = tokenizer.encode(&text, false, true).unwrap();
        assert_eq!(joined(&tokenizer, &ids), text.as_bytes(), "{text:?}");
    }
    let ids = tokenizer.encode_bytes(b"the\xE2\x82\xFF", false, false).unwrap();
    assert_eq!(joined(&tokenizer, &ids), "the\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes());
    assert_eq!(tokenizer.encode(" the the", false, false).unwrap(), [258, 258]);
}

#[test]
fn pieces_of_spm_join_to_the_text_with_a_space_before_it() {
    let tokenizer = build(&spm()).unwrap();
    for text in texts().filter(|text| !text.contains("<usr>") && !text.is_empty()) {
        // A text's own U+2581 is a space to SPM.
        let want = format!(" {}", text.replace('\u{2581}', " "));
        let ids = tokenizer.encode(&text, false, false).unwrap();
        assert_eq!(joined(&tokenizer, &ids), want.as_bytes(), "{text:?}");
    }
    let ids = tokenizer.encode_bytes(b"\xE2\x82\xFF", false, false).unwrap();
    assert_eq!(joined(&tokenizer, &ids), b" \xE2\x82\xFF", "invalid UTF-8 is kept");
}

#[test]
fn streamed_pieces_are_text_and_join_to_the_whole() {
    for tokenizer in [build(&bpe()).unwrap(), build(&spm()).unwrap()] {
        for text in texts() {
            let ids = tokenizer.encode(&text, false, true).unwrap();
            let mut stream = Utf8Stream::new();
            let mut streamed: String = ids.iter().map(|&id| stream.push(tokenizer.piece(id, true))).collect();
            streamed += &stream.finish();
            assert_eq!(streamed.as_bytes(), joined(&tokenizer, &ids), "{text:?}");
        }
    }
}

#[test]
fn special_tokens_are_added_parsed_and_hidden_as_asked() {
    let tokenizer = build(&with(bpe(), "tokenizer.ggml.add_bos_token", Some(true.into()))).unwrap();
    assert_eq!(tokenizer.encode("", true, false).unwrap(), [260]);
    assert_eq!(tokenizer.encode("the<usr><ctl>", true, true).unwrap(), [260, 257, 261, 260]);
    assert_eq!(tokenizer.encode("<usr>", false, false).unwrap(), [261]);
    assert_eq!(tokenizer.encode("<ctl>", false, false).unwrap().len(), 5);
    assert_eq!(tokenizer.piece(260, true), b"<ctl>");
    assert_eq!(tokenizer.piece(260, false), b"");
    assert_eq!(tokenizer.piece(261, false), b"<usr>");
    assert_eq!(tokenizer.piece(9999, true), b"");
    // No BOS where the file says so, or says nothing and the kind has none.
    assert_eq!(build(&bpe()).unwrap().encode("the", true, true).unwrap(), [257]);
    let without = build(&with(spm(), "tokenizer.ggml.add_bos_token", Some(false.into()))).unwrap();
    assert_eq!(without.encode("the", true, true).unwrap(), [265]);
    assert!(tokenizer.is_eog(260) && tokenizer.is_control(260) && !tokenizer.is_control(261));

    let tokenizer = build(&with(spm(), "tokenizer.ggml.add_eos_token", Some(true.into()))).unwrap();
    assert_eq!(tokenizer.encode("the", true, false).unwrap(), [1, 265, 2]);
    assert_eq!(tokenizer.encode("t<usr>t", false, false).unwrap(), [259, 260, 268, 259, 260]);
}

#[test]
fn texts_of_known_tokens_end_a_generation() {
    let tokens = strings(
        byte_alphabet().into_iter().chain(
            ["<|im_end|>", "<|eom_id|>", "<|file_sep|>", "<|end|>", "<|return|>", "<|call|>", "x", "x", "x"]
                .into_iter()
                .enumerate()
                .map(|(i, text)| if text == "x" { format!("x{i}") } else { text.into() }),
        ),
    );
    let mut metadata = with(bpe(), "tokenizer.ggml.tokens", Some(tokens));
    metadata.retain(|(key, _)| *key != "tokenizer.ggml.token_type");
    let tokenizer = build(&metadata).unwrap();
    assert_eq!((tokenizer.eot(), tokenizer.eom()), (Some(256), Some(257)));
    // <|end|> does not end one where <|return|> and <|call|> do; 260 is the file's EOS.
    assert_eq!(tokenizer.eog().collect::<Vec<_>>(), [256, 257, 258, 260, 261]);
    assert!(tokenizer.is_control(256) && !tokenizer.is_control(259));
}

/// What is wrong with the metadata, and what the message must name.
#[test]
fn malformed_metadata_is_refused_with_the_key_and_the_finding() {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    let ints = |n: usize| Some(Value::Array(Array::I32(vec![1; n])));
    let floats = |n: usize| Some(Value::Array(Array::F32(vec![f32::NAN; n])));
    let cases: Vec<(Metadata, &str)> = vec![
        (with(bpe(), "tokenizer.ggml.model", None), "key 'tokenizer.ggml.model' is missing"),
        (with(bpe(), "tokenizer.ggml.model", Some(1u32.into())), "expected str"),
        (with(bpe(), "tokenizer.ggml.pre", Some(1u32.into())), "expected str"),
        (with(spm(), TOKENS, None), "key 'tokenizer.ggml.tokens' is missing"),
        (with(spm(), TOKENS, ints(3)), "key 'tokenizer.ggml.tokens' is arr[i32,3]"),
        (with(spm(), TOKENS, Some(strings([""; 0]))), "has 0 elements"),
        (with(spm(), TOKENS, Some(strings(["a", "b", "a"]))), "tokens 0 and 2 have the same text"),
        (with(spm(), TOKENS, Some(strings(["a".repeat(70000)]))), "token 0 is longer than 65536"),
        (with(spm(), TYPES, ints(3)), "has 3 elements, expected 269"),
        (with(spm(), TYPES, floats(269)), "is arr[f32,269], expected an array of integers"),
        (with(spm(), TYPES, Some(Value::Array(Array::I32(vec![6; 269])))), "token 0 is of type byte"),
        (with(spm(), "tokenizer.ggml.scores", floats(3)), "has 3 elements, expected 269"),
        (with(spm(), "tokenizer.ggml.scores", floats(269)), "the score of token 0 is not a number"),
        (with(spm(), "tokenizer.ggml.scores", Some(strings(["a"]))), "is arr[str,1], expected arr[f32]"),
        (with(bpe(), "tokenizer.ggml.merges", None), "key 'tokenizer.ggml.merges' is missing"),
        (with(bpe(), "tokenizer.ggml.merges", ints(3)), "expected arr[str]"),
        (with(bpe(), "tokenizer.ggml.eos_token_id", Some(263u32.into())), "eos_token_id' is 263"),
        (with(bpe(), "tokenizer.ggml.eot_token_id", Some(u32::MAX.into())), "eot_token_id' is 42949"),
        (with(bpe(), "tokenizer.ggml.bos_token_id", Some((-1i32).into())), "bos_token_id' is i32 -1"),
        (with(bpe(), "tokenizer.ggml.add_bos_token", Some(1u32.into())), "expected bool"),
    ];
    for (metadata, want) in cases {
        let error = build(&metadata).err().unwrap_or_else(|| panic!("accepted; want '{want}'"));
        assert!(matches!(error, Error::Gguf { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(want) && !text.contains('\n'), "'{text}' lacks '{want}'");
    }
}

#[test]
fn unknown_kinds_and_pre_tokenizers_are_unsupported_by_name() {
    for (key, name) in [("tokenizer.ggml.model", "rwkv"), ("tokenizer.ggml.pre", "no-such")] {
        let error = build(&with(bpe(), key, Some(name.into()))).err().unwrap();
        assert!(matches!(&error, Error::Unsupported { name: n, .. } if n == name), "{error:?}");
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn a_special_token_that_must_be_added_needs_an_id() {
    let mut metadata = with(bpe(), "tokenizer.ggml.add_bos_token", Some(true.into()));
    metadata = with(metadata, "tokenizer.ggml.bos_token_id", None);
    metadata = with(metadata, "tokenizer.ggml.pre", Some("glm4".into()));
    let error = build(&metadata).err().unwrap().to_string();
    assert!(error.contains("tokenizer.ggml.bos_token_id"), "{error}");
}

/// llama.cpp passes over a merge that is none, and merges texts that are no tokens.
#[test]
fn odd_merges_do_what_they_do_in_llama_cpp() {
    let merges = strings(["", "x", "x ", "t h", "h e", "t h", "th e", "a b", "ab c"]);
    let tokenizer = build(&with(bpe(), "tokenizer.ggml.merges", Some(merges))).unwrap();
    assert_eq!(tokenizer.encode("the", false, false).unwrap(), [257]);
    let [a, b, c] = [b'a', b'b', b'c'].map(u32::from);
    assert_eq!(tokenizer.encode("abc", false, false).unwrap(), [a, b, c]);
}
