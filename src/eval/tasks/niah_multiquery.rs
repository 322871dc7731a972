//! Four numbers for four keys are hidden in a text, and all are asked for. Source: RULER, niah_multiquery.

use super::niah_single::{hide, N_DIGIT};
use super::words::NOUNS;
use super::{Task, Text};

pub(super) const TASK: Task = Task {
    name: "",
    about: "numbers for four keys hidden in a text, all asked for",
    n_answer: 80,
    one_line: false,
    make: |draw, haystack, size| {
        let pairs: Vec<_> = draw.several(&NOUNS, 4).into_iter().map(|key| (key, draw.number(N_DIGIT))).collect();
        let context = hide(draw, haystack, size, &pairs);
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let all = format!("{}, {}, {} and {}", keys[0], keys[1], keys[2], keys[3]);
        Text {
            context,
            question: format!("What are the special magic numbers for {all} mentioned in the text?"),
            answer_prefix: format!("The special magic numbers for {all} mentioned in the text are"),
            answers: pairs.into_iter().map(|(_, number)| number).collect(),
        }
    },
};
