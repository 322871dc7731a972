//! Ctrl-C: the first one stops the answer, the second one ends the program with exit status 130.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::error::{Error, Result};

/// Exit status of a program that was ended by Ctrl-C.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Whether the user wants the answer to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over Ctrl-C for this process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is taken already or the system refuses.
    pub fn install() -> Result<Self> {
        let interrupt = Interrupt::default();
        let in_handler = interrupt.clone();
        let installed = ctrlc::set_handler(move || {
            if in_handler.press() {
                std::process::exit(EXIT_INTERRUPTED);
            }
        });
        installed.map_err(|e| Error::unsupported("Ctrl-C handler", e.to_string()))?;
        Ok(interrupt)
    }

    /// Records a Ctrl-C and tells whether an earlier one is still pending.
    fn press(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether Ctrl-C was pressed since the last [`Interrupt::clear`].
    pub fn is_pending(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Starts over: the next Ctrl-C is a first one again.
    pub fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_press_is_the_last() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.is_pending());
        assert!(!interrupt.press());
        assert!(interrupt.clone().is_pending());
        assert!(interrupt.press());
        interrupt.clear();
        assert!(!interrupt.press());
    }
}
