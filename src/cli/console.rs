//! What the program prints: text on standard output, messages on standard error, both in the file of `--log-file`.
//!
//! Standard output holds exactly the text, in whole characters at every flush; colours appear only on a terminal, progress
//! lines only when standard error is one. Source of the colours and of the form of messages: llama.cpp `common/console.cpp`
//! and `common/log.cpp`.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::log_file::LogFile;
use super::low::{LowArgs, OnOffAuto};
use super::NewFile;
use crate::error::{Error, Result};

/// What a piece of text is, for its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Generated text.
    #[default]
    Plain,
    /// The prompt.
    Prompt,
    /// What the user types.
    Input,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "\x1b[0m",
            Style::Prompt => "\x1b[33m",
            Style::Input => "\x1b[1m\x1b[32m",
        }
    }
}

/// Standard output and standard error of a run.
pub struct Console<O: Write, E: Write> {
    out: O,
    err: E,
    has_color: bool,
    has_progress: bool,
    verbosity: i32,
    style: Style,
    partial: Vec<u8>,
    progress_width: usize,
    /// How messages begin and look.
    form: Form,
    start: Instant,
    /// Copies of the text, and of text and messages.
    copy: Option<NewFile>,
    log: Option<LogFile>,
    /// The first failure of a copy.
    failed: Option<Error>,
    /// Whether the last text did not end a line.
    in_line: bool,
    /// Whether text and messages go to the same place, so that a message has to begin a line.
    is_shared: bool,
}

/// What `--log-prefix`, `--log-timestamps` and `--log-colors` ask for.
#[derive(Clone, Copy, Debug, Default)]
struct Form {
    prefix: bool,
    timestamps: bool,
    colors: bool,
}

impl Console<io::Stdout, io::Stderr> {
    /// The console of this process.
    ///
    /// # Errors
    /// When the file of the log cannot be opened.
    pub fn open(low: &LowArgs) -> Result<Self> {
        let (out, err) = (io::stdout(), io::stderr());
        let plain = low.simple_io
            || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let has_color = match low.color {
            OnOffAuto::On => !low.simple_io,
            OnOffAuto::Off => false,
            OnOffAuto::Auto => !plain && out.is_terminal(),
        };
        let has_progress = !low.simple_io && err.is_terminal();
        let is_shared = out.is_terminal() && err.is_terminal();
        let colors = match low.log_colors {
            OnOffAuto::On => true,
            OnOffAuto::Off => false,
            OnOffAuto::Auto => !plain && err.is_terminal(),
        };
        let mut console = Console::with(out, err, has_color, has_progress, low.verbosity);
        console.is_shared = is_shared;
        console.form = Form { prefix: low.log_prefix, timestamps: low.log_timestamps, colors };
        console.log = low.log_file.as_deref().map(LogFile::open).transpose()?;
        Ok(console)
    }
}

impl<O: Write, E: Write> Console<O, E> {
    /// A console on any two writers.
    pub fn with(out: O, err: E, has_color: bool, has_progress: bool, verbosity: i32) -> Self {
        Console {
            out,
            err,
            has_color,
            has_progress,
            verbosity,
            style: Style::Plain,
            partial: Vec::new(),
            progress_width: 0,
            form: Form::default(),
            start: Instant::now(),
            copy: None,
            log: None,
            failed: None,
            in_line: false,
            is_shared: false,
        }
    }

    /// Copies the text that is written from now on to a file.
    pub fn copy_to(&mut self, file: Option<NewFile>) {
        self.copy = file;
    }

