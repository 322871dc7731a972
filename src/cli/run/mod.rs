//! `gracekv-run`: llama-completion in a script and llama-cli on a terminal.
//!
//! Text goes to standard output, everything else to standard error. Exit codes: 0, 1 for an error, 255 for nothing to read,
//! 130 after Ctrl-C (0 at the prompt of a conversation, as in llama-cli), 128 and the number of a signal that ended the program.
//! Source of the behaviour: llama.cpp `tools/completion/completion.cpp`, `tools/cli/cli-context.cpp`. A conversation whose
//! input and output are a terminal looks as llama-cli's; any other run is llama-completion's.

mod command;
mod complete;
mod converse;
mod explain;
mod generate;
mod mode;
mod prompt_cache;
mod remaining;
mod room;

use super::console::{is_closed, out, Console, Style};
use super::device;
use super::files;
use super::flags::unmet;
use super::help;
use super::high::HighArgs;
use super::input::{Input, Typed};
use super::interrupt::{Interrupt, EXIT_INTERRUPTED};
use super::low::{LowArgs, Special};
use super::parse;
use super::perf::Perf;
use super::process;
use super::prompt_cache::PromptCache;
use super::setup::{self, Loaded};
use super::source;
use super::NewFile;
use crate::error::{one_line, Error, Result};
use crate::ggml;
use crate::sample::Chain;
use crate::session::Session;
use crate::tokenizer::Tokenizer;
use remaining::Remaining;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Stderr, Stdout, Write};
use std::path::PathBuf;

/// Levels of messages, as llama.cpp numbers them.
const ERROR: i32 = 1;
const WARN: i32 = 2;
const INFO: i32 = 3;
const TRACE: i32 = 4;

/// Tokens of the context that a prompt must leave free, as in llama-completion.
const N_RESERVED: usize = 4;

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let begun = process::start().and_then(|interrupt| Ok((interrupt, parse::parse_with_config(args, &env)?)));
    let (interrupt, low) = match begun {
        Ok(begun) => begun,
        Err(e) => return process::fail(&e),
    };
    match low.special {
        Some(Special::Help) => process::print(&help::help()),
        Some(Special::Version) => {
            // As in llama.cpp on standard error, whose end is no failure.
            let _ = io::stderr().write_all(help::version().as_bytes());
            0
        }
        Some(Special::Methods) => process::print(&help::methods()),
        Some(Special::CompletionBash) => process::print(&help::completion_bash()),
        Some(special @ (Special::CacheList | Special::Devices)) => match list(special, &low) {
            Ok(list) => process::print(&list),
            Err(e) => process::fail(&e),
        },
        None => run(low, interrupt),
    }
}

