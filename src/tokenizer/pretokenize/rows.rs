//! The table of pre-tokenizers by their `tokenizer.ggml.pre`: expressions and settings. A new name is a new row.
//!
//! Source: the names in `llama_vocab::impl::load`, the expressions in `llm_tokenizer_bpe` (llama-vocab.cpp, b11434).

use crate::error::{Error, Result};

/// A pre-tokenizer and the settings that llama.cpp derives from its name.
pub(in crate::tokenizer) struct Row {
    pub(super) names: &'static [&'static str],
    /// Applied one after the other, each to the words that the one before left.
    pub(super) exprs: &'static [&'static str],
    /// Whether a word that is a token is not built by merges.
    pub(in crate::tokenizer) ignore_merges: bool,
    /// Whether a text starts with BOS where metadata does not say.
    pub(in crate::tokenizer) add_bos: bool,
    /// Whether there is a BOS token where metadata names none.
    pub(in crate::tokenizer) default_bos: bool,
    /// Whether whitespace is cut into powers of two: `\s{512}(?!\S)|..|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}` for `\s+(?!\S)|\s+`.
    pub(super) in_powers: bool,
}

impl Row {
    const fn new(names: &'static [&'static str], exprs: &'static [&'static str]) -> Row {
        Row { names, exprs, ignore_merges: false, add_bos: false, default_bos: true, in_powers: false }
    }

    const fn ignore_merges(mut self) -> Row {
        self.ignore_merges = true;
        self
    }

    const fn add_bos(mut self) -> Row {
        self.add_bos = true;
        self
    }

    const fn in_powers(mut self) -> Row {
        self.in_powers = true;
        self
    }

    const fn no_default_bos(mut self) -> Row {
        self.default_bos = false;
        self
    }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Chinese characters to Hangul syllables, in the ranges of DeepSeek's first models.
const CJK_WIDE: &str = "[[一-龥ࠀ-一가-\u{D7FF}]&&\\S]+";
const CJK_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// Chinese characters, in the blocks of `unicode_cpt_is_han`.
const KIMI_K2: &str = "[一-\u{9FFF}㐀-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B820}-\u{2CEAF}\u{2CEB0}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}&&[^一-\u{9FFF}㐀-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B820}-\u{2CEAF}\u{2CEB0}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const PUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Cuts that no expression of a linear-time engine can make; `Split::new` knows them by these names.
///
/// Behind each group of numbers, counted from the right end of their run: `unicode_regex_split_custom_afmoe`.
pub(super) const BEHIND_THOUSANDS: &str = "behind thousands";
/// Before each group of three digits: `(?=(\d{3})+(?!\d))`.
pub(super) const BEFORE_THOUSANDS: &str = "before thousands";

/// Every pre-tokenizer that is supported.
pub(super) static ROWS: &[Row] = &[
    Row::new(&["default", ""], &[r"[\p{P}\$\+<=>\^\~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    Row::new(
        &[
            "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
    )
    .ignore_merges()
    .add_bos(),
    Row::new(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    Row::new(&["chatglm-bpe"], &[LLAMA3]).no_default_bos(),
    Row::new(&["glm4", "glm5"], &[LLAMA3]).no_default_bos().ignore_merges(),
    Row::new(
        &[
            "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan",
            "solar-open", "grok-2",
        ],
        &[QWEN2],
    ),
    Row::new(
        &["qwen35"],
        &[r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ),
    Row::new(
        &["ufakzeka"],
        &[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ),
    Row::new(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    Row::new(
        &[
            "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
            "mellum", "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt",
            "olmo", "jais", "trillion", "granite-docling",
        ],
        &[GPT2],
    ),
    Row::new(
        &[
            "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    Row::new(&["falcon"], &[r"[\p{P}\$\+<=>\^\~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    Row::new(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            "\\s?[!-/:-~！-／：-～‘-‟\u{3001}-。]+",
            r"\s+$",
            CJK_WIDE,
            r"\p{N}+",
        ],
    ),
    Row::new(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_WIDE, r"\p{N}"]),
    Row::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", CJK_KANA, DEEPSEEK_V3],
    ),
    Row::new(
        &["spark2_5"],
        &[
            r"\p{N}{1,3}",
            CJK_KANA,
            r"[!\x22#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        ],
    ),
    Row::new(
        &["youtu"],
        &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u{303F}︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    )
    .ignore_merges(),
    Row::new(
        &["minicpm5"],
        &[
            r"\p{N}{1,3}",
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    )
    .ignore_merges(),
    Row::new(&["poro-chat", "bloom", "gpt3-finnish"], &[PUNCTUATED]),
    Row::new(&["viking"], &[PUNCTUATED, r"\p{N}"]),
    Row::new(
        &["tekken"],
        &[r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    )
    .ignore_merges()
    .add_bos(),
    Row::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    Row::new(
        &["granite-embed-multi-97m"],
        &[r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]*[\p{L}\p{M}&&[^A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]+[\p{L}\p{M}&&[^A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    )
    .ignore_merges(),
    Row::new(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(?:IMGIMG)(?:[A-I]{1,4})Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-\~]",
            GPT2,
        ],
    )
    .add_bos(),
    Row::new(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    ),
    Row::new(
        &["seed-coder"],
        &[r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ),
    Row::new(&["kimi-k2"], &[KIMI_K2]),
    Row::new(
        &["tiny_aya", "cohere2moe"],
        &[
            BEHIND_THOUSANDS,
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    Row::new(
        &["afmoe"],
        &[
            BEHIND_THOUSANDS,
            "[一-\u{9FFF}㐀-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2FDF}เ-\u{E7F}\u{E80}-\u{EFF}ក-\u{17FF}က-႟ꩠ-ꩿꧠ-\u{A9FF}가-\u{D7AF}ᄀ-ᇿ]+",
            DEEPSEEK_V3,
        ],
    ),
    Row::new(&["superbpe"], &[r"\p{N}+", BEFORE_THOUSANDS]),
    Row::new(&["jais-2"], &[LLAMA3]).in_powers(),
    Row::new(
        &["exaone-moe"],
        &[r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    ),
];

/// The row of the pre-tokenizer `name`; the empty name is `default`, as in llama.cpp.
///
/// # Errors
/// The name is not in the table.
pub(in crate::tokenizer) fn row(name: &str) -> Result<&'static Row> {
    ROWS.iter()
        .find(|row| row.names.contains(&name))
        .ok_or_else(|| Error::unsupported("pre-tokenizer (tokenizer.ggml.pre)", name))
}
