//! Chromium and its driver, for the tests with a real browser. If they are not available,
//! everything else is tested, and the output says so.

use std::sync::OnceLock;

use xshell::Shell;

use crate::tool;

/// The package that has these tests.
pub(crate) const PACKAGE: &str = "idem-browser";

/// The driver's package brings the browser.
const DRIVER: tool::Package = tool::Package {
    program: "chromedriver",
    apt: "chromium-driver",
    brew: "chromedriver",
    elsewhere: None,
};

/// Why the tests were left out.
static LEFT_OUT: OnceLock<String> = OnceLock::new();

/// Whether there is a browser; installs one if there is none. If that cannot be, says so, and
/// [`remind`] will once more.
pub(crate) fn is_there(shell: &Shell) -> bool {
    let ensured = tool::ensure(shell, &[DRIVER]);
    if let Err(error) = ensured {
        LEFT_OUT.get_or_init(|| format!("{error:#}"));
        remind();
    }
    LEFT_OUT.get().is_none()
}

/// The last word of a chore that has left the tests out.
pub(crate) fn remind() {
    if let Some(why) = LEFT_OUT.get() {
        let line = "!".repeat(100);
        println!(
            "\n{line}\n!!! NOT TESTED: {PACKAGE}, because there is no Chromium with its driver, \
             and none could be installed:"
        );
        println!(
            "!!! {why}\n!!! Nothing was seen of what a browser does with a form. Everything else \
             is tested.\n{line}"
        );
    }
}
