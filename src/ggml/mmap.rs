//! Read-only file mapping.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A file mapped read-only.
pub struct Mmap {
    map: memmap2::Mmap,
    path: PathBuf,
}

impl Mmap {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mmap> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        // SAFETY: the mapping is read-only and private to this process. Another program that truncates the file while it
        // is mapped causes SIGBUS on access, which no user-space check can exclude; the README says so.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Ok(Mmap { map, path: path.to_path_buf() })
    }

    /// Keeps the pages in memory (`mlock`).
    ///
    /// # Errors
    /// When the system refuses, usually because of its limit on locked memory.
    pub fn lock(&self) -> Result<()> {
        #[cfg(unix)]
        self.map.lock().map_err(|e| Error::io(&self.path, e))?;
        Ok(())
    }

    /// The mapped bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
