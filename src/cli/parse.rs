//! From options to [`LowArgs`]: clap reads and types the values, the rows of the tables store them.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{value_parser, Arg, ArgAction, ArgGroup, ArgMatches, Command};

use super::config;
use super::flags::{self, in_measurement, Action, Check, Flag, Use};
use super::low::{LowArgs, OnOffAuto};
use super::translate::{translate, Given, Origin};
use crate::error::{Error, Result};

/// Reads the arguments behind the program's name after the configuration files and the environment, which `env` looks up.
///
/// # Errors
/// [`Error::CommandLine`] with the text for the user, worded as llama.cpp words it; [`Error::Io`] for a configuration file.
pub fn parse_with_config(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<LowArgs> {
    parse_files(args, env, &|_| Use::Obeyed)
}

/// The same for a program that measures: of the options that [`in_measurement`] does not use, it uses those in `also`.
///
/// # Errors
/// As [`parse_with_config`], and for an option that is refused there.
pub fn parse_measuring(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
    also: &[&str],
) -> Result<LowArgs> {
    parse_files(args, env, &|flag| in_measurement(flag, also))
}

fn parse_files(
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
    use_of: &dyn Fn(&Flag) -> Use,
) -> Result<LowArgs> {
    let (mut entries, mut notices) = (Vec::new(), Vec::new());
    for path in config::paths(env).into_iter().filter(|path| path.exists()) {
        notices.push(format!("using config file: {}", path.display()));
        entries.extend(config::read(&path)?);
    }
    let low = parse_after(&entries, args, env, use_of)?;
    Ok(LowArgs { notices, ..low })
}

/// Reads the arguments behind the program's name; `env` looks up an environment variable.
///
/// # Errors
/// [`Error::CommandLine`] with the text for the user, worded as llama.cpp words it.
pub fn parse(args: impl IntoIterator<Item = OsString>, env: &dyn Fn(&str) -> Option<OsString>) -> Result<LowArgs> {
    parse_after(&[], args, env, &|_| Use::Obeyed)
}

fn parse_after(
    config: &[config::Entry],
    args: impl IntoIterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<OsString>,
    use_of: &dyn Fn(&Flag) -> Use,
) -> Result<LowArgs> {
    let mut low = LowArgs::default();
    let given = translate(args, env, config, use_of, &mut low.warnings)?;
    warn_of_repeats(&given, &mut low.warnings);
    let matches = command().try_get_matches_from(given.iter().map(to_clap)).map_err(|e| in_words(&e, &given))?;
    let mut n_seen: BTreeMap<&str, usize> = BTreeMap::new();
    for g in &given {
        let nth = n_seen.entry(g.flag.id()).or_default();
        store(&mut low, g, &matches, *nth).map_err(|why| g.refusal(&why))?;
        *nth += 1;
        low.given.insert(g.flag.id());
        if g.origin == Origin::CommandLine {
            low.typed.insert(g.flag.id());
        }
    }
    Ok(low)
}

fn command() -> Command {
    let mut command = Command::new("gracekv").no_binary_name(true).disable_help_flag(true).disable_version_flag(true);
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for flag in flags::all() {
        let arg = Arg::new(flag.id()).long(flag.id()).num_args(1).require_equals(true).action(ArgAction::Append);
        command = command.arg(arg.value_parser(parser_of(flag)));
        if !flag.group.is_empty() {
            groups.entry(flag.group).or_default().push(flag.id());
        }
    }
    groups.into_iter().fold(command, |c, (name, ids)| c.group(ArgGroup::new(name).args(ids).multiple(false)))
}

fn parser_of(flag: &Flag) -> ValueParser {
    match flag.action {
        Action::Int(_) => value_parser!(i64).into(),
        Action::Float(_) => value_parser!(f64).into(),
        Action::Path(_) => ValueParser::path_buf(),
        Action::Switch(_) => ValueParser::bool(),
        Action::Text(_) | Action::Choice(_) | Action::NoEffect(_) | Action::Refused(_) => ValueParser::string(),
    }
}

fn to_clap(g: &Given) -> OsString {
    let mut arg = OsString::from(format!("--{}=", g.flag.id()));
    arg.push(&g.value);
    arg
}

/// Hands the nth value of an option to its row.
fn store(low: &mut LowArgs, g: &Given, matches: &ArgMatches, nth: usize) -> Check {
    fn value<T: Clone + Send + Sync + 'static>(
        matches: &ArgMatches,
        id: &str,
        nth: usize,
    ) -> std::result::Result<T, String> {
        let found = matches.get_many::<T>(id).and_then(|mut values| values.nth(nth).cloned());
        found.ok_or_else(|| "no value".to_string())
    }
    let id = g.flag.id();
    match g.flag.action {
        Action::Int(set) => set(low, value(matches, id, nth)?),
        Action::Float(set) => set(low, value(matches, id, nth)?),
        Action::Text(set) => set(low, value(matches, id, nth)?),
        Action::Path(set) => set(low, value::<PathBuf>(matches, id, nth)?),
        Action::Switch(set) => set(low, value(matches, id, nth)?),
        Action::Choice(set) => set(
            low,
            match value::<String>(matches, id, nth)?.as_str() {
                "on" => OnOffAuto::On,
                "off" => OnOffAuto::Off,
                _ => OnOffAuto::Auto,
            },
        ),
        Action::NoEffect(why) => {
            if !g.flag.is_neutral(&value::<String>(matches, id, nth)?) {
                low.warnings.push(format!("{} has no effect: {why}", g.spelling));
            }
            Ok(())
        }
        Action::Refused(why) => {
            let value: String = value(matches, id, nth)?;
            let asks_for_nothing = g.flag.is_neutral(&value) || (!g.flag.takes_value() && value == "false");
            if !asks_for_nothing {
                let kind = match g.origin {
                    Origin::CommandLine => return Err(format!("not supported: {why}")),
                    Origin::Environment => "environment variable",
                    Origin::Config => "option",
                };
                low.warnings.push(format!("{kind} {} is ignored: {why}", g.spelling));
            }
            Ok(())
        }
    }
}

fn warn_of_repeats(given: &[Given], warnings: &mut Vec<String>) {
    let mut seen = BTreeMap::new();
    for g in given.iter().filter(|g| g.origin == Origin::CommandLine && !g.flag.accumulates) {
        if seen.insert(g.flag.id(), ()).is_some() {
            warnings.push(format!("argument '{}' specified multiple times, only the last value is used", g.spelling));
        }
    }
}

/// clap's error with the spelling that was typed.
fn in_words(e: &clap::Error, given: &[Given]) -> Error {
    let text = |kind| match e.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (arg, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let names = |g: &&Given| arg.trim_start_matches('-').split(['=', ' ']).next() == Some(g.flag.id());
    if e.kind() == ErrorKind::ArgumentConflict {
        let group = given.iter().find(names).map_or("", |g| g.flag.group);
        let spellings: Vec<_> = given.iter().filter(|g| g.flag.group == group).map(|g| g.spelling.as_str()).collect();
        return Error::Usage(format!("error: these arguments exclude each other: {}", spellings.join(", ")));
    }
    match given.iter().find(|g| names(g) && g.value.to_str() == Some(value)) {
        Some(g) => {
            g.refusal(&e.source().map_or_else(|| "invalid value".to_string(), |why| format!("'{value}': {why}")))
        }
        None => Error::Usage(format!("error: {e}")),
    }
}
