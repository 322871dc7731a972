//! `gracekv-run`: a drop-in for llama-completion. Source of the behaviour: llama.cpp `tools/completion/completion.cpp`.
//!
//! Text goes to standard output, everything else to standard error. Exit codes: 0, 1 for an error, 130 after Ctrl-C.

mod complete;
mod converse;
mod generate;

use super::console::{is_closed, Console};
use super::help;
use super::high::HighArgs;
use super::interrupt::{Interrupt, EXIT_INTERRUPTED};
use super::low::{LowArgs, Special};
use super::parse;
use super::perf::Perf;
use super::setup::{self, Loaded};
use crate::error::{Error, Result};
use crate::ggml;
use crate::sample::Chain;
use crate::session::Session;
use crate::tokenizer::chat::ChatTemplate;
use crate::tokenizer::Tokenizer;
use std::ffi::OsString;
use std::io::{self, Stderr, Stdout};

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

fn run(low: LowArgs, console: &mut Console<Stdout, Stderr>) -> Result<()> {
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
        let template = converse::template(args, loaded, console)?;
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
}

fn out(result: io::Result<()>) -> Result<()> {
    result.map_err(|e| Error::io("standard output", e))
}
