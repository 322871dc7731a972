//! From llama.cpp's spelling to a list of options with values, which clap can read.
//!
//! clap knows neither long options with one dash (`-cnv`) nor `-fa` with a value that may be missing, and it takes `-1` for
//! an option. Rules as `common_params_parse_ex` of llama.cpp: `--foo_bar` is `--foo-bar`; the next argument is the value
//! whatever it looks like; configuration files come first, then the environment. Beyond llama.cpp: `--foo=value`, and bare `-fa` and `-co`.

use std::ffi::{OsStr, OsString};

use super::config;
use super::flags::{self, Action, Flag, Use};
use super::help;
use crate::error::{Error, Result};

/// Who gave an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Config,
    Environment,
    CommandLine,
}

/// One option as it was given.
pub(super) struct Given {
    /// Its row.
    pub flag: &'static Flag,
    /// As typed, or the environment variable, or the key and its file.
    pub spelling: String,
    /// The value; `true` or `false` for switches.
    pub value: OsString,
    /// Who gave it.
    pub origin: Origin,
}

const TRUE: [&str; 4] = ["on", "enabled", "true", "1"];
const FALSE: [&str; 4] = ["off", "disabled", "false", "0"];
const AUTO: [&str; 2] = ["auto", "-1"];

/// `on`, `off` or `auto` for any of llama.cpp's words for them.
fn word(value: &OsStr) -> Option<&'static str> {
    let value = value.to_str()?;
    let is = |words: &[&str]| words.contains(&value);
    match value {
        _ if is(&TRUE) => Some("on"),
        _ if is(&FALSE) => Some("off"),
        _ if is(&AUTO) => Some("auto"),
        _ => None,
    }
}

/// Splits arguments into options; `env` looks up an environment variable, `config` is what configuration files say, `use_of`
/// what becomes of an option. What is set for all programs and not obeyed by this one is no warning.
///
/// # Errors
/// [`Error::CommandLine`] naming an unknown argument, one that is refused, or one whose value is missing or no valid UTF-8.
pub(super) fn translate(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
    config: &[config::Entry],
    use_of: &dyn Fn(&Flag) -> Use,
    warnings: &mut Vec<String>,
) -> Result<Vec<Given>> {
    let is_obeyed = |flag: &Flag| use_of(flag) == Use::Obeyed;
    let typed = obeyed(command_line(args)?, use_of, warnings)?;
    let mut variables_given = Vec::new();
    for flag in flags::all().filter(|f| !f.env.is_empty() && is_obeyed(f)) {
        // In a compose file an empty variable is one that is not set.
        for (variable, value) in variables(flag, env).into_iter().filter(|(_, value)| !value.is_empty()) {
            if let Some(g) = typed.iter().find(|g| g.replaces(flag)) {
                warnings.push(format!(
                    "{variable} environment variable is set, but will be overwritten by command line argument {}",
                    g.spelling
                ));
            } else if let Some(value) = word_value(flag, &format!("environment variable \"{variable}\""), value)? {
                variables_given.push(Given { flag, spelling: variable, value, origin: Origin::Environment });
            }
        }
    }
    let mut all = config_files(config, warnings)?;
    all.retain(|g| is_obeyed(g.flag));
    all.retain(|g| g.flag.accumulates || !variables_given.iter().chain(&typed).any(|later| later.replaces(g.flag)));
    all.extend(variables_given);
    all.extend(typed);
    match all.iter().find(|g| !matches!(g.flag.action, Action::Path(_)) && g.value.to_str().is_none()) {
        Some(g) => Err(g.refusal("the value is not valid UTF-8")),
        None => Ok(all),
    }
}

/// The options that are obeyed; for each of the others a warning or the error.
fn obeyed(typed: Vec<Given>, use_of: &dyn Fn(&Flag) -> Use, warnings: &mut Vec<String>) -> Result<Vec<Given>> {
    let mut kept = Vec::new();
    for g in typed {
        match use_of(g.flag) {
            Use::Obeyed => kept.push(g),
            Use::Ignored => warnings.push(format!("{} has no effect in this program", g.spelling)),
            Use::Refused(why) => {
                let what = format!("error while handling argument \"{}\": not supported: {why}", g.spelling);
                return Err(Error::CommandLine { what, help: String::new() });
            }
        }
    }
    Ok(kept)
}

/// The options of configuration files.
fn config_files(config: &[config::Entry], warnings: &mut Vec<String>) -> Result<Vec<Given>> {
    let mut all = Vec::<Given>::new();
    for entry in config {
        let Some((flag, on)) = config::find(&entry.key) else {
            warnings.push(format!(
                "ignoring option '{}' from {}: not supported by this program",
                entry.key,
                entry.path.display()
            ));
            continue;
        };
        let spelling = format!("{} of {}", entry.key, entry.path.display());
        let origin = format!("option \"{spelling}\"");
        let mut value = word_value(flag, &origin, entry.value.clone().into())?;
        if !on {
            value = value.map(|v| (v != "true").to_string().into());
        }
        all.retain(|g| flag.accumulates || !g.replaces(flag));
        all.extend(value.map(|value| Given { flag, spelling, value, origin: Origin::Config }));
    }
    Ok(all)
}