fn list(special: Special, low: &LowArgs) -> Result<String> {
    match special {
        Special::Devices => device::list(&low.devices),
        _ => source::list(&env),
    }
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn run(low: LowArgs, interrupt: Interrupt) -> i32 {
    let open = files::check(&files::inputs(&low), &files::outputs(&low)).and_then(|()| Console::open(&low));
    let mut console = match open {
        Ok(console) => console,
        Err(e) => return process::fail(&e),
    };
    for notice in &low.notices {
        console.message(INFO, &one_line(notice));
    }
    for warning in low.warnings.iter().cloned().chain(unmet(&low)) {
        console.message(WARN, &format!("warning: {}", one_line(&warning)));
    }
    let result = load_and_run(low, &mut console, &interrupt);
    match result {
        Ok(code) => interrupt.ending().unwrap_or(code),
        Err(Error::Interrupted) => {
            console.message(ERROR, "Interrupted by user");
            interrupt.ending().unwrap_or(EXIT_INTERRUPTED)
        }
        Err(Error::Io { source, .. }) if is_closed(&source) => 0,
        Err(e) => {
            let text = e.to_string();
            console.message(ERROR, if text.starts_with("error") { text } else { format!("error: {text}") }.as_str());
            1
        }
    }
}

fn load_and_run(mut low: LowArgs, console: &mut Console<Stdout, Stderr>, interrupt: &Interrupt) -> Result<i32> {
    let n_warned = low.warnings.len();
    source::resolve(&mut low, &env, console)?;
    let args = HighArgs::new(low)?;
    for warning in &args.low.warnings[n_warned..] {
        console.message(WARN, &format!("warning: {}", one_line(warning)));
    }
    ggml::set_log(args.low.verbosity >= WARN);
    process::start_threads(args.n_threads_batch)?;
    let mut perf = Perf::start();
    console.progress("loading the model");
    let mut notices = Vec::new();
    let loaded = setup::load(&args, &mut |text| notices.push(text))?;
    let mut session = setup::session(&args, &loaded)?;
    console.clear_progress();
    for notice in notices {
        console.message(WARN, &format!("warning: {notice}"));
    }
    if args.low.warmup {
        let token = loaded.tokenizer.bos().or(loaded.tokenizer.eos()).unwrap_or(0);
        session.engine.decode_last(&[token], &Default::default(), &mut Default::default())?;
        session.engine.clear()?;
    }
    perf.loaded();
    session.engine.set_stop(interrupt.flag());
    let runner = Runner::new(&args, &loaded, session, console, perf, interrupt.clone())?;
    interrupt.started();
    runner.run(&loaded)
}

/// What was loaded, for `-lv 4` and for the log; the size of the cache at level `detail`.
fn describe(args: &HighArgs, loaded: &Loaded, session: &Session, console: &mut Console<Stdout, Stderr>, detail: i32) {
    let (hp, cache) = (&loaded.model.hp, &session.engine.cache);
    let mib = |b: u64| b as f64 / 1048576.0;
    console.message(
        TRACE,
        &format!(
            "model: {} {}, {:.2} MiB, {} layers, {} heads, {} KV heads, ggml {}",
            args.model.display(),
            loaded.model.arch().name(),
            mib(loaded.model.n_bytes()),
            hp.n_layer,
            hp.n_head,
            hp.n_head_kv,
            ggml::version()
        ),
    );
    console.message(
        TRACE,
        &format!(
            "vocabulary: {} tokens, loaded in {:.1} ms",
            loaded.tokenizer.n_vocab(),
            loaded.vocabulary_time.as_secs_f64() * 1e3
        ),
    );
    let o = cache.options();
    console.message(
        detail,
        &format!(
            "KV buffer size = {:8.2} MiB ({:6} cells, {:3} layers), K ({}), V ({})",
            mib(cache.bytes()),
            o.n_ctx,
            hp.n_layer,
            o.ty_k,
            o.ty_v
        ),
    );
}

struct Runner<'a> {
    args: &'a HighArgs,
    tokenizer: &'a Tokenizer,
    session: Session,
    console: &'a mut Console<Stdout, Stderr>,
    input: Option<Input>,
    chain: Chain,
    /// The last tokens that were read or chosen, for reverse prompts.
    recent: VecDeque<u32>,
    /// Reverse prompts that are one token.
    reverse_tokens: Vec<u32>,
    interrupt: Interrupt,
    perf: Perf,
    /// The token with which the last answer ended, not in the cache yet.
    pending: Option<u32>,
    /// Whether the user is asked where an answer ends.
    is_interactive: bool,
    /// Whether the run is a conversation of people, as in llama-cli.
    is_for_people: bool,
    remaining: Remaining,
    /// Tokens that a context shift keeps.
    n_keep: usize,
    n_reported: usize,
    /// Whether the user knows that the method compresses the first prompt only.
    is_told_of_once: bool,
    prompt_cache: Option<PromptCache>,
    /// The file of `--kv-report`.
    report: Option<NewFile>,
    is_report_lost: bool,
    /// The file of `-o`, until it is known what it gets: a copy of the text, or a transcript.
    output: Option<NewFile>,
    /// What was said in a conversation by a chat template, for `-o`.
    transcript: Option<NewFile>,
    /// The first failure of a file beside the text, which does not end the answer.
    failed: Option<Error>,
}

impl<'a> Runner<'a> {
    fn new(
        args: &'a HighArgs,
        loaded: &'a Loaded,
        session: Session,
        console: &'a mut Console<Stdout, Stderr>,
        perf: Perf,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let tokenizer = &loaded.tokenizer;
        let chain = setup::chain(args, loaded, &mut |text| console.message(WARN, &format!("warning: {text}")))?;
        let reverse = args.reverse_prompts.iter().map(|r| tokenizer.encode(r, false, true));
        // While signals still end the program at once: a pipe that nobody reads makes it wait here.
        let create = |path: &Option<PathBuf>| path.as_deref().map(NewFile::create).transpose();
        let reverse_tokens = reverse.collect::<Result<Vec<_>>>()?.into_iter().filter(|ids| ids.len() == 1).flatten();
        Ok(Runner {
            args,
            tokenizer,
            session,
            console,
            input: None,
            chain,
            recent: VecDeque::new(),
            reverse_tokens: reverse_tokens.collect(),
            interrupt,
            perf,
            pending: None,
            is_interactive: false,
            is_for_people: false,
            remaining: Remaining::new(args.low.n_predict),
            n_keep: 0,
            n_reported: 0,
            is_told_of_once: false,
            prompt_cache: None,
            report: create(&args.low.kv_report)?,
            is_report_lost: false,
            output: create(&args.low.output)?,
            transcript: None,
            failed: None,
        })
    }

    fn run(mut self, loaded: &Loaded) -> Result<i32> {
        let result = self.begin(loaded);
        let kept = self.keep_output(matches!(result, Ok(0) | Err(Error::Interrupted)));
        let failed = self.failed.take().map_or(kept, Err);
        match (result, failed) {
            (Ok(code), failed) => failed.map(|()| code),
            (Err(Error::Interrupted), Err(e)) => {
                self.console.message(ERROR, &format!("error: {e}"));
                Err(Error::Interrupted)
            }
            (Err(e), _) => Err(e),
        }
    }

