//! `gracekv-run`: a drop-in for llama-completion. Source of the behaviour: llama.cpp `tools/completion/completion.cpp`.
//!
//! Text goes to standard output, everything else to standard error. Exit codes: 0, 1 for an error, 130 after Ctrl-C.

use super::console::{is_closed, read_turn, Console, Style};
use super::help;
use super::high::HighArgs;
use super::interrupt::{Interrupt, EXIT_INTERRUPTED};
use super::low::Special;
use super::perf::Perf;
use super::setup::{self, Loaded};
use super::{escape, parse};
use crate::error::{Error, Result};
use crate::eval::argmax;
use crate::ggml;
use crate::sample::Chain;
use crate::session::Session;
use crate::tokenizer::chat::{ChatTemplate, Message};
use crate::tokenizer::Tokenizer;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Stderr, Stdout};
use std::time::{Duration, Instant};

/// Levels of messages, as llama.cpp numbers them.
const ERROR: i32 = 1;
const WARN: i32 = 2;
const INFO: i32 = 3;

/// Tokens of the context that a prompt must leave free, as in llama-completion.
const N_RESERVED: usize = 4;

/// Runs the program with these arguments and gives its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let low = match parse::parse(args, &|name| std::env::var_os(name)) {
        Ok(low) => low,
        Err(e) => {
            eprintln!("{e}");
            return 1;
        }
    };
    match low.special {
        Some(Special::Help) => print!("{}", help::help()),
        Some(Special::Version) => eprint!("{}", help::version()),
        Some(Special::Methods) => print!("{}", help::methods()),
        None => {
            let mut console = Console::new(&low);
            for warning in &low.warnings {
                console.message(WARN, &format!("warning: {warning}"));
            }
            return match run(low, &mut console) {
                Ok(()) => 0,
                Err(Error::Interrupted) => {
                    console.message(ERROR, "Interrupted by user");
                    EXIT_INTERRUPTED
                }
                Err(Error::Io { source, .. }) if is_closed(&source) => 0,
                Err(e) => {
                    let text = e.to_string();
                    console.message(
                        ERROR,
                        if text.starts_with("error") { text } else { format!("error: {text}") }.as_str(),
                    );
                    1
                }
            };
        }
    }
    0
}

fn run(low: super::low::LowArgs, console: &mut Console<Stdout, Stderr>) -> Result<()> {
    let n_warned = low.warnings.len();
    let args = HighArgs::new(low)?;
    for warning in &args.low.warnings[n_warned..] {
        console.message(WARN, &format!("warning: {warning}"));
    }
    ggml::set_log(args.low.verbosity >= WARN);
    // A pool that exists already (another run in this process) serves as well.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(args.n_threads_batch).build_global();
    let mut perf = Perf::start();
    console.progress("loading the model");
    let loaded = setup::load(&args)?;
    let mut notices = Vec::new();
    let mut session = setup::session(&args, &loaded.model, &mut |text| notices.push(text))?;
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
    describe(&args, &loaded, &session, console);
    Runner::new(&args, &loaded, session, console, perf)?.run()
}

/// What was loaded, for `-lv 4` and for the log.
fn describe(args: &HighArgs, loaded: &Loaded, session: &Session, console: &mut Console<Stdout, Stderr>) {
    let (hp, cache) = (&loaded.model.hp, &session.engine.cache);
    let mib = |b: u64| b as f64 / 1048576.0;
    console.message(
        4,
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
    let o = cache.options();
    console.message(
        INFO,
        &format!(
            "KV buffer size = {:8.2} MiB ({:6} cells, {:3} layers), K ({}), V ({})",
            mib(cache.bytes()),
            o.n_ctx,
            hp.n_layer,
            o.ty_k,
            o.ty_v
        ),
    );
    console.message(
        INFO,
        &format!(
            "generate: n_ctx = {}, n_batch = {}, n_predict = {}, n_keep = 0",
            o.n_ctx, args.low.n_batch, args.low.n_predict
        ),
    );
}

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    EndOfText,
    Length,
    ReversePrompt,
    ContextFull,
    Interrupted,
}

