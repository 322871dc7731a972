//! Variable tracking: one variable gets a number, four others get it hop by hop, and all five are asked for.
//!
//! Source: RULER, vt with one chain of four hops. Deviation: names have three letters instead of five.

use super::{Task, Text};

/// Assignments after the first.
const N_HOP: usize = 4;

pub(super) const TASK: Task = Task {
    name: "",
    about: "five variables assigned to one another hidden in a text, all with one value asked for",
    n_answer: 40,
    one_line: false,
    make: |draw, haystack, size| {
        let names = draw.letters(N_HOP + 1, 3, 'A');
        let value = draw.number(5);
        let first = format!("VAR {} = {value}.", names[0]);
        let hops = names.windows(2).map(|pair| format!("VAR {} = VAR {}.", pair[1], pair[0]));
        let needles: Vec<String> = std::iter::once(first).chain(hops).collect();
        let hidden = haystack.hide(draw, size, &needles);
        Text {
            context: format!("Track how variables are assigned in the following text.\n{hidden}"),
            question: format!("Find all variables that have the value {value} in the text above."),
            answer_prefix: format!("The {} variables that have the value {value} are: VAR", names.len()),
            answers: names,
        }
    },
};
