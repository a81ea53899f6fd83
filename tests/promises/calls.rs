//! A call of each kind whose other tests are in `engine` and `macros`, over `MemoryStore` alone. A
//! codec has its own in `swapped`.

use std::sync::Arc;

use idem::{
    Begin, Duplicate, Error, ErrorAction, Idempotency, Lookup, MissingKey, Operation, RecordState,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::Res;
use crate::support::{Bodies, LEASE, LONG, World, eventually};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Declined {
    code: u16,
}

impl From<Error> for Declined {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

async fn lookup(idempotency: &Idempotency, operation: &'static str) -> Lookup<u32> {
    let asked = idempotency.operation(operation).key("k").wait(LONG * 10);
    let found = tokio::time::timeout(LONG, asked.lookup()).await;
    found.expect("a lookup waits for nobody").unwrap()
}

crate::over_all_stores! {
    async fn p6_a_kept_error_is_replayed_equal_and_the_body_runs_once(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let bodies = Bodies::default();
        let declined = || Declined { code: 51 };
        for idempotency in [&one, &one, &two] {
            let keeping = idempotency
                .operation("calls.kept")
                .key("k")
                .errors(|_: &Declined| ErrorAction::Keep);
            let failed = keeping.run(|| bodies.run(async { Err::<u32, _>(declined()) }));
            assert_eq!(failed.await.unwrap_err(), declined());
        }
        assert_eq!(bodies.begun(), 1);
        let info = two.operation("calls.kept").key("k").inspect().await;
        let info = info.unwrap().unwrap();
        assert_eq!(
            (info.state, info.attempt, info.is_error),
            (RecordState::Committed, 1, true)
        );
        let Lookup::Error(recorded) = lookup(&two, "calls.kept").await else {
            panic!("it is kept")
        };
        assert_eq!(recorded.decode_error::<Declined>().unwrap(), declined());
    }

    async fn p8_a_detached_body_without_a_caller_is_waited_for(world: World) {
        let idempotency = world.process().await;
        let begun = Arc::new(Semaphore::new(0));
        let go = Arc::new(Semaphore::new(0));
        for key in ["guarded", ""] {
            let call = idempotency
                .operation("calls.detached")
                .key(key)
                .missing_key(MissingKey::Run)
                .run_detached({
                    let begun = begun.clone();
                    let go = go.clone();
                    async move || {
                        begun.add_permits(1);
                        go.acquire().await.unwrap().forget();
                        Res::Ok(7)
                    }
                });
            tokio::select! {
                _ = call => panic!("the body is not to end"),
                permit = begun.acquire() => permit.unwrap().forget(),
            }
        }
        let unfinished = idempotency.shutdown(LEASE / 20).await.unwrap_err();
        assert_eq!(
            (unfinished.bodies, unfinished.steps),
            (2, 0),
            "{unfinished}"
        );
        go.add_permits(2);
        idempotency.shutdown(LONG).await.unwrap();
        // Its outcome was recorded before.
        let replayed = idempotency
            .operation("calls.detached")
            .key("guarded")
            .run(async || Res::Ok(0))
            .await
            .unwrap();
        assert!(replayed.is_replayed() && replayed.into_inner() == 7);
    }

    async fn p13_the_first_submission_runs_and_each_later_one_gets_its_answer(world: World) {
        let one = world.process().await;
        let another = world.process().await;
        let token = one.operation("calls.token").issue("ada", LONG).await.unwrap();
        let submission = |process: &Idempotency, subject: &str| -> Operation<'static> {
            process.operation("calls.token").token(&token, subject)
        };
        let stranger = submission(&one, "grace").run(async || Res::Ok(6)).await;
        assert!(
            matches!(stranger, Err(Error::UnknownToken { .. })),
            "{stranger:?}"
        );
        let first = submission(&one, "ada").run(async || Res::Ok(7)).await.unwrap();
        assert!(!first.is_replayed());
        for process in [&one, &another] {
            let again = submission(process, "ada")
                .run(async || -> Res { panic!("it runs twice") })
                .await
                .unwrap();
            assert_eq!((again.is_replayed(), again.into_inner()), (true, 7));
        }
        let rejecting = submission(&another, "ada").duplicate(Duplicate::Reject);
        let rejected = rejecting.run(async || Res::Ok(8)).await;
        assert!(
            matches!(rejected, Err(Error::Duplicate { .. })),
            "{rejected:?}"
        );
    }

    async fn a_lookup_says_what_became_of_the_call_and_claims_nothing(world: World) {
        const OPERATION: &str = "calls.lookup";
        let one = world.process().await;
        let two = world.process().await;
        let length = LEASE * 3;
        let operation = || one.operation(OPERATION).key("k").lease(length);
        assert!(matches!(lookup(&two, OPERATION).await, Lookup::Unknown));
        assert_eq!(operation().inspect().await.unwrap(), None);

        let Begin::Execute(lease) = operation().begin().await.unwrap() else {
            panic!("nothing was there")
        };
        let asked = lookup(&two, OPERATION).await;
        assert!(
            matches!(asked, Lookup::InFlight { attempt: 1, lease_left, .. } if lease_left <= length),
            "{asked:?}"
        );
        lease.release().await.unwrap();
        assert!(matches!(lookup(&two, OPERATION).await, Lookup::Unknown));

        let Begin::Execute(lease) = operation().begin().await.unwrap() else {
            panic!("it was released")
        };
        assert_eq!(lease.attempt(), 2, "lookups are no attempts");
        drop(lease);
        eventually("the lease has run out", async || {
            matches!(
                lookup(&two, OPERATION).await,
                Lookup::Abandoned { attempt: 2, .. }
            )
        })
        .await;

        operation().run(async || Res::Ok(42)).await.unwrap();
        assert!(matches!(lookup(&two, OPERATION).await, Lookup::Outcome(42)));
        assert!(matches!(lookup(&one, OPERATION).await, Lookup::Outcome(42)));
        let other: Result<Lookup<Vec<u8>>, _> = two.operation(OPERATION).key("k").lookup().await;
        assert!(matches!(other, Err(Error::Codec { .. })), "{other:?}");
    }

    async fn an_observing_duplicate_runs_its_body_and_the_record_keeps_the_owners_outcome(
        world: World,
    ) {
        let observing = world.builder().await.observe().build();
        let guarding = world.process().await;
        let call = |idempotency: &Idempotency, fingerprint: u8, value: u32| {
            idempotency
                .operation("calls.observe")
                .key("k")
                .fingerprint(&fingerprint)
                .run(async move || Res::Ok(value))
        };
        // The owner, a duplicate, and one with another payload.
        for (fingerprint, value) in [(1, 1), (1, 2), (2, 3)] {
            let ran = call(&observing, fingerprint, value).await.unwrap();
            assert_eq!((ran.is_replayed(), ran.into_inner()), (false, value));
        }
        let replayed = call(&guarding, 1, 9).await.unwrap();
        assert_eq!((replayed.is_replayed(), replayed.into_inner()), (true, 1));
    }
}
