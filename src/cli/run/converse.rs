//! A conversation by a chat template.

use super::generate::Stop;
use super::{out, Runner, INFO, WARN};
use crate::cli::console::{read_turn, Console, Style};
use crate::cli::escape;
use crate::cli::high::HighArgs;
use crate::cli::setup::{self, Loaded};
use crate::error::{Error, Result};
use crate::tokenizer::chat::{ChatTemplate, Message};
use std::io::{self, IsTerminal, Stderr, Stdout};

impl Runner<'_> {
    /// Turns of a user and answers, by a chat template.
    pub(super) fn converse(&mut self, template: &ChatTemplate) -> Result<()> {
        let low = &self.args.low;
        let is_tty = io::stdin().is_terminal();
        let mut past: Vec<Message> = Vec::new();
        past.extend(self.args.system_prompt.as_deref().map(|s| Message::new("system", s)));
        let mut first = self.args.prompt.clone().filter(|p| !p.is_empty());
        // Without a terminal there is nobody to go on with after a prompt on the command line.
        let single = low.single_turn || (first.is_some() && !is_tty);
        let stdin = io::stdin();
        loop {
            let turn = match first.take() {
                Some(p) => p,
                None => {
                    out(self.console.write(b"\n> "))?;
                    out(self.console.style(Style::Input))?;
                    let turn = read_turn(&mut stdin.lock(), low.multiline_input)
                        .map_err(|e| Error::io("standard input", e))?;
                    out(self.console.style(Style::Plain))?;
                    match turn {
                        Some(t) if t.trim() == "/exit" => return Ok(()),
                        Some(t) if low.escape => String::from_utf8_lossy(&escape::unescape(t.as_bytes())).into_owned(),
                        Some(t) => t,
                        None => return Ok(()),
                    }
                }
            };
            let message = Message::new("user", turn);
            let is_new = self.session.engine.cache.n_past() == 0;
            let mut tokens: Vec<u32> = self.pending.take().into_iter().collect();
            let text = if is_new {
                let all: Vec<Message> = past.iter().cloned().chain([message.clone()]).collect();
                template.render(&all, true)?
            } else {
                let end = tokens.first().map_or(String::new(), |&t| self.tokenizer.text(t).into_owned());
                template.continuation(&past, &message, &end)?
            };
            tokens.extend(self.tokenizer.encode(&text, is_new, true)?);
            past.push(message);
            let logits = self.read(&tokens, false)?;
            let (stop, answer) = self.generate(logits, low.n_predict)?;
            past.push(Message::new("assistant", answer));
            out(self.console.write(b"\n"))?;
            if stop == Stop::ContextFull || single {
                return Ok(());
            }
            self.interrupt.clear();
        }
    }
}

/// The chat template of a conversation; `None` means plain completion.
pub(super) fn template(
    args: &HighArgs,
    loaded: &Loaded,
    console: &mut Console<Stdout, Stderr>,
) -> Result<Option<ChatTemplate>> {
    let auto = loaded.model.gguf.str("tokenizer.chat_template")?.is_some() || args.chat_template.is_some();
    if !args.low.conversation.unwrap_or(auto) {
        return Ok(None);
    }
    if args.low.conversation.is_none() {
        console.message(INFO, "chat template is available, enabling conversation mode (disable it with -no-cnv)");
        if args.prompt.is_some() && args.system_prompt.is_none() && io::stdin().is_terminal() {
            console.message(WARN, "*** User-specified prompt will pre-start conversation, did you mean to set --system-prompt (-sys) instead?");
        }
    }
    setup::chat_template(args, loaded, console).map(Some)
}
