//! Facts about an outcome in its record: the version of its type, the trace of the call that ran,
//! and who settled it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

use crate::base::printable::Printable;

/// The longest [`Audit::who`], in bytes.
pub(crate) const MAX_WHO: usize = 128;
/// The longest [`Audit::why`], in bytes.
pub(crate) const MAX_WHY: usize = 512;
/// The longest [`Metadata::type_name`], in bytes.
const MAX_TYPE_NAME: usize = 48;

/// Data that is kept with an outcome, outside it. Most outcomes have none, and their records are
/// written as before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// The version of the outcome's type, from 2 on; `None`: 1, or an error.
    pub version: Option<u32>,
    /// The W3C trace context (`traceparent`) of the call that ran.
    pub trace: Option<Arc<str>>,
    /// The operator who recorded the outcome by hand.
    pub audit: Option<Audit>,
    /// The Rust type of the outcome without its modules, such as `Option<Receipt>`: 1 to 48 bytes.
    /// Kept where a person may have to settle a record, to say what duplicates decode.
    pub type_name: Option<Arc<str>>,
}

/// The operator who changed a record by hand, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Who: 1 to 128 bytes.
    pub who: Arc<str>,
    /// Why: up to 512 bytes.
    pub why: Arc<str>,
    /// How long the outcome is kept from the decision on. The part of it that has passed, by the
    /// store's clock, is the decision's age.
    pub kept_for: Duration,
}

impl Metadata {
    /// The longest [text](Self::to_text), in bytes.
    pub const MOST_TEXT: usize = 1024;

    /// Returns whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Writes it as one word of at most 1,024 letters, digits and `_ - , ;`.
    pub fn to_text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(version) = self.version {
            parts.push(format!("v{version}"));
        }
        if let Some(trace) = &self.trace {
            parts.push(format!("t{trace}"));
        }
        if let Some(Audit { who, why, kept_for }) = &self.audit {
            let [who, why] = [who, why].map(|text| BASE64.encode(text.as_bytes()));
            parts.push(format!("a{};{who};{why}", kept_for.as_millis()));
        }
        if let Some(name) = &self.type_name {
            parts.push(format!("n{}", BASE64.encode(name.as_bytes())));
        }
        parts.join(",")
    }

    /// Reads what [`to_text`](Self::to_text) wrote; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut metadata = Self::default();
        if text.len() > Self::MOST_TEXT {
            return None;
        }
        for part in text.split(',') {
            match part.split_at_checked(1)? {
                ("v", version) => {
                    metadata.version = Some(version.parse().ok().filter(|version| *version > 1)?);
                }
                ("t", trace) => metadata.trace = Some(is_trace(trace).then(|| trace.into())?),
                ("a", audit) => metadata.audit = Some(Audit::parse(audit)?),
                ("n", name) => metadata.type_name = Some(parse_type_name(name)?),
                _ => return None,
            }
        }
        // Refuses a text with a part twice or in another order, because such a text was not written
        // here.
        (metadata.to_text() == text).then_some(metadata)
    }
}

