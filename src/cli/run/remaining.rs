//! How many tokens `-n` still allows. Source: `n_remain` in llama.cpp `tools/completion/completion.cpp`.

/// What is left of `-n`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remaining {
    n_predict: i32,
    left: i64,
}

impl Remaining {
    /// All of it. `n_predict`: -1 no limit, -2 until the context is full.
    pub(super) fn new(n_predict: i32) -> Self {
        Remaining { n_predict, left: n_predict.into() }
    }

    /// What the user types counts as well.
    pub(super) fn typed(&mut self, n_tokens: usize) {
        self.left -= n_tokens as i64;
    }

    /// Tokens that the next answer may have. A single turn whose question was longer than that has no limit.
    pub(super) fn limit(self, is_interactive: bool) -> usize {
        let is_unlimited = self.n_predict < 0 || (self.left < 0 && !is_interactive);
        if is_unlimited {
            usize::MAX
        } else {
            self.left.max(0) as usize
        }
    }

    /// An answer of so many tokens has ended. Where the user goes on, what is used up is there again.
    pub(super) fn answered(&mut self, n_tokens: usize, is_interactive: bool) {
        self.left -= n_tokens as i64;
        if is_interactive && self.left <= 0 {
            *self = Remaining::new(self.n_predict);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_as_llama_completion_does() {
        let mut remaining = Remaining::new(20);
        assert_eq!((remaining.limit(true), Remaining::new(-1).limit(true)), (20, usize::MAX));
        remaining.typed(5);
        remaining.answered(7, true);
        assert_eq!(remaining.limit(true), 8, "an answer that ends by itself leaves the rest to the next");
        remaining.typed(9);
        assert_eq!((remaining.limit(true), remaining.limit(false)), (0, usize::MAX));
        remaining.answered(0, true);
        assert_eq!(remaining.limit(true), 20);
    }
}
