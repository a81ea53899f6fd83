//! The ids of messages: a publisher's, or the sequence in the stream.

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, HeaderValue};

/// The prefix of the id of a message that its publisher gave no id. The sequence follows.
const SEQUENCE: &str = "sequence-";
/// The prefix of a publisher's id that looks like an id of this crate.
const PUBLISHED: &str = "Nats-Msg-Id:";

/// The id that the publisher gave, if it is not empty.
pub(crate) fn published_id(headers: Option<&HeaderMap>) -> Option<&str> {
    headers?
        .get(NATS_MESSAGE_ID)
        .map(HeaderValue::as_str)
        .filter(|id| !id.is_empty())
}

/// The id of a message: its publisher's, or else its sequence in the stream, which every message
/// has and keeps.
///
/// Publishers may choose any id. If one chose `sequence-2`, the second message of the stream would
/// be acknowledged as its duplicate, without having been handled. Only such ids are changed: the
/// ids are parts of keys, and a changed key is handled again.
pub(crate) fn message_id(published: Option<&str>, sequence: u64) -> String {
    let Some(id) = published else {
        return format!("{SEQUENCE}{sequence}");
    };
    let without_ours = id.trim_start_matches(PUBLISHED);
    let is_like_ours = without_ours
        .strip_prefix(SEQUENCE)
        .is_some_and(|number| number.parse::<u64>().is_ok());
    if is_like_ours {
        format!("{PUBLISHED}{id}")
    } else {
        id.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::message_id;

    #[test]
    fn no_id_of_a_publisher_is_that_of_a_sequence_and_two_of_them_stay_two() {
        let published = [
            ("m-1", "m-1"),
            ("sequence-", "sequence-"),
            ("sequence-two", "sequence-two"),
            ("Nats-Msg-Id:m-1", "Nats-Msg-Id:m-1"),
            ("sequence-2", "Nats-Msg-Id:sequence-2"),
            ("sequence-02", "Nats-Msg-Id:sequence-02"),
            (
                "Nats-Msg-Id:sequence-2",
                "Nats-Msg-Id:Nats-Msg-Id:sequence-2",
            ),
            (
                "Nats-Msg-Id:Nats-Msg-Id:sequence-2",
                "Nats-Msg-Id:Nats-Msg-Id:Nats-Msg-Id:sequence-2",
            ),
        ];
        let mut ids = BTreeSet::from([message_id(None, 2)]);
        for (id, expected) in published {
            assert_eq!(message_id(Some(id), 2), expected);
            assert!(ids.insert(expected.to_owned()), "{id}");
        }
    }
}
