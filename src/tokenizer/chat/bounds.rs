//! How deeply a template and its values may be nested: minijinja compiles, compares, writes and drops both by recursion.
//!
//! Lists and maps never change, so that only a namespace could contain itself, and only in one could a value grow with every
//! turn of a loop. What is put into a namespace therefore passes through a filter, which is written into the template where
//! that happens. Everything else is no deeper than its source is long.

use minijinja::machinery::{tokenize, Span, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{DynObject, ObjectRepr, Tuple, Value};
use minijinja::{Environment, Error, ErrorKind, State};

/// Longest template; those of models have up to 40,000 bytes.
const MAX_BYTES: usize = 128 << 10;
/// Most tokens of one tag, each of which can be a level of its expression; those of models have up to some hundred.
const MAX_TAG: usize = 5_000;
/// Deepest value in a namespace.
const MAX_DEPTH: usize = 1_000;
/// Elements that are looked at for one unit of fuel.
const N_FUEL: u64 = 64;
const FILTER: &str = "gracekv_settled";

/// The template with the filter for namespaces in it, if it is one that the stack of a rendering is large enough for.
pub(super) fn bounded(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let refuse = |what: String| Error::new(ErrorKind::SyntaxError, what);
    if source.len() > MAX_BYTES {
        return Err(refuse(format!("the template has {} bytes; {MAX_BYTES} are the most", source.len())));
    }
    let (mut out, mut n_copied) = (String::with_capacity(source.len()), 0);
    let mut tag = Vec::new();
    // What cannot be read ends here and in the compiler.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        if matches!(token, Token::BlockStart | Token::VariableStart) {
            tag.clear();
        }
        let is_end = matches!(token, Token::BlockEnd);
        tag.push((token, span));
        if tag.len() > MAX_TAG {
            return Err(refuse(format!("the tag in line {} has more than {MAX_TAG} tokens", span.start_line)));
        }
        for (at, text) in if is_end { insertions(&tag) } else { Vec::new() } {
            out.push_str(&source[n_copied..at]);
            out.push_str(&text);
            n_copied = at;
        }
    }
    Ok(out + &source[n_copied..])
}

/// What has to be put into `{% set a.b = x %}` or `{% set a.b | f %}`, and where.
fn insertions(tag: &[(Token, Span)]) -> Vec<(usize, String)> {
    let [(Token::BlockStart, _), (Token::Ident("set"), _), rest @ ..] = tag else { return Vec::new() };
    let is_behind = |t: &Token| matches!(t, Token::Assign | Token::Pipe | Token::BlockEnd);
    let (target, behind) = rest.split_at(rest.iter().position(|(t, _)| is_behind(t)).unwrap_or(rest.len()));
    let is_attribute = target.iter().any(|(t, _)| matches!(t, Token::Dot));
    match behind {
        [(Token::Assign, assign), .., (_, end)] if is_attribute => {
            vec![(assign.end_offset as usize, "(".into()), (end.start_offset as usize, format!(")|{FILTER}"))]
        }
        [(Token::Pipe, _), .., (_, end)] if is_attribute => vec![(end.start_offset as usize, format!("|{FILTER}"))],
        _ => Vec::new(),
    }
}

/// Adds the filter.
pub(super) fn install(env: &mut Environment) {
    env.add_filter(FILTER, |state: &State, value: Value| {
        let settled = Settling { state, n_elements: 0 }.settle(&value, MAX_DEPTH)?;
        Ok::<_, Error>(settled.unwrap_or(value))
    });
}

/// The walk through a value.
struct Settling<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    n_elements: u64,
}

impl Settling<'_, '_, '_> {
    /// The value with lists for what would compute its elements anew at each use; `None` where it has nothing of the kind.
    fn settle(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
        let Some(object) = value.as_object() else { return Ok(None) };
        if is(object, "Namespace") {
            return refuse("a namespace cannot be put into a namespace".to_owned());
        }
        if depth == 0 {
            return refuse(format!("a value in a namespace is nested more than {MAX_DEPTH} times"));
        }
        let mut is_new = object.repr() == ObjectRepr::Iterable || is(object, "MergeDict");
        let mut children = |settling: &mut Self, values: &mut dyn Iterator<Item = Value>| {
            let mut all = Vec::new();
            for value in values {
                settling.pay(is_new)?;
                let settled = settling.settle(&value, depth - 1)?;
                is_new |= settled.is_some();
                all.push(settled.unwrap_or(value));
            }
            Ok::<_, Error>(all)
        };
        let settled = match object.repr() {
            ObjectRepr::Map if !is(object, "Macro") => {
                let (keys, values): (Vec<_>, Vec<_>) = object.try_iter_pairs().into_iter().flatten().unzip();
                let keys = children(self, &mut keys.into_iter())?;
                let values = children(self, &mut values.into_iter())?;
                Value::from_pairs(keys.into_iter().zip(values))
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                let values = children(self, &mut object.try_iter().into_iter().flatten())?;
                if value.is_tuple() {
                    Tuple::from(values).into()
                } else {
                    values.into()
                }
            }
            _ => return Ok(None),
        };
        Ok(is_new.then_some(settled))
    }

    /// One more element has been looked at, or copied.
    fn pay(&mut self, is_copied: bool) -> Result<(), Error> {
        self.n_elements += if is_copied { N_FUEL / 8 } else { 1 };
        let n_units = self.n_elements / N_FUEL;
        self.n_elements %= N_FUEL;
        self.state.consume_fuel(n_units)
    }
}

/// Whether the object is minijinja's own of this name.
fn is(object: &DynObject, name: &str) -> bool {
    object.type_name().strip_prefix("minijinja::").is_some_and(|path| path.rsplit("::").next() == Some(name))
}
