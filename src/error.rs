//! The one error type. Variants are divided by what a user can do about them; the text of each is one line: what, where, what to do.
//!
//! The library returns errors and never prints or exits; the programs in `src/bin` print the chain and choose the exit code.

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
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Gguf { path, offset: Some(at), what } => {
                write!(f, "{}: at byte {at}: {what}", path.display())
            }
            Error::Gguf { path, offset: None, what } => write!(f, "{}: {what}", path.display()),
            Error::Unsupported { what, name } => write!(f, "unsupported {what}: '{name}'"),
            Error::Shape { op, want, got } => write!(f, "{op}: expected {want}, got {got}"),
            Error::Ggml { call } => write!(f, "ggml: {call}"),
            Error::State { path, what } => write!(
                f,
                "{}: the prompt cache cannot be used: {what}; remove the file or name another one",
                path.display()
            ),
            Error::Budget { what } => write!(f, "KV budget: {what}"),
            Error::Fetch { from, what } => write!(f, "{from}: {what}"),
            Error::Context { what } | Error::Usage(what) => f.write_str(what),
            Error::Interrupted => f.write_str("Interrupted by user"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
