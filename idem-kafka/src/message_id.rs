//! The ids of messages: a publisher's, or the place in the topic.

/// The header that has the id of a message, unless the consumer names another. It is also the
/// prefix of a publisher's id that looks like an id of this crate.
pub(crate) const MESSAGE_ID: &str = "idem-message-id";

/// The id of a message: its publisher's, or else its partition and offset, which every message has
/// and keeps.
///
/// Publishers may choose any id. If one chose `3-1042`, the message at that place would be settled
/// as its duplicate, without having been handled. Only such ids are changed: the ids are parts of
/// keys, and a changed key is handled again.
pub(crate) fn message_id(published: Option<&str>, partition: i32, offset: i64) -> String {
    let Some(id) = published.filter(|id| !id.is_empty()) else {
        return format!("{partition}-{offset}");
    };
    let mut without_ours = id;
    while let Some(rest) = without_ours
        .strip_prefix(MESSAGE_ID)
        .and_then(|rest| rest.strip_prefix(':'))
    {
        without_ours = rest;
    }
    let is_like_ours = without_ours
        .split_once('-')
        .is_some_and(|(partition, offset)| {
            partition.parse::<u64>().is_ok() && offset.parse::<u64>().is_ok()
        });
    if is_like_ours {
        format!("{MESSAGE_ID}:{id}")
    } else {
        id.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::message_id;

    #[test]
    fn no_id_of_a_publisher_is_that_of_a_place_and_two_of_them_stay_two() {
        let published = [
            ("m-1", "m-1"),
            ("3-", "3-"),
            ("3-x", "3-x"),
            ("3-4-5", "3-4-5"),
            ("-3-4", "-3-4"),
            ("idem-message-id:m-1", "idem-message-id:m-1"),
            ("3-1042", "idem-message-id:3-1042"),
            ("03-1042", "idem-message-id:03-1042"),
            (
                "idem-message-id:3-1042",
                "idem-message-id:idem-message-id:3-1042",
            ),
            (
                "idem-message-id:idem-message-id:3-1042",
                "idem-message-id:idem-message-id:idem-message-id:3-1042",
            ),
        ];
        let mut ids = BTreeSet::from([message_id(None, 3, 1042)]);
        assert!(ids.contains("3-1042"));
        assert_eq!(message_id(Some(""), 3, 1042), "3-1042");
        for (id, expected) in published {
            assert_eq!(message_id(Some(id), 3, 1042), expected);
            assert!(ids.insert(expected.to_owned()), "{id}");
        }
    }
}
