//! A prompt and its continuation without a chat template, and the interactive mode of llama-completion.

use super::generate::Stop;
use super::{out, Runner, INFO, WARN};
use crate::cli::escape;
use crate::cli::input::Typed;
use crate::cli::prompt_cache::PromptCache;
use crate::error::{Error, Result};

/// Exit status when there is nothing to read and nothing to begin with.
const EXIT_EMPTY: i32 = 255;

impl Runner<'_> {
    /// Continues the prompt; in interactive mode hands over to the user in between. Gives the exit status.
    pub(super) fn complete(&mut self, is_conversation: bool) -> Result<i32> {
        let low = &self.args.low;
        let prompt = self.args.prompt.clone().unwrap_or_default();
        // In a conversation a prompt is the first turn, and with --single-turn the only one.
        let is_single = is_conversation && low.single_turn && !prompt.is_empty();
        let asks_first = if is_conversation { prompt.is_empty() } else { low.interactive_first };
        self.is_interactive = !is_single && (is_conversation || asks_first || low.interactive);
        self.console.copy_to(self.output.take());
        self.check_prompt_cache()?;
        let stored = self.prompt_cache.as_mut().filter(|_| prompt.is_empty() && !asks_first);
        let mut tokens = match stored.and_then(PromptCache::prompt) {
            Some(stored) => stored,
            None => match &self.args.prompt_bytes {
                Some(bytes) => self.tokenizer.encode_bytes(bytes, true, true)?,
                None => self.tokenizer.encode(&prompt, true, true)?,
            },
        };
        if tokens.is_empty() && !asks_first {
            let Some(bos) = self.tokenizer.bos().filter(|_| self.tokenizer.add_bos()) else {
                return Ok(self.refuse_empty());
            };
            tokens.push(bos);
            self.console.message(WARN, "the prompt is empty: generation begins with BOS");
        }
        self.check_prompt(tokens.len())?;
        self.warn_double_bos(&tokens);
        self.announce(tokens.len())?;
        self.show_tokens(&prompt, &tokens);
        if self.is_interactive {
            let without = " - The chat template is off; without --in-prefix and --in-suffix it would be on.";
            self.say_how(is_conversation.then_some(without));
        } else if low.n_predict == 0 {
            return Ok(0);
        }
        if low.display_prompt {
            self.echo(&tokens)?;
        }
        // llama-completion looks at the last token whoever wrote it.
        if !self.is_interactive && tokens.last().is_some_and(|&t| self.tokenizer.is_eog(t)) {
            out(self.console.write(b" [end of text]\n"))?;
            return Ok(0);
        }
        let mut logits = if tokens.is_empty() { Vec::new() } else { self.read(&tokens)? };
        let mut asks = asks_first;
        loop {
            let stop = match self.ends_with_reverse_prompt() {
                true => Stop::ReversePrompt,
                false if asks => Stop::Length,
                false => {
                    let stop;
                    (stop, _) = self.generate(std::mem::take(&mut logits))?;
                    stop
                }
            };
            if !self.is_interactive && stop == Stop::EndOfText {
                out(self.console.write(b" [end of text]\n"))?;
            }
            if !self.is_interactive || stop == Stop::ContextFull {
                return Ok(0);
            }
            self.interrupt.clear();
            let Some(next) = self.hand_over(stop, is_conversation, logits.is_empty())? else { return Ok(0) };
            if is_conversation && low.single_turn {
                self.is_interactive = false;
            }
            asks = false;
            self.chain.reset();
            self.recent.clear();
            if !next.is_empty() {
                logits = self.read(&next)?;
            }
        }
    }

    /// Asks the user; gives the tokens to be read next, `None` at the end of the input.
    fn hand_over(&mut self, stop: Stop, is_conversation: bool, needs_some: bool) -> Result<Option<Vec<u32>>> {
        let low = &self.args.low;
        let encode = |text: &str, parse_special| self.tokenizer.encode(text, false, parse_special);
        let mut tokens: Vec<u32> = self.pending.into_iter().collect();
        if stop == Stop::EndOfText {
            if let Some(reverse) = self.args.reverse_prompts.first() {
                tokens.extend(encode(reverse, true)?);
            }
            out(self.console.write(b"\n"))?;
        }
        loop {
            let prompt = if is_conversation { "\n> " } else { &self.args.low.in_prefix };
            let text = match self.ask(prompt)? {
                Typed::Text(text) => text,
                Typed::End => {
                    self.console.message(INFO, "EOF by user");
                    return Ok(None);
                }
                Typed::Interrupted => return Err(Error::Interrupted),
            };
            if text.is_empty() && tokens.is_empty() && needs_some {
                continue;
            }
            if low.in_prefix_bos {
                tokens.extend(self.tokenizer.bos());
            }
            if !text.is_empty() {
                if !is_conversation {
                    out(self.console.write(self.args.low.in_suffix.as_bytes()))?;
                }
                let text = self.unescaped(text);
                tokens.extend(encode(&self.args.low.in_prefix, true)?);
                let typed = encode(&text, false)?;
                self.remaining.typed(typed.len());
                tokens.extend(typed);
                tokens.extend(encode(&self.args.low.in_suffix, true)?);
                self.show_tokens(&text, &tokens);
            }
            return Ok(Some(tokens));
        }
    }

    /// What the user typed, with escapes replaced if that is wanted.
    pub(super) fn unescaped(&self, text: String) -> String {
        match self.args.low.escape {
            true => String::from_utf8_lossy(&escape::unescape(text.as_bytes())).into_owned(),
            false => text,
        }
    }

    fn refuse_empty(&mut self) -> i32 {
        self.console.message(1, "error: input is empty; give a prompt with -p or -f");
        EXIT_EMPTY
    }

    /// The lines with which the interactive mode begins, and one that belongs to this way of talking.
    pub(super) fn say_how(&mut self, own: Option<&str>) {
        let mut lines = vec!["interactive mode on.".to_string()];
        lines.extend(self.args.reverse_prompts.iter().map(|r| format!("Reverse prompt: '{r}'")));
        if self.args.low.in_prefix_bos {
            lines.push("Input prefix with BOS".into());
        }
        for (name, text) in [("prefix", &self.args.low.in_prefix), ("suffix", &self.args.low.in_suffix)] {
            if !text.is_empty() {
                lines.push(format!("Input {name}: '{text}'"));
            }
        }
        lines.push("== Running in interactive mode. ==".into());
        lines.push(" - Press Ctrl+C to interject at any time.".into());
        lines.extend(self.how_to_hand_over().map(String::from));
        lines.extend(own.map(String::from));
        lines.iter().for_each(|line| self.console.message(INFO, line));
    }

    /// How a turn ends.
    fn how_to_hand_over(&self) -> impl Iterator<Item = &'static str> {
        let lines: &[&str] = match self.args.low.multiline_input {
            true => &[
                " - To return control to the AI, end your input with '\\'.",
                " - To return control without starting a new line, end your input with '/'.",
            ],
            false => &[
                " - Press Return to return control to the AI.",
                " - To return control without starting a new line, end your input with '/'.",
                " - If you want to submit another line, end your input with '\\'.",
            ],
        };
        lines.iter().copied()
    }

    pub(super) fn warn_double_bos(&mut self, tokens: &[u32]) {
        if let (Some(bos), [a, b, ..]) = (self.tokenizer.bos(), tokens) {
            if self.tokenizer.add_bos() && *a == bos && *b == bos {
                self.console.message(
                    WARN,
                    "warning: the prompt begins with a BOS token, and the model adds one too: it now starts with two",
                );
            }
        }
    }
}
