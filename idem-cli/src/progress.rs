//! The progress of a command, for an operator who waits at a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use idem_core::store::admin::Page;

/// How many records are between two displays.
const STEP: usize = 10_000;

/// A line on the standard error output that is overwritten as the command proceeds. It is only
/// shown at a terminal.
pub(crate) struct Progress {
    looked_at: usize,
    shown: usize,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            looked_at: 0,
            shown: 0,
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Counts the records of a page.
    pub(crate) fn add_page(&mut self, page: &Page) {
        if !page.unreadable.is_empty() {
            // The caller prints a message about each of them next.
            self.clear();
            self.looked_at += page.looked_at;
            return;
        }
        self.add(page.looked_at);
    }

    /// Counts records.
    pub(crate) fn add(&mut self, records: usize) {
        self.looked_at += records;
        if self.is_terminal && self.looked_at >= self.shown + STEP {
            self.shown = self.looked_at;
            let mut err = io::stderr().lock();
            let _ =
                write!(err, "\r{} records looked at", self.looked_at).and_then(|()| err.flush());
        }
    }

    /// Erases the line, before something else is printed.
    pub(crate) fn clear(&self) {
        if self.shown > 0 {
            let mut err = io::stderr().lock();
            let _ = write!(err, "\r\u{1b}[K").and_then(|()| err.flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
