//! The order of the samplers, from names or letters.
//!
//! Source: `common_sampler_types_from_names` and `common_sampler_types_from_chars` of llama.cpp (`common/sampling.cpp`).

use super::SAMPLERS;
use crate::error::{Error, Result};

/// Name and letter of what draws the token in place of `dist`.
pub(super) const ADAPTIVE_P: (&str, char) = ("adaptive_p", 'a');

/// Name and letter of the one that is refused.
const INFILL: (&str, char) = ("infill", 'i');

/// Other names beside the spellings with `-` and without `_`.
const ALIASES: [(&str, &str); 3] = [("nucleus", "top_p"), ("temp", "temperature"), ("typ", "typ_p")];

/// Samplers in the order that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Their names.
    pub names: Vec<&'static str>,
    /// What is said about names that no sampler has; they are left out, as in llama.cpp.
    pub warnings: Vec<String>,
}

/// All names with their letters.
fn known() -> impl Iterator<Item = (&'static str, char)> {
    SAMPLERS.iter().map(|e| (e.name, e.letter)).chain([ADAPTIVE_P, INFILL])
}

impl Order {
    /// From names between semicolons, in any case.
    ///
    /// # Errors
    /// [`Error::Usage`] for the infill sampler.
    pub fn from_names(text: &str) -> Result<Self> {
        let mut order = Order::default();
        for name in text.split(';') {
            let lower = name.to_ascii_lowercase();
            let alias = ALIASES.iter().find(|(alias, _)| *alias == lower).map(|(_, name)| *name);
            let spelled =
                |name: &&str| *name == lower || name.replace('_', "-") == lower || name.replace('_', "") == lower;
            order.push(alias.or(known().map(|(name, _)| name).find(spelled)), "name", &lower)?;
        }
        Ok(order)
    }

    /// From one letter for each sampler.
    ///
    /// # Errors
    /// [`Error::Usage`] for the infill sampler.
    pub fn from_letters(text: &str) -> Result<Self> {
        let mut order = Order::default();
        for letter in text.chars() {
            let name = known().find(|(_, l)| *l == letter).map(|(name, _)| name);
            order.push(name, "char", &letter.to_string())?;
        }
        Ok(order)
    }

    fn push(&mut self, found: Option<&'static str>, kind: &str, spelling: &str) -> Result<()> {
        match found {
            Some(name) if name == INFILL.0 => {
                return Err(Error::Usage("the infill sampler is not supported: it completes code between a prefix and a suffix, and there is no such mode here".into()))
            }
            Some(name) => self.names.push(name),
            None => self.warnings.push(format!("unable to match sampler by {kind} '{spelling}'")),
        }
        Ok(())
    }
}
