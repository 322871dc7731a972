//! Cuts text into words before byte-pair merges, by the expressions in `rows`.
//!
//! Stage: text -> words -> byte-level BPE. Source: `unicode_regex_split` (unicode.cpp).
//! The expressions are llama.cpp's, with these changes of form: `(?=[\p{L}])([^a-z])` is written `[\p{L}&&[^a-z]]`;
//! classes over literal ranges leave out the whitespace in them, as its collapsed text does; `Matches` does the rule
//! `\s+(?!\S)`. So the linear-time crate `regex` suffices and no input can make it backtrack.
//! Categories are those of Unicode 15.1, its tables' version, whatever version `regex` has.

mod rows;

pub(super) use rows::{row, Row};

use regex::Regex;
use rows::{BEFORE_THOUSANDS, BEHIND_THOUSANDS};

/// The Unicode categories in the expressions, and the version they are limited to.
const CATEGORIES: [&str; 5] = [r"\p{L}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}"];
const UNICODE: &str = r"\p{Age:15.1}";

/// The expressions of one row, compiled.
pub(super) struct PreTokenizer {
    splits: Vec<Split>,
}

impl PreTokenizer {
    /// Compiles the expressions of `row`.
    pub(super) fn new(row: &Row) -> std::result::Result<PreTokenizer, regex::Error> {
        let splits =
            row.exprs.iter().map(|expr| Split::new(expr, row.in_powers)).collect::<std::result::Result<_, _>>()?;
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

/// One expression, or a cut that none can make.
enum Split {
    Matches(Matches),
    Thousands { regex: Regex, before: bool },
}

impl Split {
    fn new(expr: &str, in_powers: bool) -> std::result::Result<Split, regex::Error> {
        Ok(match expr {
            BEHIND_THOUSANDS => Split::Thousands { regex: Regex::new(&limited(r"\p{N}+"))?, before: false },
            BEFORE_THOUSANDS => Split::Thousands { regex: Regex::new("[0-9]+")?, before: true },
            expr => Split::Matches(Matches { in_powers, ..Matches::new(expr)? }),
        })
    }

    fn cut<'t>(&self, text: &'t str, words: &mut Vec<&'t str>) {
        match self {
            Split::Matches(matches) => matches.cut(text, words),
            Split::Thousands { regex, before } => {
                let mut from = 0;
                for found in regex.find_iter(text) {
                    let ends: Vec<usize> = found.as_str().char_indices().map(|(i, c)| i + c.len_utf8()).collect();
                    if *before && ends.len().is_multiple_of(3) && from < found.start() {
                        words.push(&text[from..found.start()]);
                        from = found.start();
                    }
                    for (i, end) in ends.iter().enumerate() {
                        let n_left = ends.len() - 1 - i;
                        // The end of a number is no place before a group.
                        if n_left.is_multiple_of(3) && (n_left > 0 || !before) {
                            words.push(&text[from..found.start() + end]);
                            from = found.start() + end;
                        }
                    }
                }
                if from < text.len() {
                    words.push(&text[from..]);
                }
            }
        }
    }
}

/// The expression with its categories limited to the version of Unicode.
fn limited(expr: &str) -> String {
    CATEGORIES
        .iter()
        .fold(expr.to_owned(), |expr, category| expr.replace(category, &format!("[{category}&&{UNICODE}]")))
}

/// An expression: what it matches is a word, and so is what lies between two matches.
struct Matches {
    regex: Regex,
    /// Whether whitespace before a word leaves its last character to that word: the rule `\s+(?!\S)`.
    leaves_last_space: bool,
    /// Whether a rule before that one takes whitespace that ends with a newline.
    takes_newlines: bool,
    in_powers: bool,
}

impl Matches {
    fn new(expr: &str) -> std::result::Result<Matches, regex::Error> {
        let expr = &limited(expr);
        let rules = expr.strip_suffix(r"|\s+").unwrap_or(expr);
        Ok(match rules.strip_suffix(r"|\s+(?!\S)") {
            Some(rules) => Matches {
                regex: Regex::new(&format!(r"{rules}|\s+"))?,
                leaves_last_space: true,
                takes_newlines: rules.contains(r"\s*[\r\n]"),
                in_powers: false,
            },
            None => {
                let regex = Regex::new(expr)?;
                Matches { regex, leaves_last_space: false, takes_newlines: false, in_powers: false }
            }
        })
    }

