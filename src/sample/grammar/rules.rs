//! What can be wrong with rules that are well written: no root, a rule that begins with itself.
//!
//! Source: `llama_grammar_detect_left_recursion` of llama.cpp. Which rules may be empty is computed to the end here, so that
//! `a ::= b a` is found whatever makes `b` empty; a repetition of something that may be empty is none.

use super::gbnf::{Fault, Item, Rule};

/// The rule that a text has to match.
const ROOT: &str = "root";

/// The index of the root rule, when all rules can be used.
pub(super) fn check(rules: &[Rule]) -> Result<usize, Fault> {
    let root = rules.iter().position(|r| r.name == ROOT);
    let root = root.ok_or_else(|| Fault { at: 0, what: format!("the grammar has no '{ROOT}' rule") })?;
    match left_recursive(rules) {
        Some(id) => {
            let what = format!("left recursion: rule '{}' begins with itself", rules[id].name);
            Err(Fault { at: rules[id].at, what })
        }
        None => Ok(root),
    }
}

fn alternatives(rule: &Rule) -> &[Vec<Item>] {
    rule.alternatives.as_deref().unwrap_or_default()
}

/// The first rule that can begin with itself.
fn left_recursive(rules: &[Rule]) -> Option<usize> {
    let empty = may_be_empty(rules);
    let first: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut first = Vec::new();
            alternatives(rule).iter().for_each(|s| leading(s, &empty, &mut first));
            first.sort_unstable();
            first.dedup();
            first
        })
        .collect();
    // Rules are removed once all that they can begin with are; what is left begins in a circle.
    let mut n_left: Vec<usize> = first.iter().map(Vec::len).collect();
    let mut used_by: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    first.iter().enumerate().for_each(|(id, first)| first.iter().for_each(|&f| used_by[f].push(id)));
    let mut done: Vec<usize> = (0..rules.len()).filter(|&id| n_left[id] == 0).collect();
    while let Some(id) = done.pop() {
        for &user in &used_by[id] {
            n_left[user] -= 1;
            if n_left[user] == 0 {
                done.push(user);
            }
        }
    }
    // A rule may only lead into the circle; following what is left ends in it.
    let mut id = n_left.iter().position(|&n| n > 0)?;
    for _ in 0..rules.len() {
        id = *first[id].iter().find(|&&f| n_left[f] > 0)?;
    }
    Some(id)
}

fn may_be_empty(rules: &[Rule]) -> Vec<bool> {
    let mut empty = vec![false; rules.len()];
    loop {
        let found = (0..rules.len()).filter(|&id| {
            let is_new = !empty[id] && alternatives(&rules[id]).iter().any(|s| is_empty(s, &empty));
            empty[id] |= is_new;
            is_new
        });
        if found.count() == 0 {
            return empty;
        }
    }
}

fn is_empty(sequence: &[Item], rules: &[bool]) -> bool {
    sequence.iter().all(|item| match item {
        Item::Class { .. } | Item::Token { .. } => false,
        Item::Rule(id) => rules[*id],
        Item::Group(all) => all.iter().any(|s| is_empty(s, rules)),
        Item::Repeat { of, min, .. } => *min == 0 || is_empty(of, rules),
    })
}

/// Adds the rules with which a sequence can begin.
fn leading(sequence: &[Item], empty: &[bool], first: &mut Vec<usize>) {
    for item in sequence {
        match item {
            Item::Class { .. } | Item::Token { .. } => {}
            Item::Rule(id) => first.push(*id),
            Item::Group(all) => all.iter().for_each(|s| leading(s, empty, first)),
            Item::Repeat { of, .. } => leading(of, empty, first),
        }
        if !is_empty(std::slice::from_ref(item), empty) {
            return;
        }
    }
}
