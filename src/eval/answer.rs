//! Answers of the full cache and of every method and ratio to the same questions, written from the compressed cache alone.

use super::question::Question;
use super::records::{Record, Records};
use super::{argmax, Case, Setting, Visit};
use crate::engine::{Engine, Recorded, Taps};
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// What a measurement tells while it runs.
pub enum Event<'a> {
    /// What comes next, and how many of how many steps are done.
    Step(String, usize, usize),
    /// An answer.
    Answer(&'a Question, &'a Record),
}

/// The name of the full cache in records.
pub const FULL: &str = "full";

/// Asks the full cache and every case what `records` does not hold yet, and adds the answers to it.
///
/// # Errors
/// As [`super::visit`], and when an answer cannot be written.
pub fn run(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    questions: &[Question],
    cases: &[Case],
    setting: &Setting,
    records: &mut Records,
    on_event: impl FnMut(Event) -> Result<()>,
) -> Result<()> {
    let named = |nth: usize| match nth.checked_sub(1) {
        None => (FULL, 1.0),
        Some(j) => (cases[j].method.name.as_str(), cases[j].ratio),
    };
    // Two callbacks are called in turn.
    let on_event = std::cell::RefCell::new(on_event);
    let is_new = |q: &Question, nth: usize| !records.has(&q.sample.task, q.sample.index, named(nth).0, named(nth).1);
    let of_question = |q: &Question| (0..=cases.len()).filter(|&nth| is_new(q, nth)).collect();
    let wanted: Vec<Vec<usize>> = questions.iter().map(of_question).collect();
    let ask = |engine: &mut Engine, visit: &Visit| {
        let question = &questions[visit.item];
        let text = generate(engine, tokenizer, question, setting)?;
        let (sample, (method, ratio)) = (&question.sample, named(visit.nth));
        let record = Record {
            task: sample.task.clone(),
            sample: sample.index,
            method: method.to_owned(),
            ratio,
            score: sample.score(&text),
            chance: sample.metric.chance(&sample.classes),
            kv_bytes: visit.kv_bytes,
            pass_ms: visit.pass.as_secs_f64() * 1e3,
            n_tokens: question.tokens.len(),
            text,
            answers: sample.answers.clone(),
        };
        (on_event.borrow_mut())(Event::Answer(question, &record))?;
        records.push(record)
    };
    let on_step = |what, done, all| (on_event.borrow_mut())(Event::Step(what, done, all));
    super::visit(engine, questions, cases, setting, &wanted, ask, on_step)
}

/// What the model writes, always taking the most probable token, until the text ends or its score is settled.
fn generate(engine: &mut Engine, tokenizer: &Tokenizer, question: &Question, setting: &Setting) -> Result<String> {
    let mut bytes = Vec::new();
    let mut decode = |tokens: &[u32]| engine.decode_last(tokens, &Taps::default(), &mut Recorded::default());
    let mut next = argmax(&decode(question.rest())?);
    for n in 1..=question.sample.max_new_tokens {
        if setting.end_of_text.contains(&next) {
            break;
        }
        bytes.extend_from_slice(tokenizer.piece(next, false));
        if n == question.sample.max_new_tokens || question.sample.is_final(&String::from_utf8_lossy(&bytes)) {
            break;
        }
        next = argmax(&decode(&[next])?);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
