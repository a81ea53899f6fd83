//! How long a token counts after a submission of which nothing came: what `docs/guarantees.md` says
//! under "Not promised".

use std::future::pending;
use std::time::Duration;

use idem::{Abandoned, ErrorKind, Idempotency, MemoryStore, RecordState};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::sync::Notify;

use super::Res;

const MINUTE: Duration = Duration::from_secs(60);
/// Issued for ten minutes, submitted after nine.
const TTL: Duration = Duration::from_secs(600);
const HOLD: Duration = Duration::from_secs(3600);

/// What a second submission gets so many minutes after the first: the attempt that runs, or the
/// error.
type Second = (u32, Result<u64, ErrorKind>);

async fn after_the_first(abandoned: Abandoned, is_undone: bool, (minutes, expected): Second) {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::new(store);
    let token = idempotency
        .operation("t.cut")
        .issue("ada", TTL)
        .await
        .unwrap();
    let call = || {
        idempotency
            .operation("t.cut")
            .token(&token, "ada")
            .ttl(5 * MINUTE)
            .hold(HOLD)
            .abandoned(abandoned)
    };
    tokio::time::advance(9 * MINUTE).await;
    if is_undone {
        // It was carried out, and no reply came.
        faults.always(Step::Claim, Fault::LoseReply);
        call().run(async || Res::Ok(0)).await.unwrap_err();
        faults.clear();
        let state = async || call().inspect().await.unwrap().map(|info| info.state);
        while state().await != Some(RecordState::Issued) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    } else {
        let begun = Notify::new();
        let cut_off = call().run(async || {
            begun.notify_one();
            pending::<Res>().await
        });
        tokio::select! { _ = cut_off => panic!("it ended"), () = begun.notified() => {} }
    }
    tokio::time::advance(minutes * MINUTE).await;
    let second = call()
        .run(async || Ok::<_, idem::Error>(idem::current().unwrap().attempt()))
        .await;
    let second = second
        .map(idem::Outcome::into_inner)
        .map_err(|error| error.kind());
    assert_eq!(
        second, expected,
        "{abandoned:?}, undone: {is_undone}, {minutes} minutes later"
    );
}

#[tokio::test(start_paused = true)]
async fn p13_a_token_whose_submission_was_cut_off_counts_for_as_long_as_its_record_lives_and_is_unknown_then()
 {
    for second in [(9, Ok(2)), (11, Err(ErrorKind::UnknownToken))] {
        after_the_first(Abandoned::Rerun, false, second).await;
    }
    for second in [
        (1, Err(ErrorKind::Abandoned)),
        (59, Err(ErrorKind::Abandoned)),
        (61, Ok(2)),
        (119, Ok(2)),
    ] {
        after_the_first(Abandoned::Reject, false, second).await;
    }
    after_the_first(
        Abandoned::Reject,
        false,
        (121, Err(ErrorKind::UnknownToken)),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn p13_a_token_whose_claim_was_undone_counts_for_as_long_as_that_was_kept_and_is_unknown_then()
 {
    for (abandoned, kept) in [(Abandoned::Rerun, 10), (Abandoned::Reject, 120)] {
        after_the_first(abandoned, true, (1, Ok(1))).await;
        after_the_first(abandoned, true, (kept - 1, Ok(1))).await;
        after_the_first(abandoned, true, (kept + 1, Err(ErrorKind::UnknownToken))).await;
    }
}
