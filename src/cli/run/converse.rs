//! A conversation by a chat template: as llama-cli on a terminal, as llama-completion in a pipe.

use super::command::{self, Command};
use super::generate::Stop;
use super::remaining::Remaining;
use super::{out, Runner, ERROR, INFO, WARN};
use crate::cli::input::{self, Typed};
use crate::error::{Error, Result};
use crate::tokenizer::chat::{ChatTemplate, Message};
use std::io::{self, IsTerminal, Write};

/// Characters of a prompt that are shown again.
const MAX_ECHO: usize = 500;

/// What has been said, and where the last answer began.
struct Talk<'t> {
    template: &'t ChatTemplate,
    past: Vec<Message>,
    /// Files that wait for a message.
    files: String,
    begin: Option<Begin>,
    is_announced: bool,
    /// Tokens of the system message, which is said before the user comes.
    n_opening: usize,
}

/// The state of the cache before an answer.
struct Begin {
    n_past: usize,
    n_dropped: usize,
    logits: Vec<f32>,
    remaining: Remaining,
    /// The tokens in front of the answer, where reading them again has failed.
    unread: Vec<u32>,
}

/// What a turn leads to.
enum Next {
    Answer(Vec<f32>),
    Ask,
    End,
}

impl Runner<'_> {
    /// Turns of a user and answers. Gives the exit status.
    pub(super) fn converse(&mut self, template: &ChatTemplate) -> Result<i32> {
        let low = &self.args.low;
        let mut first = self.args.prompt.clone().filter(|p| !p.is_empty());
        self.transcript = self.output.take();
        let mut talk = Talk {
            template,
            past: Vec::new(),
            files: String::new(),
            begin: None,
            is_announced: first.is_none(),
            n_opening: 0,
        };
        self.begin_again(&mut talk)?;
        // Without a terminal nobody goes on after a prompt on the command line, unless -cnv says that turns will come.
        let is_alone = !io::stdin().is_terminal() && low.conversation.is_none();
        let mut is_single = first.is_some() && (low.single_turn || is_alone);
        let is_cut = is_single && !low.single_turn;
        self.is_interactive = !is_single;
        self.check_prompt_cache()?;
        if first.is_none() {
            self.announce(0)?;
        }
        if self.is_interactive {
            self.say_how_to_talk();
        }
        if first.is_none() {
            self.show_opening(&mut talk)?;
        }
        loop {
            let next = match first.take() {
                Some(prompt) => self.say_first(&mut talk, prompt)?,
                None => self.next_turn(&mut talk)?,
            };
            let logits = match next {
                Next::Answer(logits) => logits,
                Next::Ask => continue,
                Next::End => break,
            };
            if low.single_turn {
                (is_single, self.is_interactive) = (true, false);
            }
            let stop = self.answer(&mut talk, logits)?;
            // On a terminal a full context is no end: /clear makes room.
            if is_single || (stop == Stop::ContextFull && !self.is_for_people) {
                break;
            }
            self.interrupt.clear();
        }
        if self.is_for_people {
            out(self.console.end_line())?;
            self.console.message(INFO, "\nExiting...");
        } else if is_cut && input::is_waiting() {
            let text =
                "\nstandard input was not read: without a terminal -p is the only turn; -cnv goes on with its lines";
            self.console.message(INFO, text);
        }
        Ok(0)
    }

    /// Forgets what was said except the system message.
    fn begin_again(&mut self, talk: &mut Talk) -> Result<()> {
        talk.past.clear();
        talk.past.extend(self.args.system_prompt.as_deref().map(|s| Message::new("system", s)));
        talk.begin = None;
        self.forget_tokens();
        self.session.clear()
    }

    /// Shows a script the system message, as llama-completion does. It is read with the first turn, and so compressed with it.
    fn show_opening(&mut self, talk: &mut Talk) -> Result<()> {
        // Some templates have no text for a system message alone.
        let text = match talk.past.is_empty() {
            true => String::new(),
            false => talk.template.render(&talk.past, false).unwrap_or_default(),
        };
        let tokens = self.tokenizer.encode(&text, true, true)?;
        talk.n_opening = tokens.len();
        match self.args.low.display_prompt && !self.is_for_people {
            true => self.echo(&tokens),
            false => Ok(()),
        }
    }

    /// The turn of the command line.
    fn say_first(&mut self, talk: &mut Talk, prompt: String) -> Result<Next> {
        if self.is_for_people {
            let shown: String = prompt.chars().take(MAX_ECHO).collect();
            let more = if shown.len() < prompt.len() { " ... (truncated)" } else { "" };
            out(self.console.write(format!("\n> {shown}{more}\n").as_bytes()))?;
        }
        let echo = self.args.low.display_prompt && !self.is_for_people;
        self.say(talk, prompt, echo).map(Next::Answer)
    }

    /// Asks the user and does what is asked.
    fn next_turn(&mut self, talk: &mut Talk) -> Result<Next> {
        let line = match self.ask("\n> ")? {
            Typed::Text(line) => line,
            Typed::End => {
                self.console.message(INFO, "EOF by user");
                return Ok(Next::End);
            }
            // At the prompt of llama-cli Ctrl-C is a way to leave.
            Typed::Interrupted if self.is_for_people && self.interrupt.ending().is_none() => return Ok(Next::End),
            Typed::Interrupted => return Err(Error::Interrupted),
        };
        let found = match Command::parse(&line) {
            Some(Command::Exit) => return Ok(Next::End),
            Some(Command::Clear) => {
                self.begin_again(talk)?;
                self.console.message(INFO, "Chat history cleared.");
                return Ok(Next::Ask);
            }
            Some(Command::Regen) => self.take_back(talk),
            Some(Command::Read(path)) => self.add_files(talk, &[path]).map(|()| Next::Ask),
            Some(Command::Glob(pattern)) => self.add_glob(talk, &pattern).map(|()| Next::Ask),
            None if line.is_empty() => self.go_on(),
            None => {
                if let Some(name) = command::misspelt(&line).filter(|_| self.is_for_people) {
                    self.console.message(INFO, &format!("{name} is no command and goes to the model as text"));
                }
                let files = std::mem::take(&mut talk.files);
                let said = self.say(talk, files.clone() + &self.unescaped(line), false);
                if matches!(said, Err(Error::Interrupted)) && self.is_for_people && self.interrupt.ending().is_none() {
                    let kept = if files.is_empty() { "" } else { "; the files that were read go with the next one" };
                    self.console.message(INFO, &format!("The message was not read{kept}."));
                    talk.files = files;
                }
                said.map(Next::Answer)
            }
        };
        match found {
            // People can say something else; a script cannot.
            Err(e @ (Error::Context { .. } | Error::Unsupported { .. })) if io::stdin().is_terminal() => {
                self.console.message(ERROR, &format!("error: {e}"));
                Ok(Next::Ask)
            }
            Err(Error::Interrupted) if self.is_for_people && self.interrupt.ending().is_none() => {
                self.interrupt.clear();
                Ok(Next::Ask)
            }
            other => other,
        }
    }

    /// Lets the model go on with its answer, as llama-completion does for an empty line; llama-cli waits for another one.
    fn go_on(&mut self) -> Result<Next> {
        let Some(token) = self.pending.filter(|_| !self.is_for_people) else { return Ok(Next::Ask) };
        if !self.make_room(1)? {
            return Ok(Next::End);
        }
        self.chain.reset();
        self.recent.clear();
        self.pending = None;
        self.step(token).map(Next::Answer)
    }

    /// Adds a turn of the user and gives the logits behind it; an error leaves the conversation as it was.
    fn say(&mut self, talk: &mut Talk, text: String, echo: bool) -> Result<Vec<f32>> {
        let message = Message::new("user", text);
        let is_new = self.session.engine.cache.n_past() == 0;
        let mut tokens = Vec::new();
        let text = match is_new {
            true => {
                let all: Vec<Message> = talk.past.iter().cloned().chain([message.clone()]).collect();
                talk.template.render(&all, true)?
            }
            false => {
                tokens.extend(self.pending);
                // An answer that was cut off has no end token yet.
                if !self.pending.is_some_and(|t| self.tokenizer.is_eog(t)) {
                    tokens.extend(self.end_of_turn());
                }
                let end = tokens.last().map_or(String::new(), |&t| self.tokenizer.text(t).into_owned());
                talk.template.continuation(&talk.past, &message, &end)?
            }
        };
        if text.is_empty() {
            return Err(Error::Context {
                what: "the chat template gave no text; --chat-template or --chat-template-file names another one"
                    .into(),
            });
        }
        let said = self.tokenizer.encode(&text, is_new, true)?;
        if !self.is_for_people && talk.is_announced {
            self.remaining.typed(said.len().saturating_sub(if is_new { talk.n_opening } else { 0 }));
        }
        tokens.extend(said);
        if is_new {
            self.check_prompt(tokens.len())?;
            match std::mem::replace(&mut talk.is_announced, true) {
                true => self.keep(tokens.len()),
                false => self.announce(tokens.len())?,
            }
        }
        self.show_tokens(&text, &tokens);
        if echo {
            self.echo(&tokens)?;
        }
        self.chain.reset();
        self.recent.clear();
        let n_past = self.session.engine.cache.n_past();
        let logits = self.read(&tokens);
        // After a pass that failed, the cache is empty.
        if logits.is_err() && (self.session.take_back(n_past).is_err() || self.session.engine.cache.n_past() != n_past)
        {
            talk.begin = None;
            self.forget_cache()?;
        }
        let logits = logits?;
        self.transcribe(&format!("User:\n{}\n\n", message.content));
        talk.past.push(message);
        Ok(logits)
    }

    /// Empties a cache that is no longer that of the conversation.
    fn forget_cache(&mut self) -> Result<()> {
        self.forget_tokens();
        self.session.clear()?;
        if self.is_for_people && self.interrupt.ending().is_none() {
            self.console.message(WARN, "The next message will be read together with all that was said before.");
        }
        Ok(())
    }

    /// Forgets the last tokens, which samplers and reverse prompts look at.
    fn forget_tokens(&mut self) {
        self.pending = None;
        self.chain.reset();
        self.recent.clear();
    }

    /// Generates an answer and adds it to the conversation.
    fn answer(&mut self, talk: &mut Talk, logits: Vec<f32>) -> Result<Stop> {
        let (n_past, n_dropped) = (self.session.engine.cache.n_past(), self.session.n_dropped());
        if self.is_for_people {
            self.remaining = Remaining::new(self.args.low.n_predict);
        }
        talk.begin =
            Some(Begin { n_past, n_dropped, logits: logits.clone(), remaining: self.remaining, unread: Vec::new() });
        let eval = (self.perf.eval, self.perf.n_eval);
        let (stop, answer) = self.generate(logits)?;
        self.transcribe(&format!("Assistant:\n{answer}{}\n", if answer.ends_with('\n') { "" } else { "\n" }));
        match talk.past.last_mut().filter(|m| m.role == "assistant") {
            Some(earlier) => earlier.content += &answer,
            None => talk.past.push(Message::new("assistant", answer)),
        }
        match (stop, self.is_interactive) {
            _ if self.is_for_people => out(self.console.end_line())?,
            (Stop::EndOfText, true) => out(self.console.write(b"\n"))?,
            (Stop::EndOfText, false) => out(self.console.write(b" [end of text]\n"))?,
            _ => {}
        }
        self.session_report();
        if self.args.low.show_timings.unwrap_or(self.is_for_people) {
            let line = self.speeds(eval);
            self.console.message(INFO, &format!("\n[ {line} ]"));
        }
        Ok(stop)
    }

    /// Forgets the last answer; gives the logits in front of it.
    ///
    /// The cache goes back to the end of the user's turn. When a pass has merged entries behind that place, or a sliding
    /// window has lost what was before it, the conversation is read again.
    fn take_back(&mut self, talk: &mut Talk) -> Result<Next> {
        let is_answered = talk.past.last().is_some_and(|m| m.role == "assistant");
        let Some(mut begin) = talk.begin.take().filter(|_| is_answered) else {
            self.console.message(ERROR, "No message to regenerate.");
            return Ok(Next::Ask);
        };
        if begin.n_dropped != self.session.n_dropped() {
            return Err(Error::Context {
                what: "the context was shifted during the last response; it cannot be regenerated".into(),
            });
        }
        if begin.unread.is_empty() && self.session.take_back(begin.n_past).is_ok() {
            self.perf.last_prompt = Default::default();
            self.forget_tokens();
            talk.past.pop();
            self.remaining = begin.remaining;
            return Ok(Next::Answer(begin.logits));
        }
        if begin.unread.is_empty() {
            begin.unread = self.session.tokens()[..begin.n_past.min(self.session.tokens().len())].to_vec();
        }
        // What cannot be read again stays as it is.
        if let Err(e) = self.check_prompt(begin.unread.len()) {
            begin.unread.clear();
            talk.begin = Some(begin);
            return Err(e);
        }
        self.forget_tokens();
        self.session.clear()?;
        let read = self.read(&begin.unread);
        if read.is_err() {
            // The answer belongs to what was said until there is another one.
            talk.begin = Some(begin);
            self.forget_cache()?;
        } else {
            talk.past.pop();
            self.remaining = begin.remaining;
        }
        read.map(Next::Answer)
    }

    fn add_glob(&mut self, talk: &mut Talk, pattern: &str) -> Result<()> {
        let (found, has_more) = command::files(pattern)?;
        if found.is_empty() {
            return Err(Error::Context { what: format!("no file matches '{pattern}'") });
        }
        self.add_files(talk, &found)?;
        if has_more {
            let n = found.len();
            self.console.message(ERROR, &format!("Maximum number of globbed files allowed ({n}) reached."));
        }
        Ok(())
    }

    /// Puts files in front of the next message; one that cannot be read is named and left out.
    fn add_files(&mut self, talk: &mut Talk, paths: &[std::path::PathBuf]) -> Result<()> {
        for path in paths {
            match command::read_file(path) {
                Ok(text) => {
                    talk.files += &text;
                    self.transcribe(&format!("User: Added text file: {}\n", path.display()));
                    self.console.message(INFO, &format!("Loaded text from '{}'", path.display()));
                }
                Err(e) => self.console.message(ERROR, &format!("error: {e}")),
            }
        }
        Ok(())
    }

    /// Adds to the file of `-o`, until that fails.
    fn transcribe(&mut self, text: &str) {
        let Some(file) = &mut self.transcript else { return };
        let written = file.write_all(text.as_bytes()).and_then(|()| file.flush());
        if let Err(e) = written {
            let e = Error::io(file.path(), e);
            self.transcript = None;
            self.note_failure(Err(e));
        }
    }

    /// The lines with which a conversation begins.
    fn say_how_to_talk(&mut self) {
        if self.is_for_people {
            self.console.message(INFO, &format!("\n{}", command::HELP));
            return;
        }
        let without = " - Not using system message. To change it, set a different value via -sys PROMPT";
        self.say_how(self.args.system_prompt.is_none().then_some(without));
    }
}
