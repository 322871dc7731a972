//! One prompt and its continuation, as llama-completion.

use super::generate::Stop;
use super::{out, Runner, WARN};
use crate::error::{Error, Result};

impl Runner<'_> {
    /// One prompt, one continuation.
    pub(super) fn complete(&mut self) -> Result<()> {
        let prompt = self.args.prompt.as_deref().unwrap_or("");
        let mut tokens = self.tokenizer.encode(prompt, true, true)?;
        if tokens.is_empty() {
            tokens.extend(self.tokenizer.bos().filter(|_| self.tokenizer.add_bos()));
        }
        if tokens.is_empty() {
            return Err(Error::Usage("error: input is empty; give a prompt with -p or -f".into()));
        }
        self.warn_double_bos(&tokens);
        if self.args.low.n_predict == 0 {
            return Ok(());
        }
        let echo = self.args.low.display_prompt;
        let logits = self.read(&tokens, echo)?;
        if self.generate(logits, self.args.low.n_predict)?.0 == Stop::EndOfText {
            out(self.console.write(b" [end of text]\n"))?;
        }
        Ok(())
    }

    fn warn_double_bos(&mut self, tokens: &[u32]) {
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
