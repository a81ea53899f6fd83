//! The cost of a call in Redis: commands counted by the server itself, bytes as it stores them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Bodies, LONG, eventually};
use idem::{Begin, Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::{RedisServer, Reply};

type Res<T = u32> = Result<T, Error>;

struct Counted {
    server: RedisServer,
}

impl Counted {
    async fn start() -> Self {
        Self {
            server: RedisServer::start().await.unwrap(),
        }
    }

    async fn process(&self) -> Idempotency {
        Idempotency::new(RedisStore::connect(self.server.url()).await.unwrap())
    }

    /// The commands that clients sent since the last look, without those that scripts called and
    /// those of the test itself.
    async fn commands(&self) -> BTreeMap<String, u64> {
        let text = self.server.cli(&["INFO", "commandstats"]).await.unwrap();
        let Reply::Value(text) = text else {
            panic!("{text:?}")
        };
        self.server.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
        String::from_utf8(text)
            .unwrap()
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
            .map(|(command, rest)| {
                (
                    command.to_owned(),
                    rest.split(',').next().unwrap().parse().unwrap(),
                )
            })
            .filter(|(command, _)| {
                !["info", "config|resetstat", "ping", "time"].contains(&command.as_str())
            })
            .collect()
    }
}

fn counts(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected
        .iter()
        .map(|(command, count)| ((*command).to_owned(), *count))
        .collect()
}

#[tokio::test]
async fn a_first_execution_costs_one_set_and_one_script_and_a_replay_one_set() {
    let redis = Counted::start().await;
    let idempotency = redis.process().await;
    let call = |key: u32| {
        idempotency
            .operation("cost")
            .key(&key)
            .fingerprint(&key)
            .run(async || Res::Ok(1))
    };
    call(0).await.unwrap();
    redis.commands().await;

    assert!(!call(1).await.unwrap().is_replayed());
    // The script itself calls one GET and one SET.
    assert_eq!(
        redis.commands().await,
        counts(&[("set", 2), ("evalsha", 1), ("get", 1)])
    );

    assert!(call(1).await.unwrap().is_replayed());
    assert_eq!(redis.commands().await, counts(&[("set", 1)]));
}

/// What a first execution over Redis allocates in this process, with its connection and the facade
/// `metrics`.
const FIRST: Allocated = Allocated {
    count: 38,
    bytes: 7_000,
};

/// What a replay allocates.
const REPLAY: Allocated = Allocated {
    count: 17,
    bytes: 3_300,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Allocated {
    count: u64,
    bytes: u64,
}

#[test]
fn a_call_allocates_little_more_than_its_commands() {
    // One thread, so that the connection's allocations are counted too.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let redis = runtime.block_on(Counted::start());
    let idempotency = runtime.block_on(redis.process());
    let usual = |keys: std::ops::Range<u32>| {
        let call = |key: u32| {
            let called = allocation_counter::measure(|| {
                let call = async {
                    let operation = idempotency.operation("cost").key(&key);
                    operation.run(async || Res::Ok(1)).await.unwrap();
                };
                runtime.block_on(std::pin::pin!(call));
            });
            Allocated {
                count: called.count_total,
                bytes: called.bytes_total,
            }
        };
        let mut all: Vec<_> = keys.map(call).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    usual(1_000..1_100);
    let first = usual(2_000..2_100);
    let replay = usual(2_000..2_100);
    let fits = |found: Allocated, budget: Allocated| {
        found.count <= budget.count && found.bytes <= budget.bytes
    };
    assert!(
        fits(first, FIRST) && fits(replay, REPLAY),
        "{first:?}, and {replay:?} of a replay"
    );
}

#[tokio::test]
async fn sixty_four_duplicates_over_two_processes_cost_few_commands_and_no_polling() {
    let redis = Counted::start().await;
    let one = redis.process().await;
    let two = redis.process().await;
    for idempotency in [&one, &two] {
        idempotency
            .operation("warm")
            .key(&1)
            .run(async || Res::Ok(0))
            .await
            .unwrap();
    }
    redis.commands().await;

    let Begin::Execute(lease) = one.operation("many").key("k").begin().await.unwrap() else {
        panic!()
    };
    let bodies = Arc::new(Bodies::default());
    let waiters: Vec<_> = (0..64)
        .map(|waiter| {
            let idempotency = if waiter % 2 == 0 {
                one.clone()
            } else {
                two.clone()
            };
            let bodies = bodies.clone();
            tokio::spawn(async move {
                idempotency
                    .operation("many")
                    .key("k")
                    .wait(LONG)
                    .run(|| bodies.run(async { Res::Ok(9) }))
                    .await
            })
        })
        .collect();
    let channel = "idem:many:k";
    eventually("the other process has subscribed", async || {
        let reply = redis
            .server
            .cli(&["PUBSUB", "NUMSUB", channel])
            .await
            .unwrap();
        format!("{reply:?}").contains("Number(1)")
    })
    .await;
    lease.commit(&1u32).await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap().into_inner(), 1);
    }
    drop(lease);
    eventually("the other process has unsubscribed", async || {
        let reply = redis
            .server
            .cli(&["PUBSUB", "NUMSUB", channel])
            .await
            .unwrap();
        format!("{reply:?}").contains("Number(0)")
    })
    .await;
    let mut commands = redis.commands().await;
    commands.remove("pubsub|numsub");
    let sent = |command: &str| commands.get(command).copied().unwrap_or_default();
    let by_clients = sent("evalsha") + sent("subscribe") + sent("unsubscribe");
    // Sets: two claims, the commit's own, and the claim of the one that was woken.
    assert!(sent("set") <= 4 && by_clients <= 5, "{commands:?}");
    assert_eq!(bodies.begun(), 0);
}

#[tokio::test]
async fn a_record_can_be_read_by_a_person_and_costs_few_bytes_over_its_outcome() {
    let redis = Counted::start().await;
    let idempotency = redis.process().await;
    let outcome = "x".repeat(200);
    let call = idempotency
        .operation("bytes")
        .key(&("tenant", 7))
        .fingerprint(&1u8);
    call.run(async || Res::Ok(outcome.clone())).await.unwrap();
    let Reply::Value(text) = redis
        .server
        .cli(&["GET", "idem:bytes:tenant:7"])
        .await
        .unwrap()
    else {
        panic!()
    };
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.starts_with("i1c 1 j ") && text.ends_with(&format!("\"{outcome}\"")),
        "{text}"
    );
    assert_eq!(text.len() - (outcome.len() + 2), 38);
}

