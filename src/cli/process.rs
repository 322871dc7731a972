//! What all programs have in common: what they set up before anything else, and how they print what is not a run's own.

use std::io::{self, Write};

use super::console::is_closed;
use super::interrupt::Interrupt;
use super::new_file;
use crate::error::{Error, Result};
use crate::ggml;
use crate::tokenizer::chat;

/// Sets up the process: a file that may grow no further is an error of the write, signals end the program cleanly, what
/// cannot be an error of a call is one line at least, and a panic in a library whose failure is an error here prints nothing.
///
/// # Errors
/// As [`Interrupt::install`].
pub fn start() -> Result<Interrupt> {
    ggml::report_fatal(new_file::remove_unfinished);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(chat::THREAD) {
            report(panic);
        }
    }));
    #[cfg(unix)]
    {
        // With a handler, of whatever kind, the write fails instead of the program.
        let seen = std::sync::Arc::default();
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen).map_err(|e| Error::io("SIGXFSZ", e))?;
    }
    Interrupt::install()
}

/// Starts the threads of passes and evaluations. Those of an earlier run in this process, or of a caller who knows better, serve
/// as well.
///
/// # Errors
/// When they cannot be started.
pub fn start_threads(n_threads: usize) -> Result<()> {
    match rayon::ThreadPoolBuilder::new().num_threads(n_threads).build_global() {
        Err(e) if std::error::Error::source(&e).is_some() => {
            Err(Error::Context { what: format!("{n_threads} threads cannot be started: {e}; -t and -tb set fewer") })
        }
        _ => Ok(()),
    }
}

/// Prints a text that was asked for on standard output; gives the exit code. A reader that has gone wants no more.
pub fn print(text: &str) -> i32 {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if !is_closed(&e) => fail(&Error::io("standard output", e)),
        _ => 0,
    }
}

/// Prints an error on standard error; gives the exit code.
pub fn fail(e: &Error) -> i32 {
    let text = e.to_string();
    let name = if text.starts_with("error") { "" } else { "error: " };
    // Nobody is left to be told that standard error is closed.
    let _ = writeln!(io::stderr(), "{name}{text}");
    1
}
