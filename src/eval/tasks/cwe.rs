//! Common words: ten words occur about ten times as often as the others of a list, and are asked for.
//!
//! Source: RULER, cwe. Deviation: RULER repeats common words 30 times and others 3 times whatever the length, which needs ever
//! more words; here the counts grow with the list, so that a fixed vocabulary serves any length.

use super::words::NOUNS;
use super::{Task, Text};

/// Words that are asked for.
const N_COMMON: usize = 10;
/// Share of the list that a common word takes, RULER's at 4,096 tokens.
const ONE_IN: usize = 27;
/// Items of the shortest list.
const MIN_ITEMS: usize = 54;

pub(super) const TASK: Task = Task {
    name: "",
    about: "a list of words, the ten most common asked for",
    n_answer: 100,
    one_line: false,
    make: |draw, _, size| {
        let n_item = MIN_ITEMS + size;
        let words = draw.several(&NOUNS, NOUNS.len());
        let (common, others) = words.split_at(N_COMMON);
        let n_common = n_item / ONE_IN;
        let n_rest = n_item - N_COMMON * n_common;
        let others = &others[..n_rest.div_ceil(n_rest.div_ceil(others.len()))];
        let mut list: Vec<&str> = common.iter().flat_map(|word| vec![*word; n_common]).collect();
        list.extend(others.iter().cycle().take(n_rest));
        draw.shuffle(&mut list);
        let items: Vec<String> = list.iter().enumerate().map(|(i, word)| format!("{}. {word}", i + 1)).collect();
        Text {
            context: format!(
                "Some words appear more often than others in the following list. Memorize those that appear most often.\n{}",
                items.join(" ")
            ),
            question: "What are the 10 most common words in the list?".to_owned(),
            answer_prefix: "The 10 words that appear most often in the list are:".to_owned(),
            answers: common.iter().map(|word| (*word).to_owned()).collect(),
        }
    },
};
