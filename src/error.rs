//! The one error type. Variants are divided by what a user can do about them; the text of each is one line: what, where, what to do.
//!
//! Much of that text is foreign (names, templates, answers of servers, words of libraries), so that it is made one line here.
//! The library returns errors and never prints or exits, but where the process would end anyway (`ggml::fatal`, `ggml::rpc`); the programs
//! in `src/bin` print the chain and choose the exit code.

use std::fmt;
use std::path::{Path, PathBuf};

/// Everything that can go wrong, by what can be done about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a file.
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A model file is damaged or not a GGUF file.
    Gguf {
        /// The file concerned.
        path: PathBuf,
        /// Byte offset of the finding, where one is known.
        offset: Option<u64>,
        /// The field, what was found and what was expected.
        what: String,
    },
    /// The input is valid but needs something this program does not have.
    Unsupported {
        /// The kind of thing, for example `architecture`.
        what: &'static str,
        /// Its name as the input spells it.
        name: String,
    },
    /// A tensor or an argument has another shape or type than its user needs.
    Shape {
        /// The operation or tensor concerned.
        op: String,
        /// What it needs.
        want: String,
        /// What it got.
        got: String,
    },
    /// A call into ggml failed.
    Ggml {
        /// The call and its circumstances.
        call: String,
    },
    /// A KV budget cannot be met.
    Budget {
        /// What was asked for and the smallest or largest possible value.
        what: String,
    },
    /// The prompt or the text does not fit the context.
    Context {
        /// Sizes and what to do about them.
        what: String,
    },
    /// A file could not be fetched over the network.
    Fetch {
        /// The URL, or the repository or file that was wanted.
        from: String,
        /// What happened, and what to do.
        what: String,
    },
    /// A saved state of the cache cannot be used.
    State {
        /// The file concerned.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The command line is wrong.
    Usage(String),
    /// The command line cannot be read.
    CommandLine {
        /// The option and the reason.
        what: String,
        /// What to type instead, on lines of its own; empty where there is nothing to say.
        help: String,
    },
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Io`] for `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().to_path_buf(), source }
    }

    /// An [`Error::Gguf`] for `path` without an offset.
    pub fn gguf(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Gguf { path: path.as_ref().to_path_buf(), offset: None, what: what.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: &'static str, name: impl Into<String>) -> Self {
        Error::Unsupported { what, name: name.into() }
    }

    /// An [`Error::Shape`].
    pub fn shape(op: impl Into<String>, want: impl Into<String>, got: impl Into<String>) -> Self {
        Error::Shape { op: op.into(), want: want.into(), got: got.into() }
    }

    /// An [`Error::Ggml`].
    pub fn ggml(call: impl Into<String>) -> Self {
        Error::Ggml { call: call.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Error::Io { path, source } => format!("{}: {source}", path.display()),
            Error::Gguf { path, offset: Some(at), what } => format!("{}: at byte {at}: {what}", path.display()),
            Error::Gguf { path, offset: None, what } => format!("{}: {what}", path.display()),
            Error::Unsupported { what, name } => format!("unsupported {what}: '{name}'"),
            Error::Shape { op, want, got } => format!("{op}: expected {want}, got {got}"),
            Error::Ggml { call } => format!("ggml: {call}"),
            Error::State { path, what } => {
                let path = path.display();
                format!("{path}: the prompt cache cannot be used: {what}; remove the file or name another one")
            }
            Error::Budget { what } => format!("KV budget: {what}"),
            Error::Fetch { from, what } => format!("{from}: {what}"),
            Error::Context { what } | Error::Usage(what) | Error::CommandLine { what, .. } => what.clone(),
            Error::Interrupted => "Interrupted by user".to_owned(),
        };
        f.write_str(&one_line(&text))?;
        match self {
            Error::CommandLine { help, .. } => f.write_str(help),
            _ => Ok(()),
        }
    }
}

/// Characters of a line that are kept at its beginning and at its end, where it is longer.
const KEPT: [usize; 2] = [1200, 300];

/// The text on one line that changes nothing on a terminal, without its middle where it is very long.
pub fn one_line(text: &str) -> String {
    let plain = |c: char| match c {
        '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => ' ',
        // Signs that steer a terminal, or the direction of writing.
        c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => '\u{fffd}',
        c => c,
    };
    let n_chars = text.chars().count();
    if n_chars <= KEPT[0] + KEPT[1] {
        return text.chars().map(plain).collect();
    }
    let begin: String = text.chars().take(KEPT[0]).map(plain).collect();
    let end: String = text.chars().skip(n_chars - KEPT[1]).map(plain).collect();
    format!("{begin} [... {} characters ...] {end}", n_chars - KEPT[0] - KEPT[1])
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_one_short_line() {
        assert_eq!(one_line("a\nb\r\u{2028}\u{1b}[31m\u{202e}\0é"), "a b  \u{fffd}[31m\u{fffd}\u{fffd}é");
        let long = one_line(&format!("head{}tail", "ä\n".repeat(1 << 20)));
        assert!(long.starts_with("headä ") && long.ends_with(" tail") && long.chars().count() < 1600, "{long}");
        let text = "x\n".repeat(3000);
        let io = || std::io::Error::other(text.clone());
        for e in [
            Error::io(&text, io()),
            Error::Gguf { path: (&text).into(), offset: Some(1), what: text.clone() },
            Error::gguf("x", &text),
            Error::unsupported("thing", &text),
            Error::shape(&text, &text, &text),
            Error::ggml(&text),
            Error::State { path: (&text).into(), what: text.clone() },
            Error::Budget { what: text.clone() },
            Error::Fetch { from: text.clone(), what: text.clone() },
            Error::Context { what: text.clone() },
            Error::Usage(text.clone()),
            Error::CommandLine { what: text.clone(), help: String::new() },
        ] {
            let line = e.to_string();
            assert!(!line.contains('\n') && line.len() < 1700, "{e:?}");
        }
        let e = Error::CommandLine { what: "a\nb".into(), help: "\nusage".into() };
        assert_eq!(e.to_string(), "a b\nusage");
    }
}
