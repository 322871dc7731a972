//! `gracekv-eval`: tasks with right answers, asked to the full cache and to every method and ratio side by side.

use super::console::Console;
use super::high::HighArgs;
use super::measure::{self, Given, Own, Progress, Tool, COMPARE};
use super::setup::{self, Loaded};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::eval::needle::{self, Answer, Question};
use crate::eval::report;
use crate::tokenizer::chat::{ChatTemplate, Message, SpecialTokens};
use std::ffi::OsString;
use std::io::{Stderr, Stdout};
use std::path::Path;

const OWN: &[Own] = &[
    Own { names: &["--task"], hint: "NAME", help: "niah_single: one number hidden in a text (default: niah_single)" },
    Own {
        names: &["--haystack"],
        hint: "FILE,..",
        help: "texts to hide it in; may be given several times (default: filler sentences)",
    },
    Own { names: &["--length"], hint: "N", help: "tokens of a prompt (default: 2000)" },
    Own { names: &["--samples"], hint: "N", help: "prompts per task (default: 10)" },
    Own {
        names: &["-s", "--seed"],
        hint: "N",
        help: "seed of the samples; the same seed gives the same numbers (default: 1)",
    },
    Own { names: &["--template"], hint: "", help: "put the prompts into the model's chat template" },
];

const TOOL: Tool = Tool {
    about: "\
usage: gracekv-eval -m model.gguf [options]

Asks questions whose answers are known, each of the full cache and of every method and ratio. The prompt is read
once and compressed with the question in it; the answer comes from the compressed cache alone.

  gracekv-eval -m model.gguf --haystack essay.txt --length 4000 --samples 20 --kv-ratio 16,64 --kv-method gracekv,topk
",
    tables: &[OWN, COMPARE],
    run,
};

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    TOOL.main(args)
}

fn run(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Console<Stdout, Stderr>) -> Result<()> {
    if let Some(task) = given.list("--task").iter().find(|task| *task != "niah_single") {
        return Err(Error::Usage(format!("error: unknown task '{task}'; there is niah_single")));
    }
    let cases = given.cases(args)?;
    let n_tokens = given.number("--length")?.unwrap_or(2000);
    let n_sample = given.number("--samples")?.unwrap_or(10);
    let seed = given.number("-s")?.unwrap_or(1);
    let haystack = haystack(given, n_tokens)?;
    let template = template(given, loaded)?;
    let t = &loaded.tokenizer;
    let encode = |i: usize| {
        let sample = needle::sample(&haystack, t, n_tokens, seed, i)?;
        let tokens = match &template {
            Some(template) => t.encode(
                &(template.render(&[Message::new("user", sample.prompt)], true)? + sample.answer_prefix.trim_start()),
                true,
                true,
            )?,
            None => t.encode(&sample.text(), true, false)?,
        };
        Ok(Question { name: format!("sample {}", i + 1), tokens, answer: sample.answer })
    };
    let samples = (0..n_sample).map(encode).collect::<Result<Vec<_>>>()?;
    let longest = samples.iter().map(|q| q.tokens.len()).max().unwrap_or(0);
    let n_ctx = longest + needle::N_ANSWER.max(args.low.kv_lookahead);
    let mut engine = Engine::new(loaded.model.clone(), setup::engine_options(args, n_ctx)?)?;
    console.message(3, &format!("niah_single: {n_sample} samples of at most {longest} tokens, seed {seed}"));
    let progress = Progress::start();
    let setting = measure::setting(args, loaded);
    let word = |a: &Answer| if a.is_right { "right" } else { "wrong" }.to_owned();
    let outcomes = needle::run(&mut engine, t, &samples, &cases, &setting, |event| {
        progress.hear(console, &event, &|i| samples[i].name.clone(), &word);
        Ok(())
    })?;
    console.clear_progress();
    print!("{}", report::needle_table(&outcomes));
    if let Some(path) = given.last("--json") {
        let right: Vec<&str> = samples.iter().map(|q| q.answer.as_str()).collect();
        super::write_file(Path::new(path), format!("{:#}\n", report::needle_json(&outcomes, &right)).as_bytes())?;
    }
    Ok(())
}

fn haystack(given: &Given, n_tokens: usize) -> Result<Vec<String>> {
    let files = given.list("--haystack");
    if files.is_empty() {
        return Ok(needle::filler(n_tokens.max(64)));
    }
    let read = |file: &String| Ok(needle::sentences(&std::fs::read_to_string(file).map_err(|e| Error::io(file, e))?));
    Ok(files.iter().map(read).collect::<Result<Vec<_>>>()?.concat())
}

fn template(given: &Given, loaded: &Loaded) -> Result<Option<ChatTemplate>> {
    if given.last("--template").is_none() {
        return Ok(None);
    }
    let t = &loaded.tokenizer;
    let text = |id: Option<u32>| id.map_or(String::new(), |id| t.text(id).into_owned());
    let special = SpecialTokens { bos: text(t.bos()), eos: text(t.eos()), add_bos: t.add_bos() };
    let own = loaded.model.gguf.str("tokenizer.chat_template")?;
    Ok(Some(ChatTemplate::open(None, own, special)?.0))
}