    fn cut<'t>(&self, text: &'t str, words: &mut Vec<&'t str>) {
        let mut at = 0;
        while let Some(found) = self.regex.find_at(text, at) {
            if found.start() > at {
                words.push(&text[at..found.start()]);
            }
            at = found.end();
            if self.leaves_last_space && self.is_plain_space(found.as_str()) {
                at -= left_over(found.as_str(), at == text.len());
                if self.in_powers {
                    cut_in_powers(&text[found.start()..at], words);
                    continue;
                }
            }
            words.push(&text[found.start()..at]);
        }
        if at < text.len() {
            words.push(&text[at..]);
        }
    }

    /// Whether `word` is whitespace that no rule for newlines has taken.
    fn is_plain_space(&self, word: &str) -> bool {
        word.chars().all(char::is_whitespace) && !(self.takes_newlines && word.ends_with(['\r', '\n']))
    }
}

/// How many bytes of the whitespace `run` belong to the word after it: its last character, unless that is all there is
/// or the text ends there.
fn left_over(run: &str, at_end: bool) -> usize {
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if at_end || run.len() == last {
        0
    } else {
        last
    }
}

/// Lengths that whitespace is cut into.
const POWERS: [usize; 9] = [512, 256, 128, 64, 32, 16, 8, 4, 2];

/// Cuts whitespace into the longest powers of two that fit, one after the other.
fn cut_in_powers<'t>(mut run: &'t str, words: &mut Vec<&'t str>) {
    let mut n_left = run.chars().count();
    while n_left > 0 {
        let n = POWERS.into_iter().find(|&power| power <= n_left).unwrap_or(1);
        let (word, rest) = run.split_at(run.chars().take(n).map(char::len_utf8).sum());
        words.push(word);
        (run, n_left) = (rest, n_left - n);
    }
}

#[cfg(test)]
mod tests {
    use super::rows::ROWS;
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
    fn thousands_are_counted_from_the_right() {
        assert_eq!(words("tiny_aya", "x1234567 89"), ["x", "1", "234", "567", " ", "89"]);
        assert_eq!(words("afmoe", "123456"), ["123", "456"]);
        assert_eq!(words("superbpe", "a1234567"), ["a", "1", "234", "567"]);
        assert_eq!(words("superbpe", "123456"), ["123", "456"]);
    }

    #[test]
    fn whitespace_is_cut_into_powers_where_the_model_wants_it() {
        assert_eq!(words("jais-2", &format!("a{}b", " ".repeat(8))), ["a", "    ", "  ", " ", " b"]);
        assert_eq!(words("jais-2", &format!("a{}", " ".repeat(7))), ["a", "    ", "  ", " "]);
        assert_eq!(words("jais-2", "a  b"), ["a", " ", " b"]);
        assert_eq!(
            words("jais-2", &format!("a {}b", "\u{3000}".repeat(4))),
            ["a", &format!(" {}", "\u{3000}".repeat(3)), "\u{3000}b"]
        );
        assert_eq!(words("jais-2", "a  \n  b"), ["a", "  \n", " ", " b"]);
    }

    #[test]
    fn long_whitespace_takes_time_in_proportion() {
        let pre = PreTokenizer::new(row("jais-2").unwrap()).unwrap();
        let text = format!("{}b", " ".repeat(1 << 23));
        let start = std::time::Instant::now();
        assert_eq!(pre.words(&text).concat(), text);
        // It takes a fraction of a second; one search from each power on took minutes.
        assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    }

    #[test]
    fn chinese_is_kept_apart_from_letters() {
        assert_eq!(words("kimi-k2", "Kimi是模型's ok"), ["Kimi", "是模型", "'s", " ok"]);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let error = row("no-such").err().unwrap().to_string();
        assert_eq!(error, "unsupported pre-tokenizer (tokenizer.ggml.pre): 'no-such'");
    }
}
