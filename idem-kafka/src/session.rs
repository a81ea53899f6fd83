//! The threads of a consumer.
//!
//! One polls the client, so that no body keeps the group waiting for longer than
//! `max.poll.interval.ms`. The other commits, because a commit waits for its answer: two under way
//! could be applied in the wrong order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use idem_core::adapter::Backoff;
use idem_queue::{BoxError, Error, Fault, Flow};
use rdkafka::client::ClientContext;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::oneshot;

use crate::record::Original;
use crate::shared::{Phase, Shared};

/// How often offsets are committed.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// The pauses after a commit that failed.
const COMMIT_PAUSES: Backoff = Backoff::new(COMMIT_EVERY, Duration::from_secs(2));
/// How often the brokers are asked whether an outage has ended.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long the brokers may take for the description of a topic.
const DESCRIBING: Duration = Duration::from_secs(10);

/// A consumer of the client that is open. Dropped, it closes.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    ended: oneshot::Receiver<()>,
}

impl Session {
    /// Opens a consumer: connects, checks the dead-letter topic, and subscribes.
    pub(crate) async fn open(
        config: ClientConfig,
        shared: Arc<Shared>,
        dead_letter: String,
    ) -> Result<Self, Fault> {
        let (tell_opened, opened) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel();
        let session = Self {
            shared: shared.clone(),
            ended,
        };
        let work = move || {
            match subscribed(&config, &shared, &dead_letter) {
                Err(fault) => drop(tell_opened.send(Err(fault))),
                Ok(client) => {
                    if tell_opened.send(Ok(())).is_ok() {
                        serve(&client, &shared);
                    }
                    // Leaves the group.
                    drop(client);
                }
            }
            let _ = tell_ended.send(());
        };
        let spawned = thread::Builder::new().name("idem-kafka".into()).spawn(work);
        spawned.map_err(Fault::passing)?;
        match opened.await {
            Ok(opened) => opened.map(|()| session),
            Err(_) => Err(Fault::passing("the client panicked while it was opened")),
        }
    }

    /// Commits what is settled, leaves the group, and waits for both.
    pub(crate) async fn close(mut self) {
        self.shared.enter(Phase::Closing);
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.enter(Phase::Closing);
    }
}

/// Returns a client that has subscribed, if the topics exist.
fn subscribed(
    config: &ClientConfig,
    shared: &Arc<Shared>,
    dead_letter: &str,
) -> Result<BaseConsumer<Context>, Fault> {
    let context = Context {
        shared: shared.clone(),
    };
    let client = BaseConsumer::from_config_and_context(config, context)
        .map_err(|error| Fault::config(format!("the client refuses the configuration: {error}")))?;
    describe(&client, dead_letter, "dead-letter topic")?;
    describe(&client, &shared.topic, "topic")?;
    client
        .subscribe(&[&shared.topic])
        .map_err(|error| Fault::config(format!("cannot subscribe to the topic: {error}")))?;
    Ok(client)
}

/// Checks that a topic exists, without creating it.
fn describe(client: &BaseConsumer<Context>, topic: &str, what: &str) -> Result<(), Fault> {
    let described = client
        .fetch_metadata(Some(topic), DESCRIBING)
        .map_err(Fault::passing)?;
    let found = described
        .topics()
        .iter()
        .find(|found| found.name() == topic);
    let error = match found {
        Some(found) => found.error().map(Code::from),
        None => Some(Code::UnknownTopicOrPartition),
    };
    match error {
        None | Some(Code::LeaderNotAvailable) => Ok(()),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Err(Fault::config(format!(
            "there is no {what} `{topic}`: create it before its consumers start"
        ))),
        Some(error @ (Code::TopicAuthorizationFailed | Code::InvalidTopic)) => Err(Fault::config(
            format!("the {what} `{topic}` cannot be used: {error}"),
        )),
        Some(error) => Err(Fault::passing(format!(
            "the {what} `{topic}` cannot be used: {error}"
        ))),
    }
}

/// Polls until the consumer is closed, and then commits for the last time.
fn serve(client: &BaseConsumer<Context>, shared: &Shared) {
    thread::scope(|scope| {
        scope.spawn(|| or_end(shared, || commit_regularly(client, shared)));
        or_end(shared, || {
            while !shared.is_closing() {
                poll(client, shared);
            }
        });
    });
    shared.commit(|offsets| send_commit(client, &shared.topic, offsets));
}

/// Ends the consumer if its thread panics.
fn or_end(shared: &Shared, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        shared.end("a thread of the consumer panicked: start another consumer".into());
    }
}