#[tokio::test]
async fn a_record_costs_forty_bytes_at_most_over_a_bare_key_with_the_same_outcome() {
    let redis = Counted::start().await;
    let idempotency = redis.process().await;
    let key = "k".repeat(32);
    let outcome = "x".repeat(200);
    redis
        .server
        .cli(&["SET", &key, &outcome, "PX", "60000"])
        .await
        .unwrap();
    idempotency
        .operation("bench")
        .key(&key)
        .run(async || Res::Ok(outcome.clone()))
        .await
        .unwrap();
    let bytes = async |key: &str| match redis.server.cli(&["MEMORY", "USAGE", key]).await.unwrap() {
        Reply::Number(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let floor = bytes(&key).await;
    let ours = bytes(&format!("idem:bench:{key}")).await;
    assert!(ours <= floor + 40, "{ours} bytes, and {floor} without idem");
}

#[tokio::test]
async fn a_thousand_duplicates_in_one_process_cost_two_commands_in_all() {
    let redis = Counted::start().await;
    let idempotency = redis.process().await;
    idempotency
        .operation("warm")
        .key(&1)
        .run(async || Res::Ok(0))
        .await
        .unwrap();
    redis.commands().await;
    let come = Arc::new(AtomicU32::new(0));
    let calls: Vec<_> = (0..1_000)
        .map(|_| {
            let idempotency = idempotency.clone();
            let come = come.clone();
            tokio::spawn(async move {
                come.fetch_add(1, Ordering::Relaxed);
                let body = async || {
                    eventually("all of them have come", async || {
                        come.load(Ordering::Relaxed) == 1_000
                    })
                    .await;
                    Res::Ok(9)
                };
                idempotency
                    .operation("many")
                    .key("k")
                    .wait(LONG)
                    .run(body)
                    .await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().into_inner(), 9);
    }
    // The script itself calls one GET and one SET.
    assert_eq!(
        redis.commands().await,
        counts(&[("set", 2), ("evalsha", 1), ("get", 1)])
    );
}

#[tokio::test]
async fn with_a_local_cache_a_duplicate_of_ones_own_costs_no_command_until_the_record_is_forgotten()
{
    let redis = Counted::start().await;
    let store = RedisStore::connect(redis.server.url()).await.unwrap();
    let one = Idempotency::builder(store).local_cache(100).build();
    let two = redis.process().await;
    let call = |idempotency: &Idempotency, fingerprint: u32, value: u32| {
        idempotency
            .operation("cached")
            .key("k")
            .fingerprint(&fingerprint)
            .run(async move || Res::Ok(value))
    };
    call(&one, 1, 7).await.unwrap();
    redis.commands().await;

    let again = call(&one, 1, 8).await.unwrap();
    assert!(again.is_replayed() && again.into_inner() == 7);
    let rejected = one
        .operation("cached")
        .key("k")
        .duplicate(idem::Duplicate::Reject)
        .run(async || Res::Ok(8))
        .await;
    assert!(
        matches!(rejected, Err(Error::Duplicate { .. })),
        "{rejected:?}"
    );
    assert_eq!(redis.commands().await, counts(&[]));

    // Another payload is the store's to refuse.
    assert!(matches!(
        call(&one, 2, 8).await,
        Err(Error::FingerprintMismatch { .. })
    ));
    assert_eq!(redis.commands().await, counts(&[("set", 1)]));

    // After a `forget` in this process the body runs again; commits of other processes are read
    // from the store each time.
    assert!(one.operation("cached").key("k").forget().await.unwrap());
    assert_eq!(call(&two, 1, 9).await.unwrap().into_inner(), 9);
    redis.commands().await;
    for _ in 0..2 {
        assert_eq!(call(&one, 1, 8).await.unwrap().into_inner(), 9);
    }
    assert_eq!(redis.commands().await, counts(&[("set", 2)]));
}
