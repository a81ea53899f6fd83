//! Arguments that cannot be read, printed without the password of a URL among them.

use clap::error::ErrorKind;

use crate::print;

/// Prints an error about the command line.
pub(crate) fn print(error: &clap::Error) {
    let args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let mut secrets: Vec<String> =
        args.filter_map(|arg| arg.split_once("://").map(|(_, rest)| rest.to_owned())).collect();
    secrets.retain(|rest| !rest.is_empty());
    // One may begin another.
    secrets.sort_by_key(|rest| std::cmp::Reverse(rest.len()));
    let text = error.to_string();
    let disguised = secrets.iter().fold(text.clone(), |text, rest| text.replace(&format!("://{rest}"), "://.."));
    if disguised == text {
        let _ = error.print();
        return;
    }
    print::aside(disguised.trim_end());
    if matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        print::aside("\n  tip: give the store's URL as `--store URL`, or in the variable IDEM_STORE");
    }
}
