//! Tasks with right answers, made from a seed at any length: what is hidden in a text, what follows from it, what is frequent.
//!
//! Source: RULER (arXiv 2404.06654) for `niah_*`, `vt`, `cwe` and `fwe`, LongEval for `line_retrieval`, Landmark Attention
//! (arXiv 2305.16300) for `passkey`; the wording is ours, short, so that small models understand it. One file is one task.
//! Deviation: no task shows a solved example first, and no key or value is a UUID.

mod draw;
pub mod haystack;
mod words;

use self::draw::Draw;
use self::haystack::Haystack;
use super::metrics::Metric;
use super::question::Sample;
use crate::error::{Error, Result};

macro_rules! tasks {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*
        /// Every task, in the order in which they are listed.
        pub static TASKS: &[Task] = &[$(Task { name: stringify!($name), ..$name::TASK }),*];
    };
}
tasks! { niah_single, niah_multikey, niah_multivalue, niah_multiquery, vt, cwe, fwe, line_retrieval, passkey }

/// A task that can be asked for by name.
pub struct Task {
    /// File name, option value and column in reports.
    pub name: &'static str,
    /// One line for `--task list`.
    pub about: &'static str,
    /// Tokens within which the answer must come.
    pub n_answer: usize,
    /// Whether the answer ends with its line.
    pub one_line: bool,
    /// Makes the text, of this many words or items beside what is hidden in it.
    make: fn(&mut Draw, &Haystack, usize) -> Text,
}

/// What a task says and which answers are right; all of them are wanted.
struct Text {
    context: String,
    question: String,
    answer_prefix: String,
    answers: Vec<String>,
}

/// The task of this name.
///
/// # Errors
/// [`Error::Usage`] listing the names there are.
pub fn by_name(name: &str) -> Result<&'static Task> {
    TASKS.iter().find(|task| task.name == name).ok_or_else(|| {
        let known: Vec<&str> = TASKS.iter().map(|task| task.name).collect();
        Error::Usage(format!("error: unknown task '{name}'; --task can be all, list or some of {}", known.join(",")))
    })
}

impl Task {
    /// Sample `index` of this seed, as long as `n_tokens` allow; `count` gives the tokens of its prompt.
    ///
    /// # Errors
    /// When the smallest sample is longer, or `count` fails.
    pub fn sample(
        &self,
        haystack: &Haystack,
        seed: u64,
        index: usize,
        n_tokens: usize,
        count: impl Fn(&Sample) -> Result<usize>,
    ) -> Result<Sample> {
        let make = |size: usize| {
            let text = (self.make)(&mut Draw::new(seed, self.name, index), haystack, size);
            Sample {
                task: self.name.to_owned(),
                index,
                context: text.context,
                question: text.question,
                answer_prefix: text.answer_prefix,
                answers: text.answers,
                classes: Vec::new(),
                metric: Metric::StringMatchAll,
                max_new_tokens: self.n_answer,
                one_line: self.one_line,
                chat: true,
            }
        };
        let size = largest(n_tokens, |size| count(&make(size)))?;
        size.map(make).map_err(|least| Error::Context {
            what: format!("a sample of {} has at least {least} tokens, more than --length {n_tokens}", self.name),
        })
    }
}

/// The largest size that gives at most `n_tokens`, or the tokens of size 0 where that is too much already.
///
/// Tokens grow about evenly with the size, so a straight line through what is known guesses the next size to try.
fn largest(n_tokens: usize, count: impl Fn(usize) -> Result<usize>) -> Result<std::result::Result<usize, usize>> {
    const FIRST: usize = 64;
    const N_GUESS: usize = 12;
    let least = count(0)?;
    if least > n_tokens {
        return Ok(Err(least));
    }
    // A word or an item has one token at least.
    let (mut low, mut high) = ((0, least), (n_tokens + 1, usize::MAX));
    for n_try in 0.. {
        if high.0 - low.0 <= 1 || low.1 == n_tokens {
            break;
        }
        let guess = match (low.0, n_try) {
            (0, 0) => FIRST,
            (_, N_GUESS..) => (low.0 + high.0) / 2,
            _ => {
                let (from, to) = if high.1 == usize::MAX { ((0, least), low) } else { (low, high) };
                let slope = (to.0 - from.0) as f64 / (to.1 - from.1).max(1) as f64;
                low.0 + ((n_tokens - low.1) as f64 * slope) as usize
            }
        };
        let size = guess.clamp(low.0 + 1, high.0 - 1);
        let n = count(size)?;
        *(if n <= n_tokens { &mut low } else { &mut high }) = (size, n);
    }
    Ok(Ok(low.0))
}

#[cfg(test)]
mod tests;