    /// Keeps the failure of a file beside the text for the end of the run.
    fn note_failure(&mut self, written: Result<()>) {
        if let Err(e) = written {
            self.failed.get_or_insert(e);
        }
    }

    fn begin(&mut self, loaded: &Loaded) -> Result<i32> {
        self.open_prompt_cache()?;
        let mode = mode::mode(self.args, loaded, self.console)?;
        self.is_for_people = mode::is_for_people() && matches!(mode, mode::Mode::Template(_));
        describe(self.args, loaded, &self.session, self.console, self.detail());
        self.warn_of_interval();
        let result = match mode {
            mode::Mode::Template(template) => self.converse(&template),
            mode::Mode::Plain { is_conversation } => self.complete(is_conversation),
        };
        let code = match result {
            Ok(0) => Ok(0),
            // The times of what was done until then belong to the run, as in llama.cpp.
            Err(Error::Interrupted) => Err(Error::Interrupted),
            other => return other,
        };
        let saved = self.finish_prompt_cache(code.is_err());
        self.note_failure(saved);
        self.session_report();
        if let Some(file) = self.report.take().filter(|_| self.n_reported == 0) {
            let path = file.path().display();
            self.console.message(
                WARN,
                &format!("warning: nothing was compressed, so that there is no report: {path} is left as it is"),
            );
        }
        self.explain_pending_pass();
        if !self.is_for_people {
            out(self.console.write(b"\n\n"))?;
        }
        out(self.console.finish())?;
        if self.args.low.perf {
            let lines = self.perf.lines(self.session.engine.n_reused);
            self.console.message(self.detail(), &lines);
        }
        code
    }

    /// Gives the file of `-o` its name, unless the run failed before there was anything to write.
    fn keep_output(&mut self, is_done: bool) -> Result<()> {
        let transcript = self.transcript.take().filter(|file| is_done || file.is_sound());
        self.console.keep_copies(is_done)?;
        transcript.map_or(Ok(()), NewFile::finish)
    }

    /// Level of what llama-completion prints about a run and llama-cli does not.
    fn detail(&self) -> i32 {
        if self.is_for_people {
            TRACE
        } else {
            INFO
        }
    }

    /// Notes what of a prompt of this length a context shift keeps.
    fn keep(&mut self, n_prompt: usize) {
        self.n_keep = match usize::try_from(self.args.low.n_keep) {
            Ok(n) if n <= n_prompt => n + usize::from(self.tokenizer.add_bos()),
            _ => n_prompt,
        };
    }

    /// The lines about sampling and sizes, once the length of the prompt is known.
    fn announce(&mut self, n_prompt: usize) -> Result<()> {
        let (low, level) = (&self.args.low, self.detail());
        self.keep(n_prompt);
        self.console.accept_log()?;
        self.console.message(level, &format!("sampler seed: {}", self.chain.seed()));
        self.console.message(level, &format!("sampler params: \n{}", self.chain.params()));
        self.console.message(level, &format!("sampler chain: logits -> {}", self.chain.names().join(" -> ")));
        let n_ctx = self.session.engine.options().n_ctx;
        self.console.message(
            level,
            &format!(
                "generate: n_ctx = {n_ctx}, n_batch = {}, n_predict = {}, n_keep = {}",
                low.n_batch, low.n_predict, self.n_keep
            ),
        );
        Ok(())
    }

    /// What the user types next; `prompt` is written in front of it.
    fn ask(&mut self, prompt: &str) -> Result<Typed> {
        let low = &self.args.low;
        let (is_in, is_out) = (io::stdin().is_terminal(), io::stdout().is_terminal());
        let is_edited = is_in && is_out && !low.simple_io;
        let input = self.input.get_or_insert_with(|| if is_edited { Input::edited() } else { Input::plain() });
        let (above, line) = prompt.split_at(prompt.rfind('\n').map_or(0, |at| at + 1));
        match (is_in, is_out) {
            // The text goes to a file, the question to who is asked.
            (true, false) => drop(io::stderr().write_all(prompt.as_bytes())),
            // The editor writes the line that it edits.
            _ => out(self.console.write(if is_edited { above } else { prompt }.as_bytes()))?,
        }
        out(self.console.style(Style::Input))?;
        // A terminal shows what is typed; what comes through a pipe belongs to the text, too, as in llama-completion.
        let (console, is_echoed) = (&mut *self.console, !is_in && !low.simple_io);
        let mut echo = |text: &str| match is_echoed {
            true => out(console.write(text.as_bytes())),
            false => Ok(()),
        };
        let typed = input.turn(line, low.multiline_input, &self.interrupt, &mut echo);
        out(self.console.style(Style::Plain))?;
        self.console.new_line(is_in && is_out);
        typed
    }
}
