//! Samples from JSON lines: LongBench's fields, or a context and a question as they are to be read.
//!
//! LongBench: `input`, `context`, `answers`, `all_classes`, `dataset` ([`super::longbench`] knows what to ask). Ours, as kvpress
//! keeps RULER: `context`, `question`, `answer_prefix`, `answers` (or `answer`), `max_new_tokens`, `task`, and perhaps `metric`
//! and `all_classes`. Fields that are not named here are left alone.

use super::longbench::DATASETS;
use super::metrics::Metric;
use super::question::Sample;
use super::tasks::TASKS;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// Tokens of an answer where neither the line nor its task says how many.
const N_ANSWER: usize = 64;

/// The samples of these files; those of one task are numbered through all of them.
///
/// # Errors
/// When a file cannot be read, or a line is no sample; the message names both.
pub fn open(files: &[String]) -> Result<Vec<Sample>> {
    let mut all: Vec<Sample> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|e| Error::io(Path::new(file), e))?;
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut sample = parse(line).map_err(|e| Error::Context { what: format!("{file}:{}: {e}", i + 1) })?;
            sample.index = 1 + all.iter().filter(|s| s.task == sample.task).count();
            all.push(sample);
        }
    }
    match all.is_empty() {
        true => Err(Error::Context { what: format!("{}: no samples", files.join(", ")) }),
        false => Ok(all),
    }
}

/// One line. The index is left to the caller.
fn parse(line: &str) -> Result<Sample> {
    let wrong = |what: String| Error::Context { what };
    let value: Value = serde_json::from_str(line).map_err(|e| wrong(format!("not JSON: {e}")))?;
    let Value::Object(fields) = value else { return Err(wrong("not a JSON object".to_owned())) };
    let fields = Fields(fields);
    match (fields.0.contains_key("dataset"), fields.0.contains_key("task")) {
        (true, _) => longbench(&fields),
        (false, true) => ours(&fields),
        (false, false) => {
            Err(wrong("neither the field 'dataset' (LongBench) nor the field 'task' (ours) is there".to_owned()))
        }
    }
}

fn longbench(fields: &Fields) -> Result<Sample> {
    let name = fields.text("dataset")?;
    // LongBench-E: the same, evenly distributed over lengths.
    let dataset = DATASETS.iter().find(|d| d.name == name || name.strip_suffix("_e") == Some(d.name));
    let dataset = dataset.ok_or_else(|| Error::Context {
        what: format!("unknown dataset '{name}'; there are {}", DATASETS.map(|d| d.name).join(", ")),
    })?;
    let sample = Sample {
        task: name,
        index: 0,
        context: format!("{}{}", dataset.before, fields.text("context")?),
        question: dataset.after.replace("{input}", &fields.text("input")?),
        answer_prefix: dataset.answer_prefix.to_owned(),
        answers: fields.texts("answers")?,
        classes: fields.optional("all_classes", |f, name| f.texts(name))?.unwrap_or_default(),
        metric: dataset.metric,
        max_new_tokens: dataset.n_answer,
        one_line: dataset.one_line,
        chat: dataset.chat,
    };
    checked(sample)
}

fn ours(fields: &Fields) -> Result<Sample> {
    let task = fields.text("task")?;
    let known = TASKS.iter().find(|known| known.name == task);
    let metric = match fields.optional("metric", Fields::text)? {
        Some(name) => Metric::by_name(&name)?,
        // RULER's own rule.
        None if task.starts_with("qa") => Metric::StringMatchPart,
        None => Metric::StringMatchAll,
    };
    let n_answer = fields.optional("max_new_tokens", Fields::count)?;
    let sample = Sample {
        index: 0,
        context: fields.text("context")?,
        question: fields.text("question")?,
        answer_prefix: fields.optional("answer_prefix", Fields::text)?.unwrap_or_default(),
        answers: fields.texts(if fields.0.contains_key("answers") { "answers" } else { "answer" })?,
        classes: fields.optional("all_classes", |f, name| f.texts(name))?.unwrap_or_default(),
        metric,
        max_new_tokens: n_answer.unwrap_or(known.map_or(N_ANSWER, |known| known.n_answer)),
        one_line: known.is_some_and(|known| known.one_line),
        chat: true,
        task,
    };
    checked(sample)
}

