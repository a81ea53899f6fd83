//! Records as tables, as text and as JSON.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use idem_core::record::{Encoded, RecordId};
use idem_core::store::trail::{Decision, Ended, Entry};
use idem_core::{CodecId, Key, KeyDigest, RecordInfo, RecordState};
use serde_json::{Map, Value, json};

/// A state as the command line writes it.
pub(crate) fn state(state: RecordState) -> &'static str {
    state.as_str()
}

pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A duration in its two largest units, in the form that the options accept.
pub(crate) fn length(length: Duration) -> String {
    let seconds = length.as_secs();
    if seconds == 0 {
        return format!("{}ms", length.as_millis());
    }
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let first = units
        .iter()
        .position(|(_, unit)| seconds >= *unit)
        .unwrap_or_default();
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (name, unit) in units.iter().skip(first).take(2) {
        if rest / unit > 0 {
            parts.push(format!("{}{name}", rest / unit));
        }
        rest %= unit;
    }
    parts.join(" ")
}

/// Escapes characters of foreign text that could control a terminal, and the backslash of what
/// [`typed`], which reads it back, would take for such an escape.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if text.bytes().all(is_plain) && !text.contains("\\u{") {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for (at, c) in text.char_indices() {
        match c {
            '\\' if escape(&text[at..]).is_some() => out.extend(c.escape_unicode()),
            '\'' | '"' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    Cow::Owned(out)
}

/// Reads a key as [`shown`] prints it: a key has no other escapes than `\u{200b}`. What `shown`
/// would not print so stands for itself.
pub(crate) fn typed(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (c, after) = escape(&rest[at..]).unwrap_or(('\\', &rest[at + 1..]));
        out.push(c);
        rest = after;
    }
    out + rest
}

/// Reads an escape at the beginning of a text, and what follows it.
fn escape(text: &str) -> Option<(char, &str)> {
    let (hex, rest) = text.strip_prefix("\\u{")?.split_once('}')?;
    let c = char::from_u32(u32::from_str_radix(hex, 16).ok()?)?;
    let is_shown = c == '\\' || c.escape_debug().eq(c.escape_unicode());
    let is_this_one = c.escape_unicode().eq(format!("\\u{{{hex}}}").chars());
    (is_shown && is_this_one).then_some((c, rest))
}

/// A record as one object.
pub(crate) fn object(id: &RecordId, info: &RecordInfo) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("operation", id.operation().into());
    put("key", id.key().into());
    put("key_is_digest", is_digest(id).into());
    put("digest", id.digest().to_string().into());
    put("state", state(info.state).into());
    put("attempt", info.attempt.into());
    put(
        "fingerprint",
        info.fingerprint.map(|print| print.to_string()).into(),
    );
    put("is_error", info.is_error.into());
    put("age_ms", info.lease_age.map(millis).into());
    put("lease_left_ms", info.lease_left.map(millis).into());
    put("expires_in_ms", millis(info.expires_in).into());
    put("trace", info.trace.as_deref().into());
    if let Some(run) = info.run {
        put("run", run.to_string().into());
    }
    put(
        "outcome",
        info.outcome.as_ref().map_or(Value::Null, outcome),
    );
    if let Some(outcome) = &info.outcome {
        put("outcome_type", info.outcome_type.as_deref().into());
        put("codec", outcome.codec.as_str().into());
        put("outcome_bytes", outcome.payload.len().into());
        put("outcome_version", outcome.version().into());
        let metadata = outcome.metadata.as_deref();
        let audit = metadata
            .and_then(|metadata| metadata.audit.as_ref())
            .map(|audit| json!({ "who": *audit.who, "reason": *audit.why, "age_ms": info.audit_age.map(millis) }));
        put("audit", audit.into());
    }
    Value::Object(object)
}

/// An outcome as JSON; null if it is in another codec.
fn outcome(outcome: &Encoded) -> Value {
    if outcome.codec == CodecId::JSON {
        serde_json::from_slice(&outcome.payload).unwrap_or_default()
    } else {
        Value::Null
    }
}

fn is_digest(id: &RecordId) -> bool {
    Key::from_encoded(id.key()).is_some_and(|key| key.is_digest())
}