struct Runner<'a> {
    args: &'a HighArgs,
    tokenizer: &'a Tokenizer,
    session: Session,
    console: &'a mut Console<Stdout, Stderr>,
    chain: Chain,
    interrupt: Interrupt,
    perf: Perf,
    template: Option<ChatTemplate>,
    /// The token with which the last answer ended, not in the cache yet.
    pending: Option<u32>,
    is_reported: bool,
}

impl<'a> Runner<'a> {
    fn new(
        args: &'a HighArgs,
        loaded: &'a Loaded,
        session: Session,
        console: &'a mut Console<Stdout, Stderr>,
        perf: Perf,
    ) -> Result<Self> {
        let tokenizer = &loaded.tokenizer;
        let mut params = args.low.sample.clone();
        if args.low.ignore_eos {
            params.logit_bias.extend(tokenizer.eog().map(|id| (id, f32::NEG_INFINITY)));
        }
        let chain = Chain::new(&params)?;
        console.message(INFO, &format!("sampler seed: {}", chain.seed()));
        console.message(INFO, &format!("sampler chain: logits -> {}", chain.names().join(" -> ")));
        let template = template(args, loaded, console)?;
        Ok(Runner {
            args,
            tokenizer,
            session,
            console,
            chain,
            interrupt: Interrupt::install()?,
            perf,
            template,
            pending: None,
            is_reported: false,
        })
    }

    fn run(mut self) -> Result<()> {
        match self.template.take() {
            Some(template) => self.converse(&template)?,
            None => self.complete()?,
        }
        self.session_report()?;
        out(self.console.write(b"\n\n"))?;
        out(self.console.finish())?;
        if self.args.low.perf {
            let lines = self.perf.lines(self.session.engine.n_reused);
            self.console.message(INFO, &lines);
        }
        Ok(())
    }

    /// One prompt, one continuation.
    fn complete(&mut self) -> Result<()> {
        let prompt = self.args.prompt.as_deref().unwrap_or("");
        let mut tokens = self.tokenizer.encode(prompt, true, true)?;
        if tokens.is_empty() {
            tokens.extend(self.tokenizer.bos().filter(|_| self.tokenizer.add_bos()));
        }
        if tokens.is_empty() {
            return Err(Error::Usage("error: input is empty; give a prompt with -p or -f".into()));
        }
        self.warn_double_bos(&tokens);
        if self.args.low.n_predict == 0 {
            return Ok(());
        }
        let echo = self.args.low.display_prompt;
        let logits = self.read(&tokens, echo)?;
        if self.generate(logits, self.args.low.n_predict)?.0 == Stop::EndOfText {
            out(self.console.write(b" [end of text]\n"))?;
        }
        Ok(())
    }

    /// Turns of a user and answers, by a chat template.
    fn converse(&mut self, template: &ChatTemplate) -> Result<()> {
        let low = &self.args.low;
        let is_tty = io::stdin().is_terminal();
        let mut past: Vec<Message> = Vec::new();
        past.extend(self.args.system_prompt.as_deref().map(|s| Message::new("system", s)));
        let mut first = self.args.prompt.clone().filter(|p| !p.is_empty());
        // Without a terminal there is nobody to go on with after a prompt on the command line.
        let single = low.single_turn || (first.is_some() && !is_tty);
        let stdin = io::stdin();
        loop {
            let turn = match first.take() {
                Some(p) => p,
                None => {
                    out(self.console.write(b"\n> "))?;
                    out(self.console.style(Style::Input))?;
                    let turn = read_turn(&mut stdin.lock(), low.multiline_input)
                        .map_err(|e| Error::io("standard input", e))?;
                    out(self.console.style(Style::Plain))?;
                    match turn {
                        Some(t) if t.trim() == "/exit" => return Ok(()),
                        Some(t) if low.escape => String::from_utf8_lossy(&escape::unescape(t.as_bytes())).into_owned(),
                        Some(t) => t,
                        None => return Ok(()),
                    }
                }
            };
            let message = Message::new("user", turn);
            let is_new = self.session.engine.cache.n_past() == 0;
            let mut tokens: Vec<u32> = self.pending.take().into_iter().collect();
            let text = if is_new {
                let all: Vec<Message> = past.iter().cloned().chain([message.clone()]).collect();
                template.render(&all, true)?
            } else {
                let end = tokens.first().map_or(String::new(), |&t| self.tokenizer.text(t).into_owned());
                template.continuation(&past, &message, &end)?
            };
            tokens.extend(self.tokenizer.encode(&text, is_new, true)?);
            past.push(message);
            let logits = self.read(&tokens, false)?;
            let (stop, answer) = self.generate(logits, low.n_predict)?;
            past.push(Message::new("assistant", answer));
            out(self.console.write(b"\n"))?;
            if stop == Stop::ContextFull || single {
                return Ok(());
            }
            self.interrupt.clear();
        }
    }

