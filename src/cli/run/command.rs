//! The commands of a conversation. Source: llama.cpp `tools/cli/cli-context.cpp`.
//!
//! Deviations: a command is a whole word, so that a text may begin with `/exit`; `/glob` follows the rules of the glob crate.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Files that one `/glob` adds at most.
const MAX_FILES: usize = 100;
/// Largest file that can be part of a prompt.
const MAX_BYTES: u64 = i32::MAX as u64;

/// Lines for the user about the commands.
pub(super) const HELP: &str = "\
available commands:
  /exit or Ctrl+C     stop or exit
  /regen              regenerate the last response
  /clear              clear the chat history
  /read <file>        add a text file
  /glob <pattern>     add text files using globbing pattern
";

/// What a line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Exit,
    Regen,
    Clear,
    Read(PathBuf),
    Glob(String),
}

impl Command {
    /// The command in a line; `None` when it is text.
    pub(super) fn parse(line: &str) -> Option<Command> {
        let line = line.trim();
        let behind = |name: &str| line.strip_prefix(name).map(str::trim).filter(|rest| !rest.is_empty());
        match line {
            "/exit" => Some(Command::Exit),
            "/regen" => Some(Command::Regen),
            "/clear" => Some(Command::Clear),
            _ => behind("/read ")
                .map(|path| Command::Read(in_home(path)))
                .or_else(|| behind("/glob ").map(|pattern| Command::Glob(in_home(pattern).display().to_string()))),
        }
    }
}

/// The first word of a line that is no command but looks like one.
pub(super) fn misspelt(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let name = word.strip_prefix('/')?;
    (!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase())).then_some(word)
}

/// The path with `~` replaced.
fn in_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}

/// A file as it stands in a message.
///
/// # Errors
/// When it cannot be read, is too large or is no text.
pub(super) fn read_file(path: &Path) -> Result<String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|e| Error::io(path, e))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::Context { what: format!("{}: too large for a prompt", path.display()) });
    }
    Ok(format!("--- File: {} ---\n{text}", path.display()))
}

/// The files that a pattern means, at most [`MAX_FILES`], and whether there are more.
///
/// # Errors
/// When it is no pattern.
pub(super) fn files(pattern: &str) -> Result<(Vec<PathBuf>, bool)> {
    let found = glob::glob(pattern).map_err(|e| Error::Context { what: format!("{pattern}: {e}") })?;
    let mut files: Vec<PathBuf> =
        found.filter_map(std::result::Result::ok).filter(|path| path.is_file()).take(MAX_FILES + 1).collect();
    let has_more = files.len() > MAX_FILES;
    files.truncate(MAX_FILES);
    Ok((files, has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_whole_words() {
        assert_eq!(Command::parse(" /exit "), Some(Command::Exit));
        assert_eq!(Command::parse("/regen"), Some(Command::Regen));
        assert_eq!(Command::parse("/read  a b.txt "), Some(Command::Read("a b.txt".into())));
        assert_eq!(Command::parse("/glob src/**/*.rs"), Some(Command::Glob("src/**/*.rs".into())));
        for text in ["", "exit", "/exited", "/read", "/read ", "say /exit", "/clear all"] {
            assert_eq!(Command::parse(text), None, "{text}");
        }
        let looks = ["/nosuch thing", " /read", "/etc/hosts", "/ 2", "a /b", ""].map(misspelt);
        assert_eq!(looks, [Some("/nosuch"), Some("/read"), None, None, None, None]);
    }

    #[test]
    fn files_are_found_and_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.txt", "b.txt", "c.md"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        std::fs::create_dir(dir.path().join("d.txt")).unwrap();
        let (found, has_more) = files(&format!("{}/*.txt", dir.path().display())).unwrap();
        assert_eq!((found.len(), has_more), (2, false));
        assert!(read_file(&found[0]).unwrap().ends_with("a.txt ---\na.txt"));
        assert!(files("[").is_err() && read_file(&dir.path().join("none")).is_err());
        std::fs::write(dir.path().join("c.md"), b"\xff").unwrap();
        assert!(read_file(&dir.path().join("c.md")).is_err());
    }

    #[test]
    fn a_pattern_adds_a_hundred_files() {
        let dir = tempfile::tempdir().unwrap();
        (0..=MAX_FILES).for_each(|i| std::fs::write(dir.path().join(i.to_string()), "").unwrap());
        let (found, has_more) = files(&format!("{}/*", dir.path().display())).unwrap();
        assert_eq!((found.len(), has_more), (MAX_FILES, true));
    }
}
