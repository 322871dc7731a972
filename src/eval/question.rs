//! From a sample to the tokens that are read before the answer, and where among them the pass comes.
//!
//! Query-aware, as most papers measure: all tokens but the last are compressed, so that no token of an answer comes from the full
//! cache. Query-agnostic, as in KVzip and kvpress: the pass sees the context alone, the question is read behind it.
//! Source of the cut in the middle: LongBench `pred.py`.

use super::metrics::Metric;
use super::Item;
use crate::error::{Error, Result};
use crate::tokenizer::chat::{ChatTemplate, Message};
use crate::tokenizer::Tokenizer;

/// What is asked, and which answers are right.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The task it belongs to.
    pub task: String,
    /// Its number in the task, 1 first.
    pub index: usize,
    /// The text that holds the answer, with what is to be done with it.
    pub context: String,
    /// The question.
    pub question: String,
    /// How the answer begins.
    pub answer_prefix: String,
    /// What the metric compares the answer with.
    pub answers: Vec<String>,
    /// The classes there are, where the metric wants them.
    pub classes: Vec<String>,
    /// How the answer is scored.
    pub metric: Metric,
    /// Tokens within which the answer must come.
    pub max_new_tokens: usize,
    /// Whether only the first line of the answer counts.
    pub one_line: bool,
    /// Whether a chat template suits it; solved examples and code are to be continued instead.
    pub chat: bool,
}

impl Sample {
    /// Everything up to where the answer goes on, without a chat template.
    pub fn text(&self) -> String {
        let with_question = join(&self.context, "\n", &self.question);
        join(&with_question, "\n", &self.answer_prefix)
    }

    /// The part of an answer that counts.
    pub fn counted<'a>(&self, text: &'a str) -> &'a str {
        match self.one_line {
            true => text.trim_start_matches('\n').split('\n').next().unwrap_or(""),
            false => text,
        }
    }

    /// Score of an answer.
    pub fn score(&self, text: &str) -> f64 {
        self.metric.score(self.counted(text), &self.answers, &self.classes)
    }

    /// Whether nothing that comes after `text` can change the score.
    pub fn is_final(&self, text: &str) -> bool {
        (self.one_line && text.trim_start().contains('\n')) || self.metric.is_final(self.counted(text), &self.answers)
    }
}

/// Two parts with `between` where neither brings white space.
fn join(a: &str, between: &str, b: &str) -> String {
    let is_open =
        !a.is_empty() && !b.is_empty() && !a.ends_with(char::is_whitespace) && !b.starts_with(char::is_whitespace);
    [a, if is_open { between } else { "" }, b].concat()
}

/// How samples become tokens.
pub struct Prompter<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The chat template, if one is to be used.
    pub template: Option<ChatTemplate>,
    /// Whether the pass comes before the question.
    pub query_agnostic: bool,
}

impl Prompter<'_> {
    /// Tokens of the whole prompt.
    ///
    /// # Errors
    /// When the template or the tokenizer refuses the text.
    pub fn tokens(&self, sample: &Sample) -> Result<Vec<u32>> {
        let (text, parse_special) = self.text(sample)?;
        self.tokenizer.encode(&text, true, parse_special)
    }

    /// The question that a sample asks; of more than `limit` tokens the middle is left out.
    ///
    /// # Errors
    /// As [`Prompter::tokens`], and when nothing of the context is left.
    pub fn question(&self, sample: Sample, limit: usize) -> Result<Question> {
        let mut tokens = self.tokens(&sample)?;
        let mut n_context = tokens.len().saturating_sub(1);
        if self.query_agnostic {
            n_context = self.n_context(&sample, &tokens)?;
        }
        let n_cut = tokens.len().saturating_sub(limit);
        if n_cut > 0 {
            let from = limit / 2;
            tokens.drain(from..from + n_cut);
            n_context = n_context.saturating_sub(n_cut).max(from.min(n_context));
        }
        if n_context == 0 || n_context >= tokens.len() {
            let what = format!("{} {}: the context or the question is empty", sample.task, sample.index);
            return Err(Error::Context { what });
        }
        let name = format!("{} {}", sample.task, sample.index);
        Ok(Question { sample, name, tokens, n_context, query_agnostic: self.query_agnostic, n_cut })
    }

    /// The text of the prompt, and whether it has control tokens.
    fn text(&self, sample: &Sample) -> Result<(String, bool)> {
        match self.template.as_ref().filter(|_| sample.chat) {
            Some(template) => {
                let user = join(&sample.context, "\n", &sample.question);
                let turn = template.render(&[Message::new("user", user)], true)?;
                Ok((turn + sample.answer_prefix.trim_start(), true))
            }
            None => Ok((sample.text(), false)),
        }
    }

    /// How many of the prompt's tokens come before the question and owe nothing to it.
    fn n_context(&self, sample: &Sample, tokens: &[u32]) -> Result<usize> {
        let (text, parse_special) = self.text(sample)?;
        let user = join(&sample.context, "\n", &sample.question);
        // A template may trim what it is given.
        let trimmed = user.trim();
        let start = user.len() - user.trim_start().len();
        let end = (user.len() - sample.question.len()).saturating_sub(start).min(trimmed.len());
        let found = text.find(trimmed).ok_or_else(|| {
            Error::unsupported("--query-agnostic with this chat template: it changes the text", sample.task.as_str())
        })?;
        let alone = self.tokenizer.encode(&text[..found + end], true, parse_special)?;
        Ok(alone.iter().zip(tokens).take_while(|(a, b)| a == b).count())
    }
}

/// A sample as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What it was made from.
    pub sample: Sample,
    /// Its name in messages.
    pub name: String,
    /// Everything up to where the answer goes on.
    pub tokens: Vec<u32>,
    /// How many of them are compressed.
    pub n_context: usize,
    /// Whether the pass comes before the question.
    pub query_agnostic: bool,
    /// Tokens that were left out of the middle.
    pub n_cut: usize,
}

impl Question {
    /// What is read after the pass.
    pub fn rest(&self) -> &[u32] {
        &self.tokens[self.n_context..]
    }
}

impl Item for Question {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> &[u32] {
        &self.tokens[..self.n_context]
    }

    // Nothing of a question that is yet to come may show in the probes.
    fn first(&self) -> Option<u32> {
        self.rest().first().copied().filter(|_| !self.query_agnostic)
    }

    fn room(&self) -> usize {
        self.rest().len() + self.sample.max_new_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            task: "t".into(),
            index: 1,
            context: "Text.".into(),
            question: "Which?".into(),
            answer_prefix: "It is".into(),
            answers: vec!["7".into()],
            classes: Vec::new(),
            metric: Metric::StringMatchAll,
            max_new_tokens: 4,
            one_line: true,
            chat: true,
        }
    }

    #[test]
    fn parts_are_joined_where_no_white_space_stands() {
        let mut s = sample();
        assert_eq!(s.text(), "Text.\nWhich?\nIt is");
        (s.context, s.question, s.answer_prefix) = ("Text. ".into(), "Which? A:".into(), "\nIt".into());
        assert_eq!(s.text(), "Text. Which? A:\nIt");
        s.question.clear();
        assert_eq!(s.text(), "Text. \nIt");
    }

    #[test]
    fn an_answer_of_one_line_ends_with_it() {
        let mut s = sample();
        assert!(!s.is_final("\n 6") && s.is_final("\n 6\n") && s.is_final("7"));
        assert_eq!((s.score("\n6\n7"), s.score("6 7\n")), (0.0, 1.0));
        s.one_line = false;
        assert!(!s.is_final("6\n") && s.score("6\n7") == 1.0);
    }
}