fn poll(client: &BaseConsumer<Context>, shared: &Shared) {
    let (Flow { pause, resume }, limit) = shared.flow();
    // If it fails, the partition is no longer assigned.
    if !pause.is_empty() {
        let _ = client.pause(&list(&shared.topic, &pause));
    }
    if !resume.is_empty() {
        let _ = client.resume(&list(&shared.topic, &resume));
    }
    match client.poll(limit) {
        None | Some(Err(KafkaError::PartitionEOF(_))) => {}
        Some(Ok(message)) => shared.receive(Original::read(&message)),
        Some(Err(error)) => judge(client, shared, error),
    }
}

fn judge(client: &BaseConsumer<Context>, shared: &Shared, error: KafkaError) {
    match error {
        KafkaError::MessageConsumptionFatal(code) => {
            let reason = client
                .client()
                .fatal_error()
                .map_or_else(|| code.to_string(), |(_, reason)| reason);
            shared.end(format!(
                "the Kafka client has ended and does not recover: {reason}. Start another consumer"
            ));
        }
        KafkaError::MessageConsumption(Code::AutoOffsetReset) => shared.end(format!(
            "the group has no offset in the topic `{}`, or one that the topic no longer has, and \
             `auto.offset.reset` is `error`: set the offset of the group, and start again",
            shared.topic
        )),
        // The connection to one of the brokers. The client connects again.
        KafkaError::MessageConsumption(Code::BrokerTransportFailure | Code::Resolve) => {}
        error => shared.lose(&error.into()),
    }
}

/// Commits at intervals, and asks whether an outage has ended.
fn commit_regularly(client: &BaseConsumer<Context>, shared: &Shared) {
    let mut pauses = COMMIT_PAUSES;
    let mut until_asked = ASK_EVERY;
    while !shared.is_closing() {
        let is_done = shared.commit(|offsets| send_commit(client, &shared.topic, offsets));
        let pause = if is_done {
            pauses = COMMIT_PAUSES;
            COMMIT_EVERY
        } else {
            pauses.next_pause()
        };
        shared.sleep(pause);
        until_asked = until_asked.saturating_sub(pause);
        if shared.is_lost() && until_asked.is_zero() {
            until_asked = ASK_EVERY;
            if answers(client, &shared.topic) {
                shared.recover();
            }
        }
    }
}

fn send_commit(
    client: &BaseConsumer<Context>,
    topic: &str,
    offsets: &[(i32, i64)],
) -> Result<(), BoxError> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    Ok(client.commit(&list, CommitMode::Sync)?)
}

/// Returns whether the brokers of the topic and of the group answer.
fn answers(client: &BaseConsumer<Context>, topic: &str) -> bool {
    let Ok(described) = client.fetch_metadata(Some(topic), ASK_EVERY) else {
        return false;
    };
    let topics = described.topics();
    let is_there = topics.iter().all(|topic| topic.error().is_none()) && !topics.is_empty();
    is_there
        && client
            .committed_offsets(list(topic, &[0]), ASK_EVERY)
            .is_ok()
}

fn list(topic: &str, partitions: &[i32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, *partition);
    }
    list
}

/// What the client calls back, on the thread that polls it.
#[derive(Debug)]
pub(crate) struct Context {
    shared: Arc<Shared>,
}

impl Context {
    fn partitions(&self, list: &TopicPartitionList) -> Vec<i32> {
        let elements = list.elements();
        let ours = elements
            .iter()
            .filter(|of| of.topic() == &*self.shared.topic);
        ours.map(TopicPartitionListElem::partition).collect()
    }
}

impl ClientContext for Context {
    /// Errors arrive as events, too, and are reported there.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, client: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => self.shared.assign(&self.partitions(list)),
            Rebalance::Revoke(list) => {
                let is_lost = client.assignment_lost();
                self.shared
                    .revoke(&self.partitions(list), is_lost, |offsets| {
                        send_commit(client, &self.shared.topic, offsets)
                    });
            }
            Rebalance::Error(error) => self.shared.lose(&error.clone().into()),
        }
    }

    fn post_rebalance(&self, client: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        // The client keeps a partition paused while it is elsewhere.
        if let Rebalance::Assign(assigned) = rebalance {
            let _ = client.resume(&list(&self.shared.topic, &self.partitions(assigned)));
        }
    }
}

/// Returns the error of a consumer whose client has ended.
pub(crate) fn disconnected(reason: String) -> Fault {
    Fault::Final(Error::disconnected(reason))
}
