//! One number is hidden in a text, and asked for. Source: RULER, niah_single_2.

use super::draw::Draw;
use super::haystack::Haystack;
use super::words::NOUNS;
use super::{Task, Text};

/// Digits of a hidden number.
pub(super) const N_DIGIT: u32 = 7;

pub(super) const TASK: Task = Task {
    name: "",
    about: "one number hidden in a text",
    n_answer: 16,
    one_line: true,
    make: |draw, haystack, size| {
        let key = draw.several(&NOUNS, 1)[0];
        let number = draw.number(N_DIGIT);
        let context = hide(draw, haystack, size, &[(key, number.clone())]);
        Text {
            context,
            question: format!("What is the special magic number for {key} mentioned in the text?"),
            answer_prefix: format!("The special magic number for {key} mentioned in the text is"),
            answers: vec![number],
        }
    },
};

/// A text with a sentence for each key and its number, and what to do with it.
pub(super) fn hide(draw: &mut Draw, haystack: &Haystack, n_words: usize, pairs: &[(&str, String)]) -> String {
    let needle = |(key, number): &(&str, String)| format!("One of the special magic numbers for {key} is: {number}.");
    let needles: Vec<String> = pairs.iter().map(needle).collect();
    format!(
        "Special magic numbers are hidden in the following text. Memorize them, I will ask you about them afterwards.\n{}",
        haystack.hide(draw, n_words, &needles)
    )
}
