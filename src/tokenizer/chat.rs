//! Chat templates (stage 2 of the flow): a conversation becomes the prompt text its model was trained on.
//!
//! Source: `tokenizer.chat_template` of the model file, in the environment of Hugging Face transformers
//! (`utils/chat_template_utils.py`: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, `tojson`); variables,
//! continuation and the chatml fallback as llama.cpp `common/chat.cpp`; its built-in templates are in `builtin`.
//! A template is foreign code: it gets fuel in proportion to its input (which also bounds memory and output), limits of
//! nesting (`bounds`), a deadline for what fuel does not count, no files and no includes.
//! Deviation: when a template rewrites earlier turns, llama.cpp cuts its text at a wrong place; here the text behind the
//! end token of the last answer is taken.

mod bounds;
mod builtin;
mod python;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{context, Environment, ErrorKind};
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};

pub use builtin::{names as builtin_names, recognise as format_of};

/// Fuel for every rendering; one unit is about one instruction or 64 bytes of data.
const FUEL: u64 = 300_000;
const RECURSION_LIMIT: usize = 64;
/// Time for a rendering, which takes milliseconds; fuel counts neither the text of lists that share their parts nor comparisons.
const DEADLINE: Duration = Duration::from_secs(5);
/// Stack for what is nested as deeply as `bounds` allows.
const STACK_BYTES: usize = 256 << 20;
const TOO_SLOW: &str = "it needs too much time";
/// Name of the threads on which templates are compiled and rendered. A panic there is an error here.
pub const THREAD: &str = "chat template";
const PLACEHOLDER: &str = "4e1b7c92";

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

/// Which template a run uses.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The user's: Jinja text, or the name of a built-in template.
    pub given: Option<&'a str>,
    /// The model's.
    pub own: Option<&'a str>,
    /// False: instead of reading Jinja, llama.cpp's built-in template of the same format is used.
    pub jinja: bool,
}

/// A compiled chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    special: SpecialTokens,
    /// Variables beside those that every template gets.
    variables: Map<String, Json>,
    /// It knows no system message, which goes in front of the turn that follows it.
    merges_system: bool,
    /// It wants lists of parts instead of texts.
    has_parts: bool,
    deadline: Duration,
}

impl ChatTemplate {
    /// Compiles `source` and tries it on one turn of the user.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming the line and the reason.
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self> {
        Self::with_variables(source, special, Map::new())
    }

    /// As [`ChatTemplate::new`], with variables of the user (`--chat-template-kwargs`).
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_variables(source: &str, special: SpecialTokens, variables: Map<String, Json>) -> Result<Self> {
        let mut template = Self::compile(source, special, variables)?;
        let plain = template.hears("user");
        if plain.as_ref().is_err_and(is_too_slow) {
            plain?;
        } else if !matches!(plain, Ok(true)) {
            template.has_parts = true;
            if !matches!(template.hears("user"), Ok(true)) {
                plain?;
                template.has_parts = false;
            }
        }
        template.merges_system = !matches!(template.hears("system"), Ok(true));
        Ok(template)
    }

    /// Whether what `role` says in front of a turn of the user is part of the text.
    fn hears(&self, role: &str) -> Result<bool> {
        let talk = [Message::new(role, PLACEHOLDER), Message::new("user", "test")];
        let text = self.render(if role == "user" { &talk[..1] } else { &talk }, true)?;
        Ok(text.contains(PLACEHOLDER))
    }

