//! What the user types: lines of a pipe or a plain terminal, or on a terminal edited lines with a history in memory.
//!
//! Source of the rules for turns: llama.cpp `common/console.cpp`. Line editing is rustyline's.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::escape::lossy;
use super::interrupt::Interrupt;
use crate::error::{Error, Result};

/// The commands of a conversation, for completion.
const COMMANDS: [&str; 5] = ["/clear", "/exit", "/glob ", "/read ", "/regen"];
/// How often a waiting program looks for signals.
const TICK: Duration = Duration::from_millis(50);

/// One thing a user can do at the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// A line or a whole turn.
    Text(String),
    /// The end of the input.
    End,
    /// Ctrl-C, or a signal that ends the program.
    Interrupted,
}

/// Where turns come from.
pub enum Input {
    /// A pipe, a file, or a terminal without editing.
    Plain(Receiver<io::Result<Vec<u8>>>),
    /// A terminal with editing.
    Edited(Box<Editor<Commands, DefaultHistory>>),
}

impl Input {
    /// Lines of standard input as they come.
    pub fn plain() -> Self {
        // A reader of its own, so that signals are seen while nothing is typed.
        let (sender, receiver) = sync_channel(0);
        let read = move || loop {
            let mut line = Vec::new();
            let line = match io::stdin().lock().read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => Ok(line),
                Err(e) => Err(e),
            };
            let is_last = line.is_err();
            if sender.send(line).is_err() || is_last {
                break;
            }
        };
        match std::thread::Builder::new().spawn(read) {
            Ok(_) => Input::Plain(receiver),
            Err(e) => {
                let (sender, receiver) = sync_channel(1);
                // It has room for one.
                let _ = sender.send(Err(e));
                Input::Plain(receiver)
            }
        }
    }

    /// Edited lines, where the terminal allows it.
    pub fn edited() -> Self {
        let config = Config::builder().completion_type(CompletionType::List).build();
        match Editor::with_config(config) {
            Ok(mut editor) => {
                editor.set_helper(Some(Commands(FilenameCompleter::new())));
                Input::Edited(Box::new(editor))
            }
            Err(_) => Input::plain(),
        }
    }

    /// One turn; `prompt` is shown by the editor only. Each line goes to `echo` as it comes.
    ///
    /// # Errors
    /// When standard input cannot be read or is no valid UTF-8; those of `echo`.
    pub fn turn(
        &mut self,
        prompt: &str,
        multiline: bool,
        interrupt: &Interrupt,
        echo: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Typed> {
        let mut prompt = Some(prompt);
        let turn = read_turn(|| self.line(prompt.take().unwrap_or(""), interrupt), multiline, echo)?;
        if let (Input::Edited(editor), Typed::Text(text)) = (self, &turn) {
            // A history that is full only forgets.
            let _ = editor.add_history_entry(text);
        }
        Ok(turn)
    }

    fn line(&mut self, prompt: &str, interrupt: &Interrupt) -> Result<Typed> {
        let failed = |e: io::Error| Error::io("standard input", e);
        match self {
            Input::Plain(lines) => loop {
                match lines.recv_timeout(TICK) {
                    Ok(Ok(line)) => return Ok(Typed::Text(lossy(&line))),
                    Ok(Err(e)) => return Err(failed(e)),
                    Err(RecvTimeoutError::Disconnected) => return Ok(Typed::End),
                    Err(RecvTimeoutError::Timeout) if interrupt.is_pending() => return Ok(Typed::Interrupted),
                    Err(RecvTimeoutError::Timeout) => {}
                }
            },
            Input::Edited(editor) => {
                interrupt.set_editing(Some(keep_terminal()));
                let line = editor.readline(prompt);
                interrupt.set_editing(None);
                match line {
                    Ok(line) => Ok(Typed::Text(line)),
                    Err(ReadlineError::Eof) => Ok(Typed::End),
                    Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
                    // A line that is no text; the editor gives none of it.
                    Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                        Ok(Typed::Text(String::new()))
                    }
                    Err(ReadlineError::Io(e)) => Err(failed(e)),
                    Err(e) => Err(failed(io::Error::other(e))),
                }
            }
        }
    }
}

/// End of bracketed paste, which the editor has begun, and of colours.
const LEAVE_EDITOR: &[u8] = b"\x1b[?2004l\x1b[0m";

/// Remembers the state of the terminal, which the editor changes; the result restores it.
#[cfg(unix)]
fn keep_terminal() -> Box<dyn Fn() + Send> {
    use nix::sys::termios::{tcgetattr, tcsetattr, SetArg, Termios};
    let state: Option<nix::libc::termios> = tcgetattr(io::stdin()).ok().map(Into::into);
    Box::new(move || {
        let Some(state) = state.map(Termios::from) else { return };
        // A terminal that cannot be edited on keeps its state, and knows no codes.
        if tcgetattr(io::stdin()).is_ok_and(|now| now != state) {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &state);
            let mut out = io::stdout();
            let _ = out.write_all(LEAVE_EDITOR).and_then(|()| out.flush());
        }
    })
}

