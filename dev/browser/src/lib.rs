//! Chromium, without a window, driven through `chromedriver`: what the tests of the example `form`
//! visit its pages with.
//!
//! Nothing here sleeps and hopes. A navigation returns at once (`pageLoadStrategy: none`):
//! otherwise a page whose answer is held back on purpose would hold its test as well. A test waits
//! for the expected state of the page, with a limit ([`Browser::until`]). While a tab waits for an
//! answer, Chromium says nothing of the page that it still shows: all questions wait for the answer
//! too. So a test asks the server, or another tab.

mod browser;
mod driver;

pub use browser::{Browser, Options, Tab};
