//! `--prompt-cache`: a run goes on from what an earlier one has read. Rules and messages: llama.cpp `tools/completion/completion.cpp`.
//!
//! Deviations: logits are stored, where llama.cpp decodes the last token once more. A compressed prompt cannot be cut, so its
//! cache serves the same prompt or one that begins with it. The first tokens of its answer were chosen from the full cache,
//! which no longer exists: they are stored, and given again by greedy runs with the same settings, so that a cached run says
//! what a cold one says; any other run begins a new answer behind the compressed prompt. A prompt that is only in part in the
//! file is read in other batches than by a cold run, so that quantised models round differently, as with another `-ub`.

mod settings;

pub use settings::Settings;

use super::new_file::NewFile;
use crate::cache::state::{Mark, State, StateFile};
use crate::error::{Error, Result};
use crate::session::Session;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};

const WARN: i32 = 2;
const INFO: i32 = 3;

/// Takes messages for the user and their level.
pub type Say<'s> = &'s mut dyn FnMut(i32, &str);

/// The prompt cache of one run.
pub struct PromptCache {
    settings: Settings,
    file: Option<StateFile>,
    /// The tokens in the cache; the first `n_given` are the prompt.
    tokens: Vec<u32>,
    n_given: usize,
    after_prompt: Vec<f32>,
    after_last: Vec<f32>,
    /// The first tokens that the next run goes on from, once the answer is over. What follows them completes a lookahead.
    n_whole: Option<usize>,
    /// Logits after them; empty where they are not known.
    after_whole: Vec<f32>,
    /// Tokens of a stored answer that are in the cache but have not been given yet.
    replay: VecDeque<u32>,
    is_replaying: bool,
    /// Whether the prompt is the file's own.
    is_own: bool,
    /// Whether the state after the prompt is still to be saved.
    is_due: bool,
}