/// JSON on one line, without characters that control a terminal, or that hide or reverse text.
pub(crate) fn json_text(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        // Outside of a string, JSON has only characters that are printed.
        if matches!(c, ' '..='~') || c.escape_debug().count() == 1 {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = fmt::Write::write_fmt(&mut out, format_args!("\\u{unit:04x}"));
        }
    }
    out
}

/// Prints JSON on one line.
pub(crate) fn json(value: &Value) -> io::Result<()> {
    line(&json_text(value))
}

/// Prints text without a line break.
pub(crate) fn text(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

/// Prints a line. A closed pipe is an error and not a panic.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Prints a line on the standard error output. It ignores a closed output, which must not end a
/// change halfway.
pub(crate) fn aside(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints columns, each as wide as its widest cell.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    Table::new(head).rows(rows)
}

/// A table that may be printed in several parts. A column is as wide as its widest cell so far.
pub(crate) struct Table {
    head: Option<Vec<String>>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
        Self {
            widths: head.iter().map(String::len).collect(),
            head: Some(head),
        }
    }

    pub(crate) fn rows(&mut self, rows: &[Vec<String>]) -> io::Result<()> {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = BufWriter::new(io::stdout().lock());
        for row in self.head.take().iter().chain(rows) {
            let cells = row
                .iter()
                .zip(&self.widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        out.flush()
    }
}

/// A row of a listing.
pub(crate) const COLUMNS: [&str; 7] = [
    "OPERATION",
    "KEY",
    "DIGEST",
    "STATE",
    "ATTEMPT",
    "AGE",
    "EXPIRES IN",
];

pub(crate) fn row(id: &RecordId, info: &RecordInfo) -> Vec<String> {
    vec![
        id.operation().to_owned(),
        shown(id.key()).into_owned(),
        id.digest().to_string(),
        state(info.state).to_owned(),
        info.attempt.to_string(),
        info.lease_age.map_or_else(|| "-".to_owned(), length),
        length(info.expires_in),
    ]
}

/// Prints a record in full.
pub(crate) fn record(id: &RecordId, info: &RecordInfo) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<12} {value}");
    line("operation", id.operation())?;
    line("key", &shown(id.key()))?;
    if is_digest(id) {
        line(
            "",
            "(a digest: the key was too long, or is that of a token)",
        )?;
    }
    line("digest", &id.digest().to_string())?;
    line("state", state(info.state))?;
    line("attempt", &info.attempt.to_string())?;
    line(
        "fingerprint",
        &info
            .fingerprint
            .map_or_else(|| "none".to_owned(), |print| print.to_string()),
    )?;
    if let Some(age) = info.lease_age {
        line(
            "age",
            &format!("{} since the claim or the last renewal", length(age)),
        )?;
    }
    if let Some(left) = info.lease_left {
        line("lease left", &length(left))?;
    }
    line("expires in", &length(info.expires_in))?;
    if let Some(trace) = &info.trace {
        line("trace", trace)?;
    }
    match (&info.outcome, &info.outcome_type) {
        (Some(outcome), _) => print_outcome(outcome, info, &mut line)?,
        (None, Some(name)) => line("type", &shown(name))?,
        (None, None) => {}
    }
    out.flush()
}

/// Prints the outcome of a record by `line`, which prints a name and a value.
fn print_outcome(
    outcome: &Encoded,
    info: &RecordInfo,
    line: &mut impl FnMut(&str, &str) -> io::Result<()>,
) -> io::Result<()> {
    let kind = if info.is_error { "error" } else { "outcome" };
    let payload = String::from_utf8_lossy(&outcome.payload);
    if outcome.codec == CodecId::JSON {
        line(kind, &shown(&payload))?;
    } else {
        line(
            kind,
            &format!(
                "{} bytes of the codec `{}`",
                outcome.payload.len(),
                outcome.codec
            ),
        )?;
    }
    if let Some(name) = &info.outcome_type {
        line("type", &shown(name))?;
    }
    if outcome.version() > 1 {
        line("version", &outcome.version().to_string())?;
    }
    let metadata = outcome.metadata.as_deref();
    if let Some(audit) = metadata.and_then(|metadata| metadata.audit.as_ref()) {
        let age = info
            .audit_age
            .map_or_else(String::new, |age| format!(", {} ago", length(age)));
        let why = if audit.why.is_empty() {
            String::new()
        } else {
            format!(": {}", shown(&audit.why))
        };
        line("settled by", &format!("{}{age}{why}", shown(&audit.who)))?;
    }
    Ok(())
}