    /// Puts tokens into the cache; with `echo` their text is written first.
    fn read(&mut self, tokens: &[u32], echo: bool) -> Result<Vec<f32>> {
        let n_ctx = self.session.engine.options().n_ctx;
        let n_past = self.session.engine.cache.n_past();
        let max = n_ctx.saturating_sub(n_past + N_RESERVED);
        if tokens.len() > max {
            return Err(Error::Context {
                what: format!(
                    "prompt is too long ({} tokens, max {max}); use -c {} or more",
                    tokens.len(),
                    n_past + tokens.len() + N_RESERVED
                ),
            });
        }
        if echo {
            out(self.console.style(Style::Prompt))?;
            for &t in tokens {
                out(self.console.write(self.tokenizer.piece(t, self.args.low.special_tokens)))?;
            }
            out(self.console.style(Style::Plain))?;
        }
        for &t in tokens {
            self.chain.accept(t);
        }
        let start = Instant::now();
        let pass_before = self.pass_time();
        let (console, interrupt, n) = (&mut *self.console, &self.interrupt, tokens.len());
        let logits = self.session.prefill(tokens, |done| {
            console.progress(&format!("reading the prompt: {done} of {n} tokens"));
            match interrupt.is_pending() {
                true => Err(Error::Interrupted),
                false => Ok(()),
            }
        })?;
        self.console.clear_progress();
        self.perf.prompt += start.elapsed().saturating_sub(self.pass_time() - pass_before);
        self.perf.n_prompt += n;
        self.explain_no_pass(n);
        if self.args.low.kv_discard_lookahead && self.session.is_pending() {
            return self.discard_lookahead(logits);
        }
        self.session_report()?;
        Ok(logits)
    }

    /// Decodes the lookahead greedily from the full cache, compresses, and takes the lookahead back; gives the logits after the prompt.
    fn discard_lookahead(&mut self, logits: Vec<f32>) -> Result<Vec<f32>> {
        let mut next = logits.clone();
        while self.session.is_pending() {
            let best = argmax(&next);
            if self.tokenizer.is_eog(best) {
                break;
            }
            next = self.session.step(best)?;
        }
        self.session.compress_discarding()?;
        self.session_report()?;
        Ok(logits)
    }

    fn explain_no_pass(&mut self, n_tokens: usize) {
        let low = &self.args.low;
        let asked = matches!(low.kv_size, super::low::KvSize::Ratio(x) if x > 1.0)
            || matches!(low.kv_size, super::low::KvSize::Tokens(_));
        if asked && self.session.report.is_none() && !self.args.compresses(n_tokens) && low.kv_method != "none" {
            let why = if n_tokens < low.kv_min_tokens {
                format!("it is shorter than --kv-min-tokens {}", low.kv_min_tokens)
            } else {
                "it fits the budget".into()
            };
            self.console.message(INFO, &format!("gracekv: the prompt of {n_tokens} tokens is left as it is: {why}"));
        }
    }