impl PromptCache {
    /// Looks at the file; a missing or empty one is a new one.
    ///
    /// # Errors
    /// When it is not usable in this run, or cannot be written although it is to be.
    pub fn open(settings: Settings, session: &Session, say: Say) -> Result<PromptCache> {
        let path = &settings.path;
        say(INFO, &format!("attempting to load saved session from '{}'", path.display()));
        let file = match std::fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                say(INFO, "session file does not exist, will create.");
                None
            }
            Err(e) => return Err(Error::io(path, e)),
            // A pipe would be waited for, a device has no end.
            Ok(found) if !found.is_file() => {
                let what = format!("{}: it is no regular file and cannot hold a prompt cache", path.display());
                return Err(Error::Context { what });
            }
            Ok(found) if found.len() == 0 => {
                say(INFO, "The session file is empty. A new session will be initialized.");
                None
            }
            Ok(_) => {
                let n_vocab = session.engine.model().hp.n_vocab;
                let file = StateFile::open(path, &settings.identity, &session.engine.cache, n_vocab)?;
                say(INFO, &format!("loaded a session with prompt size of {} tokens", file.state.tokens.len()));
                Some(file)
            }
        };
        if !settings.read_only {
            // A folder that cannot be written is found out before the prompt is read.
            drop(NewFile::create(path)?);
        }
        Ok(PromptCache {
            settings,
            file,
            tokens: Vec::new(),
            n_given: 0,
            after_prompt: Vec::new(),
            after_last: Vec::new(),
            n_whole: None,
            after_whole: Vec::new(),
            replay: VecDeque::new(),
            is_replaying: false,
            is_own: false,
            is_due: false,
        })
    }

    /// The prompt of a run without one: what the file holds.
    pub fn prompt(&mut self) -> Option<Vec<u32>> {
        let state = &self.file.as_ref()?.state;
        self.is_own = true;
        Some(state.tokens[..state.n_whole].to_vec())
    }

    /// Reads the prompt into the empty cache, as far as the file does not hold it. Gives the logits after it and how many tokens
    /// had to be read.
    ///
    /// # Errors
    /// As [`Session::prefill`], or when the file cannot be read.
    pub fn read(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        say: Say,
        on_progress: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Vec<f32>, usize)> {
        if self.n_given > 0 {
            // A conversation that began anew: the file keeps the prompt of the first one.
            return session.prefill(prompt, on_progress).map(|logits| (logits, prompt.len()));
        }
        let known = match self.file.take() {
            Some(file) => self.resume(session, file, prompt, say)?,
            None => None,
        };
        self.n_given = prompt.len();
        self.is_due = known.is_none() && !self.settings.read_only;
        if let Some(logits) = known {
            return Ok((logits, 0));
        }
        let rest = &prompt[session.engine.cache.n_past()..];
        let logits = session.prefill(rest, on_progress)?;
        self.tokens = prompt.to_vec();
        Ok((logits, rest.len()))
    }

    /// Puts what the prompt and the file have in common into the cache; gives the logits if that is all of the prompt.
    fn resume(&mut self, session: &mut Session, file: StateFile, prompt: &[u32], say: Say) -> Result<Option<Vec<f32>>> {
        let (stored, n_compressed) = (&file.state, file.n_compressed());
        let n_match = stored.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let is_all = n_match == prompt.len();
        match n_match {
            _ if self.is_own => say(INFO, "using full prompt from session file"),
            _ if is_all => say(INFO, "session file has exact match for prompt!"),
            n if n < prompt.len() / 2 => say(
                WARN,
                &format!(
                    "session file has low similarity to prompt ({n} / {} tokens); will mostly be reevaluated",
                    prompt.len()
                ),
            ),
            n => say(INFO, &format!("session file matches {n} / {} tokens of prompt", prompt.len())),
        }
        if n_match < n_compressed {
            say(WARN, &format!("gracekv: the session file holds {n_compressed} tokens as one compressed prompt, which cannot be cut after {n_match}: the whole prompt is read"));
            return Ok(None);
        }
        if n_compressed == 0 && session.compresses(prompt.len()) {
            say(WARN, "gracekv: the session file holds an uncompressed prompt, and this one is to be compressed: the whole prompt is read");
            return Ok(None);
        }
        let logits = stored.logits_after(n_match).filter(|_| is_all).map(<[f32]>::to_vec);
        // Without stored logits the last token is decoded once more.
        let n_kept = if is_all && logits.is_none() { n_match - 1 } else { n_match };
        if n_kept == 0 || n_kept < n_compressed {
            return Ok(None);
        }
        let after_last = stored.logits_after(stored.tokens.len()).unwrap_or_default().to_vec();
        let is_same = !stored.sampling.is_empty() && stored.sampling == self.settings.sampling;
        let is_begun = prompt.len() == stored.n_given || (self.is_own && prompt.len() < stored.tokens.len());
        let replays = is_all && n_compressed > 0 && is_begun && is_same && !after_last.is_empty();
        let state = session.load(file)?;
        if n_compressed > 0 {
            let mib = session.engine.cache.bytes() as f64 / 1048576.0;
            say(
                INFO,
                &format!(
                    "gracekv: {n_compressed} tokens of the session file are compressed; the cache has {mib:.2} MiB"
                ),
            );
        }
        if let (true, Some(logits)) = (replays, &logits) {
            self.replay = state.tokens[prompt.len()..].iter().copied().collect();
            (self.after_prompt, self.after_last) = (logits.clone(), after_last);
            self.tokens = state.tokens;
        } else if session.take_back(n_kept).is_ok() {
            self.tokens = state.tokens[..n_kept].to_vec();
        } else {
            say(WARN, "unable to reuse common prefix (for example, when the memory is recurrent)");
            session.clear()?;
            return Ok(None);
        }
        if is_all && logits.is_none() {
            say(INFO, "replayed last token from session");
        }
        Ok(logits)
    }

    /// The prompt is in the cache, `logits` follow it. Saves it unless its pass is still to come.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn filled(&mut self, session: &Session, logits: &[f32]) -> Result<()> {
        if self.replay.is_empty() {
            self.after_prompt = logits.to_vec();
            self.after_last = logits.to_vec();
        }
        self.save_when_due(session)
    }

    /// The next token of a stored answer; it is in the cache already.
    pub fn replayed(&mut self) -> Option<u32> {
        let token = self.replay.pop_front();
        self.is_replaying = token.is_some();
        token
    }

    /// An answer has ended. If that was within the stored one, takes its rest back, and its last token with it where that is still
    /// to be decoded as far as the caller knows. A file that gets the answer keeps the rest, so that a longer one says the same.
    ///
    /// # Errors
    /// As [`Session::take_back`].
    pub fn settle(&mut self, session: &mut Session, is_last_pending: bool) -> Result<()> {
        if std::mem::take(&mut self.is_replaying) && (is_last_pending || !self.replay.is_empty()) {
            if self.settings.all {
                self.n_whole = Some(self.tokens.len() - self.replay.len());
                self.replay.clear();
                return Ok(());
            }
            self.tokens.truncate(self.tokens.len() - self.replay.len() - usize::from(is_last_pending));
            self.replay.clear();
            self.after_last.clear();
            session.take_back(self.tokens.len())?;
        }
        Ok(())
    }

    /// The logits after the token that was given by [`PromptCache::replayed`]; empty while others follow.
    pub fn after_replayed(&self) -> Vec<f32> {
        if self.replay.is_empty() {
            self.after_last.clone()
        } else {
            Vec::new()
        }
    }

    /// A token of the answer was decoded, `logits` follow it. Saves the state once the pass has run.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn stepped(&mut self, session: &Session, token: u32, logits: &[f32]) -> Result<()> {
        if !self.is_due && !self.settings.all {
            return Ok(());
        }
        self.tokens.push(token);
        self.after_last = logits.to_vec();
        self.save_when_due(session)
    }

    /// Saves what is still to be saved at the end of a run. `pending` is the last token of the answer, not decoded yet;
    /// `choose` goes on with the answer where its pass is still to come, and gives `None` at its end.
    ///
    /// # Errors
    /// When the file cannot be written, or ggml fails.
    pub fn finish(
        mut self,
        session: &mut Session,
        pending: Option<u32>,
        mut choose: impl FnMut(&[f32]) -> Result<Option<u32>>,
        say: Say,
    ) -> Result<()> {
        let all = self.settings.all && !self.settings.read_only;
        if !(self.is_due || all) || self.after_prompt.is_empty() {
            return Ok(());
        }
        if self.n_whole.is_none() {
            let last = pending.filter(|_| (all || session.is_pending()) && session.n_left() > 0);
            last.map_or(Ok(()), |token| self.go_on(session, token))?;
            (self.n_whole, self.after_whole) = (Some(self.tokens.len()), self.after_last.clone());
        }
        // The whole lookahead, so that a longer answer begins as it would have.
        while session.is_pending() && session.n_left() > 0 {
            let Some(token) = choose(&self.after_last)? else { break };
            self.go_on(session, token)?;
        }
        session.compress_now()?;
        self.save_when_due(session)?;
        if all && self.tokens.len() == session.engine.cache.n_past() {
            say(INFO, &format!("saving final output to session file '{}'", self.settings.path.display()));
            self.save(session, true)?;
            let n_tokens = self.n_whole.unwrap_or(self.tokens.len());
            say(INFO, &format!("saved final session to {}, n_tokens = {n_tokens}", self.settings.path.display()));
        }
        Ok(())
    }

    fn go_on(&mut self, session: &mut Session, token: u32) -> Result<()> {
        self.after_last = session.step(token)?;
        self.tokens.push(token);
        Ok(())
    }

    fn save_when_due(&mut self, session: &Session) -> Result<()> {
        if !self.is_due || session.is_pending() {
            return Ok(());
        }
        self.is_due = false;
        // A context shift has dropped tokens: there is no longer a prompt to be saved.
        match self.tokens.len() == session.engine.cache.n_past() {
            true => self.save(session, false),
            false => Ok(()),
        }
    }

    fn save(&self, session: &Session, whole: bool) -> Result<()> {
        let n_whole = self.n_whole.filter(|_| whole).unwrap_or(self.n_given);
        let mut marks = vec![Mark { n_tokens: self.n_given, logits: self.after_prompt.clone() }];
        if n_whole > self.n_given && n_whole < self.tokens.len() && !self.after_whole.is_empty() {
            marks.push(Mark { n_tokens: n_whole, logits: self.after_whole.clone() });
        }
        if self.tokens.len() > self.n_given && !self.after_last.is_empty() {
            marks.push(Mark { n_tokens: self.tokens.len(), logits: self.after_last.clone() });
        }
        let state = State {
            identity: self.settings.identity.clone(),
            sampling: self.settings.sampling.clone(),
            n_given: self.n_given,
            n_whole,
            tokens: self.tokens.clone(),
            marks,
        };
        let mut file = NewFile::create(&self.settings.path)?;
        let io = |e| Error::io(&self.settings.path, e);
        state.write(&session.engine.cache, &mut file).map_err(io)?;
        file.flush().map_err(io)?;
        file.finish()
    }
}