impl Given {
    /// Whether it takes the place of another value for `flag`.
    fn replaces(&self, flag: &Flag) -> bool {
        self.flag.id() == flag.id() || (!flag.group.is_empty() && self.flag.group == flag.group)
    }

    /// The error for a value that is an option: where an argument comes that is none, it is likely to belong to that.
    fn lacking(&self) -> Option<Error> {
        let value = self.value.to_str().filter(|v| self.flag.takes_value() && flags::find(v).is_some())?;
        Some(self.refusal(&format!("expected value for argument, found the option {value}")))
    }

    /// The error for a value that cannot be used.
    pub fn refusal(&self, why: &str) -> Error {
        let kind = match self.origin {
            Origin::Config => "option",
            Origin::Environment => "environment variable",
            Origin::CommandLine => "argument",
        };
        refusal(self.flag, &format!("{kind} \"{}\"", self.spelling), why)
    }
}

/// Names the origin and the reason, and shows how the option is used unless it cannot be used at all.
fn refusal(flag: &Flag, origin: &str, why: &str) -> Error {
    let usage = match flag.action {
        Action::Refused(_) => String::new(),
        _ => format!("\n\nusage:\n{}\nto show complete usage, run with -h", help::row(flag)),
    };
    Error::CommandLine { what: format!("error while handling {origin}: {why}"), help: usage }
}

fn command_line(args: impl IntoIterator<Item = OsString>) -> Result<Vec<Given>> {
    let mut args = args.into_iter().peekable();
    let mut all = Vec::new();
    while let Some(arg) = args.next() {
        let (spelling, attached) = split(&arg);
        let known = flags::find(&spelling).filter(|(flag, _)| attached.is_none() || flag.takes_value());
        let Some((flag, on)) = known else {
            return Err(all.last().and_then(Given::lacking).unwrap_or_else(|| unknown(&arg.to_string_lossy())));
        };
        let refuse = |why: &str| refusal(flag, &format!("argument \"{spelling}\""), why);
        let value = match (flag.action, attached) {
            (Action::Choice(_), Some(value)) => match word(&value) {
                Some(word) => word.into(),
                None => {
                    return Err(refuse(&format!(
                        "unknown value '{}'; it can be on, off or auto",
                        value.to_string_lossy()
                    )))
                }
            },
            (Action::Choice(_), None) => {
                args.next_if(|next| word(next).is_some()).and_then(|v| word(&v)).unwrap_or("on").into()
            }
            (_, Some(value)) => value,
            _ if flag.takes_value() => {
                let mut next = || args.next().ok_or_else(|| refuse("expected value for argument"));
                let mut value = next()?;
                if flag.takes_two() {
                    value.push(" ");
                    value.push(next()?);
                }
                value
            }
            _ => on.to_string().into(),
        };
        all.push(Given { flag, spelling, value, origin: Origin::CommandLine });
    }
    Ok(all)
}

/// The spelling with `-` for `_`, and what is attached by `=`. A short option has nothing attached.
fn split(arg: &OsStr) -> (String, Option<OsString>) {
    let Some(text) = arg.to_str().filter(|text| text.starts_with("--")) else {
        return (arg.to_string_lossy().into_owned(), None);
    };
    match text.split_once('=') {
        Some((name, value)) => (name.replace('_', "-"), Some(value.into())),
        None => (text.replace('_', "-"), None),
    }
}

/// The error for an argument that is no option, with the most similar one.
fn unknown(arg: &str) -> Error {
    let name = arg.split('=').next().unwrap_or(arg).replace('_', "-");
    let names = flags::all().flat_map(|f| f.names.iter().chain(f.off));
    let similar = names.map(|n| (strsim::jaro_winkler(n, &name), n)).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = similar.filter(|(likeness, _)| name.starts_with("--") && *likeness > 0.9);
    let help = hint.map(|(_, n)| format!("\ndid you mean {n}?")).unwrap_or_default();
    Error::CommandLine { what: format!("error: invalid argument: {arg}"), help }
}

/// The variable of an option and, when it can be switched off, the `_NO_` variable that does so by any value.
fn variables(flag: &Flag, env: &dyn Fn(&str) -> Option<OsString>) -> Vec<(String, OsString)> {
    let negated = flag.env.replacen("_ARG_", "_ARG_NO_", 1);
    let off = (!flag.off.is_empty()).then(|| env(&negated)).flatten().map(|_| (negated, OsString::from("off")));
    let plain = env(flag.env).map(|value| (flag.env.to_string(), value));
    off.or(plain).into_iter().collect()
}

/// The value of a variable or of a key as the command line would give it, or `None` when it asks for nothing.
fn word_value(flag: &Flag, origin: &str, value: OsString) -> Result<Option<OsString>> {
    let is_switch = !flag.takes_value();
    if !is_switch && !matches!(flag.action, Action::Choice(_)) {
        return Ok(Some(value));
    }
    let wrong = || refusal(flag, origin, &format!("unknown value '{}'", value.to_string_lossy()));
    match (word(&value), is_switch) {
        (Some("off"), true) if flag.off.is_empty() => Ok(None),
        (Some("auto"), true) | (None, _) => Err(wrong()),
        (Some(word), true) => Ok(Some((word == "on").to_string().into())),
        (Some(word), false) => Ok(Some(word.into())),
    }
}
