//! What the group has committed, as an operator's client reads it all along.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem::kafka::Delivery;
use idem::kafka::rdkafka::consumer::BaseConsumer;
use idem::{Idempotency, RecordState, RedisStore};
use tokio::task::JoinHandle;

use crate::kafka::{PARTITIONS, committed};
use crate::worker::{Kind, Mail};

/// A partition and an offset.
pub(crate) type Place = (i32, i64);

/// Reads the committed offsets every 100 ms until it is ended, while members of the group die.
///
/// Two things must hold at each time. No offset is beyond the first message that is not settled:
/// what it passes has a record with its outcome, or a dead letter. And no offset goes back. Kafka
/// itself takes any offset from a member of the present generation, a lower one too. It is the
/// consumer that sends none.
pub(crate) struct Watch {
    is_ending: Arc<AtomicBool>,
    watching: JoinHandle<Seen>,
}

#[derive(Default)]
struct Seen {
    offsets: BTreeMap<i32, i64>,
    reads: u32,
    wrong: Vec<String>,
    /// What was passed before its publisher knew where it is.
    unknown: Vec<Place>,
    /// When poison was passed, in milliseconds.
    poison: BTreeMap<Place, i64>,
}

impl Watch {
    pub(crate) async fn begin(
        admin: BaseConsumer,
        redis: &str,
        published: Arc<Mutex<BTreeMap<Place, Mail>>>,
    ) -> Self {
        let idempotency = records(redis).await;
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = is_ending.clone();
        let watching = tokio::spawn(async move {
            let mut seen = Seen::default();
            loop {
                // The last read begins after the end of the consumers.
                let is_last = ending.load(Ordering::SeqCst);
                let offsets = committed(&admin);
                let has_read = offsets.is_some();
                for (partition, offset) in offsets.unwrap_or_default() {
                    seen.see(partition, offset, &idempotency, &published).await;
                }
                seen.reads += u32::from(has_read);
                if is_last && has_read {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self {
            is_ending,
            watching,
        }
    }

    /// Reads for the last time, and returns what was wrong, and when poison was passed.
    pub(crate) async fn end(self) -> (Vec<String>, BTreeMap<Place, i64>) {
        self.is_ending.store(true, Ordering::SeqCst);
        let seen = self.watching.await.unwrap();
        let offsets = &seen.offsets;
        println!(
            "committed offsets, read {} times: {offsets:?}; passed without a confirmation: {:?}",
            seen.reads, seen.unknown
        );
        assert!(i32::try_from(offsets.len()) == Ok(PARTITIONS) && seen.reads > 1);
        (seen.wrong, seen.poison)
    }
}

impl Seen {
    async fn see(
        &mut self,
        partition: i32,
        offset: i64,
        idempotency: &Idempotency,
        published: &Mutex<BTreeMap<Place, Mail>>,
    ) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let at = i64::try_from(at.as_millis()).unwrap();
        let before = *self.offsets.get(&partition).unwrap_or(&0);
        if offset < before {
            let back = format!("partition {partition} went back from {before} to {offset}");
            self.wrong.push(back);
        }
        self.offsets.insert(partition, offset.max(before));
        let mut passed = std::mem::take(&mut self.unknown);
        passed.extend((before..offset).map(|offset| (partition, offset)));
        for place in passed {
            let mail = published.lock().unwrap().get(&place).cloned();
            match mail {
                None => self.unknown.push(place),
                Some(mail)
                    if matches!(mail.kind, Kind::Fails | Kind::Unreadable | Kind::Crashes) =>
                {
                    self.poison.insert(place, at);
                }
                Some(mail) => {
                    let state = state(idempotency, mail.number).await;
                    if state != Some(RecordState::Committed) {
                        let mail = format!("{place:?} was passed, and {mail:?} is {state:?}");
                        self.wrong.push(mail);
                    }
                }
            }
        }
    }
}

/// The records of the consumers.
pub(crate) async fn records(redis: &str) -> Idempotency {
    // A machine that does much else takes its time.
    let limit = Duration::from_secs(15);
    let store = RedisStore::builder().url(redis);
    let store = store.time_limit(limit).connect_time_limit(limit).connect();
    Idempotency::new(store.await.unwrap())
}

/// The state of the record of a message.
pub(crate) async fn state(idempotency: &Idempotency, number: u32) -> Option<RecordState> {
    let delivery = Delivery::new("orders", "").with_id(format!("m-{number}"));
    let key = delivery.key().unwrap();
    let operation = idempotency.operation("mails.on_order").key(&key);
    let found = operation.inspect().await.unwrap();
    found.map(|record| record.state)
}
