//! `gracekv-eval`: tasks with right answers, asked of the full cache and of every method and ratio side by side.

mod asked;

use self::asked::Asked;
use super::console::{self, Console};
use super::high::HighArgs;
use super::measure::{self, Given, Own, Progress, Tool, COMPARE};
use super::process;
use super::setup::{self, Loaded};
use super::NewFile;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::eval::answer::{self, Event};
use crate::eval::plot::{self, Chart};
use crate::eval::question::Question;
use crate::eval::records::Records;
use crate::eval::tasks::TASKS;
use crate::eval::{chart, scores, Case};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{Stderr, Stdout, Write};
use std::path::Path;

const OWN: &[Own] = &[
    Own {
        names: &["--task"],
        hint: "NAME,..",
        help: "tasks; 'list' prints them, 'all' is all of them (default: niah_single)",
    },
    Own {
        names: &["--data"],
        hint: "FILE,..",
        help: "samples from JSON lines: LongBench's fields, or context, question, answer_prefix, answers, task",
    },
    Own {
        names: &["--haystack"],
        hint: "FILE,..",
        help: "texts that tasks hide something in (default: filler sentences)",
    },
    Own {
        names: &["--length"],
        hint: "N",
        help:
            "tokens of a prompt; longer ones of --data lose their middle (default: 2000; --data: the model's context)",
    },
    Own { names: &["--samples"], hint: "N", help: "samples per task (default: 10; of --data: all)" },
    Own {
        names: &["--first-sample"],
        hint: "N",
        help: "begin with sample N, so that the others can be kept for later (default: 1)",
    },
    Own {
        names: &["-s", "--seed"],
        hint: "N",
        help: "seed of the samples; the same seed gives the same numbers (default: 1)",
    },
    Own { names: &["--template"], hint: "", help: "put the prompts into the model's chat template" },
    Own {
        names: &["--query-agnostic"],
        hint: "",
        help: "compress before the question is read; without it, the methods know the question",
    },
    Own {
        names: &["--out"],
        hint: "DIR",
        help: "write each answer to DIR/answers.jsonl; the same command goes on where a run was killed",
    },
    Own { names: &["--csv"], hint: "FILE", help: "write the table with commas" },
    Own { names: &["--plot"], hint: "FILE", help: "draw scores over ratios as SVG, one chart per task" },
    Own {
        names: &["--heat-map"],
        hint: "FILE",
        help: "ask nothing, but draw the entries of each layer and KV head as SVG, from",
    },
    Own { names: &["--kv-report"], hint: "FILE", help: "this report of gracekv-run" },
];

const TOOL: Tool = Tool {
    about: "\
usage: gracekv-eval -m model.gguf [options]

Asks questions whose answers are known, each of the full cache and of every method and ratio. A prompt is read once
and compressed by each; the answer comes from the compressed cache alone.

  gracekv-eval -m model.gguf --task niah_single,vt --haystack essay.txt --length 4000 --kv-ratio 16,64 --kv-method all
  gracekv-eval -m model.gguf --data hotpotqa.jsonl --template --query-agnostic --kv-ratio 4 --out results
  gracekv-eval --heat-map entries.svg --kv-report report.json
",
    tables: &[OWN, COMPARE],
    refused: &[],
    also: &[
        "chat-template",
        "chat-template-file",
        "chatml",
        "jinja",
        "chat-template-kwargs",
        "reasoning",
        "reasoning-effort",
        "reasoning-budget",
        "reasoning-preserve",
    ],
    run,
};

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    // What is wrong with the arguments is said by the tool.
    match Given::separate(args.iter().cloned(), TOOL.tables).ok().and_then(|given| without_model(&given)) {
        Some(Ok(())) => 0,
        Some(Err(e)) => process::fail(&e),
        None => TOOL.main(args),
    }
}

/// What needs no model; `None` when one is needed.
fn without_model(given: &Given) -> Option<Result<()>> {
    if given.list("--task").iter().any(|task| task == "list") {
        let list: String = TASKS.iter().map(|task| format!("{:<16} {}\n", task.name, task.about)).collect();
        // A reader that has gone wants no more.
        let _ = std::io::stdout().write_all(list.as_bytes());
        return Some(Ok(()));
    }
    let Some(map) = given.last("--heat-map") else {
        let why = "--kv-report is drawn by --heat-map FILE; gracekv-run writes it";
        return given.last("--kv-report").map(|_| Err(Error::Usage(why.to_owned())));
    };
    let draw = || {
        let report = given.last("--kv-report").ok_or_else(|| {
            Error::Usage("--heat-map draws a report of gracekv-run; name it with --kv-report".to_owned())
        })?;
        write_svg(map, &[chart::entries(Path::new(report))?])
    };
    Some(draw())
}

