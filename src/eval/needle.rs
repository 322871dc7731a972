//! Retrieval: a sentence with a number is hidden in a text, and the model is asked for the number.
//!
//! Source: RULER (arXiv 2404.06654), task niah_single, in own wording: task, context, question, beginning of the answer; the
//! answer is right when the number occurs in the first tokens that the model writes (string match).

use super::{argmax, Case, Event, Item, Outcome, Setting};
use crate::engine::{Engine, Recorded, Taps};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use rand_mt::Mt64;

/// Tokens within which the answer must come.
pub const N_ANSWER: usize = 24;

/// Words that numbers belong to.
const WORDS: [&str; 24] = [
    "anchor", "basket", "candle", "desert", "engine", "feather", "garden", "harbor", "island", "jacket", "kettle",
    "ladder", "meadow", "needle", "orchard", "pepper", "quarry", "ribbon", "saddle", "thunder", "umbrella", "violin",
    "window", "yogurt",
];

/// What a question looks like and which answer is right.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Task, text and question.
    pub prompt: String,
    /// How the answer begins.
    pub answer_prefix: String,
    /// What the answer must contain.
    pub answer: String,
}

/// Sentences of a text, without line breaks.
pub fn sentences(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for word in text.split_whitespace() {
        match all.last_mut() {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) if !last.ends_with(['.', '?', '!']) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

/// Sentences that say nothing, for want of a text.
pub fn filler(n: usize) -> Vec<String> {
    const SUBJECTS: [&str; 8] = [
        "The river",
        "A small train",
        "The old library",
        "Every morning the baker",
        "The wind",
        "A grey cat",
        "The market",
        "Our neighbour",
    ];
    const VERBS: [&str; 7] = [
        "passes",
        "wakes up near",
        "keeps an eye on",
        "leaves a trace at",
        "returns to",
        "is often seen by",
        "tells a story about",
    ];
    const OBJECTS: [&str; 9] = [
        "the bridge",
        "the long road",
        "the harbour wall",
        "a row of quiet houses",
        "the empty square",
        "the edge of the forest",
        "the last lamp",
        "a field of barley",
        "the stone steps",
    ];
    (0..n).map(|i| format!("{} {} {}.", SUBJECTS[i % 8], VERBS[i / 3 % 7], OBJECTS[i / 5 % 9])).collect()
}

/// Sample `i` of this seed: `n_tokens` at most, the needle at a random depth of a random part of the haystack.
///
/// # Errors
/// When the haystack is too short, or cannot be tokenized.
pub fn sample(haystack: &[String], tokenizer: &Tokenizer, n_tokens: usize, seed: u64, i: usize) -> Result<Sample> {
    let mut random = Mt64::from(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64));
    let mut below = |n: usize| (random.next_u64() % n.max(1) as u64) as usize;
    let word = WORDS[below(WORDS.len())];
    let answer = (1_000_000 + below(9_000_000)).to_string();
    let needle = format!("One of the special magic numbers for {word} is: {answer}.");
    let start = below(haystack.len());
    let depth = below(1001);
    let count = |text: &str| Ok::<_, Error>(tokenizer.encode(text, false, false)?.len());
    let whole = |text: &str| {
        Sample {
        prompt: format!(
            "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number afterwards.\n{}\nWhat is the special magic number for {word} mentioned in the provided text?",
            text
        ),
        answer_prefix: format!(" The special magic number for {word} mentioned in the provided text is"),
        answer: answer.clone(),
    }
    };

    // Tokens of a text are at most those of its parts; two are left for BOS and the like.
    let mut left = n_tokens.saturating_sub(2 + count(&whole(&needle).text())?);
    let mut parts: Vec<&str> = Vec::new();
    for sentence in haystack.iter().cycle().skip(start).take(haystack.len()) {
        let n = count(&format!(" {sentence}"))?;
        if n > left {
            break;
        }
        left -= n;
        parts.push(sentence);
    }
    if parts.is_empty() || parts.len() == haystack.len() {
        return Err(Error::Context {
            what: format!("the haystack is too short, or its sentences too long, for {n_tokens} tokens"),
        });
    }
    parts.insert(parts.len() * depth / 1000, &needle);
    Ok(whole(&parts.join(" ")))
}

impl Sample {
    /// Question and beginning of the answer, without a chat template.
    pub fn text(&self) -> String {
        format!("{}{}", self.prompt, self.answer_prefix)
    }
}

/// A sample as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Its name in messages.
    pub name: String,
    /// Everything up to where the answer goes on.
    pub tokens: Vec<u32>,
    /// What the answer must contain.
    pub answer: String,
}

impl Item for Question {
    fn name(&self) -> &str {
        &self.name
    }

    // The last token is read after the pass, so that no token of an answer comes from the full cache.
    fn context(&self) -> &[u32] {
        self.tokens.split_last().map_or(&[], |(_, context)| context)
    }

    fn first(&self) -> Option<u32> {
        self.tokens.last().copied()
    }

    fn room(&self) -> usize {
        N_ANSWER
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether the right answer is in it.
    pub is_right: bool,
    /// The text.
    pub text: String,
}

/// Asks the full cache and every case.
///
/// # Errors
/// As [`super::compare`].
pub fn run(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    questions: &[Question],
    cases: &[Case],
    setting: &Setting,
    on_event: impl FnMut(Event<Answer>) -> Result<()>,
) -> Result<Vec<Outcome<Answer>>> {
    let ask = |engine: &mut Engine, question: &Question, _| {
        let last = question.first().unwrap_or_default();
        let text = generate(engine, tokenizer, last, setting)?;
        Ok(Answer { is_right: text.contains(&question.answer), text })
    };
    super::compare(engine, questions, cases, setting, ask, on_event)
}

/// Share of right answers.
pub fn exact_match(outcome: &Outcome<Answer>) -> f64 {
    outcome.results.iter().filter(|a| a.is_right).count() as f64 / outcome.results.len().max(1) as f64
}

/// What the model writes after `last`, always taking the most probable token.
fn generate(engine: &mut Engine, tokenizer: &Tokenizer, last: u32, setting: &Setting) -> Result<String> {
    let (mut next, mut text) = (last, Vec::new());
    for _ in 0..N_ANSWER {
        next = argmax(&engine.decode_last(&[next], &Taps::default(), &mut Recorded::default())?);
        if setting.end_of_text.contains(&next) {
            break;
        }
        text.extend_from_slice(tokenizer.piece(next, false));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_lose_nothing_but_line_breaks() {
        let text = "One two. Three?  Four\nfive! six";
        let got = sentences(text);
        assert_eq!(got, ["One two.", "Three?", "Four five!", "six"]);
        assert_eq!(got.join(" "), "One two. Three? Four five! six");
        assert_eq!(filler(500).len(), 500);
    }
}
