//! Grammars: which tokens may come next, so that the whole text matches.
//!
//! `gbnf` reads llama.cpp's grammars, `rules` refuses those that cannot be used, `lark` hands the others to llguidance
//! (github.com/guidance-ai/llguidance), the constrained decoding library that llama.cpp, vLLM and SGLang can use as well: an
//! Earley parser over a trie of the vocabulary, some microseconds for a token and some milliseconds for all of them. JSON
//! schemas and grammars that begin with `%llguidance` are its own formats, as in a llama.cpp built with it.
//! Semantics of llama.cpp's `llama_grammar_apply_impl`: a token is its text, control tokens included; a token that ends the
//! generation is allowed where the text is complete.
//! Deviation: where a grammar allows a token both by its number and by its text, it counts by its number.

mod gbnf;
mod lark;
mod rules;
mod schema;
mod trie;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};

use super::{Candidates, Vocabulary};
use crate::error::{Error, Result};
use gbnf::Fault;
use trie::Trie;

/// How GBNF grammars of llguidance's own format begin, as in llama.cpp.
const LLGUIDANCE: &str = "%llguidance";

/// Space between the elements of JSON, as `common/json-schema-to-grammar.cpp` of llama.cpp allows it: without a limit, small
/// models write space for ever.
const JSON_SPACE: &str = r"( |\n[ \t]{0,20})";

/// Earley items and steps of the lexer for the mask of one token; a grammar that needs more is refused.
const MAX_STEP: usize = 10_000_000;

/// Earley items at one place of the text: how ambiguous a grammar may be.
const MAX_ROW: usize = 20_000;

/// Rules and groups of a grammar.
const MAX_RULES: usize = 30_000;

/// Lines of an error of the library that are shown; states of its parser may follow.
const MAX_LINES: usize = 6;

/// Stack for the compilation of that many. Units: bytes.
const COMPILE_STACK: usize = 128 << 20;

/// What the text has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// A grammar in GBNF.
    Gbnf {
        /// Where it comes from, for errors.
        source: String,
        /// Its text.
        text: String,
    },
    /// A JSON schema.
    JsonSchema {
        /// Where it comes from, for errors.
        source: String,
        /// Its text.
        text: String,
    },
}

impl Constraint {
    /// Whether it says nothing: an empty grammar, as in llama.cpp.
    pub fn is_empty(&self) -> bool {
        matches!(self, Constraint::Gbnf { text, .. } if text.is_empty())
    }
}

/// A grammar and how much of it the text has matched.
pub struct Grammar {
    start: Matcher,
    matcher: Matcher,
    /// Whether the matcher has left the start.
    is_moved: bool,
    trie: Trie,
    warnings: Vec<String>,
}

impl Grammar {
    /// Prepares a grammar for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Usage`] with the place and the reason when the text is no grammar or schema, or one that is too large.
    pub fn new(constraint: &Constraint, vocabulary: &dyn Vocabulary) -> Result<Self> {
        let source = match constraint {
            Constraint::Gbnf { source, .. } | Constraint::JsonSchema { source, .. } => source,
        };
        let refuse = |what: String| Error::Usage(format!("failed to parse grammar: {source}: {what}"));
        let grammar = match constraint {
            Constraint::Gbnf { text, .. } if text.starts_with(LLGUIDANCE) => TopLevelGrammar::from_lark(text.clone()),
            Constraint::Gbnf { text, .. } => TopLevelGrammar::from_lark(
                gbnf_to_lark(text, vocabulary)
                    .map_err(|f| Error::Usage(format!("failed to parse grammar: {source}:{f}")))?,
            ),
            Constraint::JsonSchema { text, .. } => TopLevelGrammar::from_json_schema(schema(text).map_err(refuse)?),
        };
        let trie = Trie::new(vocabulary);
        let mut start = compile(grammar, &trie).map_err(refuse)?;
        Ok(Grammar { matcher: start.clone(), warnings: start.grammar_warnings(), is_moved: false, start, trie })
    }

    /// What of the schema is not enforced.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// [`Error::Usage`] when the grammar is too ambiguous to go on.
    pub fn allows(&mut self, token: u32) -> Result<bool> {
        if self.trie.is_eog(token) {
            return self.is_complete();
        }
        Ok(!self.is_finished()? && self.matcher.validate_tokens(&[self.trie.twin(token)]).map_err(too_complex)? == 1)
    }

