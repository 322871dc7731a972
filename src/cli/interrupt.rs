//! Signals: the first Ctrl-C stops the answer, the second ends the program; SIGTERM and SIGHUP end it after the current token.
//! While there is no answer to be stopped, because the model is fetched or loaded, each ends the program at once.
//!
//! A program that a signal has ended exits with 128 and the number of the signal, as shells report it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use super::new_file;
use crate::error::{Error, Result};

/// Exit status of a program that was ended by Ctrl-C.
pub const EXIT_INTERRUPTED: i32 = 130;

/// Whether the user wants the answer, or the program, to stop.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    pressed: Arc<AtomicBool>,
    /// Nothing asks for signals yet.
    is_starting: AtomicBool,
    /// The signal that ends the program, 0 = none.
    ending: AtomicI32,
    /// What has to be put right before the process ends while a line is edited; `None` while none is.
    edited: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Interrupt {
    /// Takes over the signals of this process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when they are taken already or the system refuses.
    #[cfg(unix)]
    pub fn install() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|e| Error::unsupported("signal handler", e.to_string()))?;
        let interrupt = Interrupt::starting();
        let in_handler = interrupt.clone();
        let wait = move || {
            for signal in signals.forever() {
                let is_last = if signal == SIGINT { in_handler.press() } else { in_handler.end(signal) };
                if is_last {
                    in_handler.leave_editor();
                    end(128 + signal);
                }
            }
        };
        std::thread::Builder::new().spawn(wait).map_err(|e| Error::io("a thread that waits for signals", e))?;
        Ok(interrupt)
    }

    /// Takes over Ctrl-C for this process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is taken already or the system refuses.
    #[cfg(not(unix))]
    pub fn install() -> Result<Self> {
        let interrupt = Interrupt::starting();
        let in_handler = interrupt.clone();
        let installed = ctrlc::set_handler(move || {
            if in_handler.press() {
                end(EXIT_INTERRUPTED);
            }
        });
        installed.map_err(|e| Error::unsupported("Ctrl-C handler", e.to_string()))?;
        Ok(interrupt)
    }

    fn starting() -> Self {
        let interrupt = Interrupt::default();
        interrupt.0.is_starting.store(true, Ordering::SeqCst);
        interrupt
    }

    /// From now on signals are asked for.
    pub fn started(&self) {
        self.0.is_starting.store(false, Ordering::SeqCst);
    }

    /// Records a Ctrl-C and tells whether nobody will see it, or an earlier one is still pending.
    fn press(&self) -> bool {
        self.0.pressed.swap(true, Ordering::SeqCst) || self.0.is_starting.load(Ordering::SeqCst)
    }

    /// Records a signal that ends the program, and tells whether it has to end at once.
    #[cfg(unix)]
    fn end(&self, signal: i32) -> bool {
        let earlier = self.0.ending.swap(signal, Ordering::SeqCst);
        self.press();
        let is_starting = self.0.is_starting.load(Ordering::SeqCst);
        // The editor waits for keys and asks nobody.
        earlier != 0 || is_starting || self.0.edited.lock().is_ok_and(|edited| edited.is_some())
    }

    /// Says what has to be put right when a signal ends the program from now on; `None` when a line is no longer edited.
    pub fn set_editing(&self, restore: Option<Box<dyn Fn() + Send>>) {
        if let Ok(mut edited) = self.0.edited.lock() {
            *edited = restore;
        }
    }

    #[cfg(unix)]
    fn leave_editor(&self) {
        if let Some(restore) = self.0.edited.lock().ok().and_then(|mut edited| edited.take()) {
            restore();
        }
    }

    /// Whether a signal came since the last [`Interrupt::clear`].
    pub fn is_pending(&self) -> bool {
        self.0.pressed.load(Ordering::SeqCst)
    }

    /// What [`Interrupt::is_pending`] reads, for those who ask in the middle of a computation.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.pressed.clone()
    }

    /// The exit status of a program that a signal is ending.
    pub fn ending(&self) -> Option<i32> {
        let signal = self.0.ending.load(Ordering::SeqCst);
        (signal != 0).then_some(128 + signal)
    }

    /// Starts over: the next Ctrl-C is a first one again. What ends the program stays.
    pub fn clear(&self) {
        self.0.pressed.store(self.ending().is_some(), Ordering::SeqCst);
    }
}

/// Ends the process, wherever it is.
fn end(code: i32) {
    new_file::remove_unfinished();
    // A closed standard error changes nothing any more.
    let _ = writeln!(std::io::stderr(), "Interrupted by user");
    std::process::exit(code);
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

    #[cfg(unix)]
    #[test]
    fn what_ends_the_program_is_not_cleared() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.end(15));
        interrupt.clear();
        assert!(interrupt.is_pending());
        assert_eq!(interrupt.ending(), Some(143));
        assert!(interrupt.end(15), "the second one is not waited for");
        let starting = Interrupt::starting();
        assert!(starting.end(15) && Interrupt::starting().press());
        starting.started();
        starting.0.pressed.store(false, Ordering::SeqCst);
        assert!(!starting.press());
        let editing = Interrupt::default();
        editing.set_editing(Some(Box::new(|| ())));
        assert!(editing.end(1));
    }
}
