//! Reads GBNF, the grammar format of llama.cpp, into rules.
//!
//! Source: `grammars/README.md` and the parser in `src/llama-grammar.cpp` of llama.cpp, whose language this is: line breaks
//! end a rule except in parentheses and after `::=` and `|`, and the last of two rules of one name counts.
//! Deviations: `[z-a]` and `{3,2}` are errors (there the first matches nothing and the second never ends), and so is
//! a character beyond Unicode. The depth of parentheses and the length of the text are limited.

use std::collections::BTreeMap;

/// Largest grammar. Units: bytes.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of parentheses.
const MAX_DEPTH: usize = 64;
/// Most repetitions of one thing, one behind the other.
const MAX_STACKED: usize = 8;
/// Largest repetition count, as in llama.cpp, which takes a larger maximum for none.
const MAX_REPEAT: usize = 2000;

/// What stands in a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// One character of a set: ranges of code points, or all others.
    Class { ranges: Vec<(u32, u32)>, negated: bool },
    /// One token, or any other.
    Token { id: u32, negated: bool },
    /// A rule.
    Rule(usize),
    /// One of several sequences.
    Group(Vec<Vec<Item>>),
    /// A sequence repeated; `max` is `None` without a limit.
    Repeat { of: Vec<Item>, min: usize, max: Option<usize> },
}

/// A rule: its alternatives, or where it was first used without having any.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// Its name.
    pub name: String,
    /// The alternatives; `None` until it is defined.
    pub alternatives: Option<Vec<Vec<Item>>>,
    /// Place of the definition, or of the first use.
    pub at: usize,
}

/// Why a text is no grammar, and where. Units: bytes from the start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub at: usize,
    pub what: String,
}

type Parsed<T> = Result<T, Fault>;