fn write_svg(path: &OsString, charts: &[Chart]) -> Result<()> {
    super::write_file(Path::new(path), plot::svg(charts)?.as_bytes())
}

fn run(given: &Given, args: &HighArgs, loaded: &Loaded, console: &mut Console<Stdout, Stderr>) -> Result<()> {
    let cases = given.cases(args)?;
    let asked = Asked::new(given, args, loaded)?;
    let settings = asked.settings(args, loaded)?;
    let files = Files::create(given)?;
    // A folder of other settings is refused before the samples are made.
    let mut records = match given.last("--out") {
        Some(dir) => Records::open(Path::new(dir), &settings)?,
        None => Records::new(),
    };
    let questions = asked.questions(args, loaded, console)?;
    ask(args, loaded, &questions, &cases, &mut records, console)?;
    show(files, &Value::Object(settings), &records, console)
}

/// The files that are asked for, opened before anything is measured.
struct Files {
    json: Option<NewFile>,
    csv: Option<NewFile>,
    plot: Option<NewFile>,
}

impl Files {
    fn create(given: &Given) -> Result<Files> {
        let create = |name: &str| given.last(name).map(|path| NewFile::create(Path::new(path))).transpose();
        Ok(Files { json: create("--json")?, csv: create("--csv")?, plot: create("--plot")? })
    }
}

fn ask(
    args: &HighArgs,
    loaded: &Loaded,
    questions: &[Question],
    cases: &[Case],
    records: &mut Records,
    console: &mut Console<Stdout, Stderr>,
) -> Result<()> {
    let longest = questions.iter().map(|q| q.tokens.len()).max().unwrap_or(0);
    let text = format!("{} prompts of at most {longest} tokens, {} answers to each", questions.len(), cases.len() + 1);
    console.message(3, &text);
    fits(questions, cases)?;
    // The lookahead follows the context before the question does.
    let n_ctx = |q: &Question| (q.tokens.len() + q.sample.max_new_tokens).max(q.n_context + args.low.kv_lookahead);
    let n_ctx = questions.iter().map(n_ctx).max().unwrap_or(1);
    let mut engine = Engine::new(loaded.model.clone(), setup::engine_options(args, n_ctx)?)?;
    let setting = measure::setting(args, loaded);
    let progress = Progress::start();
    answer::run(&mut engine, &loaded.tokenizer, questions, cases, &setting, records, |event| {
        match event {
            Event::Step(what, done, all) => progress.step(console, &what, done, all),
            Event::Answer(question, r) => {
                let text = format!("{}, {} {}: {:.2} {:?}", question.name, r.method, r.ratio, r.score, r.text);
                console.message(4, &text);
            }
        }
        Ok(())
    })?;
    console.clear_progress();
    Ok(())
}

/// Refuses a ratio that some prompt is too short for, before hours are spent on the others.
fn fits(questions: &[Question], cases: &[Case]) -> Result<()> {
    let shortest = questions.iter().min_by_key(|q| q.n_context);
    let largest = cases.iter().map(|case| case.ratio).fold(1.0, f64::max);
    match shortest.filter(|q| largest > q.n_context as f64) {
        Some(q) => Err(Error::Budget {
            what: format!(
                "ratio {largest} leaves less than one entry per head of the {} tokens of {}",
                q.n_context, q.name
            ),
        }),
        None => Ok(()),
    }
}

/// Tables on standard output, and the files that are asked for.
fn show(files: Files, settings: &Value, records: &Records, console: &mut Console<Stdout, Stderr>) -> Result<()> {
    let (rows, ranks) = (scores::rows(records.list()), scores::rank(records.list()));
    let mut text = scores::table(&rows).to_string();
    if ranks.len() > 1 {
        text += &format!("\n{}", scores::rank_table(&ranks));
    }
    console::out(console.write(text.as_bytes()))?;
    if let Some(file) = files.json {
        let json = scores::json(settings, records.list());
        file.save(|file| writeln!(file, "{json:#}"))?;
    }
    if let Some(file) = files.csv {
        file.save(|file| scores::csv(file, &rows))?;
    }
    if let Some(file) = files.plot {
        let svg = plot::svg(&chart::scores(&rows))?;
        file.save(|file| file.write_all(svg.as_bytes()))?;
    }
    Ok(())
}
