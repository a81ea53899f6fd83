//! The configurations of the client: what is refused, and what is set here.

use idem_queue::Fault;
use rdkafka::ClientConfig;

/// Settings of consumers, which a producer only warns of.
const OF_CONSUMERS: [&str; 12] = [
    "group.id",
    "group.instance.id",
    "group.protocol",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "isolation.level",
];

/// Returns the configuration of a consumer, unless it could lose messages.
pub(crate) fn of_consumer(config: &ClientConfig) -> Result<ClientConfig, Fault> {
    if config.get("group.id").is_none_or(str::is_empty) {
        return Err(Fault::config(
            "the consumer has no `group.id`, so it could commit no offset: set one in its \
             configuration",
        ));
    }
    for setting in ["enable.auto.commit", "enable.auto.offset.store"] {
        if config.get(setting).is_some_and(|value| !is_off(value)) {
            return Err(Fault::config(format!(
                "`{setting}` is on: the client would commit the offsets of messages that are not \
                 handled yet. Leave it out"
            )));
        }
    }
    if let Some(reset) = config.get("auto.offset.reset")
        && !["earliest", "error"].contains(&reset)
    {
        return Err(Fault::config(format!(
            "`auto.offset.reset` is `{reset}`, which skips messages: the first ones of a new \
             partition, for example. Use `earliest`, the default, or `error`"
        )));
    }
    let mut config = config.clone();
    for (name, value) in [
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("isolation.level", "read_committed"),
        // A question for a topic must not create it.
        ("allow.auto.create.topics", "false"),
    ] {
        config.set(name, value);
    }
    let defaults = [
        ("auto.offset.reset", "earliest"),
        ("partition.assignment.strategy", "cooperative-sticky"),
    ];
    // The broker assigns partitions with the newer protocol.
    let is_newer = config.get("group.protocol") == Some("consumer");
    for (name, value) in &defaults[..if is_newer { 1 } else { 2 }] {
        set_default(&mut config, name, value);
    }
    Ok(config)
}

fn is_off(value: &str) -> bool {
    ["false", "f", "0"].contains(&&*value.to_lowercase())
}

/// Returns the configuration of a producer whose messages are confirmed by all replicas, and are
/// neither lost nor repeated by its own retries.
pub(crate) fn of_producer(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    for name in OF_CONSUMERS {
        config.remove(name);
    }
    config.remove("request.required.acks");
    config.set("acks", "all").set("enable.idempotence", "true");
    if config.get("delivery.timeout.ms").is_none() {
        set_default(&mut config, "message.timeout.ms", "10000");
    }
    config
}

/// Returns the configuration of the producer of dead letters.
pub(crate) fn of_dead_letters(config: &ClientConfig) -> ClientConfig {
    let mut config = of_producer(config);
    config.remove("delivery.timeout.ms");
    // Two of them must end before a step is dropped, so that no dead letter is queued twice.
    config.set("message.timeout.ms", "6000");
    // The topic has a limit, which counts. Alone in its batch, each message is judged by itself.
    config.set("message.max.bytes", "1000000000");
    config.set("batch.num.messages", "1");
    config
}

fn set_default(config: &mut ClientConfig, name: &str, value: &str) {
    if config.get(name).is_none() {
        config.set(name, value);
    }
}
