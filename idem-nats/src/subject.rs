//! The subjects of a stream, and a consumer's filter on them.

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::Stream;
use idem_queue::Fault;

/// Whether a subject can match both patterns. Either may have the wildcards `*` and `>`.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let mut ones = one.split('.');
    let mut others = other.split('.');
    loop {
        match (ones.next(), others.next()) {
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(">"), _) | (_, Some(">")) => return true,
            (Some(one), Some(other)) if one == other || one == "*" || other == "*" => {}
            _ => return false,
        }
    }
}

/// Checks that messages of the stream can pass the filter of the consumer. Servers accept any
/// filter, and the subjects of a stream may change later.
pub(crate) async fn check_filter(
    context: &Context,
    stream: &Stream,
    consumer: &PullConsumer,
) -> Result<(), Fault> {
    let info = consumer.cached_info();
    let filter = &info.config.filter_subject;
    let config = &stream.cached_info().config;
    // A mirror, or a stream with sources, has messages with the subjects of other streams.
    let is_filled_by_others = config.mirror.is_some()
        || config
            .sources
            .as_ref()
            .is_some_and(|sources| !sources.is_empty());
    let has_messages = info.num_pending > 0 || info.num_ack_pending > 0;
    if filter.is_empty()
        || is_filled_by_others
        || has_messages
        || config
            .subjects
            .iter()
            .any(|subject| overlap(filter, subject))
    {
        return Ok(());
    }
    // async-nats has this setting only with a feature for newer servers, so it is read as JSON.
    let info_as_sent = context
        .request(format!("STREAM.INFO.{}", config.name), &())
        .await;
    let info_as_sent: serde_json::Value = info_as_sent.map_err(Fault::passing)?;
    if info_as_sent.pointer("/config/subject_transform").is_some() {
        return Ok(());
    }
    Err(Fault::config(format!(
        "the consumer `{}` of the stream `{}` has the filter subject `{filter}`, and would receive \
         nothing: the stream has the subjects `{}`. Create the consumer with a filter among them, \
         or add the subject to the stream",
        info.name,
        config.name,
        config.subjects.join("`, `"),
    )))
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn a_filter_matches_as_the_server_has_it() {
        for (filter, subject, expected) in [
            ("orders.placed", "orders.placed", true),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders.placed.eu", false),
            ("orders.>", "orders.placed.eu", true),
            ("orders.>", "orders", false),
            ("orders.placed", "dead.orders", false),
            (">", "dead.orders", true),
            ("orders.*.eu", "orders.>", true),
            ("orders.*.eu", "orders.placed.*", true),
            ("orders.*.eu", "orders.*", false),
            ("*.placed", "orders.>", true),
        ] {
            assert_eq!(overlap(filter, subject), expected, "{filter} {subject}");
            assert_eq!(overlap(subject, filter), expected, "{subject} {filter}");
        }
    }
}