    /// The run goes on: from here on the log replaces what its file held.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn accept_log(&mut self) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::accept)
    }

    /// Ends the copies: that of the text gets its name, unless a run that failed has written nothing to it.
    ///
    /// # Errors
    /// When one cannot be written, or could not be.
    pub fn keep_copies(&mut self, is_ok: bool) -> Result<()> {
        let accepted = if is_ok { self.accept_log() } else { Ok(()) };
        let kept = self.copy.take().filter(|file| is_ok || file.is_sound()).map_or(Ok(()), NewFile::finish);
        self.failed.take().map_or(Ok(()), Err).and(accepted).and(kept)
    }

    /// Whether standard error is a terminal that progress may be shown on.
    pub fn has_progress(&self) -> bool {
        self.has_progress && self.verbosity >= 3
    }

    /// Changes the colour of the text that follows.
    ///
    /// # Errors
    /// When standard output cannot be written; see [`is_closed`].
    pub fn style(&mut self, style: Style) -> io::Result<()> {
        if self.has_color && style != self.style {
            self.style = style;
            self.out.write_all(style.code().as_bytes())?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Writes the bytes of tokens. A character whose end has not come yet waits for it.
    ///
    /// # Errors
    /// When standard output cannot be written; see [`is_closed`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.partial.extend_from_slice(bytes);
        let n_whole = self.partial.len() - n_unfinished(&self.partial);
        self.put(n_whole)
    }

    /// Writes the first `n` waiting bytes.
    fn put(&mut self, n: usize) -> io::Result<()> {
        let bytes = &self.partial[..n];
        self.out.write_all(bytes)?;
        self.out.flush()?;
        self.in_line = bytes.last().map_or(self.in_line, |&b| b != b'\n');
        // A copy that cannot be written must not end the text; the run fails when it is over.
        if let Some(copy) = &mut self.copy {
            if let Err(e) = copy.write_all(bytes).and_then(|()| copy.flush()) {
                self.failed.get_or_insert(Error::io(copy.path(), e));
                self.copy = None;
            }
        }
        if let Some(log) = &mut self.log {
            if let Err(e) = log.write(bytes) {
                self.failed.get_or_insert(e);
                self.log = None;
            }
        }
        self.partial.drain(..n);
        Ok(())
    }

    /// Ends the line that the text is in, if it is in one.
    ///
    /// # Errors
    /// When standard output cannot be written; see [`is_closed`].
    pub fn end_line(&mut self) -> io::Result<()> {
        match self.in_line {
            true => self.write(b"\n"),
            false => Ok(()),
        }
    }

    /// Notes that somebody else has begun a new line on the terminal.
    pub fn new_line(&mut self, is_new: bool) {
        self.in_line &= !is_new;
    }

    /// Writes what is left of an unfinished character and resets the colour.
    ///
    /// # Errors
    /// When standard output cannot be written; see [`is_closed`].
    pub fn finish(&mut self) -> io::Result<()> {
        self.put(self.partial.len())?;
        self.style(Style::Plain)?;
        self.out.flush()
    }

    /// Prints a line on standard error if messages of this level are wanted (1 error, 2 warning, 3 information, 4 more).
    pub fn message(&mut self, level: i32, text: &str) {
        if level <= self.verbosity {
            self.clear_progress();
            let stamp = self.stamp(level);
            let color = match level {
                _ if !self.form.colors => "",
                1 => "\x1b[31m",
                2 => "\x1b[35m",
                _ => "",
            };
            let reset = if color.is_empty() { "" } else { "\x1b[0m" };
            let begin = if self.is_shared && self.in_line && !text.starts_with('\n') { "\n" } else { "" };
            self.new_line(self.is_shared);
            // Messages are a courtesy: a closed standard error must not end the run.
            let _ = writeln!(self.err, "{begin}{stamp}{color}{text}{reset}");
            if let Some(log) = &mut self.log {
                let _ = log.write(format!("{stamp}{text}\n").as_bytes());
            }
        }
    }

    /// Time and level in front of a message.
    fn stamp(&self, level: i32) -> String {
        let mut stamp = String::new();
        if self.form.timestamps {
            let us = self.start.elapsed().as_micros();
            let (min, s) = (us / 60_000_000, us / 1_000_000 % 60);
            stamp += &format!("{min}.{s:02}.{:03}.{:03} ", us / 1000 % 1000, us % 1000);
        }
        if self.form.prefix {
            stamp += match level {
                1 => "E ",
                2 => "W ",
                3 | 4 => "I ",
                5.. => "D ",
                _ => "",
            };
        }
        stamp
    }

    /// Replaces the progress line; nothing is printed unless standard error is a terminal.
    pub fn progress(&mut self, text: &str) {
        if self.has_progress() {
            let width = text.chars().count();
            let _ = write!(self.err, "\r{text}{:1$}", "", self.progress_width.saturating_sub(width));
            let _ = self.err.flush();
            self.progress_width = width;
        }
    }

    /// Removes the progress line.
    pub fn clear_progress(&mut self) {
        if self.progress_width > 0 {
            let _ = write!(self.err, "\r{:1$}\r", "", self.progress_width);
            self.progress_width = 0;
        }
    }
}

/// The error of a console's text.
///
/// # Errors
/// That of `written`.
pub fn out(written: io::Result<()>) -> Result<()> {
    written.map_err(|e| Error::io("standard output", e))
}

/// Whether an error means that the reader of our output has gone, which is no failure of ours (exit status 0).
pub fn is_closed(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::BrokenPipe
}