    /// Forbids all candidates that may not come next.
    ///
    /// # Errors
    /// As [`Grammar::allows`].
    pub fn apply(&mut self, candidates: &mut Candidates) -> Result<()> {
        let is_complete = self.is_complete()?;
        let mask = match self.is_finished()? {
            true => None,
            false => Some(self.matcher.compute_mask().map_err(too_complex)?),
        };
        candidates.forbid(|id| match self.trie.is_eog(id) {
            true => !is_complete,
            false => !mask.as_ref().is_some_and(|mask| mask.is_allowed(self.trie.twin(id))),
        });
        Ok(())
    }

    /// Goes on by a token of the answer.
    ///
    /// # Errors
    /// [`Error::Usage`] when the grammar does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        if self.trie.is_eog(token) {
            return Ok(());
        }
        self.is_moved = true;
        self.matcher.consume_token(self.trie.twin(token)).map_err(too_complex)
    }

    /// Starts over, for a new answer.
    pub fn restart(&mut self) {
        if std::mem::take(&mut self.is_moved) {
            self.matcher = self.start.clone();
        }
    }

    /// Whether the text so far matches the grammar.
    ///
    /// # Errors
    /// As [`Grammar::allows`].
    pub fn is_complete(&mut self) -> Result<bool> {
        Ok(self.is_finished()? || self.matcher.is_accepting().map_err(too_complex)?)
    }

    /// Whether the text is complete and nothing can follow.
    fn is_finished(&self) -> Result<bool> {
        match self.matcher.get_error() {
            Some(e) => Err(too_complex(e)),
            None => Ok(self.matcher.is_stopped()),
        }
    }
}

/// Compiles a grammar; the library does so by recursion, a level or more for each rule, and so gets a stack for it.
fn compile(grammar: TopLevelGrammar, trie: &Trie) -> std::result::Result<Matcher, String> {
    let work = || {
        let mut factory = ParserFactory::new(&trie.env(), Default::default(), &[]).map_err(|e| words(&e))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.step_max_items = MAX_STEP;
        limits.step_lexer_fuel = MAX_STEP as u64;
        limits.max_items_in_row = MAX_ROW;
        limits.verbose_errors = false;
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(e) => Err(words(&e)),
            None => Ok(matcher),
        }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(COMPILE_STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| format!("no thread to read it: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("the library failed".to_owned()))
    })
}

/// The Lark text of a GBNF grammar; the error begins with line and column.
fn gbnf_to_lark(text: &str, vocabulary: &dyn Vocabulary) -> std::result::Result<String, String> {
    let find_token = |name: &str| match vocabulary.encode(name.as_bytes(), true).ok()?.as_slice() {
        [id] => Some(*id),
        _ => None,
    };
    let parsed = gbnf::parse(text, &find_token).and_then(|rules| {
        let root = rules::check(&rules)?;
        match lark::write(&rules, root) {
            (lark, n) if n <= MAX_RULES => Ok(lark),
            (_, n) => Err(Fault { at: 0, what: format!("{n} rules and groups; {MAX_RULES} are the most") }),
        }
    });
    parsed.map_err(|fault| {
        let before = &text[..fault.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        format!("{line}:{column}: {}", fault.what)
    })
}

/// A JSON schema with the settings that make the library treat it as llama.cpp does.
fn schema(text: &str) -> std::result::Result<Value, String> {
    let mut schema: Value = serde_json::from_str(text).map_err(|e| format!("the schema is not JSON: {e}"))?;
    schema::close(&mut schema);
    match &mut schema {
        Value::Object(fields) => {
            let settings = json!({ "whitespace_pattern": JSON_SPACE, "lenient": true });
            fields.entry("x-guidance").or_insert(settings);
            Ok(schema)
        }
        Value::Bool(_) => Ok(schema),
        _ => Err("a schema is an object, true or false".to_owned()),
    }
}

/// What the library says; errors of patterns have the place and the reason in their last lines.
fn words(e: &impl std::fmt::Display) -> String {
    let text = e.to_string();
    if text.starts_with("panic:") {
        // An assertion of the library; its limits are those of 16-bit numbers.
        return "the grammar is too large".to_owned();
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_LINES).collect();
    if lines.is_empty() {
        "unknown error".to_owned()
    } else {
        lines.join(" ")
    }
}

/// Why the library stops within a grammar, which it says in names of its own.
fn too_complex(e: impl std::fmt::Display) -> Error {
    let text = words(&e);
    let why = match text.as_str() {
        t if t.contains("NoExtensionBias") => "no token of this vocabulary can come next",
        t if t.contains("TooComplex") => "it is too ambiguous here, or needs too much at once",
        t => t,
    };
    Error::Usage(format!("the grammar cannot be followed further: {why}"))
}
