//! Names of methods: `NAME(+MODIFIER)*`, for example `gracekv+paper` or `snapkv+lookahead+small` (stage 5).
//!
//! A modifier changes one thing about a method; each method declares the ones it knows, and which of them go together.
//! The full name is what tables and reports show, modifiers in the order of the declaration: one thing has one name.

use std::fmt;
use std::ops::Deref;

use super::{Method, METHODS};
use crate::error::{Error, Result};

/// Queries of the decoded lookahead tokens take part in scoring; for methods that are published without them.
pub const LOOKAHEAD: Modifier = Modifier::new("lookahead", "queries of the lookahead tokens take part in scoring too");

/// The sinks and the window of [`Budget`](super::Budget) instead of those that the method was published with.
pub const SMALL: Modifier = Modifier::new("small", "gracekv's sinks and window instead of the paper's");

/// A method that can be asked for by name.
pub struct Entry {
    /// File name, option value and column in reports.
    pub name: &'static str,
    /// One line for `--kv-method list`.
    pub about: &'static str,
    /// The modifiers it knows, in the order of a full name.
    pub modifiers: &'static [Modifier],
    /// Makes the method.
    pub make: fn(&MethodOptions) -> Box<dyn Method>,
}

impl Entry {
    /// The plain name, and one name for each modifier, with what it needs.
    pub fn names(&self) -> Vec<String> {
        let with = |m: &Modifier| {
            let needed = m.needs.map_or(String::new(), |needed| format!("+{needed}"));
            format!("{}{needed}+{}", self.name, m.name)
        };
        std::iter::once(self.name.to_owned()).chain(self.modifiers.iter().map(with)).collect()
    }
}

/// One change to a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modifier {
    /// What follows the `+`.
    pub name: &'static str,
    /// One line for `--kv-method list`.
    pub about: &'static str,
    needs: Option<&'static str>,
    excludes: &'static [&'static str],
}

impl Modifier {
    /// A modifier that goes with every other one.
    pub const fn new(name: &'static str, about: &'static str) -> Self {
        Modifier { name, about, needs: None, excludes: &[] }
    }

    /// The same, but only together with `other`.
    pub const fn with(self, other: &'static str) -> Self {
        Modifier { needs: Some(other), ..self }
    }

    /// The same, but not together with `others`.
    pub const fn without(self, others: &'static [&'static str]) -> Self {
        Modifier { excludes: others, ..self }
    }
}

/// What the user may change about a method; `None` is the method's own default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MethodOptions {
    /// Modifiers in the method's name; they outrank the other options.
    pub modifiers: Vec<Modifier>,
    /// Share of an even division that every head keeps at least (fitted), or the floor of exact tokens (paper).
    pub floor: Option<f32>,
    /// Share of the budget for prototypes.
    pub prototypes: Option<f32>,
}

impl MethodOptions {
    /// Whether the method's name has this modifier.
    pub fn has(&self, modifier: Modifier) -> bool {
        self.modifiers.contains(&modifier)
    }
}

/// A method under its full name.
pub struct Named {
    /// For tables and reports.
    pub name: String,
    method: Box<dyn Method>,
}

impl Deref for Named {
    type Target = dyn Method;

    fn deref(&self) -> &Self::Target {
        self.method.as_ref()
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Named({})", self.name)
    }
}

/// The method of this name, with `options` beside the modifiers in it.
///
/// # Errors
/// [`Error::Usage`] for an unknown method or modifier, listing those there are, and for modifiers that do not go together.
pub fn by_name(name: &str, options: &MethodOptions) -> Result<Named> {
    let (entry, modifiers) = parse(name)?;
    let options = MethodOptions { modifiers, ..options.clone() };
    Ok(Named { name: spell(entry, &options.modifiers), method: (entry.make)(&options) })
}

/// The full name of the method that `name` asks for.
///
/// # Errors
/// As [`by_name`].
pub fn full_name(name: &str) -> Result<String> {
    parse(name).map(|(entry, modifiers)| spell(entry, &modifiers))
}

fn spell(entry: &Entry, modifiers: &[Modifier]) -> String {
    modifiers.iter().fold(entry.name.to_owned(), |name, m| name + "+" + m.name)
}

