//! The profile for payments, and unlisted errors.

#[cfg(feature = "sqlite")]
mod transactions;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Failure, LEASE, LONG, World, eventually};
use idem::{
    Abandoned, Begin, Builder, Error, ErrorAction, ErrorPolicy, Idempotency, Lookup, MemoryStore,
    Outcome, Retry, UnkeptAction, idempotent,
};

type Res = Result<u32, Error>;

fn strict() -> Builder {
    Idempotency::builder(MemoryStore::new()).strict()
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Failure>) -> String {
    match answer {
        Err(Failure::Idempotency(error @ Error::Config { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

static RUNS: AtomicU32 = AtomicU32::new(0);

#[idempotent(key = id, name = "profile.careless")]
async fn careless(id: u32) -> Result<u32, Failure> {
    RUNS.fetch_add(1, Ordering::SeqCst);
    Ok(id)
}

#[idempotent(key = id, name = "profile.without", fingerprint = none)]
async fn without(id: u32) -> Result<u32, Failure> {
    Ok(id)
}

#[idempotent(key = id, name = "profile.with", fingerprint = sum)]
async fn with(id: u32, sum: u32) -> Result<u32, Failure> {
    Ok(id + sum)
}

#[tokio::test]
async fn p7_strict_refuses_the_first_call_of_an_operation_without_a_fingerprint_and_says_what_to_write()
 {
    idem::scope(strict().build(), async {
        let refused = refusal(careless(1).await);
        for said in [
            "profile.careless",
            "fingerprint = none",
            ".no_fingerprint()",
        ] {
            assert!(refused.contains(said), "{refused}");
        }
        assert_eq!(RUNS.load(Ordering::SeqCst), 0, "nothing was run");
        assert_eq!(without(1).await.unwrap(), 1);
        assert_eq!(with(1, 2).await.unwrap(), 3);
        assert!(matches!(
            with(1, 3).await,
            Err(Failure::Idempotency(Error::FingerprintMismatch { .. }))
        ));
    })
    .await;
    // Elsewhere it says nothing.
    idem::scope(Idempotency::new(MemoryStore::new()), async {
        careless(2).await.unwrap()
    })
    .await;
    assert_eq!(RUNS.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn p7_strict_holds_by_hand_for_what_runs_and_not_for_looking_and_settling() {
    let idempotency = strict().build();
    let operation = || idempotency.operation("profile.hand").key("k");
    assert!(matches!(
        operation().run(async || Res::Ok(1)).await,
        Err(Error::Config { .. })
    ));
    assert!(matches!(
        operation().run_detached(async || Res::Ok(1)).await,
        Err(Error::Config { .. })
    ));
    assert!(matches!(
        operation().begin().await,
        Err(Error::Config { .. })
    ));
    let listed = operation().errors(|_: &Error| UnkeptAction::Release);
    assert!(matches!(
        listed.run(async || Res::Ok(1)).await,
        Err(Error::Config { .. })
    ));

    assert!(operation().inspect().await.unwrap().is_none());
    assert!(matches!(
        operation().lookup::<u32>().await.unwrap(),
        Lookup::Unknown
    ));
    operation().settle(&5_u32).await.unwrap();
    assert_eq!(
        operation()
            .no_fingerprint()
            .run(async || Res::Ok(1))
            .await
            .unwrap()
            .into_inner(),
        5
    );
    assert!(operation().forget().await.unwrap());
    let token = idempotency
        .operation("profile.token")
        .issue("alice", LONG)
        .await
        .unwrap();
    let submission = idempotency
        .operation("profile.token")
        .token(&token, "alice");
    assert!(matches!(
        submission.run(async || Res::Ok(1)).await,
        Err(Error::Config { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn p6_strict_abandons_after_an_error_that_nobody_lists_and_p5_rejects_what_follows() {
    let idempotency = World::memory().builder().await.strict().build();
    let operation = || {
        idempotency
            .operation("profile.unlisted")
            .key("k")
            .fingerprint(&1)
    };
    let failed: Result<Outcome<u32>, _> = operation().run(async || Err(Failure::Declined)).await;
    assert!(matches!(failed, Err(Failure::Declined)));
    let next = operation().run(async || Res::Ok(1)).await;
    assert!(
        matches!(next, Err(Error::Abandoned { attempt: 1, .. })),
        "{next:?}"
    );
    // The operation's own setting wins.
    assert_eq!(
        operation()
            .abandoned(Abandoned::Rerun)
            .run(async || Res::Ok(2))
            .await
            .unwrap()
            .into_inner(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn p5_strict_rejects_after_a_crash_until_somebody_settles() {
    let idempotency = World::memory()
        .builder()
        .await
        .strict()
        .lease(LEASE)
        .build();
    let operation = || {
        idempotency
            .operation("profile.crash")
            .key("k")
            .fingerprint(&1)
    };
    let Begin::Execute(lease) = operation().begin().await.unwrap() else {
        panic!("nothing was there")
    };
    drop(lease);
    eventually("it is rejected as abandoned", async || {
        matches!(
            operation().run(async || Res::Ok(1)).await,
            Err(Error::Abandoned { .. })
        )
    })
    .await;
    operation().settle(&9_u32).await.unwrap();
    assert_eq!(
        operation()
            .run(async || Res::Ok(1))
            .await
            .unwrap()
            .into_inner(),
        9
    );
}

#[tokio::test(start_paused = true)]
async fn p6_a_default_error_holds_for_unlisted_errors_alone() {
    let world = World::memory();
    let idempotency = world
        .builder()
        .await
        .default_error(ErrorAction::Abandon)
        .build();
    let operation = |key| idempotency.operation("profile.default").key(key);
    let failed: Result<Outcome<u32>, _> = operation("unlisted")
        .run(async || Err(Failure::Declined))
        .await;
    failed.unwrap_err();
    assert!(matches!(
        operation("unlisted").lookup::<u32>().await.unwrap(),
        Lookup::Abandoned { attempt: 1, .. }
    ));
    let listed = operation("listed").errors(|_: &Failure| UnkeptAction::Release);
    listed
        .run(async || Err::<u32, _>(Failure::Declined))
        .await
        .unwrap_err();
    assert!(matches!(
        operation("listed").lookup::<u32>().await.unwrap(),
        Lookup::Unknown
    ));
    // Without `strict`, an abandoned record runs again.
    assert_eq!(
        operation("unlisted")
            .run(async || Res::Ok(3))
            .await
            .unwrap()
            .into_inner(),
        3
    );
}

#[derive(Debug, thiserror::Error, ErrorPolicy)]
enum Marked {
    #[error("released")]
    #[idem(release)]
    Released,
    #[error("unmarked")]
    Unmarked,
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[idempotent(key = key, name = "profile.marked", fingerprint = none)]
async fn marked(key: &str, error: Marked) -> Result<u32, Marked> {
    Err(error)
}

#[idempotent(
    key = key,
    name = "profile.arms",
    fingerprint = none,
    errors(Failure::Declined => abandon, _ => release),
)]
async fn arms(key: &str, error: Failure) -> Result<u32, Failure> {
    Err(error)
}

#[tokio::test]
async fn p6_a_variant_without_an_action_is_unlisted_and_an_arm_for_all_others_lists_them() {
    let idempotency = strict().build();
    idem::scope(idempotency.clone(), async {
        marked("released", Marked::Released).await.unwrap_err();
        marked("unmarked", Marked::Unmarked).await.unwrap_err();
        arms("all others", Failure::Asked("the guard"))
            .await
            .unwrap_err();
    })
    .await;
    let lookup = async |operation: &'static str, key: &str| {
        idempotency
            .operation(operation)
            .key(key)
            .lookup::<u32>()
            .await
            .unwrap()
    };
    assert!(matches!(
        lookup("profile.marked", "released").await,
        Lookup::Unknown
    ));
    assert!(matches!(
        lookup("profile.marked", "unmarked").await,
        Lookup::Abandoned { .. }
    ));
    assert!(matches!(
        lookup("profile.arms", "all others").await,
        Lookup::Unknown
    ));
}

#[tokio::test]
async fn an_explicit_setting_of_the_builder_wins_over_strict_whichever_comes_first() {
    let builders = [
        strict()
            .default_error(ErrorAction::Release)
            .abandoned(Abandoned::Rerun),
        Idempotency::builder(MemoryStore::new())
            .abandoned(Abandoned::Rerun)
            .default_error(ErrorAction::Release)
            .strict(),
    ];
    for builder in builders {
        let idempotency = builder.build();
        let operation = |key| {
            idempotency
                .operation("profile.explicit")
                .key(key)
                .no_fingerprint()
        };
        operation("error")
            .run(async || Err::<u32, _>(Failure::Declined))
            .await
            .unwrap_err();
        assert_eq!(
            operation("error")
                .run(async || Res::Ok(1))
                .await
                .unwrap()
                .into_inner(),
            1
        );
        let abandoning = operation("abandoned").errors(|_: &Failure| UnkeptAction::Abandon);
        abandoning
            .run(async || Err::<u32, _>(Failure::Declined))
            .await
            .unwrap_err();
        assert_eq!(
            operation("abandoned")
                .run(async || Res::Ok(2))
                .await
                .unwrap()
                .into_inner(),
            2
        );
    }
}

#[tokio::test]
async fn a_default_error_that_would_keep_or_retry_is_refused() {
    for action in [
        ErrorAction::Keep,
        ErrorAction::KeepFor(LONG),
        ErrorAction::Retry(Retry::new(1)),
        ErrorAction::Unlisted,
    ] {
        let builder = || Idempotency::builder(MemoryStore::new()).default_error(action);
        let refused = builder().try_build().unwrap_err().to_string();
        assert!(
            refused.contains("`default_error`") && refused.contains("ErrorAction::Abandon"),
            "{refused}"
        );
        let called = builder()
            .build()
            .operation("profile.refused")
            .key("k")
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(called, Err(Error::Config { .. })), "{called:?}");
    }
}

/// Nothing of serde.
#[derive(Debug)]
struct Plain(u32);

impl From<Error> for Plain {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

impl ErrorPolicy for Plain {
    type Keeps = idem::Never;
    type Retries = idem::Sometimes;

    fn action(&self) -> ErrorAction {
        if self.0 < 3 {
            ErrorAction::Retry(Retry::new(5).backoff(std::time::Duration::ZERO))
        } else {
            ErrorAction::Abandon
        }
    }
}

#[tokio::test]
async fn p6_by_hand_an_error_that_is_never_kept_needs_no_serialisation() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let operation = |key| idempotency.operation("profile.plain").key(key);
    let tries = AtomicU32::new(0);
    let failing = async || Err::<u32, _>(Plain(tries.fetch_add(1, Ordering::SeqCst)));
    let policy = |error: &Plain| {
        if error.0 < 2 {
            UnkeptAction::Retry(Retry::new(2))
        } else {
            UnkeptAction::Abandon
        }
    };
    operation("closure")
        .errors(policy)
        .run(failing)
        .await
        .unwrap_err();
    assert_eq!(tries.swap(0, Ordering::SeqCst), 3);
    assert!(matches!(
        operation("closure").lookup::<u32>().await.unwrap(),
        Lookup::Abandoned { .. }
    ));

    operation("type")
        .errors_by_type::<Plain>()
        .run(failing)
        .await
        .unwrap_err();
    assert_eq!(tries.swap(0, Ordering::SeqCst), 4);
    assert!(matches!(
        operation("type").lookup::<u32>().await.unwrap(),
        Lookup::Abandoned { .. }
    ));

    let keeping =
        operation("retry").errors(|_: &Plain| UnkeptAction::Retry(Retry::new(0).then_keep()));
    keeping
        .run_detached(async || Err::<u32, _>(Plain(0)))
        .await
        .unwrap_err();
    assert!(
        matches!(
            operation("retry").lookup::<u32>().await.unwrap(),
            Lookup::Unknown
        ),
        "nothing to keep it with"
    );
}
