//! Prints an error about the command line, without the password of a URL in it.

use clap::error::ErrorKind;

use crate::print;

/// Prints an error about the command line.
pub(crate) fn print(error: &clap::Error) {
    let args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let mut secrets: Vec<String> = args
        .filter_map(|arg| arg.split_once("://").map(|(_, rest)| rest.to_owned()))
        .collect();
    secrets.retain(|rest| !rest.is_empty());
    // The longest first, because one may be the beginning of another.
    secrets.sort_by_key(|rest| std::cmp::Reverse(rest.len()));
    let text = error.to_string();
    let redacted = secrets.iter().fold(text.clone(), |text, rest| {
        text.replace(&format!("://{rest}"), "://..")
    });
    if redacted == text {
        let _ = error.print();
        return;
    }
    print::aside(redacted.trim_end());
    if matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
    ) {
        print::aside(
            "\n  tip: give the store's URL as `--store URL`, or in the variable IDEM_STORE",
        );
    }
}
