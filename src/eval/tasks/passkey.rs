//! A pass key is hidden in sentences that are repeated over and over. Source: Landmark Attention (arXiv 2305.16300), section 4.2.

use super::haystack::Haystack;
use super::{Task, Text};

const NOISE: &str = "The lamp is lit. The road is long. The rain is soft. We go out and come back again.";

pub(super) const TASK: Task = Task {
    name: "",
    about: "a pass key hidden in sentences that are repeated",
    n_answer: 12,
    one_line: true,
    make: |draw, _, size| {
        let key = draw.number(5);
        let needle = format!("The pass key is {key}. Remember it. {key} is the pass key.");
        let hidden = Haystack::new(NOISE).hide(draw, size, &[needle]);
        Text {
            context: format!(
                "Something important is hidden in a lot of text that is not. Find it and memorize it.\n{hidden}"
            ),
            question: "What is the pass key?".to_owned(),
            answer_prefix: "The pass key is".to_owned(),
            answers: vec![key],
        }
    },
};
