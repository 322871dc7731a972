//! Files that are either the old one or the whole new one: results of long runs must not be lost to a run that fails.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file under a temporary name beside the one it will have; without [`NewFile::finish`] it disappears.
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
}

impl NewFile {
    /// Opens the temporary file, and so finds out early when the folder cannot be written.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn create(path: &Path) -> Result<NewFile> {
        let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
            return Err(Error::io(path, io::ErrorKind::IsADirectory.into()));
        };
        let mut name = name.to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(|e| Error::io(path, e))?;
        Ok(NewFile { path: path.into(), temporary, file: BufWriter::new(file) })
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name: everything is on the disk before.
    ///
    /// # Errors
    /// When it cannot be written or renamed.
    pub fn finish(mut self) -> Result<()> {
        let mut finish = || {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            std::fs::rename(&self.temporary, &self.path)
        };
        finish().map_err(|e| Error::io(&self.path, e))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Once it has its name there is nothing to remove; that a leftover cannot be removed is no second error.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// Writes a whole file in this way.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes).map_err(|e| Error::io(path, e))?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_old_one_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let files = || std::fs::read_dir(dir.path()).unwrap().count();
        write_file(&path, b"old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), files()), (b"old".to_vec(), 2));
        drop(file);
        assert_eq!((std::fs::read(&path).unwrap(), files()), (b"old".to_vec(), 1));
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), files()), (b"new".to_vec(), 1));
        for bad in [&dir.path().join("none/out"), dir.path(), Path::new("/"), Path::new("")] {
            assert!(NewFile::create(bad).is_err(), "{bad:?}");
        }
        assert_eq!(files(), 1);
    }
}
