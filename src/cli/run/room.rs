//! What happens when the context is full: it is compressed further if the user asked for compression, or shifted if the user
//! asked for that, or the generation ends; with `-n -2` it always ends.

use super::{Runner, INFO};
use crate::error::Result;

impl Runner<'_> {
    /// Sees to it that `n` more tokens can be decoded; false when they cannot.
    ///
    /// As in llama-completion, the context counts as full when one token less than its size is in it.
    pub(super) fn make_room(&mut self, n: usize) -> Result<bool> {
        while self.session.n_left() <= n {
            let (low, n_left) = (&self.args.low, self.session.n_left());
            let has_end = low.n_predict == -2;
            if !has_end && self.session.compress_further()? {
                self.session_report();
                if self.session.n_left() > n_left {
                    continue;
                }
            }
            let why = match low.context_shift {
                _ if self.session.engine.cache.is_compressed() && self.session.compresses_once() => {
                    Some("the method compresses the first prompt only")
                }
                _ if self.session.engine.cache.is_compressed() => {
                    Some("what came since the last pass is too little to compress")
                }
                false => Some("context shift is disabled"),
                true if has_end => Some("n_predict == -2"),
                true => None,
            };
            if let Some(why) = why {
                self.warn_full(why);
                return Ok(false);
            }
            let n_dropped = self.session.shift(self.n_keep)?;
            if n_dropped == 0 {
                self.warn_full("nothing behind the kept tokens can be dropped");
                return Ok(false);
            }
            let n_past = self.session.engine.cache.n_past();
            self.console.message(
                INFO,
                &format!("context shift: {n_dropped} tokens behind the first {} dropped, {n_past} left", self.n_keep),
            );
        }
        Ok(true)
    }
}
