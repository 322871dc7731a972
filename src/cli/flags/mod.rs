//! The tables of options. Adding an option is adding a row to the table of its category.
//!
//! Spellings, environment variables and meanings are llama.cpp's (`common/arg.cpp`, build b11434, llama-completion and
//! llama-cli); `refused` holds the rest of them, so that each one is answered by name.

mod adapter;
mod compress;
mod context;
mod device;
mod measure;
mod model;
mod needs;
mod output;
mod prompt;
mod refused;
mod rotation;
mod sampling;
mod source;
mod template;

use std::path::PathBuf;

pub use self::measure::{in_measurement, Use};
use super::low::{LowArgs, OnOffAuto};

pub use needs::{unmet, Need, NEEDS};

/// What a row says about a value: nothing, or why it cannot be used.
pub type Check = Result<(), String>;

/// What an option does with its value.
#[derive(Clone, Copy)]
pub enum Action {
    /// Takes an integer.
    Int(fn(&mut LowArgs, i64) -> Check),
    /// Takes a number.
    Float(fn(&mut LowArgs, f64) -> Check),
    /// Takes a text.
    Text(fn(&mut LowArgs, String) -> Check),
    /// Takes a path, which may be no valid UTF-8.
    Path(fn(&mut LowArgs, PathBuf) -> Check),
    /// Takes nothing; false stands for one of the spellings of [`field@Flag::off`].
    Switch(fn(&mut LowArgs, bool) -> Check),
    /// Takes `on`, `off` or `auto`; without one of them it means `on`.
    Choice(fn(&mut LowArgs, OnOffAuto) -> Check),
    /// Is accepted with a warning that gives this reason.
    NoEffect(&'static str),
    /// Is an error that gives this reason.
    Refused(&'static str),
}

/// One option.
#[derive(Clone, Copy)]
pub struct Flag {
    /// Its spellings; the first long one names it.
    pub names: &'static [&'static str],
    /// Spellings that switch it off.
    pub off: &'static [&'static str],
    /// Placeholder of the value in the help; empty when it takes none.
    pub hint: &'static str,
    /// Environment variable; empty without one.
    pub env: &'static str,
    /// Text of the help.
    pub help: &'static str,
    /// What it does.
    pub action: Action,
    /// Several values add up instead of replacing each other.
    pub accumulates: bool,
    /// Options of one group exclude each other.
    pub group: &'static str,
    /// Values that ask for what happens anyway; a refused option accepts them.
    pub neutral: &'static [&'static str],
}

/// A row of a table.
const fn flag(
    names: &'static [&'static str],
    hint: &'static str,
    env: &'static str,
    action: Action,
    help: &'static str,
) -> Flag {
    Flag { names, off: &[], hint, env, help, action, accumulates: false, group: "", neutral: &[] }
}

impl Flag {
    const fn off_by(mut self, off: &'static [&'static str]) -> Flag {
        self.off = off;
        self
    }

    const fn accumulates(mut self) -> Flag {
        self.accumulates = true;
        self
    }

    const fn group(mut self, group: &'static str) -> Flag {
        self.group = group;
        self
    }

    const fn neutral(mut self, neutral: &'static [&'static str]) -> Flag {
        self.neutral = neutral;
        self
    }

    /// The name without dashes, which is also the option's name for clap.
    pub fn id(&self) -> &'static str {
        let long = self.names.iter().find(|name| name.starts_with("--"));
        long.or(self.names.first()).map_or("", |name| name.trim_start_matches('-'))
    }

    /// Whether it takes a value, possibly an optional one.
    pub fn takes_value(&self) -> bool {
        !self.hint.is_empty()
    }

    /// Whether it takes two values, which the row sees with a space between them.
    pub fn takes_two(&self) -> bool {
        let is_name = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_uppercase());
        self.hint.split_once(' ').is_some_and(|(first, second)| is_name(first) && is_name(second))
    }

    /// Whether `value` asks a refused option for nothing.
    pub fn is_neutral(&self, value: &str) -> bool {
        let number = |s: &str| s.parse::<f64>().ok();
        self.neutral.iter().any(|n| *n == value || number(n).is_some_and(|x| number(value) == Some(x)))
    }
}

/// A heading of the help with its options.
pub struct Category {
    /// The heading.
    pub title: &'static str,
    /// The options.
    pub flags: &'static [Flag],
}

/// All options, in the order of the help.
pub const CATEGORIES: &[Category] = &[
    Category { title: "KV cache compression", flags: compress::FLAGS },
    Category { title: "model", flags: source::FLAGS },
    Category { title: "prompt and conversation", flags: prompt::FLAGS },
    Category { title: "chat template", flags: template::FLAGS },
    Category { title: "sampling", flags: sampling::FLAGS },
    Category { title: "context", flags: context::FLAGS },
    Category { title: "positions", flags: rotation::FLAGS },
    Category { title: "loading and threads", flags: model::FLAGS },
    Category { title: "devices", flags: device::FLAGS },
    Category { title: "changes to the model", flags: adapter::FLAGS },
    Category { title: "output", flags: output::FLAGS },
    Category { title: "", flags: refused::FLAGS },
];

/// Every row.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    CATEGORIES.iter().flat_map(|c| c.flags)
}

/// The row with this spelling, and whether the spelling means on.
pub fn find(spelling: &str) -> Option<(&'static Flag, bool)> {
    all().find_map(|flag| {
        let on = flag.names.contains(&spelling);
        (on || flag.off.contains(&spelling)).then_some((flag, on))
    })
}

/// Stores a value.
fn set<T>(slot: &mut T, value: T) -> Check {
    *slot = value;
    Ok(())
}

/// An integer in the range of its type and not below `min`.
fn int<T: TryFrom<i64>>(n: i64, min: i64) -> Result<T, String> {
    T::try_from(n).ok().filter(|_| n >= min).ok_or_else(|| format!("{n} is out of range"))
}

/// A finite number.
fn finite(x: f64) -> Result<f64, String> {
    if x.is_finite() {
        Ok(x)
    } else {
        Err(format!("{x} is not a finite number"))
    }
}

/// A number from 0 to 1.
fn share(x: f64) -> Result<f64, String> {
    if (0.0..=1.0).contains(&x) {
        Ok(x)
    } else {
        Err(format!("{x} is not between 0 and 1"))
    }
}

/// One of these names.
fn one_of<T: Copy>(value: &str, known: &[(&'static str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == value).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("'{value}' is unknown; it can be {}", names.join(", "))
    })
}
