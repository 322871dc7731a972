//! Random choices of a sample: the same seed, task and number give the same ones on every machine.

use rand_mt::Mt64;

/// The choices of one sample, in the order in which they are made.
pub struct Draw(Mt64);

impl Draw {
    /// The choices of sample `index` of a task.
    pub fn new(seed: u64, task: &str, index: usize) -> Self {
        Draw(Mt64::new_with_key([seed, super::super::fnv1a(task.as_bytes()), index as u64]))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    /// A number of so many decimal digits.
    pub fn number(&mut self, n_digit: u32) -> String {
        let least = 10usize.pow(n_digit.saturating_sub(1));
        (least + self.below(9 * least)).to_string()
    }

    /// A random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }

    /// `n` different ones of `all`, in random order.
    pub fn several<T: Copy>(&mut self, all: &[T], n: usize) -> Vec<T> {
        let mut all = all.to_vec();
        self.shuffle(&mut all);
        all.truncate(n);
        all
    }

    /// `n` different words of so many random letters of the alphabet that begins with `a`.
    pub fn letters(&mut self, n: usize, n_letter: usize, a: char) -> Vec<String> {
        let mut all: Vec<String> = Vec::with_capacity(n);
        let mut seen = std::collections::BTreeSet::new();
        while all.len() < n {
            let word: String = (0..n_letter).map(|_| (a as u8 + self.below(26) as u8) as char).collect();
            if seen.insert(word.clone()) {
                all.push(word);
            }
        }
        all
    }
}
