//! Tasks on real models: what a prompt is made of, that a question is not seen before it comes, and that neither the order of
//! cases nor an interruption changes an answer.

use crate::support::{engine, model};
use gracekv::compress::{by_name, MethodOptions};
use gracekv::eval::answer::{self, Event};
use gracekv::eval::question::{Prompter, Question, Sample};
use gracekv::eval::records::{Record, Records, FILE};
use gracekv::eval::tasks::{self, haystack::Haystack};
use gracekv::eval::{Case, Item, Setting};
use gracekv::model::Model;
use gracekv::pass::PassOptions;
use gracekv::tokenizer::chat::{ChatTemplate, Choice, SpecialTokens};
use gracekv::tokenizer::Tokenizer;

fn case(method: &str, ratio: f64) -> Case {
    Case { method: by_name(method, &MethodOptions::default()).unwrap(), ratio }
}

fn prompter<'a>(model: &Model, tokenizer: &'a Tokenizer, has_template: bool, query_agnostic: bool) -> Prompter<'a> {
    let own = model.gguf.str("tokenizer.chat_template").unwrap();
    let special = SpecialTokens { add_bos: tokenizer.add_bos(), ..Default::default() };
    let choice = Choice { given: None, own, jinja: true };
    let template = has_template.then(|| ChatTemplate::open(choice, special, serde_json::Map::new()).unwrap().0);
    Prompter { tokenizer, template, query_agnostic }
}

fn sample(prompter: &Prompter, task: &str, index: usize, n_tokens: usize) -> Sample {
    let count = |s: &Sample| Ok(prompter.tokens(s)?.len());
    tasks::by_name(task).unwrap().sample(&Haystack::filler(), 1, index, n_tokens, count).unwrap()
}

fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    String::from_utf8(tokens.iter().flat_map(|&t| tokenizer.piece(t, true).to_vec()).collect()).unwrap()
}

#[test]
fn a_context_ends_before_its_question_with_and_without_a_template() {
    for name in ["qwen2", "smollm2", "gemma3"] {
        let Some(model) = model(name) else { return };
        let tokenizer = Tokenizer::load(&model.gguf).unwrap();
        for has_template in [false, true] {
            let agnostic = prompter(&model, &tokenizer, has_template, true);
            for task in tasks::TASKS {
                let one = sample(&agnostic, task.name, 1, 600);
                let other = Sample { question: "Who wrote it?".into(), answer_prefix: "It was".into(), ..one.clone() };
                let (q, o) = (agnostic.question(one.clone(), 600).unwrap(), agnostic.question(other, 600).unwrap());
                // The line break before the question may be one token with what follows it.
                let seen = text(&tokenizer, q.context());
                assert!(seen.trim_end().ends_with(one.context.trim_end()), "{name} {}: {seen}", task.name);
                assert_eq!((q.context(), q.first()), (o.context(), None), "{name} {}", task.name);
                assert!(text(&tokenizer, q.rest()).trim_start().starts_with(&one.question));

                let aware = prompter(&model, &tokenizer, has_template, false).question(one.clone(), 600).unwrap();
                assert_eq!((&aware.tokens, aware.rest().len()), (&q.tokens, 1));
                assert!(
                    aware.tokens.len() <= 600 && aware.tokens.len() > 570,
                    "{name} {}: {}",
                    task.name,
                    aware.tokens.len()
                );
                let whole = text(&tokenizer, &aware.tokens);
                let before = whole.strip_suffix(&one.answer_prefix).unwrap();
                assert_eq!(before.ends_with("assistant\n") || before.ends_with("model\n"), has_template, "{before}");
            }
        }
    }
}

#[test]
fn a_prompt_that_is_too_long_loses_its_middle() {
    let Some(model) = model("smollm2") else { return };
    let tokenizer = Tokenizer::load(&model.gguf).unwrap();
    for query_agnostic in [false, true] {
        let prompter = prompter(&model, &tokenizer, true, query_agnostic);
        let sample = sample(&prompter, "niah_single", 1, 500);
        let whole = prompter.question(sample.clone(), usize::MAX).unwrap();
        for limit in [30, 99, 400, whole.tokens.len()] {
            let cut = prompter.question(sample.clone(), limit).unwrap();
            let half = limit / 2;
            assert_eq!((cut.tokens.len(), cut.n_cut), (limit, whole.tokens.len() - limit));
            assert_eq!(cut.tokens[..half], whole.tokens[..half]);
            assert_eq!(cut.tokens[half..], whole.tokens[whole.tokens.len() - (limit - half)..]);
            assert!(cut.rest().len() == whole.rest().len() || cut.n_context == half, "{limit}");
        }
    }
}

/// Everything but the time.
fn timeless(mut records: Vec<Record>) -> Vec<Record> {
    records.iter_mut().for_each(|r| r.pass_ms = 0.0);
    records.sort_by_key(|r| (r.task.clone(), r.sample, r.method.clone(), r.ratio as u64));
    records
}

#[test]
fn neither_order_nor_interruption_changes_an_answer() {
    let Some(model) = model("smollm2") else { return };
    let tokenizer = Tokenizer::load(&model.gguf).unwrap();
    let settings = serde_json::Map::new();
    let dir = tempfile::tempdir().unwrap();
    for query_agnostic in [false, true] {
        let prompter = prompter(&model, &tokenizer, false, query_agnostic);
        let questions: Vec<Question> = [("niah_single", 1), ("passkey", 2)]
            .map(|(task, i)| prompter.question(sample(&prompter, task, i, 200), 200).unwrap())
            .into();
        let mut engine = engine(&model, 240, 2);
        let pass = PassOptions { n_lookahead: 8, ..Default::default() };
        let setting = Setting { pass, end_of_text: tokenizer.eog().collect() };
        let mut run = |records: &mut Records, cases: &[Case], limit: usize| {
            let mut n = 0;
            let result = answer::run(&mut engine, &tokenizer, &questions, cases, &setting, records, |event| {
                n += usize::from(matches!(event, Event::Answer(..)));
                // As a kill would: the answer that is there is written, nothing after it.
                if n > limit {
                    Err(gracekv::error::Error::Interrupted)
                } else {
                    Ok(())
                }
            });
            assert_eq!(result.is_err(), n > limit);
        };
        let cases = [case("gracekv", 4.0), case("streaming_llm", 8.0), case("topk", 4.0)];
        let mut whole = Records::new();
        run(&mut whole, &cases, usize::MAX);
        let want = timeless(whole.list().to_vec());
        assert_eq!(want.len(), 8);

        let reversed = [case("topk", 4.0), case("streaming_llm", 8.0), case("gracekv", 4.0)];
        let mut other = Records::new();
        run(&mut other, &reversed, usize::MAX);
        assert_eq!(timeless(other.list().to_vec()), want);

        let dir = dir.path().join(format!("{query_agnostic}"));
        for limit in [1, 2, usize::MAX] {
            run(&mut Records::open(&dir, &settings).unwrap(), &cases, limit);
            let path = dir.join(FILE);
            let bytes = std::fs::read(&path).unwrap();
            if limit < usize::MAX {
                std::fs::write(&path, [&bytes[..], b"{\"task\":\"niah_si"].concat()).unwrap();
            }
        }
        assert_eq!(timeless(Records::open(&dir, &settings).unwrap().list().to_vec()), want);
    }
}