/// Finds the one token that a text like `<think>` stands for.
pub(super) type FindToken<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// Reads the rules of a grammar.
pub(super) fn parse(text: &str, find_token: FindToken<'_>) -> Parsed<Vec<Rule>> {
    let mut parser = Parser { text, at: 0, rules: Vec::new(), index: BTreeMap::new(), find_token };
    if text.len() > MAX_BYTES {
        return Err(Fault { at: 0, what: format!("the grammar has {} bytes, more than {MAX_BYTES}", text.len()) });
    }
    parser.space(true);
    while parser.peek().is_some() {
        parser.rule()?;
    }
    match parser.rules.iter().find(|r| r.alternatives.is_none()) {
        Some(rule) => Err(Fault { at: rule.at, what: format!("undefined rule '{}'", rule.name) }),
        None => Ok(parser.rules),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    rules: Vec<Rule>,
    index: BTreeMap<&'a str, usize>,
    find_token: FindToken<'a>,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Steps over `c` if it comes next.
    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += if found { c.len_utf8() } else { 0 };
        found
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        match self.eat(c) {
            true => Ok(()),
            false => self.fault(format!("expecting '{c}'")),
        }
    }

    fn fault<T>(&self, what: impl Into<String>) -> Parsed<T> {
        let what = what.into();
        let found = self.peek().map_or("the end of the grammar".into(), |c| format!("{c:?}"));
        Err(Fault {
            at: self.at,
            what: if what.starts_with("expecting") { format!("{what}, found {found}") } else { what },
        })
    }

    /// Steps over blanks, comments and, if they do not matter here, line breaks.
    fn space(&mut self, line_breaks: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if line_breaks => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let word = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn name(&mut self) -> Parsed<(&'a str, usize)> {
        let at = self.at;
        match self.word(is_word) {
            "" => self.fault("expecting a name of letters, digits and '-'"),
            name => Ok((name, at)),
        }
    }

    fn number(&mut self) -> Parsed<usize> {
        match self.word(|c| c.is_ascii_digit()) {
            "" => self.fault("expecting a number"),
            digits => Ok(digits.parse().unwrap_or(usize::MAX)),
        }
    }

    fn rule_id(&mut self, name: &'a str, at: usize) -> usize {
        let rules = &mut self.rules;
        *self.index.entry(name).or_insert_with(|| {
            rules.push(Rule { name: name.to_owned(), alternatives: None, at });
            rules.len() - 1
        })
    }

    fn rule(&mut self) -> Parsed<()> {
        let (name, at) = self.name()?;
        self.space(false);
        if !self.text[self.at..].starts_with("::=") {
            return self.fault("expecting '::='");
        }
        self.at += "::=".len();
        self.space(true);
        let id = self.rule_id(name, at);
        let alternatives = self.alternatives(0)?;
        self.rules[id].alternatives = Some(alternatives);
        self.rules[id].at = at;
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return self.fault("expecting a line break or the end of the grammar");
        }
        self.space(true);
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Parsed<Vec<Vec<Item>>> {
        let mut all = vec![self.sequence(depth)?];
        while self.eat('|') {
            self.space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, depth: usize) -> Parsed<Vec<Item>> {
        let nested = depth > 0;
        let mut items = Vec::new();
        // Where the last symbol begins, which is what a repetition repeats.
        let mut last = 0;
        let mut stacked = 0;
        while let Some(c) = self.peek() {
            if matches!(c, '*' | '+' | '?' | '{') {
                let (min, max) = self.counts(nested)?;
                if last == items.len() {
                    return self.fault(format!("'{c}' has nothing before it to repeat"));
                }
                stacked += 1;
                if stacked > MAX_STACKED {
                    return self.fault(format!("more than {MAX_STACKED} repetitions of one thing"));
                }
                let of = items.split_off(last);
                items.push(Item::Repeat { of, min, max });
                continue;
            }
            last = items.len();
            stacked = 0;
            match c {
                '"' => self.literal(&mut items)?,
                '[' => items.extend(self.class()?),
                '.' => {
                    self.at += 1;
                    items.push(Item::Class { ranges: Vec::new(), negated: true });
                }
                '<' | '!' => items.push(self.token()?),
                '(' => {
                    if depth == MAX_DEPTH {
                        return self.fault(format!("more than {MAX_DEPTH} nested parentheses"));
                    }
                    self.at += 1;
                    self.space(true);
                    items.push(Item::Group(self.alternatives(depth + 1)?));
                    self.expect(')')?;
                }
                c if is_word(c) => {
                    let (name, at) = self.name()?;
                    items.push(Item::Rule(self.rule_id(name, at)));
                }
                _ => break,
            }
            self.space(nested);
        }
        Ok(items)
    }

    /// `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}`.
    fn counts(&mut self, nested: bool) -> Parsed<(usize, Option<usize>)> {
        let start = self.at;
        let counts = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                self.space(nested);
                let min = self.number()?;
                self.space(nested);
                let mut max = Some(min);
                if self.eat(',') {
                    self.space(nested);
                    let is_given = self.peek().is_some_and(|c| c.is_ascii_digit());
                    max = if is_given { Some(self.number()?) } else { None };
                    self.space(nested);
                }
                self.expect('}')?;
                (min, max)
            }
        };
        self.space(nested);
        match counts {
            (min, _) if min > MAX_REPEAT => {
                Err(Fault { at: start, what: format!("a repetition of at least {min}; {MAX_REPEAT} is the most") })
            }
            (min, Some(max)) if max < min => Err(Fault { at: start, what: format!("a repetition of {min} to {max}") }),
            (min, max) => Ok((min, max.filter(|&max| max <= MAX_REPEAT))),
        }
    }

    fn literal(&mut self, items: &mut Vec<Item>) -> Parsed<()> {
        self.at += 1;
        while !self.eat('"') {
            let c = self.character()?;
            items.push(Item::Class { ranges: vec![(c, c)], negated: false });
        }
        Ok(())
    }

    /// A set of characters; an empty one is nothing, as in llama.cpp.
    fn class(&mut self) -> Parsed<Option<Item>> {
        self.at += 1;
        let negated = self.eat('^');
        let mut ranges = Vec::new();
        while !self.eat(']') {
            let start = self.at;
            let low = self.character()?;
            let is_range = self.peek() == Some('-') && !self.text[self.at..].starts_with("-]");
            let high = if is_range {
                self.at += 1;
                self.character()?
            } else {
                low
            };
            if high < low {
                return Err(Fault { at: start, what: "a range of characters from a higher to a lower one".into() });
            }
            ranges.push((low, high));
        }
        Ok((!ranges.is_empty()).then_some(Item::Class { ranges, negated }))
    }

    /// One character, possibly written as an escape.
    fn character(&mut self) -> Parsed<u32> {
        let start = self.at;
        let Some(c) = self.next() else { return self.fault("unexpected end of the grammar in a text or a set") };
        if c != '\\' {
            return Ok(c.into());
        }
        let n_hex = match self.next() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok('\t'.into()),
            Some('r') => return Ok('\r'.into()),
            Some('n') => return Ok('\n'.into()),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(c.into()),
            _ => return Err(Fault { at: start, what: "unknown escape".into() }),
        };
        let digits = self.text.get(self.at..self.at + n_hex).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(value) = digits.and_then(|d| u32::from_str_radix(d, 16).ok()) else {
            return self.fault(format!("expecting {n_hex} hexadecimal digits"));
        };
        self.at += n_hex;
        match value <= char::MAX.into() {
            true => Ok(value),
            false => Err(Fault { at: start, what: format!("{value:#x} is no character") }),
        }
    }

    /// `<[id]>`, `<text>`, or one of them after `!`.
    fn token(&mut self) -> Parsed<Item> {
        let negated = self.eat('!');
        let start = self.at;
        self.expect('<')?;
        let id = if self.eat('[') {
            let id = self.number()?;
            self.expect(']')?;
            self.expect('>')?;
            u32::try_from(id).ok()
        } else {
            self.word(|c| c != '>');
            self.expect('>')?;
            (self.find_token)(&self.text[start..self.at])
        };
        match id {
            Some(id) => Ok(Item::Token { id, negated }),
            None => Err(Fault {
                at: start,
                what: format!("'{}' is not one token of this model", &self.text[start..self.at]),
            }),
        }
    }
}
