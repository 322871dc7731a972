//! Where a run opens and closes its prompt cache.

use super::Runner;
use crate::cli::prompt_cache::{PromptCache, Settings};
use crate::error::{Error, Result};

impl Runner<'_> {
    /// Opens the file of `--prompt-cache`.
    pub(super) fn open_prompt_cache(&mut self) -> Result<()> {
        let console = &mut *self.console;
        let mut say = |level: i32, text: &str| console.message(level, text);
        let settings = Settings::new(self.args, &self.session)?;
        self.prompt_cache = settings.map(|s| PromptCache::open(s, &self.session, &mut say)).transpose()?;
        Ok(())
    }

    /// Refuses to promise that turns yet to come will be saved.
    pub(super) fn check_prompt_cache(&self) -> Result<()> {
        match self.args.low.prompt_cache_all && self.is_interactive {
            true => Err(Error::Usage("error: --prompt-cache-all not supported in interactive mode yet".into())),
            false => Ok(()),
        }
    }

    /// Saves what is still to be saved; of an interrupted run, what `--prompt-cache-all` asks for, unless its pass is to come.
    pub(super) fn finish_prompt_cache(&mut self, is_interrupted: bool) -> Result<()> {
        let is_worth = !is_interrupted || (self.args.low.prompt_cache_all && !self.session.is_pending());
        let Some(cache) = self.prompt_cache.take().filter(|_| is_worth) else {
            return Ok(());
        };
        let (chain, tokenizer, console) = (&mut self.chain, self.tokenizer, &mut *self.console);
        let choose = |logits: &[f32]| {
            let token = chain.sample(logits)?;
            chain.accept(token)?;
            Ok(Some(token).filter(|&t| !tokenizer.is_eog(t)))
        };
        let pending = self.pending.filter(|&t| !tokenizer.is_eog(t));
        cache.finish(&mut self.session, pending, choose, &mut |level, text| console.message(level, text))
    }
}
