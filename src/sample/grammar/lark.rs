//! Writes rules in the Lark variant that llguidance reads.
//!
//! Every terminal is one character: llguidance's lexer takes the longest match, which decides nothing where all matches
//! are equally long, so the texts of the grammar are exactly those of the rules.
//! Source of the format: github.com/guidance-ai/llguidance, `docs/syntax.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::gbnf::{Item, Rule};

/// First and last code point that is no character.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// The grammar in Lark, for texts that match the rule `root`, and the number of its rules.
///
/// Groups become rules of their own, since llguidance limits the nesting of parentheses.
pub(super) fn write(rules: &[Rule], root: usize) -> (String, usize) {
    let mut writer = Writer::default();
    for (id, rule) in rules.iter().enumerate() {
        let body = writer.alternatives(rule.alternatives.as_deref().unwrap_or_default());
        let _ = writeln!(writer.rules, "r{id}: {body}");
    }
    // Without forcing, a text that the grammar dictates may be split into tokens as the model likes.
    let mut lark = format!("%llguidance {{\"no_forcing\": true}}\nstart: r{root}\n{}", writer.rules);
    for (class, id) in &writer.terminals {
        let _ = writeln!(lark, "C{id}: /{class}/");
    }
    (lark, rules.len() + writer.n_groups)
}

#[derive(Default)]
struct Writer {
    rules: String,
    n_groups: usize,
    /// Number of each set of characters, by its regular expression.
    terminals: BTreeMap<String, usize>,
}

impl Writer {
    fn alternatives(&mut self, all: &[Vec<Item>]) -> String {
        all.iter().map(|s| self.sequence(s)).collect::<Vec<_>>().join(" | ")
    }

    fn sequence(&mut self, sequence: &[Item]) -> String {
        match sequence {
            [] => "\"\"".to_owned(),
            items => items.iter().map(|i| self.item(i)).collect::<Vec<_>>().join(" "),
        }
    }

    fn item(&mut self, item: &Item) -> String {
        match item {
            Item::Class { ranges, negated } => {
                let n = self.terminals.len();
                let id = self.terminals.entry(class(ranges, *negated)).or_insert(n);
                format!("C{id}")
            }
            Item::Token { id, negated } => format!("<[{}{id}]>", if *negated { "^" } else { "" }),
            Item::Rule(id) => format!("r{id}"),
            Item::Group(all) => {
                let body = self.alternatives(all);
                self.group(&body)
            }
            Item::Repeat { max: Some(0), .. } => "\"\"".to_owned(),
            Item::Repeat { of, min, max } => {
                let body = self.sequence(of);
                let of = match of.as_slice() {
                    [Item::Class { .. } | Item::Rule(_) | Item::Group(_)] => body,
                    _ => self.group(&body),
                };
                match (min, max) {
                    (0, None) => format!("{of}*"),
                    (1, None) => format!("{of}+"),
                    (0, Some(1)) => format!("{of}?"),
                    (min, None) => format!("{of}{{{min},}}"),
                    (min, Some(max)) => format!("{of}{{{min},{max}}}"),
                }
            }
        }
    }

    /// A new rule of this body.
    fn group(&mut self, body: &str) -> String {
        let name = format!("g{}", self.n_groups);
        self.n_groups += 1;
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }
}

/// A regular expression for one character of a set.
fn class(ranges: &[(u32, u32)], negated: bool) -> String {
    let mut sorted = ranges.to_vec();
    // Taken as part of the set, they are left out of its complement, and below of the set itself.
    sorted.extend(negated.then_some(SURROGATES));
    sorted.sort_unstable();
    let mut wanted = Vec::new();
    if negated {
        let mut next = 0;
        for (low, high) in sorted {
            if low > next {
                wanted.push((next, low - 1));
            }
            next = next.max(high + 1);
        }
        wanted.push((next, char::MAX.into()));
    } else {
        let (first, last) = SURROGATES;
        for (low, high) in sorted {
            wanted.push((low, high.min(first - 1)));
            wanted.push((low.max(last + 1), high));
        }
    }
    wanted.retain(|(low, high)| low <= high);
    let range = |(low, high): (u32, u32)| match low == high {
        true => format!("\\x{{{low:x}}}"),
        false => format!("\\x{{{low:x}}}-\\x{{{high:x}}}"),
    };
    match wanted.is_empty() {
        true => "[^\\x{0}-\\x{10ffff}]".to_owned(),
        false => format!("[{}]", wanted.into_iter().map(range).collect::<String>()),
    }
}
