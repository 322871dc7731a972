//! What the program prints and reads: text on standard output, messages on standard error, turns from standard input.
//!
//! Standard output holds exactly the text, in whole characters at every flush; colours appear only on a terminal, progress
//! lines only when standard error is one. Source of the colours and the rules of input: llama.cpp `common/console.cpp`.

use std::io::{self, BufRead, IsTerminal, Write};

use super::low::{LowArgs, OnOffAuto};

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
}

impl Console<io::Stdout, io::Stderr> {
    /// The console of this process.
    pub fn new(low: &LowArgs) -> Self {
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
        Console::with(out, err, has_color, has_progress, low.verbosity)
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
        }
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
        self.out.write_all(&self.partial[..n_whole])?;
        self.partial.drain(..n_whole);
        self.out.flush()
    }

    /// Writes what is left of an unfinished character and resets the colour.
    ///
    /// # Errors
    /// When standard output cannot be written; see [`is_closed`].
    pub fn finish(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.partial);
        self.out.write_all(&rest)?;
        self.style(Style::Plain)?;
        self.out.flush()
    }

    /// Prints a line on standard error if messages of this level are wanted (1 error, 2 warning, 3 information, 4 more).
    pub fn message(&mut self, level: i32, text: &str) {
        if level <= self.verbosity {
            self.clear_progress();
            // Messages are a courtesy: a closed standard error must not end the run.
            let _ = writeln!(self.err, "{text}");
        }
    }

    /// Replaces the progress line; nothing is printed unless standard error is a terminal.
    pub fn progress(&mut self, text: &str) {
        if self.has_progress && self.verbosity >= 3 {
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

/// Reads one turn of the user; `None` at the end of the input.
///
/// A line that ends in `\` goes on in the next line, one that ends in `/` is handed over without its line break; in
/// `multiline` input every line goes on, unless it ends in one of the two.
///
/// # Errors
/// When the input cannot be read or is no valid UTF-8.
pub fn read_turn(input: &mut impl BufRead, multiline: bool) -> io::Result<Option<String>> {
    let mut turn = String::new();
    let mut goes_on = true;
    while goes_on {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            break;
        }
        let content = line.trim_end_matches(['\n', '\r']);
        let (kept, more) = match (content.strip_suffix('/'), content.strip_suffix('\\')) {
            (Some(kept), _) => (kept, false),
            (_, Some(kept)) => (kept, !multiline),
            _ => (content, multiline),
        };
        turn += kept;
        turn.push('\n');
        goes_on = more;
    }
    // The line break that hands over belongs to the console, not to the turn.
    Ok(turn.strip_suffix('\n').map(str::to_string))
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
    fn turns_end_as_in_llama_cpp() {
        let turns = |text: &str, multiline| {
            let mut input = text.as_bytes();
            std::iter::from_fn(|| read_turn(&mut input, multiline).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(turns("a\n\nb\r\nc", false), ["a", "", "b", "c"]);
        assert_eq!(turns("a\\\nb\nc/\nd", false), ["a\nb", "c", "d"]);
        assert_eq!(turns("a\nb\\\nc\nd/\n", true), ["a\nb", "c\nd"]);
        assert_eq!(turns("a\\\n", false), ["a"]);
    }
}