/// Prints another outcome of an operation, as a pattern.
pub(crate) fn pattern(id: &RecordId, info: &RecordInfo, value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let name = info
        .outcome_type
        .as_deref()
        .map_or_else(String::new, |name| format!(", a `{}`", shown(name)));
    writeln!(
        out,
        "{:<12} {} (of {}{name})",
        "pattern",
        shown(&value.to_string()),
        shown(id.key())
    )?;
    out.flush()
}

/// The columns of the trail.
pub(crate) const ENTRY_COLUMNS: [&str; 9] = [
    "AGE",
    "OPERATION",
    "DIGEST",
    "DECISION",
    "FOUND",
    "ATTEMPT",
    "WHO",
    "RESULT",
    "REASON",
];

pub(crate) fn entry_row(entry: &Entry) -> Vec<String> {
    let Decision {
        name,
        operation,
        digest,
        state,
        attempt,
        ..
    } = &entry.decision;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        length(entry.age),
        shown(operation).into_owned(),
        or_dash(digest.map(|digest| digest.to_string())),
        shown(name).into_owned(),
        or_dash(state.map(|state| state.as_str().to_owned())),
        or_dash(attempt.map(|attempt| attempt.to_string())),
        shown(&entry.who).into_owned(),
        result(entry),
        shown(&entry.why).into_owned(),
    ]
}

/// How a decision ended, in a few words.
fn result(entry: &Entry) -> String {
    match &entry.result {
        Some(Ended::Done { records }) if entry.decision.digest.is_none() => {
            let by_key = if entry.decision.by_key { " by key" } else { "" };
            format!("{records} removed{by_key}")
        }
        Some(Ended::Done { .. }) => "done".to_owned(),
        Some(Ended::Refused { reason }) => format!("refused: {}", shown(reason)),
        _ => "not noted".to_owned(),
    }
}

/// A decision as one object.
pub(crate) fn entry_object(entry: &Entry) -> Value {
    let Decision {
        name,
        operation,
        digest,
        state,
        attempt,
        older_than,
        by_key,
        force,
        ..
    } = &entry.decision;
    let (result, refused, records) = match &entry.result {
        Some(Ended::Done { records }) => (Some("done"), None, Some(*records)),
        Some(Ended::Refused { reason }) => (Some("refused"), Some(&**reason), None),
        _ => (None, None, None),
    };
    json!({
        "decision": **name, "operation": **operation, "digest": digest.map(|digest| digest.to_string()),
        "found": state.map(RecordState::as_str), "attempt": attempt, "older_than_ms": older_than.map(millis),
        "by_key": by_key, "force": force, "who": *entry.who, "reason": *entry.why, "age_ms": millis(entry.age),
        "result": result, "refused_because": refused, "records": records,
    })
}

/// The decisions about a record, the latest first.
pub(crate) fn entries(entries: &[Entry]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (index, entry) in entries.iter().enumerate() {
        let name = if index == 0 { "decisions" } else { "" };
        let Decision {
            name: decision,
            state,
            attempt,
            older_than,
            force,
            digest,
            ..
        } = &entry.decision;
        let mut found: Vec<String> = state
            .iter()
            .map(|state| state.as_str().to_owned())
            .collect();
        found.extend(attempt.map(|attempt| format!("attempt {attempt}")));
        found.extend(older_than.map(|age| format!("older than {}", length(age))));
        found.extend(force.then(|| "forced".to_owned()));
        if digest.is_none() {
            found.push(format!("of {}", shown(&entry.decision.operation)));
        }
        let why = if entry.why.is_empty() {
            String::new()
        } else {
            format!(": {}", shown(&entry.why))
        };
        let ago = length(entry.age);
        let decision = shown(decision);
        let who = shown(&entry.who);
        let result = result(entry);
        writeln!(
            out,
            "{name:<12} {decision} {ago} ago by {who} ({}), {result}{why}",
            found.join(", ")
        )?;
    }
    out.flush()
}

