//! From `-hf`, `-mu` and `-m` to the path of a file, fetched where it is not there, with a progress bar on a terminal.

use std::ffi::OsString;
use std::io::{Stderr, Stdout};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::console::Console;
use super::low::LowArgs;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::hub::{self, Hub, Watch};

/// Replaces the repository or the URL of the model by the path of its file; a plain path stays as it is.
///
/// # Errors
/// As [`Hub::repo`] and [`Hub::url`].
pub fn resolve(
    low: &mut LowArgs,
    env: &dyn Fn(&str) -> Option<OsString>,
    console: &mut Console<Stdout, Stderr>,
) -> Result<()> {
    if low.hf_repo.is_none() && low.model_url.is_none() {
        return Ok(());
    }
    let hub = Hub::new(env, low.hf_token.as_deref(), low.offline)?;
    let mut watch = Bar { console, bar: None };
    low.model = Some(match (&low.hf_repo, &low.model_url) {
        (Some(repo), _) => hub.repo(repo, low.hf_file.as_deref(), &mut watch)?,
        (None, Some(url)) => hub.url(url, low.model.as_deref(), &mut watch)?,
        (None, None) => return Ok(()),
    });
    Ok(())
}

/// The text of `--cache-list`, as llama.cpp prints it.
///
/// # Errors
/// When the environment names no cache.
pub fn list(env: &dyn Fn(&str) -> Option<OsString>) -> Result<String> {
    let models = hub::cached_models(env)?;
    let rows = models.iter().zip(1..).map(|(model, i)| format!("{i:4}. {model}\n"));
    Ok(format!("number of models in cache: {}\n", models.len()) + &rows.collect::<String>())
}

struct Bar<'a> {
    console: &'a mut Console<Stdout, Stderr>,
    bar: Option<ProgressBar>,
}

impl Watch for Bar<'_> {
    fn note(&mut self, level: i32, text: &str) {
        let (console, line) =
            (&mut *self.console, if level == 2 { format!("warning: {text}") } else { text.to_owned() });
        match &self.bar {
            Some(bar) => bar.suspend(|| console.message(level, &line)),
            None => console.message(level, &line),
        }
    }

    fn progress(&mut self, name: &str, n_bytes: u64, total: Option<u64>) {
        if self.bar.is_none() {
            self.console.message(3, &format!("downloading {name}"));
        }
        let has_bar = self.console.has_progress();
        let bar = self.bar.get_or_insert_with(|| {
            let target = if has_bar { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
            let style =
                ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
            let bar = ProgressBar::with_draw_target(total, target);
            // The time left follows the speed from here on, not that of bytes which were here before.
            bar.set_position(n_bytes);
            bar.reset_eta();
            style.map_or(bar.clone(), |style| bar.clone().with_style(style))
        });
        bar.set_position(n_bytes);
    }

    fn check(&mut self, path: &Path) -> Result<()> {
        Gguf::check_file(path)
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
