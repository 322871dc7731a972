//! What chat templates take from Python and from Hugging Face transformers: functions, filters, methods and tests.

use std::io::Write;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Adds all of them.
pub(super) fn install(env: &mut Environment) {
    env.set_unknown_method_callback(|state, value, method, args| {
        if method == "format" && value.as_str().is_some_and(has_large_number) {
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "format with a width above 9999"));
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
}

/// Whether a number of five digits or more stands in it. As a width it would ask for memory that no fuel pays for.
fn has_large_number(text: &str) -> bool {
    text.as_bytes().windows(5).any(|w| w.iter().all(u8::is_ascii_digit))
}

/// `{% generation %}` marks the text to train on; for rendering it is a block that always runs.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag, after)) =
        rest.split_once("{%").and_then(|(b, r)| r.split_once("%}").map(|(t, a)| (b, t, a)))
    {
        let name = tag.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let tag = match name {
            "generation" => tag.replace(name, "if true"),
            "endgeneration" => tag.replace(name, "endif"),
            _ => tag.to_string(),
        };
        text.extend([before, "{%", &tag, "%}"]);
        rest = after;
    }
    text.push_str(rest);
    text
}

/// The date in the format of Python's and C's `strftime`.
pub(super) fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let failed = |e: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(failed)
}

fn raise_exception(message: &str) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`; minijinja's own filter escapes for HTML.
fn tojson(state: &State, value: &Value, args: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = args.get("indent")?;
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    let mut text = Paid { text: Vec::new(), state };
    let done = match indent {
        Some(n) => {
            let indent = vec![b' '; n.min(64)];
            value.serialize(&mut Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(&indent)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, PythonSpaces)),
    };
    done.map_err(failed)?;
    String::from_utf8(text.text).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

/// Text that costs fuel while it grows.
struct Paid<'a, 'b, 'c> {
    text: Vec<u8>,
    state: &'a State<'b, 'c>,
}

impl Write for Paid<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n_before = self.text.len() as u64 / 64;
        self.text.extend_from_slice(bytes);
        let n_units = self.text.len() as u64 / 64 - n_before;
        self.state.consume_fuel(n_units).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct PythonSpaces;

impl Formatter for PythonSpaces {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
