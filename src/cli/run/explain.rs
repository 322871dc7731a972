//! What a run says about compression that was asked for and does not happen.

use super::{Runner, INFO, WARN};
use crate::cli::setup;

impl Runner<'_> {
    /// Warns of an option that the method makes useless.
    pub(super) fn warn_of_interval(&mut self) {
        let low = &self.args.low;
        if low.kv_decode_interval > 0 && self.session.compresses_once() {
            let text = format!(
                "warning: --kv-decode-interval has no effect: {} compresses the first prompt only",
                low.kv_method
            );
            self.console.message(WARN, &text);
        }
    }

    /// Says why the prompt or turn that was read stays as it is.
    pub(super) fn explain_no_pass(&mut self, n_tokens: usize) {
        let low = &self.args.low;
        let Some(pass) = setup::asked_pass(self.args) else { return };
        let is_first = self.session.engine.cache.n_past() == n_tokens;
        let text = if !is_first && self.session.compresses_once() && pass.applies(n_tokens) {
            if std::mem::replace(&mut self.is_told_of_once, true) {
                return;
            }
            format!(
                "this turn stays exact, and so will later ones: {} needs what only reading a first prompt shows",
                low.kv_method
            )
        } else if is_first && !pass.applies(n_tokens) {
            let why = if n_tokens < low.kv_min_tokens {
                format!("it is shorter than --kv-min-tokens {}", low.kv_min_tokens)
            } else {
                "it fits the budget".into()
            };
            format!("the prompt of {n_tokens} tokens is left as it is: {why}")
        } else {
            return;
        };
        self.console.message(INFO, &format!("gracekv: {text}"));
    }

    /// Says so when the run is over before its last pass.
    pub(super) fn explain_pending_pass(&mut self) {
        if !self.session.is_pending() {
            return;
        }
        let what = match self.session.n_passes() {
            0 => "nothing was compressed, and it came from the full cache",
            _ => "its turn was not compressed",
        };
        let n = self.args.low.kv_lookahead;
        self.console.message(
            INFO,
            &format!("gracekv: the answer ended within the {n} tokens of --kv-lookahead: {what}; --kv-discard-lookahead answers from the compressed cache"),
        );
    }
}
