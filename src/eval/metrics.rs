//! How good an answer is, from 0 to 1, as the benchmarks define it that the tasks come from.
//!
//! Source: RULER `scripts/eval/synthetic/constants.py` (string matches); LongBench `metrics.py` (all others), which takes ROUGE
//! from the Python package `rouge` and similarity from `fuzzywuzzy`, here in the form it has with `python-Levenshtein`.
//! Deviation: word segmentation of Chinese is not there.

mod rouge;

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// A way to score an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// RULER: share of the right answers that occur in the text, in either case.
    StringMatchAll,
    /// RULER: whether any of them does.
    StringMatchPart,
    /// LongBench: F1 over words.
    F1,
    /// LongBench: ROUGE-L.
    RougeL,
    /// LongBench: whether the right class is named; shared with other classes that are.
    Classification,
    /// LongBench: share of the right paragraph's number among all numbers.
    Retrieval,
    /// LongBench: share of the right number among all numbers.
    Count,
    /// LongBench: similarity to the first line of code.
    CodeSim,
}

/// Every metric with its name in data files.
pub const METRICS: [(&str, Metric); 8] = [
    ("string_match_all", Metric::StringMatchAll),
    ("string_match_part", Metric::StringMatchPart),
    ("f1", Metric::F1),
    ("rouge_l", Metric::RougeL),
    ("classification", Metric::Classification),
    ("retrieval", Metric::Retrieval),
    ("count", Metric::Count),
    ("code_sim", Metric::CodeSim),
];

impl Metric {
    /// The metric of this name.
    ///
    /// # Errors
    /// [`Error::Context`] listing the names there are.
    pub fn by_name(name: &str) -> Result<Metric> {
        let known = || METRICS.map(|(name, _)| name).join(", ");
        let found = METRICS.iter().find(|(n, _)| *n == name);
        found
            .map(|(_, metric)| *metric)
            .ok_or_else(|| Error::Context { what: format!("unknown metric '{name}'; there are {}", known()) })
    }

    /// The score of `text`, from 0 to 1. Where `answers` are alternatives, the best one counts.
    pub fn score(self, text: &str, answers: &[String], classes: &[String]) -> f64 {
        let one: fn(&str, &str) -> f64 = match self {
            Metric::StringMatchAll => {
                let n = answers.iter().filter(|answer| occurs(text, answer)).count();
                return n as f64 / answers.len().max(1) as f64;
            }
            Metric::Classification => {
                return best(answers, |answer| classification(text, answer, classes));
            }
            Metric::StringMatchPart => |text, answer| f64::from(u8::from(occurs(text, answer))),
            Metric::F1 => |text, answer| f1(&normal_words(text), &normal_words(answer)),
            Metric::RougeL => rouge::rouge_l,
            Metric::Retrieval => retrieval,
            Metric::Count => share_of_number,
            Metric::CodeSim => code_sim,
        };
        best(answers, |answer| one(text, answer))
    }

    /// Whether nothing that comes after `text` can change the score.
    pub fn is_final(self, text: &str, answers: &[String]) -> bool {
        match self {
            Metric::StringMatchAll | Metric::StringMatchPart => self.score(text, answers, &[]) == 1.0,
            Metric::CodeSim => {
                text.trim_start_matches('\n').rsplit_once('\n').is_some_and(|(lines, _)| code_line(lines).is_some())
            }
            _ => false,
        }
    }

    /// The score that blind guessing gives.
    pub fn chance(self, classes: &[String]) -> f64 {
        match self {
            Metric::Classification => 1.0 / classes.len().max(1) as f64,
            _ => 0.0,
        }
    }
}

fn best(answers: &[String], score: impl Fn(&str) -> f64) -> f64 {
    answers.iter().map(|answer| score(answer)).fold(0.0, f64::max)
}

fn occurs(text: &str, answer: &str) -> bool {
    text.to_lowercase().contains(&answer.to_lowercase())
}

/// Words in lower case, without ASCII punctuation and articles (`normalize_answer`).
fn normal_words(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut kept = String::with_capacity(plain.len());
    // An article is a run of letters of its own, whatever stands beside it.
    for run in runs(&plain, char::is_alphanumeric) {
        kept.push_str(if ["a", "an", "the"].contains(&run) { " " } else { run });
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

/// The text in pieces of which `is_in` holds for all characters or for none.
fn runs(text: &str, is_in: fn(char) -> bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_in(c) != is_in(first)).unwrap_or(rest.len());
        out.push(&rest[..end]);
        rest = &rest[end..];
    }
    out
}

fn f1(got: &[String], want: &[String]) -> f64 {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for word in want {
        *left.entry(word).or_default() += 1;
    }
    let mut n_same = 0;
    for word in got {
        if let Some(n) = left.get_mut(word.as_str()).filter(|n| **n > 0) {
            *n -= 1;
            n_same += 1;
        }
    }
    harmonic(n_same, got.len(), want.len())
}

/// F1 of `n_same` out of `n_got` and `n_want`.
fn harmonic(n_same: usize, n_got: usize, n_want: usize) -> f64 {
    match n_same {
        0 => 0.0,
        _ => 2.0 * n_same as f64 / (n_got + n_want) as f64,
    }
}

fn classification(text: &str, answer: &str, classes: &[String]) -> f64 {
    let mut named: Vec<&str> = classes.iter().map(String::as_str).filter(|class| text.contains(class)).collect();
    // The original removes from the list that it walks over, and so skips the class after each removed one.
    let mut i = 0;
    while i < named.len() {
        if answer.contains(named[i]) && named[i] != answer {
            named.remove(i);
        }
        i += 1;
    }
    match named.contains(&answer) {
        true => 1.0 / named.len() as f64,
        false => 0.0,
    }
}

fn numbers(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty()).collect()
}

fn share_of_number(text: &str, answer: &str) -> f64 {
    let all = numbers(text);
    all.iter().filter(|n| **n == answer).count() as f64 / all.len().max(1) as f64
}

fn retrieval(text: &str, answer: &str) -> f64 {
    let id = answer.split("Paragraph ").skip(1).find_map(|rest| {
        let id = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        Some(id).filter(|id| !id.is_empty())
    });
    id.map_or(0.0, |id| share_of_number(text, id))
}

/// The first line that is neither a comment nor the fence of a code block.
fn code_line(text: &str) -> Option<&str> {
    text.trim_start_matches('\n').split('\n').find(|line| !["`", "#", "//"].iter().any(|mark| line.contains(mark)))
}

fn code_sim(text: &str, answer: &str) -> f64 {
    let got: Vec<char> = code_line(text).unwrap_or("").chars().collect();
    let want: Vec<char> = answer.chars().collect();
    if got == want {
        return 1.0;
    }
    // Whole per cents, halves to even, as Python rounds.
    (100.0 * harmonic(n_common(&got, &want), got.len(), want.len())).round_ties_even() / 100.0
}

/// Length of the longest common subsequence.
fn n_common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
