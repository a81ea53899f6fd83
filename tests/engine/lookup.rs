//! Lookups: what became of a call, asked without claiming its key.

use std::time::Duration;

use crate::support::{LONG, World, eventually};
use idem::{Error, ErrorAction, Idempotency, Lookup, StoreFailure};
use idem_testkit::{Fault, Step};
use serde::{Deserialize, Serialize};

type Res = Result<u32, Error>;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Kept {
    Declined {
        code: u16,
    },
    #[serde(skip)]
    Idempotency,
}

impl From<Error> for Kept {
    fn from(_: Error) -> Self {
        Self::Idempotency
    }
}

async fn lookup(idempotency: &Idempotency, operation: &'static str) -> Lookup<u32> {
    idempotency
        .operation(operation)
        .key("k")
        .lookup()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lookup_finds_an_outcome_that_is_kept_aside_and_then_that_there_was_one() {
    const OPERATION: &str = "lookup.remembered";

    let world = World::memory();
    let one = world.process().await;
    let two = world.process().await;
    let ttl = Duration::from_millis(1_500);
    one.operation(OPERATION)
        .key("k")
        .ttl(ttl)
        .remember(LONG)
        .run(async || Res::Ok(7))
        .await
        .unwrap();
    assert!(matches!(lookup(&two, OPERATION).await, Lookup::Outcome(7)));
    eventually("the outcome has expired", async || {
        matches!(lookup(&two, OPERATION).await, Lookup::AlreadyDone)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lookup_gives_a_kept_error_to_be_decoded() {
    let idempotency = World::memory().process().await;
    let operation = || idempotency.operation("lookup.error").key("k");
    let failing = operation()
        .errors(|_: &Kept| ErrorAction::Keep)
        .run(async || Err::<u32, _>(Kept::Declined { code: 51 }));
    failing.await.unwrap_err();
    let Lookup::Error(recorded) = operation().lookup::<u32>().await.unwrap() else {
        panic!("it is kept")
    };
    assert_eq!(
        recorded.decode_error::<Kept>().unwrap(),
        Kept::Declined { code: 51 }
    );
}

#[tokio::test(start_paused = true)]
async fn p7_a_lookup_compares_the_fingerprint_that_it_is_given_and_no_other() {
    let idempotency = World::memory().process().await;
    let operation = || idempotency.operation("lookup.mismatch").key("k");
    operation()
        .fingerprint(&"tea")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    let other = operation()
        .fingerprint(&"cake")
        .run(async || Res::Ok(2))
        .await;
    assert!(
        matches!(other, Err(Error::FingerprintMismatch { .. })),
        "{other:?}"
    );
    // What was the key used for?
    assert!(matches!(
        operation().lookup().await.unwrap(),
        Lookup::Outcome(1_u32)
    ));
    assert!(matches!(
        operation().fingerprint(&"tea").lookup().await.unwrap(),
        Lookup::Outcome(1_u32)
    ));
    let other = operation().fingerprint(&"cake").lookup::<u32>().await;
    assert!(
        matches!(other, Err(Error::FingerprintMismatch { .. })),
        "{other:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn p13_a_lookup_with_a_token_says_nothing_of_anothers_and_counts_guesses() {
    let world = World::memory();
    let idempotency = world
        .builder()
        .await
        .limit_token_failures(2, LONG * 10)
        .build();
    let operation = || idempotency.operation("lookup.token");
    let token = operation().issue("alice", LONG).await.unwrap();
    assert!(matches!(
        operation()
            .token(&token, "alice")
            .lookup::<u32>()
            .await
            .unwrap(),
        Lookup::Unknown
    ));
    operation()
        .token(&token, "alice")
        .run(async || Res::Ok(5))
        .await
        .unwrap();
    assert!(matches!(
        operation().token(&token, "alice").lookup().await.unwrap(),
        Lookup::Outcome(5_u32)
    ));
    for tried in [token.to_string(), "guess".to_owned()] {
        assert!(matches!(
            operation()
                .token(&tried, "mallory")
                .lookup::<u32>()
                .await
                .unwrap(),
            Lookup::Unknown
        ));
    }
    let throttled = operation().token(&token, "mallory").lookup::<u32>().await;
    assert!(
        matches!(throttled, Err(Error::Throttled { .. })),
        "{throttled:?}"
    );
    // Well-formed tokens that have no record.
    let elsewhere = Idempotency::disabled();
    for number in 0..3 {
        let token = elsewhere.operation("lookup.token").issue("trudy", LONG);
        let token = token.await.unwrap();
        let found = operation().token(&token, "trudy").lookup::<u32>().await;
        match number {
            0 | 1 => assert!(matches!(found, Ok(Lookup::Unknown)), "{found:?}"),
            _ => assert!(matches!(found, Err(Error::Throttled { .. })), "{found:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_asks_the_store_though_this_process_has_the_outcome() {
    const OPERATION: &str = "lookup.cache";

    let world = World::memory();
    let one = world.builder().await.local_cache(100).build();
    let two = world.process().await;
    one.operation(OPERATION)
        .key("k")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    two.operation(OPERATION).key("k").forget().await.unwrap();
    assert!(matches!(lookup(&one, OPERATION).await, Lookup::Unknown));
}

#[tokio::test(start_paused = true)]
async fn p4_a_lookup_without_the_store_is_an_error_whatever_the_operation_prefers() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.store_failure(StoreFailure::Run).build();
    faults.always(Step::Inspect, Fault::Refuse);
    let asked = idempotency
        .operation("lookup.down")
        .key("k")
        .lookup::<u32>()
        .await;
    assert!(matches!(asked, Err(Error::Store { .. })), "{asked:?}");
}

#[tokio::test]
async fn a_lookup_under_a_disabled_runtime_knows_nothing_and_without_a_key_is_an_error() {
    let none = Idempotency::disabled()
        .operation("lookup.disabled")
        .key("k")
        .lookup::<u32>()
        .await;
    assert!(matches!(none, Ok(Lookup::Unknown)));
    let idempotency = Idempotency::builder(idem::MemoryStore::new())
        .missing_key(idem::MissingKey::Run)
        .build();
    let missing = idempotency
        .operation("lookup.missing")
        .key("")
        .lookup::<u32>()
        .await;
    assert!(
        matches!(missing, Err(Error::MissingKey { .. })),
        "{missing:?}"
    );
}
