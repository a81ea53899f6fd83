//! How long a token counts after a submission of which nothing came: what `docs/guarantees.md` says
//! under "Not promised".

use std::future::pending;
use std::time::Duration;

use idem::{Abandoned, ErrorKind, Idempotency, MemoryStore, RecordState};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::sync::Notify;

use super::Res;
use crate::support::Failure;

const MINUTE: Duration = Duration::from_secs(60);
/// Issued for ten minutes, submitted after nine.
const TTL: Duration = Duration::from_secs(600);
const HOLD: Duration = Duration::from_secs(3600);

/// What a second submission gets so many minutes after the first: the attempt that runs, or the
/// error.
type Second = (u32, Result<u64, ErrorKind>);

/// How the first submission ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// In its body.
    CutOff,
    /// Before its body: its claim is undone.
    Undone,
    /// The same, after a submission whose body has failed.
    UndoneAfterRelease,
}

async fn after_the_first(abandoned: Abandoned, first: First, (minutes, expected): Second) {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::new(store);
    let token = idempotency
        .operation("t.cut")
        .issue("ada", TTL)
        .await
        .unwrap();
    let lease = match first {
        First::UndoneAfterRelease => 2 * MINUTE,
        First::CutOff | First::Undone => MINUTE / 2,
    };
    let call = || {
        idempotency
            .operation("t.cut")
            .token(&token, "ada")
            .ttl(5 * MINUTE)
            .lease(lease)
            .hold(HOLD)
            .abandoned(abandoned)
    };
    tokio::time::advance(9 * MINUTE).await;
    let body = async || Ok::<_, idem::Error>(idem::current().unwrap().attempt());
    if first == First::UndoneAfterRelease {
        let fails = async || Err::<u64, _>(Failure::Declined);
        call().run(fails).await.unwrap_err();
    }
    if first == First::CutOff {
        let begun = Notify::new();
        let cut_off = call().run(async || {
            begun.notify_one();
            pending::<Res>().await
        });
        tokio::select! { _ = cut_off => panic!("it ended"), () = begun.notified() => {} }
    } else {
        let before = match first {
            First::UndoneAfterRelease => RecordState::Released,
            _ => RecordState::Issued,
        };
        // It was carried out, and no reply came.
        faults.always(Step::Claim, Fault::LoseReply);
        call().run(body).await.unwrap_err();
        faults.clear();
        let state = async || call().inspect().await.unwrap().map(|info| info.state);
        while state().await != Some(before) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tokio::time::advance(minutes * MINUTE).await;
    let second = call().run(body).await;
    let second = second
        .map(idem::Outcome::into_inner)
        .map_err(|error| error.kind());
    assert_eq!(
        second, expected,
        "{abandoned:?}, {first:?}, {minutes} minutes later"
    );
}

#[tokio::test(start_paused = true)]
async fn p13_a_token_whose_submission_was_cut_off_counts_for_as_long_as_its_record_lives_and_is_unknown_then()
 {
    for second in [(9, Ok(2)), (11, Err(ErrorKind::UnknownToken))] {
        after_the_first(Abandoned::Rerun, First::CutOff, second).await;
    }
    for second in [
        (1, Err(ErrorKind::Abandoned)),
        (59, Err(ErrorKind::Abandoned)),
        (61, Ok(2)),
        (119, Ok(2)),
    ] {
        after_the_first(Abandoned::Reject, First::CutOff, second).await;
    }
    after_the_first(
        Abandoned::Reject,
        First::CutOff,
        (121, Err(ErrorKind::UnknownToken)),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn p13_a_token_whose_claim_was_undone_counts_for_as_long_as_that_was_kept_and_is_unknown_then()
 {
    // An issued record expires with the claim's hold.
    for (abandoned, kept) in [(Abandoned::Rerun, 10), (Abandoned::Reject, 120)] {
        for second in [
            (1, Ok(1)),
            (kept - 1, Ok(1)),
            (kept + 1, Err(ErrorKind::UnknownToken)),
        ] {
            after_the_first(abandoned, First::Undone, second).await;
        }
    }
    // A released one is kept for ten leases, from when the claim was undone.
    for abandoned in [Abandoned::Rerun, Abandoned::Reject] {
        for second in [(1, Ok(2)), (19, Ok(2)), (21, Err(ErrorKind::UnknownToken))] {
            after_the_first(abandoned, First::UndoneAfterRelease, second).await;
        }
    }
}
