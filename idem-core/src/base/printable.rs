//! Makes text that a client or a mistake has chosen safe to print in logs.

use std::fmt::{self, Write as _};

/// How many characters of an invalid name are shown.
const MOST_SHOWN: usize = 64;

/// Percent-encodes what is not printable: control and format characters, such as those that reverse
/// or hide text, private and unassigned ones. Only for display, because the set of printable
/// characters changes with the version of Unicode.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(|c| !is_printable(c)) {
            let (plain, hidden) = rest.split_at(at);
            let width = hidden.chars().next().map_or(1, char::len_utf8);
            let (hidden, after) = hidden.split_at(width);
            f.write_str(plain)?;
            hidden
                .bytes()
                .try_for_each(|byte| write!(f, "%{byte:02X}"))?;
            rest = after;
        }
        f.write_str(rest)
    }
}

fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Debug escapes a combining mark that has no base character, so the character comes after a
    // letter.
    let mut text = [b'a', 0, 0, 0, 0];
    let width = c.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=width]).is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

/// An operation's invalid name, for errors and events: printable, and cut where it is long.
pub(crate) fn shown_name(name: &str) -> String {
    let end = name
        .char_indices()
        .nth(MOST_SHOWN)
        .map_or(name.len(), |(at, _)| at);
    let mut shown = Printable(&name[..end]).to_string();
    if end < name.len() {
        shown.push('\u{2026}');
    }
    // Writing to a `String` cannot fail. An empty name would look like a mistake of the log.
    if shown.is_empty() {
        let _ = write!(shown, "(empty)");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reverses_or_hides_text_is_escaped_and_what_people_write_is_not() {
        let shown = |text: &str| Printable(text).to_string();
        for c in [
            '\u{202e}',
            '\u{200b}',
            '\u{feff}',
            '\u{2066}',
            '\u{200d}',
            '\u{ad}',
            '\u{61c}',
            '\u{e0041}',
            '\u{e000}',
            '\n',
            '\u{85}',
        ] {
            let text = format!("a{c}b");
            let escaped = shown(&text);
            assert!(
                escaped.is_ascii() && escaped.starts_with("a%") && escaped.ends_with('b'),
                "{escaped}"
            );
        }
        for text in [
            "o-1:%E2'(x)",
            "Zo\u{eb}-\u{65e5}\u{672c}-\u{1f980}",
            "e\u{301}",
            "\u{915}\u{94d}\u{937}",
            "\u{5d0}\u{5d1}",
        ] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("\u{202e}"), "%E2%80%AE");
    }

    #[test]
    fn an_invalid_name_is_shown_on_one_line_and_cut() {
        assert_eq!(
            shown_name("orders create\n\u{202e}"),
            "orders create%0A%E2%80%AE"
        );
        assert_eq!(
            shown_name(&"\u{e9}".repeat(1000)).chars().count(),
            MOST_SHOWN + 1
        );
        assert_eq!(
            shown_name(&shown_name(&"x".repeat(1000))),
            shown_name(&"x".repeat(1000))
        );
        assert_eq!(shown_name(""), "(empty)");
    }
}
