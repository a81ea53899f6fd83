//! What the server says of a delivery, in the subject that acknowledges it.
//!
//! The client reads these subjects too, but not the one of 11 tokens, which servers may send since
//! 2.14.

use idem_queue::BoxError;

/// A delivery, as its acknowledgement subject describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AckSubject<'a> {
    pub(crate) consumer: &'a str,
    /// How often the message was delivered, this delivery included.
    pub(crate) delivered: u64,
    /// The sequence of the message in its stream.
    pub(crate) sequence: u64,
    /// When the stream received the message, in nanoseconds: the same in each delivery.
    pub(crate) published: i64,
}

impl<'a> AckSubject<'a> {
    /// Reads the 9 tokens of older servers, and the 11 and more of newer ones, which put a domain
    /// and the hash of an account first and may append tokens.
    pub(crate) fn read(subject: Option<&'a str>) -> Result<Self, BoxError> {
        let subject = subject.unwrap_or_default();
        Self::read_tokens(subject).ok_or_else(|| {
            format!(
                "the message has the reply subject `{}`, which is not the acknowledgement subject \
                 of a JetStream consumer, or has a form that this version cannot read",
                subject.escape_debug()
            )
            .into()
        })
    }

    fn read_tokens(subject: &'a str) -> Option<Self> {
        let tokens: Vec<&str> = subject.strip_prefix("$JS.ACK.")?.split('.').collect();
        let ([_, consumer, delivered, sequence, _, published, _]
        | [_, _, _, consumer, delivered, sequence, _, published, _, ..]) = *tokens
        else {
            return None;
        };
        Some(Self {
            consumer,
            delivered: delivered.parse().ok()?,
            sequence: sequence.parse().ok()?,
            published: published.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::AckSubject;

    #[test]
    fn the_subjects_of_older_and_newer_servers_say_the_same() {
        let expected = Some(AckSubject {
            consumer: "workers",
            delivered: 3,
            sequence: 17,
            published: 1_779_000_000_123_456_789,
        });
        let last = "ORDERS.workers.3.17.19.1779000000123456789.5";
        for (subject, expected) in [
            (format!("$JS.ACK.{last}"), expected),
            (format!("$JS.ACK._.aBcD.{last}"), expected),
            (format!("$JS.ACK.hub.aBcD.{last}"), expected),
            (format!("$JS.ACK.hub.aBcD.{last}.x7"), expected),
            (format!("$JS.ACK.hub.aBcD.{last}.x7.8.9"), expected),
            // Digits where a name belongs move nothing.
            (format!("$JS.ACK.1.2.{last}"), expected),
            // 10 tokens have no meaning.
            (format!("$JS.ACK.hub.{last}"), None),
            (
                "$JS.ACK.ORDERS.workers.3.17.19.1779000000123456789".to_owned(),
                None,
            ),
            ("$JS.ACK.ORDERS.workers.3.-17.19.1.5".to_owned(), None),
            ("$JS.ACK.ORDERS.workers.3.x.19.1.5".to_owned(), None),
            (format!("$JS.FC.{last}"), None),
            (format!("_INBOX.{last}"), None),
            (String::new(), None),
        ] {
            assert_eq!(AckSubject::read(Some(&subject)).ok(), expected, "{subject}");
        }
        let error = AckSubject::read(None).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("reply subject ``")));
    }
}