    /// Samples until something ends the answer. `n_predict`: -1 no limit, -2 until the context is full.
    fn generate(&mut self, mut logits: Vec<f32>, n_predict: i32) -> Result<(Stop, String)> {
        let limit = usize::try_from(n_predict).unwrap_or(usize::MAX);
        let mut answer: Vec<u8> = Vec::new();
        let mut n = 0;
        let stop = loop {
            if n >= limit {
                break Stop::Length;
            }
            if self.interrupt.is_pending() {
                break Stop::Interrupted;
            }
            let at = Instant::now();
            let token = self.chain.sample(&logits)?;
            self.chain.accept(token);
            self.perf.sample += at.elapsed();
            self.perf.n_sample += 1;
            n += 1;
            if self.tokenizer.is_eog(token) {
                self.pending = Some(token);
                if self.args.low.special_tokens {
                    out(self.console.write(self.tokenizer.piece(token, true)))?;
                }
                break Stop::EndOfText;
            }
            let piece = self.tokenizer.piece(token, self.args.low.special_tokens);
            answer.extend_from_slice(piece);
            out(self.console.write(piece))?;
            if self.ends_with_reverse_prompt(&answer) {
                self.pending = Some(token);
                break Stop::ReversePrompt;
            }
            if n >= limit {
                self.pending = Some(token);
                break Stop::Length;
            }
            if self.session.engine.cache.n_past() + 1 > self.session.engine.options().n_ctx {
                self.console.message(WARN, "\n\ncontext full and context shift is disabled => stopping");
                break Stop::ContextFull;
            }
            logits = self.step(token)?;
        };
        if stop == Stop::Interrupted && self.template_is_off() {
            return Err(Error::Interrupted);
        }
        Ok((stop, String::from_utf8_lossy(&answer).into_owned()))
    }

    fn template_is_off(&self) -> bool {
        self.args.low.conversation == Some(false) || !io::stdin().is_terminal()
    }

    fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        let (start, pass_before) = (Instant::now(), self.pass_time());
        let compressed = self.session.report.is_some();
        let logits = self.session.step(token)?;
        let spent = start.elapsed().saturating_sub(self.pass_time() - pass_before);
        self.perf.eval += spent;
        self.perf.n_eval += 1;
        if compressed {
            self.perf.eval_compressed += spent;
            self.perf.n_eval_compressed += 1;
        }
        self.session_report()?;
        Ok(logits)
    }

    fn pass_time(&self) -> Duration {
        self.session.report.as_ref().map_or(Duration::ZERO, |r| r.total)
    }

    /// Prints and writes what the pass did, once.
    fn session_report(&mut self) -> Result<()> {
        let Some(report) = self.session.report.as_ref().filter(|_| !self.is_reported) else { return Ok(()) };
        self.is_reported = true;
        self.perf.pass = report.total;
        self.console.message(INFO, &report.to_string());
        if let Some(path) = &self.args.low.kv_report {
            super::write_file(path, format!("{:#}\n", report.to_json()).as_bytes())?;
        }
        Ok(())
    }

    fn ends_with_reverse_prompt(&self, answer: &[u8]) -> bool {
        // llama-completion widens the search by two characters, because a token may carry some that follow.
        self.args.reverse_prompts.iter().filter(|r| !r.is_empty()).any(|r| {
            let from = answer.len().saturating_sub(r.len() + 2);
            answer[from..].windows(r.len()).any(|w| w == r.as_bytes())
        })
    }

    fn warn_double_bos(&mut self, tokens: &[u32]) {
        if let (Some(bos), [a, b, ..]) = (self.tokenizer.bos(), tokens) {
            if self.tokenizer.add_bos() && *a == bos && *b == bos {
                self.console.message(
                    WARN,
                    "warning: the prompt begins with a BOS token, and the model adds one too: it now starts with two",
                );
            }
        }
    }
}

/// The chat template of a conversation; `None` means plain completion.
fn template(args: &HighArgs, loaded: &Loaded, console: &mut Console<Stdout, Stderr>) -> Result<Option<ChatTemplate>> {
    let auto = loaded.model.gguf.str("tokenizer.chat_template")?.is_some() || args.chat_template.is_some();
    if !args.low.conversation.unwrap_or(auto) {
        return Ok(None);
    }
    if args.low.conversation.is_none() {
        console.message(INFO, "chat template is available, enabling conversation mode (disable it with -no-cnv)");
        if args.prompt.is_some() && args.system_prompt.is_none() && io::stdin().is_terminal() {
            console.message(WARN, "*** User-specified prompt will pre-start conversation, did you mean to set --system-prompt (-sys) instead?");
        }
    }
    setup::chat_template(args, loaded, console).map(Some)
}

fn out(result: io::Result<()>) -> Result<()> {
    result.map_err(|e| Error::io("standard output", e))
}