/// Bytes at the end that begin a character but do not finish it.
fn n_unfinished(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let lead = (tail..bytes.len()).rev().find(|&i| bytes[i] & 0xc0 != 0x80);
    let n_needed = |lead: u8| match lead {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    match lead {
        Some(i) if bytes.len() - i < n_needed(bytes[i]) => bytes.len() - i,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(has_color: bool, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut console = Console::with(&mut out, io::sink(), has_color, false, 3);
        console.style(Style::Prompt).unwrap();
        pieces.iter().for_each(|p| console.write(p).unwrap());
        console.finish().unwrap();
        out
    }

    #[test]
    fn characters_come_whole_and_bytes_are_kept() {
        let text = "a€😀é".as_bytes();
        for n in 1..5 {
            assert_eq!(written(false, &text.chunks(n).collect::<Vec<_>>()), text);
        }
        let mut console = Console::with(Vec::new(), io::sink(), false, false, 3);
        for byte in text {
            console.write(&[*byte]).unwrap();
            assert!(std::str::from_utf8(&console.out).is_ok());
        }
        assert_eq!(written(false, &[b"a\xff\xe2", b"\x80b\xf0\x9f"]), b"a\xff\xe2\x80b\xf0\x9f");
    }

    #[test]
    fn colours_only_when_wanted() {
        assert_eq!(written(false, &[b"x"]), b"x");
        assert_eq!(written(true, &[b"x"]), b"\x1b[33mx\x1b[0m");
    }

    #[test]
    fn messages_obey_the_level_and_progress_the_terminal() {
        let printed = |has_progress, verbosity| {
            let mut err = Vec::new();
            let mut console = Console::with(io::sink(), &mut err, false, has_progress, verbosity);
            console.progress("50 %");
            console.message(2, "w");
            console.message(4, "trace");
            String::from_utf8(err).unwrap()
        };
        assert_eq!(printed(false, 3), "w\n");
        assert_eq!(printed(true, 3), "\r50 %\r    \rw\n");
        assert_eq!(printed(true, -1), "");
    }

    #[test]
    fn a_message_begins_a_line_where_text_and_messages_meet() {
        let printed = |is_shared, pieces: &[&str]| {
            let mut err = Vec::new();
            let mut console = Console::with(io::sink(), &mut err, false, false, 3);
            console.is_shared = is_shared;
            pieces.iter().for_each(|p| console.write(p.as_bytes()).unwrap());
            console.message(2, "a");
            console.message(2, "b");
            console.message(2, "\nc");
            String::from_utf8(err).unwrap()
        };
        assert_eq!(printed(true, &["text"]), "\na\nb\n\nc\n");
        assert_eq!(printed(true, &["text\n"]), "a\nb\n\nc\n");
        assert_eq!(printed(true, &[]), "a\nb\n\nc\n");
        assert_eq!(printed(false, &["text"]), "a\nb\n\nc\n");
    }

    #[test]
    fn messages_begin_as_asked() {
        let printed = |form| {
            let mut err = Vec::new();
            let mut console = Console::with(io::sink(), &mut err, false, false, 3);
            console.form = form;
            console.message(2, "w");
            console.message(3, "i");
            String::from_utf8(err).unwrap()
        };
        assert_eq!(printed(Form { prefix: true, ..Form::default() }), "W w\nI i\n");
        assert_eq!(printed(Form { colors: true, ..Form::default() }), "\x1b[35mw\x1b[0m\ni\n");
        let stamped = printed(Form { timestamps: true, ..Form::default() });
        assert!(stamped.starts_with("0.00.0") && stamped.contains(" w\n"), "{stamped}");
    }

    #[test]
    fn the_copy_has_the_text_and_the_log_both() {
        let dir = tempfile::tempdir().unwrap();
        let (copy, log) = (dir.path().join("copy"), dir.path().join("log"));
        let mut console = Console::with(io::sink(), io::sink(), true, false, 3);
        console.copy_to(Some(NewFile::create(&copy).unwrap()));
        console.log = Some(LogFile::open(&log).unwrap());
        console.style(Style::Input).unwrap();
        console.write("a\u{20ac}".as_bytes()).unwrap();
        console.end_line().unwrap();
        console.end_line().unwrap();
        console.message(3, "m");
        console.finish().unwrap();
        console.keep_copies(true).unwrap();
        assert_eq!(std::fs::read_to_string(copy).unwrap(), "a\u{20ac}\n");
        assert_eq!(std::fs::read_to_string(log).unwrap(), "a\u{20ac}\nm\n");
    }
}
