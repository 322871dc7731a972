//! Models in several files `NAME-00001-of-0000N.gguf`: the first has the metadata, each has a share of the tensors.
//!
//! Stage: gguf. Source: the constructor of llama.cpp's llama-model-loader.cpp and `llama_split_path`.
//! Deviation: parts that repeat the number of parts or the architecture must agree with the first one.

use std::path::{Path, PathBuf};

use super::{read, Gguf, ARCHITECTURE_KEY};
use crate::error::{Error, Result};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Adds the tensors of the other parts to `gguf`, the part that was opened; nothing for a model in one file.
pub(super) fn follow(gguf: &mut Gguf) -> Result<()> {
    let count = gguf.u32(COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(());
    }
    let first = gguf.path().to_path_buf();
    let no = gguf.require_u32(NO)?;
    let Some(prefix) = prefix(&first, no, count) else {
        let want = format!("{COUNT} is {count}, so the file's name must end in '{}'", suffix(no, count));
        return Err(Error::gguf(first, want));
    };
    if no != 0 {
        let want = part_path(&prefix, 0, count);
        let what = format!("this is part {} of {count}; open the first one, {}", u64::from(no) + 1, want.display());
        return Err(Error::gguf(first, what));
    }
    for no in 1..count {
        let path = part_path(&prefix, no, count);
        if !path.exists() {
            return Err(Error::gguf(path, format!("part {} of {count} of the model is missing", no + 1)));
        }
        let part = read::read_file(&path)?;
        check_part(gguf, &part, no, count)?;
        add(gguf, part)?;
    }
    let (want, got) = (gguf.require_u32(TENSORS)?, gguf.tensors().len());
    if want as usize != got {
        return Err(Error::gguf(first, format!("{TENSORS} is {want}, the {count} parts have {got} tensors")));
    }
    Ok(())
}

fn check_part(first: &Gguf, part: &Gguf, no: u32, count: u32) -> Result<()> {
    let found = part.require_u32(NO)?;
    if found != no {
        return Err(Error::gguf(part.path(), format!("{NO} is {found}, expected {no}, as in the file's name")));
    }
    match part.u32(COUNT)? {
        Some(found) if found != count => {
            return Err(Error::gguf(part.path(), format!("{COUNT} is {found}, expected {count}, as in the first part")))
        }
        _ => {}
    }
    match part.str(ARCHITECTURE_KEY)? {
        Some(found) if found != first.architecture() => {
            let want = first.architecture();
            Err(Error::gguf(
                part.path(),
                format!("{ARCHITECTURE_KEY} is '{found}', expected '{want}', as in the first part"),
            ))
        }
        _ => Ok(()),
    }
}

fn add(gguf: &mut Gguf, part: Gguf) -> Result<()> {
    let file = gguf.files.len();
    for mut tensor in part.tensors {
        if gguf.tensor(&tensor.name).is_some() {
            let what = format!("tensor '{}' is also in an earlier part", super::value::shown(&tensor.name));
            return Err(Error::gguf(part.path, what));
        }
        tensor.file = file;
        gguf.add_tensor(tensor);
    }
    gguf.files.push(part.path);
    Ok(())
}

fn suffix(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", u64::from(no) + 1)
}

/// The path of part `no`, counted from 0.
fn part_path(prefix: &Path, no: u32, count: u32) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix(no, count));
    path.into()
}

/// What stands before the suffix of part `no` in `path`.
fn prefix(path: &Path, no: u32, count: u32) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(no, count))?;
    (!stem.is_empty()).then(|| path.with_file_name(stem))
}
