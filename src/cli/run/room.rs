//! What happens when the context is full: it is compressed further if the user asked for compression, or shifted if the user
//! asked for that, or the generation ends.

use super::{Runner, INFO};
use crate::error::Result;

impl Runner<'_> {
    /// Sees to it that `n` more tokens can be decoded; false when they cannot.
    ///
    /// As in llama-completion, the context counts as full when one token less than its size is in it.
    pub(super) fn make_room(&mut self, n: usize) -> Result<bool> {
        while self.session.n_left() <= n {
            let low = &self.args.low;
            if !low.context_shift {
                self.warn_full("context shift is disabled");
                return Ok(false);
            }
            if low.n_predict == -2 {
                self.warn_full("n_predict == -2");
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
