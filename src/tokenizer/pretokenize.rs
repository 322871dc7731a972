//! Cuts text into words before byte-pair merges: the table of pre-tokenizers by their `tokenizer.ggml.pre`.
//!
//! Stage: text -> words -> byte-level BPE. Source: the names in `llama_vocab::impl::load`, the expressions in
//! `llm_tokenizer_bpe` (llama-vocab.cpp) and their meaning in `unicode_regex_split` (unicode.cpp).
//! The expressions are llama.cpp's, with these changes of form: `(?=[\p{L}])([^a-z])` is written `[\p{L}&&[^a-z]]`;
//! classes over literal ranges leave out the whitespace in them, as its collapsed text does; [`Split`] does the rule
//! `\s+(?!\S)`. So the linear-time crate `regex` suffices and no input can make it backtrack.
//! Categories are those of Unicode 15.1, its tables' version, whatever version `regex` has. A new name is a new row.

use regex::Regex;

use crate::error::{Error, Result};

/// A pre-tokenizer and the settings that llama.cpp derives from its name.
pub(super) struct Row {
    names: &'static [&'static str],
    /// Applied one after the other, each to the words that the one before left.
    exprs: &'static [&'static str],
    /// Whether a word that is a token is not built by merges.
    pub(super) ignore_merges: bool,
    /// Whether a text starts with BOS where metadata does not say.
    pub(super) add_bos: bool,
    /// Whether there is a BOS token where metadata names none.
    pub(super) default_bos: bool,
}

impl Row {
    const fn new(names: &'static [&'static str], exprs: &'static [&'static str]) -> Row {
        Row { names, exprs, ignore_merges: false, add_bos: false, default_bos: true }
    }

    const fn ignore_merges(mut self) -> Row {
        self.ignore_merges = true;
        self
    }

    const fn add_bos(mut self) -> Row {
        self.add_bos = true;
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
const PUNCTUATED: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// The Unicode categories in the expressions, and the version they are limited to.
const CATEGORIES: [&str; 5] = [r"\p{L}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}"];
const UNICODE: &str = r"\p{Age:15.1}";

/// Every pre-tokenizer that is supported.
static ROWS: &[Row] = &[
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
    Row::new(
        &["exaone-moe"],
        &[r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    ),
];

/// The row of the pre-tokenizer `name`; the empty name is `default`, as in llama.cpp.
///
/// # Errors
/// The name is not in the table.
pub(super) fn row(name: &str) -> Result<&'static Row> {
    ROWS.iter()
        .find(|row| row.names.contains(&name))
        .ok_or_else(|| Error::unsupported("pre-tokenizer (tokenizer.ggml.pre)", name))
}

/// The expressions of one row, compiled.
pub(super) struct PreTokenizer {
    splits: Vec<Split>,
}

impl PreTokenizer {
    /// Compiles the expressions of `row`.
    pub(super) fn new(row: &Row) -> std::result::Result<PreTokenizer, regex::Error> {
        let splits = row.exprs.iter().map(|expr| Split::new(expr)).collect::<std::result::Result<_, _>>()?;
        Ok(PreTokenizer { splits })
    }

    /// The words of `text` in order; joined they are `text`.
    pub(super) fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut words = vec![text];
        for split in &self.splits {
            let mut finer = Vec::with_capacity(words.len());
            words.iter().for_each(|word| split.cut(word, &mut finer));
            words = finer;
        }
        words
    }
}

/// One expression: what it matches is a word, and so is what lies between two matches.
struct Split {
    regex: Regex,
    /// Whether whitespace before a word leaves its last character to that word: the rule `\s+(?!\S)`.
    leaves_last_space: bool,
    /// Whether a rule before that one takes whitespace that ends with a newline.
    takes_newlines: bool,
}

impl Split {
    fn new(expr: &str) -> std::result::Result<Split, regex::Error> {
        let expr = &CATEGORIES
            .iter()
            .fold(expr.to_owned(), |expr, category| expr.replace(category, &format!("[{category}&&{UNICODE}]")));
        let rules = expr.strip_suffix(r"|\s+").unwrap_or(expr);
        Ok(match rules.strip_suffix(r"|\s+(?!\S)") {
            Some(rules) => Split {
                regex: Regex::new(&format!(r"{rules}|\s+"))?,
                leaves_last_space: true,
                takes_newlines: rules.contains(r"\s*[\r\n]"),
            },
            None => Split { regex: Regex::new(expr)?, leaves_last_space: false, takes_newlines: false },
        })
    }

    fn cut<'t>(&self, text: &'t str, words: &mut Vec<&'t str>) {
        let mut at = 0;
        while let Some(found) = self.regex.find_at(text, at) {
            if found.start() > at {
                words.push(&text[at..found.start()]);
            }
            at = found.end();
            if at < text.len() {
                at -= self.left_over(found.as_str());
            }
            words.push(&text[found.start()..at]);
        }
        if at < text.len() {
            words.push(&text[at..]);
        }
    }

    /// How many bytes of the match `word` belong to the word after it.
    fn left_over(&self, word: &str) -> usize {
        let Some(last) = word.chars().next_back().filter(|c| c.is_whitespace()) else { return 0 };
        let rest = &word[..word.len() - last.len_utf8()];
        let by_newline_rule = self.takes_newlines && matches!(last, '\r' | '\n');
        let keeps = !self.leaves_last_space || by_newline_rule || rest.is_empty();
        if keeps || rest.contains(|c: char| !c.is_whitespace()) {
            return 0;
        }
        last.len_utf8()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let pre = PreTokenizer::new(row(name).unwrap()).unwrap();
        pre.words(text).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn every_row_compiles_and_its_words_join_to_the_text() {
        let text = "Hello  WORLD's\n\n \t3.14159 \u{3000}名前は カタカナ 한국어 naïve\r\n'LL <sentinel:1> IMGIMGABZ 🍕\u{200D}!? \n";
        for row in ROWS {
            let pre = PreTokenizer::new(row).unwrap();
            let words = pre.words(text);
            assert_eq!(words.concat(), text, "{:?}", row.names);
            assert!(words.iter().all(|w| !w.is_empty()), "{:?}", row.names);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ROWS.iter().flat_map(|row| row.names).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn whitespace_leaves_its_last_character_to_the_word_after_it() {
        for name in ["gpt-2", "llama-bpe", "qwen2"] {
            assert_eq!(words(name, "a   b"), ["a", "  ", " b"], "{name}");
            assert_eq!(words(name, "a   "), ["a", "   "], "{name}");
            assert_eq!(words(name, "a \u{3000} \u{a0}1"), ["a", " \u{3000} ", "\u{a0}", "1"], "{name}");
        }
        assert_eq!(words("gpt-2", "a \n\nb"), ["a", " \n", "\n", "b"]);
        assert_eq!(words("llama-bpe", "a \n\nb"), ["a", " \n\n", "b"]);
        assert_eq!(words("llama-bpe", "a \n\n  b"), ["a", " \n\n", " ", " b"]);
    }

    #[test]
    fn digits_are_grouped_as_the_model_wants() {
        assert_eq!(words("llama-bpe", "1234567"), ["123", "456", "7"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("smollm", " 12"), [" ", "1", "2"]);
        assert_eq!(words("gpt-2", " 1234"), [" 1234"]);
        assert_eq!(words("default", " 1234"), [" ", "123", "4"]);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let error = row("no-such").err().unwrap().to_string();
        assert_eq!(error, "unsupported pre-tokenizer (tokenizer.ggml.pre): 'no-such'");
    }
}
