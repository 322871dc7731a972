//! Files that are either the old one or the whole new one: results of long runs must not be lost to a run that fails.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Longest name of a file, in bytes, and most links that lead to one, as on Linux.
const MAX_NAME: usize = 255;
const MAX_LINKS: usize = 40;

/// The temporary files of this process, for an end that runs no destructors.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file under a temporary name beside the one it will have; without [`NewFile::finish`] it disappears.
pub struct NewFile {
    path: PathBuf,
    /// None where the file is a device, a pipe or one that the process writes to already, which must not be replaced.
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
        if let Some(file) = standard_stream(path) {
            return Ok(NewFile::new(path.into(), None, file));
        }
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
        // A link keeps leading to its file.
        let path = followed(path);
        let temporary = path.with_file_name(temporary_name(&name.to_string_lossy()));
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

    /// Whether it is written to as it comes: [`NewFile::finish`] ends it.
    pub fn is_stream(&self) -> bool {
        self.temporary.is_none()
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file and gives it its name.
    ///
    /// # Errors
    /// As `write`, and as [`NewFile::finish`].
    pub fn save(mut self, write: impl FnOnce(&mut NewFile) -> io::Result<()>) -> Result<()> {
        write(&mut self).map_err(|e| Error::io(self.path(), e))?;
        self.finish()
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

/// The file that a path leads to, whether there is one yet or not.
fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        path = match (path.canonicalize(), path.read_link(), path.parent()) {
            (Ok(file), ..) => return file,
            (Err(_), Ok(target), Some(folder)) => folder.join(target),
            _ => break,
        };
    }
    path
}

/// A name of this process alone, which begins with that of the file.
fn temporary_name(name: &str) -> String {
    static N_FILES: AtomicUsize = AtomicUsize::new(0);
    let end = format!(".{}-{}.tmp", std::process::id(), N_FILES.fetch_add(1, Ordering::Relaxed));
    let n_kept = (0..=name.len().min(MAX_NAME - end.len())).rev().find(|&n| name.is_char_boundary(n)).unwrap_or(0);
    name[..n_kept].to_owned() + &end
}

/// The open end of standard output or standard error where the path leads to the same file (`/dev/stdout > file`): what is
/// written there goes on behind what is there, while a file opened once more would begin at its first byte.
#[cfg(unix)]
pub(super) fn standard_stream(path: &Path) -> Option<File> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let found = path.metadata().ok().filter(|m| m.is_file())?;
    [io::stdout().as_fd(), io::stderr().as_fd()].into_iter().find_map(|end| {
        let file = File::from(end.try_clone_to_owned().ok()?);
        let open = file.metadata().ok()?;
        ((open.dev(), open.ino()) == (found.dev(), found.ino())).then_some(file)
    })
}

#[cfg(not(unix))]
pub(super) fn standard_stream(_: &Path) -> Option<File> {
    None
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

        // One that leads to another, and that to nothing yet; a circle leads nowhere.
        std::fs::remove_file(&file).unwrap();
        let [first, circle] = ["first", "circle"].map(|name| dir.path().join(name));
        symlink("link", &first).unwrap();
        write_file(&first, b"newer").unwrap();
        assert!(first.is_symlink() && link.is_symlink() && std::fs::read(&file).unwrap() == b"newer");
        symlink("circle", &circle).unwrap();
        assert!(write_file(&circle, b"x").is_err() && circle.is_symlink());
    }

    #[test]
    fn every_name_that_a_file_can_have_works() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "\u{20ac}"] {
            for n_bytes in (220..=MAX_NAME).filter(|n| n % name.len() == 0) {
                let path = dir.path().join(name.repeat(n_bytes / name.len()));
                write_file(&path, b"x").unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), b"x");
            }
        }
        assert!(write_file(&dir.path().join("a".repeat(MAX_NAME + 1)), b"x").is_err());
        let two = [0; 2].map(|_| NewFile::create(&dir.path().join("same")).unwrap());
        assert_ne!(two[0].temporary, two[1].temporary);
    }
}
