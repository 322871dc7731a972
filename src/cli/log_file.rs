//! The file of `--log-file`: a stream of text and messages as they come, unlike other files that are whole or not there.
//!
//! What an earlier run has left in it stays until this one is accepted (its options, model and prompt are usable). A run that
//! is refused, or whose log cannot be written at all, leaves the file as it was.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::new_file::standard_stream;
use crate::error::{Error, Result};

/// An open log.
pub struct LogFile {
    path: PathBuf,
    file: File,
    /// Whether it is standard output or standard error, whose text it goes on behind.
    is_stream: bool,
    /// What waits until the run is accepted.
    held: Option<Vec<u8>>,
}

impl LogFile {
    /// Opens the file and changes nothing in it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(path: &Path) -> Result<LogFile> {
        let stream = standard_stream(path);
        let is_stream = stream.is_some();
        let file = match stream {
            Some(file) => file,
            None => {
                File::options().write(true).create(true).truncate(false).open(path).map_err(|e| Error::io(path, e))?
            }
        };
        Ok(LogFile { path: path.to_owned(), file, is_stream, held: Some(Vec::new()) })
    }

    /// Writes what was held back over what the file held, and cuts off the rest of that.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn accept(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let write = || {
            (&self.file).write_all(&held)?;
            match self.file.metadata()?.is_file() && !self.is_stream {
                true => self.file.set_len(held.len() as u64),
                false => Ok(()),
            }
        };
        write().map_err(|e| Error::io(&self.path, e))
    }

    /// Adds to the log.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.held {
            Some(held) => held.extend_from_slice(bytes),
            None => self.file.write_all(bytes).map_err(|e| Error::io(&self.path, e))?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_log_stays_until_the_run_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let text = || std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "an old log\n").unwrap();
        let mut log = LogFile::open(&path).unwrap();
        log.write(b"refused\n").unwrap();
        drop(log);
        assert_eq!(text(), "an old log\n");
        let mut log = LogFile::open(&path).unwrap();
        log.write(b"new\n").unwrap();
        log.accept().unwrap();
        assert_eq!(text(), "new\n");
        log.write(b"more\n").unwrap();
        log.accept().unwrap();
        assert_eq!(text(), "new\nmore\n");
        assert!(LogFile::open(dir.path()).is_err());
    }
}
