//! Many messages, several consumers, and everything that goes wrong at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use idem_testkit::RedisServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::worker::{Kind, Mail, Worker, first_of, out_of_order};

/// A broker, as the storm needs it.
pub(crate) trait World {
    /// The URL for consumers, by a network that the test can cut.
    fn url(&self) -> String;
    /// Publishes a message, however often that takes, with an id that follows from its number.
    async fn publish(&self, mail: &Mail);
    async fn restart(&self);
    async fn cut(&self);
    /// All dead letters, with their reasons. Taken away.
    async fn dead_letters(&self) -> Vec<(Mail, String)>;
    /// How many messages the broker still has, but for dead letters.
    async fn left(&self) -> u64;
    /// The messages of one lane run one after the other, if the broker keeps an order.
    fn lane(&self, _number: u32) -> Option<u32> {
        None
    }
    /// How many consumers the broker has, if it tells.
    async fn consumers(&self) -> Option<usize>;
    /// Watches from here on what the broker keeps of its consumers, with the records in that Redis.
    async fn watch(&self, _redis: &str) {}
    /// Ends that, and returns what was wrong.
    async fn watched(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How long the broker may be away: it is restarted, and the machine may be busy.
const AWAY: Duration = Duration::from_secs(120);

/// Waits for something that comes when the broker is there.
pub(crate) async fn in_time<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(AWAY, waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {AWAY:?}"))
}

/// Waits until the broker has so many consumers.
async fn consumers(world: &impl World, number: usize) {
    let waiting = async {
        while world.consumers().await.is_some_and(|found| found != number) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("the consumers of the test, and no others", waiting).await;
}

/// The lines of the consumers so far.
struct Heard {
    lines: UnboundedReceiver<String>,
    done: BTreeMap<u32, u32>,
    begun: BTreeMap<u32, u32>,
}

impl Heard {
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(120), self.lines.recv()).await;
        let line = line.unwrap_or_else(|_| {
            panic!(
                "nothing was heard for two minutes; done: {}",
                self.done.len()
            )
        });
        let line = line.expect("the test holds the other end");
        let mut words = line.split(' ');
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok());
        match (words.next(), number(words.next())) {
            (Some("done"), Some(number)) => *self.done.entry(number).or_default() += 1,
            (Some("begun"), Some(number)) => *self.begun.entry(number).or_default() += 1,
            _ => {}
        }
        line
    }

    async fn until(&mut self, wanted: &str) {
        while self.line().await != wanted {}
    }

    async fn until_done(&mut self, number: usize) {
        while self.done.len() < number {
            self.line().await;
        }
    }
}

/// How many messages: as the test says, or what `IDEM_QUEUE_MESSAGES` says.
pub(crate) fn messages(usual: u32) -> u32 {
    std::env::var("IDEM_QUEUE_MESSAGES")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(usual)
}

#[expect(
    clippy::too_many_lines,
    reason = "one story, in the order of its events"
)]
pub(crate) async fn storm(world: &impl World, usual: u32) {
    let redis = RedisServer::start().await.unwrap();
    world.watch(&redis.url()).await;
    let (lines, heard) = unbounded_channel();
    let mut heard = Heard {
        lines: heard,
        done: BTreeMap::new(),
        begun: BTreeMap::new(),
    };
    let folder = tempfile::tempdir().unwrap();
    let (url, redis) = (world.url(), redis.url());
    let start = |concurrency| Worker::start(&url, &redis, concurrency, &lines, "5s", folder.path());

    // One consumer dies in the middle of a body.
    world
        .publish(&Mail {
            number: 0,
            kind: Kind::Hangs,
        })
        .await;
    let victim = start(1);
    heard.until("begun 0 1").await;
    victim.kill().await;
    // Another dies between the commit and the acknowledgement.
    world
        .publish(&Mail {
            number: 1,
            kind: Kind::Stalls,
        })
        .await;
    let victim = start(1);
    heard.until("committed 1").await;
    victim.kill().await;

    // A consumer that finds no broker at its start fails, so both consume before the harm begins.
    consumers(world, 0).await;
    let workers = [start(32), start(32)];
    consumers(world, workers.len()).await;
    let count = messages(usual);
    let kind = |number: u32| match number {
        number if number % 100 == 50 => Kind::Unreadable,
        number if number % 100 == 51 => Kind::Fails,
        _ => Kind::Plain,
    };
    let publishing = async {
        for number in 2..count {
            let mail = Mail {
                number,
                kind: kind(number),
            };
            world.publish(&mail).await;
            if number % 10 == 0 {
                world.publish(&mail).await;
            }
        }
    };
    let poison = (2..count)
        .filter(|number| kind(*number) != Kind::Plain)
        .count();
    let good = count as usize - poison;
    let harming = async {
        heard.until_done(good / 4).await;
        world.restart().await;
        heard.until_done(good / 2).await;
        world.cut().await;
        heard.until_done(good).await;
    };
    tokio::join!(publishing, harming);

    // All that is left are poison and duplicates.
    let mut dead: BTreeMap<u32, (Mail, Vec<String>)> = BTreeMap::new();
    let mut left = u64::MAX;
    for _ in 0..600 {
        for (mail, reason) in world.dead_letters().await {
            // A duplicate of poison is put aside too, in the end because its attempts are used up.
            dead.entry(mail.number)
                .or_insert((mail, Vec::new()))
                .1
                .push(reason);
        }
        left = world.left().await;
        if dead.len() >= poison && left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for worker in workers {
        in_time("a consumer's end after its shutdown", worker.shut_down()).await;
    }
    drop(lines);
    while let Ok(line) = heard.lines.try_recv() {
        if let Some(number) = line
            .strip_prefix("done ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
        {
            *heard.done.entry(number).or_default() += 1;
        }
    }

    assert_eq!(world.watched().await, Vec::<String>::new());
    assert_eq!(left, 0, "the broker has messages left");
    if world.lane(0).is_some() {
        let lane = |number| world.lane(number).unwrap();
        let early = out_of_order(folder.path(), lane, |number| kind(number) == Kind::Plain);
        assert_eq!(early, Vec::<String>::new(), "out of order");
    }
    let lost =
        (0..count).filter(|number| !heard.done.contains_key(number) && !dead.contains_key(number));
    assert_eq!(first_of(lost), "", "neither handled nor put aside");
    let twice = heard
        .done
        .iter()
        .filter(|(_, times)| **times > 1)
        .map(|(number, _)| *number);
    assert_eq!(first_of(twice), "", "handled by two bodies");
    for (number, (mail, reasons)) in &dead {
        let expected = match mail.kind {
            Kind::Unreadable => "unreadable",
            Kind::Fails => "attempts_exhausted",
            other => panic!("{number} is put aside for {reasons:?}, and is no poison: {other:?}"),
        };
        // A body whose dead letter the broker lost with the connection runs again, and so uses up
        // the attempts.
        let used_up = heard.begun.get(number) == Some(&2);
        assert!(
            reasons.iter().any(|reason| reason == expected) || used_up,
            "{number}: {reasons:?}"
        );
        let others = reasons
            .iter()
            .filter(|reason| *reason != expected && *reason != "attempts_exhausted");
        assert_eq!(others.count(), 0, "{number}: {reasons:?}");
    }
    assert_eq!(dead.len(), poison);
    assert_eq!(heard.begun[&0], 2, "the body that was cut runs once more");
    assert_eq!(
        heard.begun[&1], 1,
        "the one whose outcome was recorded does not"
    );
}
