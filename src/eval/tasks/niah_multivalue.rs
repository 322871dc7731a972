//! Four numbers for one key are hidden in a text, and all are asked for. Source: RULER, niah_multivalue.

use super::niah_single::{hide, N_DIGIT};
use super::words::NOUNS;
use super::{Task, Text};

pub(super) const TASK: Task = Task {
    name: "",
    about: "four numbers for one key hidden in a text, all asked for",
    n_answer: 64,
    one_line: false,
    make: |draw, haystack, size| {
        let key = draw.several(&NOUNS, 1)[0];
        let pairs: Vec<_> = (0..4).map(|_| (key, draw.number(N_DIGIT))).collect();
        Text {
            context: hide(draw, haystack, size, &pairs),
            question: format!("What are all four special magic numbers for {key} mentioned in the text?"),
            answer_prefix: format!("The four special magic numbers for {key} mentioned in the text are"),
            answers: pairs.into_iter().map(|(_, number)| number).collect(),
        }
    },
};
