//! Files that are either the old one or the whole new one: results of long runs must not be lost to a run that fails.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The temporary files of this process, for an end that runs no destructors.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file under a temporary name beside the one it will have; without [`NewFile::finish`] it disappears.
pub struct NewFile {
    path: PathBuf,
    /// None where the file is a device or a pipe, which must not be replaced.
    temporary: Option<PathBuf>,
    file: BufWriter<File>,
    has_content: bool,
    has_failed: bool,
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
        if path.metadata().is_ok_and(|m| !m.is_file()) {
            let file = File::options().write(true).open(path).map_err(|e| Error::io(path, e))?;
            return Ok(NewFile::new(path.into(), None, file));
        }
        // What may not be written to is not replaced, either.
        let old = match File::options().write(true).open(path) {
            Ok(old) => Some(old.metadata().map_err(|e| Error::io(path, e))?.permissions()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io(path, e)),
        };
        let mut name = name.to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        // A link keeps leading to its file.
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let temporary = path.with_file_name(name);
        let file = File::create(&temporary).map_err(|e| Error::io(&path, e))?;
        if let Ok(mut unfinished) = UNFINISHED.lock() {
            unfinished.push(temporary.clone());
        }
        let new = NewFile::new(path, Some(temporary), file);
        if let Some(old) = old {
            new.file.get_ref().set_permissions(old).map_err(|e| Error::io(&new.path, e))?;
        }
        Ok(new)
    }

    fn new(path: PathBuf, temporary: Option<PathBuf>, file: File) -> NewFile {
        NewFile { path, temporary, file: BufWriter::new(file), has_content: false, has_failed: false }
    }

    /// Whether something was written, and all of it could be.
    pub fn is_sound(&self) -> bool {
        self.has_content && !self.has_failed
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
            let Some(temporary) = &self.temporary else { return Ok(()) };
            self.file.get_ref().sync_all()?;
            std::fs::rename(temporary, &self.path)
        };
        finish().map_err(|e| Error::io(&self.path, e))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.has_content |= !bytes.is_empty();
        self.file.write(bytes).inspect_err(|_| self.has_failed = true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().inspect_err(|_| self.has_failed = true)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let Some(temporary) = &self.temporary else { return };
        // Once it has its name there is nothing to remove; that a leftover cannot be removed is no second error.
        let _ = std::fs::remove_file(temporary);
        if let Ok(mut unfinished) = UNFINISHED.lock() {
            unfinished.retain(|path| path != temporary);
        }
    }
}

/// Removes all files that do not have their name yet. Only for a process that ends at once.
pub fn remove_unfinished() {
    // Whoever has the list may be stopped for good, perhaps for want of the memory to add to it.
    for _ in 0..100 {
        if let Ok(unfinished) = UNFINISHED.try_lock() {
            for path in unfinished.iter() {
                let _ = std::fs::remove_file(path);
            }
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
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
        let unfinished = NewFile::create(&path).unwrap();
        let is_known = |path: &PathBuf| UNFINISHED.lock().unwrap().contains(path);
        let temporary = unfinished.temporary.clone().unwrap();
        assert!(temporary.exists() && is_known(&temporary));
        drop(unfinished);
        assert!(!temporary.exists() && !is_known(&temporary));
    }

    #[cfg(unix)]
    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        write_file(&path, b"new").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_a_link_is_followed() {
        use std::os::unix::fs::{symlink, FileTypeExt};
        let dir = tempfile::tempdir().unwrap();
        let [pipe, file, link] = ["pipe", "file", "link"].map(|name| dir.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        write_file(&pipe, b"report").unwrap();
        assert_eq!(reader.join().unwrap(), b"report");
        assert!(pipe.metadata().unwrap().file_type().is_fifo());

        std::fs::write(&file, b"old").unwrap();
        symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"new");
    }
}