/// The method and the modifiers that a name stands for, in the order of the declaration.
fn parse(name: &str) -> Result<(&'static Entry, Vec<Modifier>)> {
    let mut parts = name.split('+');
    let base = parts.next().unwrap_or_default();
    let entry = METHODS.iter().find(|m| m.name == base).ok_or_else(|| {
        let known: Vec<_> = METHODS.iter().map(|m| m.name).collect();
        Error::Usage(format!("unknown compression method '{base}'; there are {}", known.join(", ")))
    })?;
    let given: Vec<&str> = parts.collect();
    for part in &given {
        if !entry.modifiers.iter().any(|m| m.name == *part) {
            return Err(Error::Usage(format!("method '{base}' has no modifier '{part}'; {}", known_modifiers(entry))));
        }
        if given.iter().filter(|other| *other == part).count() > 1 {
            return Err(Error::Usage(format!("'{name}' has the modifier '{part}' more than once")));
        }
    }
    let modifiers: Vec<Modifier> = entry.modifiers.iter().filter(|m| given.contains(&m.name)).copied().collect();
    for m in &modifiers {
        if let Some(needed) = m.needs.filter(|needed| !given.contains(needed)) {
            return Err(Error::Usage(format!(
                "modifier '{}' of '{base}' needs '{needed}': {base}+{needed}+{0}",
                m.name
            )));
        }
        if let Some(other) = m.excludes.iter().find(|other| given.contains(*other)) {
            return Err(Error::Usage(format!(
                "modifiers '{}' and '{other}' of '{base}' contradict each other",
                m.name
            )));
        }
    }
    Ok((entry, modifiers))
}

fn known_modifiers(entry: &Entry) -> String {
    let known: Vec<_> = entry.modifiers.iter().map(|m| m.name).collect();
    match known.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it knows {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> String {
        by_name(name, &MethodOptions::default()).unwrap_err().to_string()
    }

    #[test]
    fn every_method_and_modifier_is_found_under_its_own_name() {
        for entry in METHODS {
            for name in entry.names() {
                assert_eq!(by_name(&name, &MethodOptions::default()).unwrap().name, name);
            }
            for m in entry.modifiers {
                let name = format!("{}+{}", entry.name, m.name);
                let known = |name: &&str| entry.modifiers.iter().any(|m| m.name == *name);
                assert!(m.needs.iter().chain(m.excludes).all(known), "{name} refers to a modifier that is not there");
                assert!(m.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
                let same = entry.modifiers.iter().filter(|other| other.name == m.name).count();
                assert_eq!(same, 1, "{name} is declared twice");
            }
        }
    }

    #[test]
    fn wrong_names_are_refused_in_one_line_that_lists_the_right_ones() {
        assert!(refusal("zip").starts_with("unknown compression method 'zip'; there are gracekv, "));
        assert!(refusal("").starts_with("unknown compression method ''; "));
        assert_eq!(refusal("none+paper"), "method 'none' has no modifier 'paper'; it has none");
        assert!(refusal("gracekv+").starts_with("method 'gracekv' has no modifier ''; it knows "));
        let unknown = refusal("gracekv+zip");
        assert!(
            unknown.starts_with("method 'gracekv' has no modifier 'zip'; it knows ") && unknown.contains("no_floor")
        );
        assert_eq!(refusal("gracekv+paper+paper"), "'gracekv+paper+paper' has the modifier 'paper' more than once");
        let needs = "modifier 'no_floor' of 'gracekv' needs 'paper': gracekv+paper+no_floor";
        assert_eq!(refusal("gracekv+no_floor"), needs);
        for pair in [["paper", "ln_m"], ["ln_m", "no_prototypes"]] {
            let [a, b] = pair;
            let want = format!("modifiers '{a}' and '{b}' of 'gracekv' contradict each other");
            assert_eq!(refusal(&format!("gracekv+{a}+{b}")), want);
            assert_eq!(refusal(&format!("gracekv+{b}+{a}")), want);
        }
        for name in ["zip", "gracekv+zip", "gracekv+paper+paper", "gracekv+paper+ln_m"] {
            assert_eq!(refusal(name).lines().count(), 1);
        }
    }
}