impl Audit {
    /// Says who and why; `None` where `who` is empty or one of them is too long.
    pub fn new(who: &str, why: &str, kept_for: Duration) -> Option<Self> {
        let fits = (1..=MAX_WHO).contains(&who.len()) && why.len() <= MAX_WHY;
        fits.then(|| Self {
            who: who.into(),
            why: why.into(),
            kept_for,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(';');
        let kept_for = Duration::from_millis(fields.next()?.parse().ok()?);
        let mut text = || String::from_utf8(BASE64.decode(fields.next()?).ok()?).ok();
        let audit = Self::new(&text()?, &text()?, kept_for)?;
        fields.next().is_none().then_some(audit)
    }
}

/// Returns a type's name as Rust gives it, without modules and references, shortened to what a
/// record has room for.
pub(crate) fn short_type_name(full: &str) -> Arc<str> {
    let mut short = String::with_capacity(MAX_TYPE_NAME);
    // Where the path that is being read begins.
    let mut path = 0;
    let mut rest = full;
    while let Some(next) = rest.chars().next() {
        let after_module = rest.strip_prefix("::");
        match after_module {
            Some(_) => short.truncate(path),
            None if next == '&' => {}
            None => short.push(next),
        }
        // `{{closure}}` is the module of a type in an async function.
        if after_module.is_none() && !(next.is_alphanumeric() || matches!(next, '_' | '{' | '}')) {
            path = short.len();
        }
        rest = after_module.unwrap_or_else(|| rest.get(next.len_utf8()..).unwrap_or_default());
    }
    if short.len() > MAX_TYPE_NAME {
        let end = (0..=MAX_TYPE_NAME - 2)
            .rev()
            .find(|end| short.is_char_boundary(*end));
        short.truncate(end.unwrap_or_default());
        short.push_str("..");
    }
    short.into()
}

fn parse_type_name(text: &str) -> Option<Arc<str>> {
    let name = String::from_utf8(BASE64.decode(text).ok()?).ok()?;
    (1..=MAX_TYPE_NAME)
        .contains(&name.len())
        .then(|| name.into())
}

/// Whether a text is a `traceparent` of version 00, as W3C Trace Context has it.
pub(crate) fn is_trace(text: &str) -> bool {
    let is_hex = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
    };
    let parts: Vec<_> = text.split('-').collect();
    matches!(
        parts[..],
        ["00", trace, span, flags]
            if [trace.len(), span.len(), flags.len()] == [32, 16, 2]
                && [trace, span, flags].into_iter().all(is_hex)
    )
}

/// The maker of a change by hand, and the reason. `Display` escapes what could end or reverse a
/// line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct By {
    pub(crate) who: String,
    pub(crate) why: String,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}: {}", Printable(&self.who), Printable(&self.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn whole() -> Metadata {
        let audit = Audit::new(
            "jane",
            "ticket 7: paid, see \"bank\"",
            Duration::from_secs(60),
        );
        Metadata {
            version: Some(2),
            trace: Some(TRACE.into()),
            audit,
            type_name: Some("Receipt".into()),
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let longest = Audit::new(
            &"w".repeat(MAX_WHO),
            &"y".repeat(MAX_WHY),
            Duration::from_millis(u64::MAX),
        );
        assert!(longest.is_some());
        let type_name = Some("n".repeat(MAX_TYPE_NAME).into());
        let longest = Metadata {
            version: Some(u32::MAX),
            audit: longest,
            type_name,
            ..whole()
        };
        for metadata in [
            whole(),
            longest,
            Metadata {
                audit: None,
                ..whole()
            },
            Metadata {
                version: None,
                ..whole()
            },
        ] {
            let text = metadata.to_text();
            assert!(
                text.len() <= Metadata::MOST_TEXT && !text.contains([' ', '"']),
                "{text}"
            );
            assert_eq!(Metadata::parse(&text), Some(metadata));
        }
        assert_eq!(
            whole().to_text(),
            format!("v2,t{TRACE},a60000;amFuZQ;dGlja2V0IDc6IHBhaWQsIHNlZSAiYmFuayI,nUmVjZWlwdA")
        );
        let upper = TRACE.to_uppercase();
        for text in [
            "",
            "v1",
            "v02",
            "v2,",
            "v2,v2",
            "x1",
            "t00-1",
            &format!("t{upper}"),
            "a1;;",
            "a1;amFuZQ",
            "a1;amFuZQ;;",
            "n",
            "n!",
            "nUmVjZWlwdA,v2",
        ] {
            assert_eq!(Metadata::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_type_is_named_without_its_modules_and_in_no_more_than_its_room() {
        struct Receipt;
        for (full, short) in [
            (std::any::type_name::<Receipt>(), "Receipt"),
            (std::any::type_name::<()>(), "()"),
            (
                std::any::type_name::<&Option<Vec<(u32, Receipt)>>>(),
                "Option<Vec<(u32, Receipt)>>",
            ),
            ("a::B<c::D, [u8; 4]>", "B<D, [u8; 4]>"),
            ("a::b::{{closure}}::Receipt", "Receipt"),
            (&"x".repeat(60), &format!("{}..", "x".repeat(46))),
            (&"é".repeat(60), &format!("{}..", "é".repeat(23))),
        ] {
            assert_eq!(&*short_type_name(full), short);
            let metadata = Metadata {
                type_name: Some(short_type_name(full)),
                ..Metadata::default()
            };
            assert_eq!(
                Metadata::parse(&metadata.to_text()),
                Some(metadata),
                "{full}"
            );
        }
    }

    #[test]
    fn an_audit_names_somebody_and_is_short() {
        let hour = Duration::from_secs(3600);
        assert!(Audit::new("", "why", hour).is_none() && Audit::new("jane", "", hour).is_some());
        assert!(
            Audit::new(&"w".repeat(129), "", hour).is_none()
                && Audit::new("jane", &"y".repeat(513), hour).is_none()
        );
    }
}
