//! How a run goes: a conversation or plain text, for people as llama-cli or for a script as llama-completion.

use super::{INFO, WARN};
use crate::cli::console::Console;
use crate::cli::high::HighArgs;
use crate::cli::setup::{self, Loaded};
use crate::error::Result;
use crate::tokenizer::chat::ChatTemplate;
use std::io::{self, IsTerminal, Stderr, Stdout};

/// Whether people are at both ends, who know llama-cli; scripts know llama-completion.
pub(super) fn is_for_people() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// How a run goes.
pub(super) enum Mode {
    /// Turns by a chat template.
    Template(Box<ChatTemplate>),
    /// Plain text; with `is_conversation`, input that `--in-prefix` and `--in-suffix` enclose.
    Plain { is_conversation: bool },
}

/// The mode of a run, with the lines that say why.
///
/// # Errors
/// When the chat template cannot be used.
pub(super) fn mode(args: &HighArgs, loaded: &Loaded, console: &mut Console<Stdout, Stderr>) -> Result<Mode> {
    let low = &args.low;
    let auto = loaded.model.gguf.str("tokenizer.chat_template")?.is_some() || args.chat_template.is_some();
    if !low.conversation.unwrap_or(auto) {
        if low.conversation.is_none() && args.system_prompt.is_some() {
            console.message(WARN, "warning: --system-prompt has no effect: the model has no chat template");
        }
        return Ok(Mode::Plain { is_conversation: false });
    }
    if low.conversation.is_none() {
        console.message(INFO, "chat template is available, enabling conversation mode (disable it with -no-cnv)");
    }
    if ["in-prefix", "in-suffix", "in-prefix-bos"].iter().any(|id| low.given.contains(id)) {
        console.message(INFO, "in-suffix/prefix is specified, chat template will be disabled");
        return Ok(Mode::Plain { is_conversation: true });
    }
    let has_prompt = args.prompt.as_ref().is_some_and(|p| !p.is_empty());
    if has_prompt && args.system_prompt.is_none() && !is_for_people() {
        console.message(WARN, "*** User-specified prompt will pre-start conversation, did you mean to set --system-prompt (-sys) instead?");
    }
    setup::chat_template(args, loaded, is_for_people(), console).map(|t| Mode::Template(Box::new(t)))
}