fn checked(sample: Sample) -> Result<Sample> {
    let lacks = if sample.answers.is_empty() {
        "answers"
    } else if sample.metric == Metric::Classification && sample.classes.is_empty() {
        "all_classes"
    } else {
        return Ok(sample);
    };
    Err(Error::Context { what: format!("field '{lacks}' is empty") })
}

/// The fields of a line.
struct Fields(Map<String, Value>);

impl Fields {
    fn get(&self, name: &str) -> Result<&Value> {
        self.0.get(name).ok_or_else(|| Error::Context { what: format!("field '{name}' is missing") })
    }

    fn text(&self, name: &str) -> Result<String> {
        self.get(name)?.as_str().map(str::to_owned).ok_or_else(|| not(name, "a text"))
    }

    /// A list of texts; one text is a list, too.
    fn texts(&self, name: &str) -> Result<Vec<String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let found = match self.get(name)? {
            Value::Array(list) => list.iter().map(text).collect(),
            value => text(value).map(|one| vec![one]),
        };
        found.ok_or_else(|| not(name, "a list of texts"))
    }

    fn count(&self, name: &str) -> Result<usize> {
        let found = self.get(name)?.as_u64().and_then(|n| usize::try_from(n).ok());
        // The engine makes room for so many tokens.
        found.filter(|n| (1..=1 << 16).contains(n)).ok_or_else(|| not(name, "a number from 1 to 65536"))
    }

    /// What `read` finds where the field is there and not null.
    fn optional<T>(&self, name: &str, read: impl Fn(&Self, &str) -> Result<T>) -> Result<Option<T>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => read(self, name).map(Some),
        }
    }
}

fn not(name: &str, what: &str) -> Error {
    Error::Context { what: format!("field '{name}' is not {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        parse(line).unwrap_err().to_string()
    }

    #[test]
    fn both_kinds_of_lines_are_read() {
        let s = parse(
            r#"{"input":"Who?","context":"Ann.","answers":["Ann"],"all_classes":null,"dataset":"hotpotqa","length":3}"#,
        );
        let s = s.unwrap();
        assert!(s.text().ends_with("Question: Who?\nAnswer:") && s.text().contains("Ann."));
        assert_eq!((s.metric, s.max_new_tokens, s.chat, s.task.as_str()), (Metric::F1, 32, true, "hotpotqa"));
        let s = parse(
            r#"{"context":"a 7","question":"n?","answer_prefix":"It is","answer":"7","max_new_tokens":9,"task":"vt"}"#,
        );
        let s = s.unwrap();
        assert_eq!((s.answers, s.max_new_tokens, s.metric), (vec!["7".to_owned()], 9, Metric::StringMatchAll));
        let s = parse(r#"{"context":"a","question":"q","answers":["7"],"task":"mine","metric":"f1"}"#).unwrap();
        assert_eq!((s.metric, s.max_new_tokens), (Metric::F1, N_ANSWER));
    }

    #[test]
    fn wrong_lines_say_what_is_wrong() {
        for (line, part) in [
            ("{", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"a":1}"#, "neither the field 'dataset'"),
            (r#"{"dataset":"dureader"}"#, "unknown dataset 'dureader'; there are narrativeqa"),
            (r#"{"dataset":"lcc","context":"c","answers":["a"]}"#, "field 'input' is missing"),
            (r#"{"dataset":"lcc","context":3}"#, "field 'context' is not a text"),
            (
                r#"{"dataset":"trec","context":"c","input":"i","answers":["a"],"all_classes":null}"#,
                "'all_classes' is empty",
            ),
            (r#"{"task":"t","context":"c","question":"q","answers":[]}"#, "'answers' is empty"),
            (r#"{"task":"t","context":"c","question":"q","answers":[1]}"#, "'answers' is not a list of texts"),
            (r#"{"task":"t","context":"c","question":"q","answers":"a","max_new_tokens":0}"#, "from 1 to 65536"),
            (r#"{"task":"t","context":"c","question":"q","answers":"a","metric":"x"}"#, "unknown metric 'x'"),
        ] {
            assert!(refused(line).contains(part), "{line}: {}", refused(line));
        }
        let mut names: Vec<&str> = DATASETS.iter().map(|d| d.name).collect();
        names.dedup();
        assert_eq!(names.len(), 16);
        assert!(DATASETS.iter().all(|d| !d.name.is_empty() && d.n_answer > 0));
    }
}
