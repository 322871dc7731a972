//! Chat templates (stage 2 of the flow): a conversation becomes the prompt text its model was trained on.
//!
//! Source: `tokenizer.chat_template` of the model file, in the environment of Hugging Face transformers
//! (`utils/chat_template_utils.py`: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, `tojson`);
//! continuation and the chatml fallback as llama.cpp `common/chat.cpp` (`common_chat_format_single`).
//! A template is foreign code: it gets fuel in proportion to its input (which also bounds memory and output), a recursion
//! limit, no files and no includes.
//! Deviation: when a template rewrites earlier turns, llama.cpp cuts its text at a wrong place; here the text behind the
//! end token of the last answer is taken.

use std::io::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{context, Environment, ErrorKind};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::error::{Error, Result};

/// Fuel for every rendering; one unit is about one instruction or 64 bytes of data.
const FUEL: u64 = 300_000;
const RECURSION_LIMIT: usize = 64;
const PLACEHOLDER: &str = "4e1b7c92";
const CHATML: &str = "\
{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}";

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A turn of `role` that says `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template has to know about the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Text of the token that begins a sequence; empty without one.
    pub bos: String,
    /// Text of the token that ends a sequence; empty without one.
    pub eos: String,
    /// The tokenizer puts BOS in front itself, so the template's own is removed.
    pub add_bos: bool,
}

/// A compiled chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    special: SpecialTokens,
}

impl ChatTemplate {
    /// Compiles `source` and tries it on one turn of the user.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming the line and the reason.
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(unsupported)?;
        env.set_syntax(syntax);
        env.set_recursion_limit(RECURSION_LIMIT);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        env.add_filter("tojson", tojson);
        env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        env.add_template_owned("chat", without_generation_tags(source)).map_err(unsupported)?;
        let template = ChatTemplate { env, special };
        template.render(&[Message::new("user", "test")], true)?;
        Ok(template)
    }

    /// The template that is used when a model brings none.
    ///
    /// # Errors
    /// None in practice: the text is a constant.
    pub fn chatml(special: SpecialTokens) -> Result<Self> {
        Self::new(CHATML, special)
    }

    /// The template of a run: the user's if there is one, else the model's, else chatml with a notice to be shown.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the user's own template cannot be used. A broken template of the model is a notice.
    pub fn open(given: Option<&str>, model: Option<&str>, special: SpecialTokens) -> Result<(Self, Option<String>)> {
        let reason = match (given, model) {
            (Some("chatml"), _) => return Ok((Self::chatml(special)?, None)),
            (Some(name), _) if !name.contains('{') => {
                return Err(Error::unsupported(
                    "built-in chat template (only chatml is built in; give the Jinja text)",
                    name,
                ))
            }
            (Some(source), _) => return Ok((Self::new(source, special)?, None)),
            (None, Some(source)) => match Self::new(source, special.clone()) {
                Ok(template) => return Ok((template, None)),
                Err(e) => format!("the model's own chat template cannot be used ({e})"),
            },
            (None, None) => "the model has no chat template".to_string(),
        };
        let notice = format!("{reason}: chatml is used instead, which may give worse answers; --chat-template sets another one, -no-cnv none");
        Ok((Self::chatml(special)?, Some(notice)))
    }

    /// The prompt text of a whole conversation.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the template refuses the conversation or needs too much time or memory.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let n_bytes: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let mut env = self.env.clone();
        env.set_fuel(Some(FUEL + n_bytes as u64 / 4));
        let template = env.get_template("chat").map_err(unsupported)?;
        let turns: Vec<Value> =
            messages.iter().map(|m| context! { role => m.role.as_str(), content => m.content.as_str() }).collect();
        let text = template
            .render(context! {
                messages => turns,
                bos_token => self.special.bos.as_str(),
                eos_token => self.special.eos.as_str(),
                add_generation_prompt => add_generation_prompt,
                enable_thinking => true,
                tools => Value::from(()),
                documents => Value::from(()),
            })
            .map_err(unsupported)?;
        let own_bos = if self.special.add_bos { text.strip_prefix(&self.special.bos) } else { None };
        Ok(own_bos.map(str::to_string).unwrap_or(text))
    }

    /// The text that continues a conversation: what the cache still lacks when the user says `turn` after `past`.
    ///
    /// `answer_end` is the text of the token with which the model ended its last answer; the cache holds it already.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the template refuses the conversation, or rewrites earlier turns and the answer's end is not found.
    pub fn continuation(&self, past: &[Message], turn: &Message, answer_end: &str) -> Result<String> {
        let mut all: Vec<Message> = past.iter().chain([turn]).cloned().collect();
        let after = self.render(&all, true)?;
        if past.is_empty() {
            return Ok(after);
        }
        let before = self.render(past, false)?;
        if let Some(text) = after.strip_prefix(&before) {
            // The model ends its answer without the line break that the template puts behind it.
            let line_break = if before.ends_with('\n') { "\n" } else { "" };
            return Ok(format!("{line_break}{text}"));
        }
        let answer = all.get_mut(past.len() - 1).filter(|m| m.role == "assistant");
        let text = match answer {
            Some(answer) if !answer_end.is_empty() => {
                answer.content = PLACEHOLDER.to_string();
                let text = self.render(&all, true)?;
                let behind = text.rsplit_once(PLACEHOLDER).and_then(|(_, tail)| tail.split_once(answer_end));
                behind.map(|(_, tail)| tail.to_string())
            }
            _ => None,
        };
        text.ok_or_else(|| {
            Error::unsupported("chat template", "it rewrites earlier turns, so the conversation cannot go on")
        })
    }
}

fn unsupported(e: minijinja::Error) -> Error {
    let line = e.line().map(|n| format!("line {n}: ")).unwrap_or_default();
    let detail = e.detail().map(|d| format!(": {d}")).unwrap_or_default();
    Error::unsupported("chat template", format!("{line}{}{detail}", e.kind()))
}

/// `{% generation %}` marks the text to train on; for rendering it is a block that always runs.
fn without_generation_tags(source: &str) -> String {
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

fn raise_exception(message: &str) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_string()))
}

fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let failed = |e: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    jiff::fmt::strtime::format(format, &jiff::Zoned::now()).map_err(failed)
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`; minijinja's own filter escapes for HTML.
fn tojson(value: &Value, args: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = args.get("indent")?;
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    let mut text = Vec::new();
    match indent {
        Some(n) => {
            let indent = vec![b' '; n.min(64)];
            let mut json = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(&indent));
            serde::Serialize::serialize(value, &mut json).map_err(failed)?;
        }
        None => {
            let mut json = Serializer::with_formatter(&mut text, PythonSpaces);
            serde::Serialize::serialize(value, &mut json).map_err(failed)?;
        }
    }
    String::from_utf8(text).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn special() -> SpecialTokens {
        SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), add_bos: false }
    }

    fn user(text: &str) -> Message {
        Message::new("user", text)
    }

    /// Renders `source` for one turn of the user.
    fn rendered(source: &str) -> Result<String> {
        ChatTemplate::new(source, special())?.render(&[user("hi")], true)
    }

    #[test]
    fn a_hostile_template_ends_with_an_error() {
        for source in [
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
            "{{ 'x' * 9000000000000 }}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "{% include 'etc' %}",
            "{% import 'etc' as x %}",
            "{{ strftime_now('%Q %!') }}",
            "{{ nothing() }}",
            "{{ 1",
            "{% unknown_tag %}",
        ] {
            assert!(rendered(source).is_err(), "{source}");
        }
        let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(rendered(&format!("{{{{ {deep} }}}}")).is_err());
    }

    #[test]
    fn errors_name_the_line_and_the_reason() {
        let text = |source| rendered(source).unwrap_err().to_string();
        assert_eq!(
            text("\n{{ raise_exception('roles must alternate') }}"),
            "unsupported chat template: 'line 2: invalid operation: roles must alternate'"
        );
        assert!(text("a\nb\n{% breakfast %}").contains("line 3"));
    }

    #[test]
    fn python_habits_work() {
        assert_eq!(rendered("{{ ' a '.strip() + 'x'.upper() }}").unwrap(), "aX");
        assert_eq!(
            rendered("{{ {'b': [1, true, none], 'a': '<é>'} | tojson }}").unwrap(),
            r#"{"b": [1, true, null], "a": "<é>"}"#
        );
        assert_eq!(rendered("{{ {'a': [1]} | tojson(indent=2) }}").unwrap(), "{\n  \"a\": [\n    1\n  ]\n}");
        assert_eq!(
            rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}").unwrap(),
            "01"
        );
        assert_eq!(rendered("a  {%- generation -%}  b  {%- endgeneration %} c").unwrap(), "ab c");
        let year = rendered("{{ strftime_now('%Y') }}").unwrap();
        assert!(year.len() == 4 && year.parse::<u32>().unwrap() > 2023);
    }

    #[test]
    fn the_fallback_is_announced_and_a_wrong_choice_refused() {
        let open = |given, model| ChatTemplate::open(given, model, special());
        let chatml = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        for (model, notice) in [(None, "has no chat template"), (Some("{% oops %}"), "cannot be used")] {
            let (template, said) = open(None, model).unwrap();
            assert!(said.unwrap().contains(notice));
            assert_eq!(template.render(&[user("hi")], true).unwrap(), chatml);
        }
        assert!(open(Some("chatml"), Some("{% oops %}")).unwrap().1.is_none());
        assert!(open(Some("{% oops %}"), None).is_err());
        assert!(open(Some("llama3"), None).is_err());
    }

    #[test]
    fn bos_is_left_to_a_tokenizer_that_adds_it() {
        let with = SpecialTokens { add_bos: true, ..special() };
        let template = ChatTemplate::new("{{ bos_token }}x", with).unwrap();
        assert_eq!(template.render(&[user("hi")], true).unwrap(), "x");
        assert_eq!(rendered("{{ bos_token }}x").unwrap(), "<s>x");
    }
}
