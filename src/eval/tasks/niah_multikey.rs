//! Four numbers for four keys are hidden in a text, and one is asked for. Source: RULER, niah_multikey_1.

use super::niah_single::{hide, N_DIGIT};
use super::words::NOUNS;
use super::{Task, Text};

pub(super) const TASK: Task = Task {
    name: "",
    about: "numbers for four keys hidden in a text, one of them asked for",
    n_answer: 16,
    one_line: true,
    make: |draw, haystack, size| {
        let pairs: Vec<_> = draw.several(&NOUNS, 4).into_iter().map(|key| (key, draw.number(N_DIGIT))).collect();
        let (key, number) = pairs[draw.below(pairs.len())].clone();
        Text {
            context: hide(draw, haystack, size, &pairs),
            question: format!("What is the special magic number for {key} mentioned in the text?"),
            answer_prefix: format!("The special magic number for {key} mentioned in the text is"),
            answers: vec![number],
        }
    },
};
