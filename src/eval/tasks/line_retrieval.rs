//! Every line of a text gives the number of a name, and the number of one is asked for.
//!
//! Source: LongEval (lmsys.org, 2023-06-29), line retrieval; RULER, niah_multikey_2.

use super::words::{ADJECTIVES, NOUNS};
use super::{Task, Text};

/// Names there are before numbers are added to them.
const N_NAME: usize = ADJECTIVES.len() * NOUNS.len();
/// Steps from one name to the next; without a common divisor with [`N_NAME`], so that all occur.
const STEP: usize = 1009;

pub(super) const TASK: Task = Task {
    name: "",
    about: "a text of nothing but named numbers, one of them asked for",
    n_answer: 16,
    one_line: true,
    make: |draw, _, size| {
        let n_line = 2 + size;
        let asked = n_line * draw.below(1000) / 1000;
        let first = draw.below(N_NAME);
        let name = |i: usize| {
            let at = (first + i * STEP) % N_NAME;
            let round = if i < N_NAME { String::new() } else { format!("-{}", i / N_NAME + 1) };
            format!("{}-{}{round}", ADJECTIVES[at % ADJECTIVES.len()], NOUNS[at / ADJECTIVES.len()])
        };
        let numbers: Vec<String> = (0..n_line).map(|_| draw.number(5)).collect();
        let lines: Vec<String> =
            numbers.iter().enumerate().map(|(i, number)| format!("The number of {} is {number}.", name(i))).collect();
        Text {
            context: format!(
                "Each of the following lines gives a number. Memorize them, I will ask you about one of them afterwards.\n{}",
                lines.join("\n")
            ),
            question: format!("What is the number of {}?", name(asked)),
            answer_prefix: format!("The number of {} is", name(asked)),
            answers: vec![numbers[asked].clone()],
        }
    },
};
