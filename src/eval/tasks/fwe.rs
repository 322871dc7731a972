//! Frequent words: coded words occur as often as Zipf's law says, and the three most frequent are asked for.
//!
//! Source: RULER, fwe: the word of rank k fills the share `k^-2 / zeta(2)`; the first rank is dots, which do not count.

use super::{Task, Text};

/// Words that are asked for.
const N_FREQUENT: usize = 3;
/// Words of the shortest text: with fewer, ranks 4 and 5 can be equally frequent.
const MIN_WORDS: usize = 80;
/// `zeta(2)`.
const ZETA: f64 = std::f64::consts::PI * std::f64::consts::PI / 6.0;

pub(super) const TASK: Task = Task {
    name: "",
    about: "a text of coded words, the three most frequent asked for",
    n_answer: 40,
    one_line: true,
    make: |draw, _, size| {
        let n = (MIN_WORDS + size) as f64;
        let count = |rank: usize| (n / (rank * rank) as f64 / ZETA) as usize;
        let counts: Vec<usize> = (1..).map(count).take_while(|&n| n > 0).collect();
        let words = draw.letters(counts.len() - 1, 6, 'a');
        let mut all = vec!["..."; counts[0]];
        all.extend(words.iter().zip(&counts[1..]).flat_map(|(word, &n)| vec![word.as_str(); n]));
        draw.shuffle(&mut all);
        Text {
            context: format!(
                "Count how often each coded word appears in the following text. Ignore the dots.\n{}",
                all.join(" ")
            ),
            question: "What are the three most frequent coded words in the text?".to_owned(),
            answer_prefix: "The three most frequent coded words in the text are:".to_owned(),
            answers: words[..N_FREQUENT].to_vec(),
        }
    },
};