#[cfg(not(unix))]
fn keep_terminal() -> Box<dyn Fn() + Send> {
    Box::new(|| ())
}

/// Whether a pipe at standard input has sent something that was not read.
#[cfg(unix)]
pub fn is_waiting() -> bool {
    use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let stdin = io::stdin();
    let file = stdin.as_fd().try_clone_to_owned().map(std::fs::File::from);
    let is_pipe = file.and_then(|file| file.metadata()).is_ok_and(|m| m.file_type().is_fifo());
    let mut ends = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    is_pipe
        && poll(&mut ends, PollTimeout::ZERO).is_ok()
        && ends[0].revents().is_some_and(|found| found.contains(PollFlags::POLLIN))
}

#[cfg(not(unix))]
pub fn is_waiting() -> bool {
    false
}

/// Reads one turn by lines, with or without their line breaks.
///
/// A line that ends in `\` goes on in the next line, one that ends in `/` is handed over without its line break; in
/// `multiline` input every line goes on, unless it ends in one of the two.
///
/// # Errors
/// Those of `next` and `echo`.
pub fn read_turn(
    mut next: impl FnMut() -> Result<Typed>,
    multiline: bool,
    echo: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Typed> {
    let mut turn: Option<String> = None;
    loop {
        let line = match next()? {
            Typed::Text(line) => line,
            Typed::End => {
                let whole = |t: String| Typed::Text(t.strip_suffix('\n').map(str::to_string).unwrap_or(t));
                return Ok(turn.map_or(Typed::End, whole));
            }
            Typed::Interrupted => return Ok(Typed::Interrupted),
        };
        let content = line.trim_end_matches(['\n', '\r']);
        let (kept, more) = match (content.strip_suffix('/'), content.strip_suffix('\\')) {
            (Some(kept), _) => (kept, false),
            (_, Some(kept)) => (kept, !multiline),
            _ => (content, multiline),
        };
        echo(kept)?;
        if line.ends_with('\n') && !content.ends_with('/') {
            echo("\n")?;
        }
        // The line break that hands over belongs to the console, not to the turn.
        let turn = turn.get_or_insert_with(String::new);
        turn.push_str(kept);
        if !more {
            return Ok(Typed::Text(std::mem::take(turn)));
        }
        turn.push('\n');
    }
}

/// Completes commands and the names of files behind `/read`.
pub struct Commands(FilenameCompleter);

impl Completer for Commands {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, ctx: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        if line.starts_with("/read ") {
            return self.0.complete(line, pos, ctx);
        }
        let fits = COMMANDS.iter().filter(|c| line.starts_with('/') && c.starts_with(&line[..pos]));
        let pair = |c: &&str| Pair { display: c.to_string(), replacement: c.to_string() };
        Ok((0, fits.map(pair).collect()))
    }
}

impl rustyline::hint::Hinter for Commands {
    type Hint = String;
}
impl rustyline::highlight::Highlighter for Commands {}
impl rustyline::validate::Validator for Commands {}
impl Helper for Commands {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_end_as_in_llama_cpp() {
        let turns = |text: &str, multiline| {
            let mut lines = text.split_inclusive('\n');
            let mut next = || Ok(lines.next().map_or(Typed::End, |l| Typed::Text(l.to_string())));
            let mut shown = String::new();
            let mut echo = |text: &str| {
                shown += text;
                Ok(())
            };
            let turns: Vec<String> = std::iter::from_fn(|| match read_turn(&mut next, multiline, &mut echo).unwrap() {
                Typed::Text(turn) => Some(turn),
                _ => None,
            })
            .collect();
            (turns.join("|"), shown)
        };
        let both = |turns: &str, shown: &str| (turns.to_string(), shown.to_string());
        assert_eq!(turns("a\n\nb\r\nc", false), both("a||b|c", "a\n\nb\nc"));
        assert_eq!(turns("a\\\nb\nc/\nd", false), both("a\nb|c|d", "a\nb\ncd"));
        assert_eq!(turns("a\nb\\\nc\nd/\n", true), both("a\nb|c\nd", "a\nb\nc\nd"));
        assert_eq!(turns("a\\\n", false), both("a", "a\n"));
    }

    #[test]
    fn commands_are_completed() {
        let commands = Commands(FilenameCompleter::new());
        let history = DefaultHistory::new();
        let complete = |line: &str| {
            let (_, found) = commands.complete(line, line.len(), &Context::new(&history)).unwrap();
            found.into_iter().map(|p| p.replacement).collect::<Vec<_>>()
        };
        assert_eq!(complete("/re"), ["/read ", "/regen"]);
        assert_eq!(complete("/"), COMMANDS);
        assert!(complete("re").is_empty());
    }
}