    fn compile(source: &str, special: SpecialTokens, variables: Map<String, Json>) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(unsupported)?;
        env.set_syntax(syntax.clone());
        env.set_recursion_limit(RECURSION_LIMIT);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        python::install(&mut env);
        bounds::install(&mut env);
        let source = bounds::bounded(&python::without_generation_tags(source), &syntax).map_err(unsupported)?;
        let add = |mut env: Environment<'static>| env.add_template_owned("chat", source).map(|()| env);
        let env = on_a_thread(DEADLINE, move || add(env))?;
        Ok(ChatTemplate { env, special, variables, merges_system: false, has_parts: false, deadline: DEADLINE })
    }

    /// The built-in template of this name, as llama.cpp renders it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when there is none.
    pub fn builtin(name: &str, special: SpecialTokens) -> Result<Self> {
        let text = builtin::text(name).ok_or_else(|| Error::unsupported("built-in chat template", name))?;
        Self::compile(text, special, Map::new())
    }

    /// The template of a run: the user's if there is one, else the model's, else chatml with a notice to be shown.
    ///
    /// # Errors
    /// When the user's own template cannot be used. A broken template of the model is a notice.
    pub fn open(
        choice: Choice,
        special: SpecialTokens,
        variables: Map<String, Json>,
    ) -> Result<(Self, Option<String>)> {
        let make = |source: &str| match choice.jinja {
            true => Self::with_variables(source, special.clone(), variables.clone()),
            false => {
                let unknown = || Error::unsupported("chat template", "this format is not built in, try using --jinja");
                Self::builtin(builtin::recognise(source).ok_or_else(unknown)?, special.clone())
            }
        };
        let reason = match (choice.given, choice.own) {
            (Some(name), _) if builtin::text(name).is_some() => return Ok((Self::builtin(name, special)?, None)),
            (Some(name), _) if !name.contains('{') => {
                let known: Vec<_> = builtin::names().collect();
                return Err(Error::Usage(format!(
                    "error: the supplied chat template is not supported: '{name}' is neither Jinja text nor one of {}",
                    known.join(", ")
                )));
            }
            (Some(source), _) => return Ok((make(source)?, None)),
            (None, Some(source)) => match make(source) {
                Ok(template) => return Ok((template, None)),
                // It is still at work: the run cannot go on beside it.
                Err(e) if is_too_slow(&e) => return Err(e),
                Err(e) => format!("the model's own chat template cannot be used ({e})"),
            },
            (None, None) => "the model has no chat template".to_string(),
        };
        let notice = format!("{reason}: chatml is used instead, which may give worse answers; --chat-template sets another one, -no-cnv none");
        Ok((Self::builtin("chatml", special)?, Some(notice)))
    }

    /// The prompt text of a whole conversation.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the template refuses the conversation or needs too much time or memory.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let n_bytes: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let mut env = self.env.clone();
        env.set_fuel(Some(FUEL + n_bytes as u64 / 4));
        let mut variables: BTreeMap<String, Value> = [
            ("messages", self.turns(messages)),
            ("bos_token", Value::from(self.special.bos.as_str())),
            ("eos_token", Value::from(self.special.eos.as_str())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("enable_thinking", Value::from(true)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("date_string", Value::from(python::strftime_now("%d %b %Y").map_err(unsupported)?)),
            ("datetime", Value::from(python::strftime_now("%b %d %Y").map_err(unsupported)?)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        variables.extend(self.variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        let text = on_a_thread(self.deadline, move || env.get_template("chat")?.render(Value::from(variables)))?;
        let own_bos = if self.special.add_bos { text.strip_prefix(&self.special.bos) } else { None };
        Ok(own_bos.map(str::to_string).unwrap_or(text))
    }

    /// The turns as the template wants them. Source: llama.cpp `common/chat.cpp` (`system_message_not_supported`).
    fn turns(&self, messages: &[Message]) -> Value {
        let turn = |m: &Message| match self.has_parts {
            true => {
                context! { role => m.role.as_str(), content => vec![context! { type => "text", text => m.content.as_str() }] }
            }
            false => context! { role => m.role.as_str(), content => m.content.as_str() },
        };
        match messages {
            [system, next, rest @ ..] if self.merges_system && system.role == "system" => {
                let merged = Message::new(&next.role, format!("{}\n{}", system.content, next.content));
                std::iter::once(&merged).chain(rest).map(turn).collect()
            }
            _ => messages.iter().map(turn).collect(),
        }
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

/// Works on a thread of its own, which is left alone when it takes too long.
fn on_a_thread<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> std::result::Result<T, minijinja::Error> + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::channel();
    // Nobody listens after the deadline.
    let work = move || drop(send.send(work()));
    let thread = std::thread::Builder::new().name(THREAD.into()).stack_size(STACK_BYTES);
    thread.spawn(work).map_err(|e| Error::io("a thread for the chat template", e))?;
    match receive.recv_timeout(deadline) {
        Ok(done) => done.map_err(unsupported),
        Err(RecvTimeoutError::Timeout) => Err(Error::unsupported("chat template", TOO_SLOW)),
        Err(RecvTimeoutError::Disconnected) => Err(Error::unsupported("chat template", "the template engine failed")),
    }
}

fn is_too_slow(e: &Error) -> bool {
    matches!(e, Error::Unsupported { name, .. } if name == TOO_SLOW)
}

fn unsupported(e: minijinja::Error) -> Error {
    let line = e.line().map(|n| format!("line {n}: ")).unwrap_or_default();
    let detail = e.detail().map(|d| format!(": {d}")).unwrap_or_default();
    let reason = match e.kind() {
        ErrorKind::OutOfFuel => "it needs too much time or memory".to_owned(),
        kind => format!("{kind}{detail}"),
    };
    Error::unsupported("chat template", line + &reason)
}
