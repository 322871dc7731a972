//! Files that are read and files that are written: none is both, and no two results have one name.
//!
//! A result takes the place of what was there. Whoever names the model or the prompt there has mistyped, and has one copy only.

use std::path::{Path, PathBuf};

use super::low::{Constraint, LowArgs, Source};
use crate::error::{Error, Result};

/// An option and the file that it names.
pub type Named<'a> = (&'static str, &'a Path);

/// What a run reads.
pub fn inputs(low: &LowArgs) -> Vec<Named<'_>> {
    fn of<'a>(option: &'static str, source: Option<&'a Source>) -> Option<Named<'a>> {
        match source {
            Some(Source::File(path) | Source::Binary(path)) => Some((option, path)),
            _ => None,
        }
    }
    let constraint = low.constraint.as_ref().map(|c| match c {
        Constraint::Gbnf(source) => ("--grammar-file", source),
        Constraint::JsonSchema(source) => ("--json-schema-file", source),
    });
    let texts = [
        low.model.as_deref().map(|path| ("--model", path)),
        of("--file", low.prompt.as_ref()),
        of("--system-prompt-file", low.system_prompt.as_ref()),
        of("--chat-template-file", low.chat_template.as_ref()),
        constraint.and_then(|(option, source)| of(option, Some(source))),
    ];
    let adapters = low.loras.iter().map(|(path, _)| ("--lora", path.as_path()));
    let vectors = low.control_vectors.iter().map(|(path, _)| ("--control-vector", path.as_path()));
    texts.into_iter().flatten().chain(adapters).chain(vectors).collect()
}

/// What a run writes; a prompt cache is read as well, and its own to be replaced.
pub fn outputs(low: &LowArgs) -> Vec<Named<'_>> {
    let named = [
        ("--output-file", &low.output),
        ("--kv-report", &low.kv_report),
        ("--log-file", &low.log_file),
        ("--prompt-cache", &low.prompt_cache),
    ];
    named.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?))).collect()
}

/// Refuses a result that would replace what is read, or another result.
///
/// # Errors
/// [`Error::Usage`] naming both options. Pipes and devices may be named as often as one likes.
pub fn check(inputs: &[Named], outputs: &[Named]) -> Result<()> {
    for (i, &(option, path)) in outputs.iter().enumerate() {
        let Some(place) = place(path) else { continue };
        let others = inputs.iter().chain(&outputs[..i]);
        if let Some((other, _)) = others.into_iter().find(|(_, other)| self::place(other).as_ref() == Some(&place)) {
            let path = path.display();
            return Err(Error::Usage(format!("{option} {path}: would replace the file of {other}; name another one")));
        }
    }
    Ok(())
}

/// Where a file is, or would be; `None` for what is no regular file.
fn place(path: &Path) -> Option<PathBuf> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => path.canonicalize().ok(),
        Ok(_) => None,
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(folder.canonicalize().ok()?.join(path.file_name()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_replaces_nothing_that_is_read_or_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("model"), "m").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let (model, again, new) = (at("model"), at("folder/../model"), at("new"));
        #[cfg(unix)]
        std::os::unix::fs::symlink(&model, at("link")).unwrap();
        #[cfg(unix)]
        check(&[("--model", &model)], &[("-o", &at("link"))]).unwrap_err();
        let error = check(&[("--model", &model)], &[("-o", &again)]).unwrap_err().to_string();
        assert!(error.starts_with("-o ") && error.ends_with("would replace the file of --model; name another one"));
        let error = check(&[], &[("-o", &new), ("--kv-report", &at("./new"))]).unwrap_err().to_string();
        assert!(error.contains("--kv-report") && error.contains("the file of -o"), "{error}");
        check(&[("--model", &model)], &[("-o", &new), ("--kv-report", &at("newer"))]).unwrap();
        // Nothing is lost where nothing can be replaced.
        check(
            &[("-f", Path::new("/dev/stdin"))],
            &[("-o", Path::new("/dev/null")), ("--log-file", Path::new("/dev/null"))],
        )
        .unwrap();
        check(&[], &[("-o", &at("missing/x")), ("--log-file", &at("missing/x"))]).unwrap();
    }
}