/// A record that is gone.
pub(crate) fn gone(operation: &str, key: Option<&str>, digest: KeyDigest) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<12} {}", "operation", shown(operation))?;
    if let Some(key) = key {
        writeln!(out, "{:<12} {}", "key", shown(key))?;
    }
    writeln!(
        out,
        "{:<12} {digest}\n{:<12} none: there is no record",
        "digest", "state"
    )
}

/// Describes a change of a record.
pub(crate) fn changed(
    action: &str,
    id: &RecordId,
    info: Option<&RecordInfo>,
    attempt: u64,
    who: &str,
) -> Value {
    let Some(info) = info else {
        return changed_unread(action, id, None, attempt, who);
    };
    by(object(id, info), action, who)
}

/// Describes a change of a record that was not read afterwards.
pub(crate) fn changed_unread(
    action: &str,
    id: &RecordId,
    left: Option<RecordState>,
    attempt: u64,
    who: &str,
) -> Value {
    let value = json!({
        "operation": id.operation(), "key": id.key(), "digest": id.digest().to_string(),
        "state": left.map(state), "attempt": attempt, "outcome": null,
    });
    by(value, action, who)
}

fn by(mut value: Value, action: &str, who: &str) -> Value {
    if let Value::Object(object) = &mut value {
        object.insert("action".to_owned(), action.into());
        object.insert("who".to_owned(), who.into());
    }
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_its_two_largest_units_and_reads_back() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1000, "1s"),
            (61_000, "1m 1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d 1h"),
            (2_592_000_000, "30d"),
        ] {
            assert_eq!(length(Duration::from_millis(millis)), text);
            humantime::parse_duration(text).unwrap();
        }
    }

    #[test]
    fn what_hides_or_reverses_text_is_escaped() {
        assert_eq!(shown("o-1:a'b"), "o-1:a'b");
        assert_eq!(shown("Zo\u{eb}'s"), "Zo\u{eb}'s");
        assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(shown("a\u{1b}[31m"), "a\\u{1b}[31m");
    }

    #[test]
    fn a_key_is_typed_as_it_is_shown() {
        for key in [
            "a\u{200b}b",
            "\u{202e}",
            "e\u{301}",
            "\u{e0041}x\u{feff}",
            "o-1:a'b",
            "Zo\u{eb}",
            "\\",
            "\\\\server\\u",
            "\\u{200b}",
            "\\\\u{200b}",
            "\\u{200b}\u{200b}",
            "\\u{5c}u{200b}",
            "\\u{5c}\\u{5c}",
            "\\u{41}\\u{\u{202e}",
        ] {
            assert_eq!(typed(&shown(key)), key);
        }
        assert_eq!(shown("\\u{200b}"), "\\u{5c}u{200b}");
        // What `shown` does not print stands for itself.
        for text in [
            "a\\u{41}",
            "\\u{200B}",
            "\\u{0200b}",
            "\\u{}",
            "\\u{200b",
            "\\u{110000}",
            "\\u200b",
            "\\u{+5c}",
            "\\u{5C}",
            "\\n",
        ] {
            assert_eq!(typed(text), text);
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn json_has_no_character_that_controls_a_terminal() {
        let text = "a\u{7f}\u{85}\u{2028}\u{202e}\u{e0041}\u{1b}\n\"\\\u{eb}\u{1f980}";
        let printed = json_text(&json!({ text: text }));
        let escaped =
            "a\\u007f\\u0085\\u2028\\u202e\\udb40\\udc41\\u001b\\n\\\"\\\\\u{eb}\u{1f980}";
        assert_eq!(printed, format!("{{\"{escaped}\":\"{escaped}\"}}"));
        assert_eq!(
            serde_json::from_str::<Value>(&printed).unwrap(),
            json!({ text: text })
        );
    }
}
