//! ROUGE-L of summaries: the words of longest common subsequences, sentence by sentence.
//!
//! Source: Python package `rouge` 1.0.1, `rouge_l_summary_level` with `exclusive=True`: words count once, a sentence ends at
//! each full stop, and the common words of all pairs of sentences are united.

use std::collections::BTreeSet;

/// F1 of ROUGE-L; 0 where one of the texts has no sentence.
pub(super) fn rouge_l(got: &str, want: &str) -> f64 {
    let (got, want) = (sentences(got), sentences(want));
    if got.is_empty() || want.is_empty() {
        return 0.0;
    }
    let mut common = BTreeSet::new();
    for reference in &want {
        for sentence in &got {
            common.extend(common_words(reference, sentence));
        }
    }
    let n_different = |all: &[Vec<&str>]| all.iter().flatten().collect::<BTreeSet<_>>().len() as f64;
    let (recall, precision) = (common.len() as f64 / n_different(&want), common.len() as f64 / n_different(&got));
    2.0 * (precision * recall) / (precision + recall + 1e-8)
}

/// Sentences as words. One of white space alone has one word, which is empty.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

fn words(sentence: &str) -> Vec<&str> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    if words.is_empty() {
        vec![""]
    } else {
        words
    }
}

/// The words of a longest common subsequence, of several the one that the original finds.
fn common_words<'a>(x: &[&'a str], y: &[&str]) -> Vec<&'a str> {
    let width = y.len() + 1;
    let mut table = vec![0u32; (x.len() + 1) * width];
    for i in 1..=x.len() {
        for j in 1..=y.len() {
            table[i * width + j] = if x[i - 1] == y[j - 1] {
                table[(i - 1) * width + j - 1] + 1
            } else {
                table[(i - 1) * width + j].max(table[i * width + j - 1])
            };
        }
    }
    let (mut i, mut j) = (x.len(), y.len());
    let mut out = Vec::new();
    while i > 0 && j > 0 {
        if x[i - 1] == y[j - 1] {
            out.push(x[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    out
}
