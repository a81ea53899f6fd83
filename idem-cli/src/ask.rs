//! The operator of a change, the reason, and the confirmation.

use std::io::{self, BufRead as _, Write as _};

use idem_core::record::RecordId;

use crate::args::Consent;
use crate::failure::Failure;

/// Asks, unless the answer was given with `--yes`.
pub(crate) fn confirm(consent: &Consent, question: &str) -> Result<(), Failure> {
    if consent.yes {
        return Ok(());
    }
    if answer(question) {
        return Ok(());
    }
    Err(Failure::Refused(
        "not confirmed, so nothing was changed; `--yes` answers the question".to_owned(),
    ))
}

/// Asks, also with `--yes`. `advice` says what else to do.
pub(crate) fn confirm_by_hand(question: &str, advice: &str) -> Result<(), Failure> {
    if answer(question) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "not confirmed, so nothing was changed; `--yes` does not answer this question: {advice}"
    )))
}

fn answer(question: &str) -> bool {
    let mut err = io::stderr().lock();
    let _ = write!(err, "{question}\nGo on? [y/N] ").and_then(|()| err.flush());
    drop(err);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if matches!(read, Ok(0)) {
        // The input has ended without a line break after the question.
        let _ = writeln!(io::stderr().lock());
    }
    matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The operator, as `user@host`. Behind `sudo`, it is the person who called that.
pub(crate) fn who() -> String {
    let named = |name| std::env::var(name).ok().filter(|user| !user.is_empty());
    let user = ["SUDO_USER", "USER", "LOGNAME", "USERNAME"]
        .into_iter()
        .find_map(named)
        .or_else(user_of_process);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"))
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    let or_unknown = |text: Option<String>| {
        text.map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| "unknown".to_owned())
    };
    let who = format!("{}@{}", or_unknown(user), or_unknown(host));
    // A record stores at most 128 bytes of it.
    who.char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= 128)
        .map(|(_, c)| c)
        .collect()
}

/// The user that this process runs as, for containers and services without the variables.
#[cfg(unix)]
fn user_of_process() -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let uid = std::fs::metadata("/proc/self").ok()?.uid();
    let names = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = names.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(name.unwrap_or_else(|| format!("uid-{uid}")))
}

#[cfg(not(unix))]
fn user_of_process() -> Option<String> {
    None
}

/// Reports a change as the runtime reports its decisions.
pub(crate) fn report(decision: &'static str, id: &RecordId, attempt: u64, consent: &Consent) {
    tracing::info!(
        target: "idem",
        operation = id.operation(),
        key = %id.digest(),
        decision,
        attempt,
        who = who(),
        reason = consent.reason.as_deref(),
        force = consent.force,
        "{decision}"
    );
}
