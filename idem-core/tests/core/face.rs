//! What the public face promises to other crates: thread safety (C-SEND-SYNC of the Rust API
//! guidelines), and the old paths of what has moved.

use std::time::Duration;

use idem_core::{
    Begin, Builder, Call, ConfigError, Error, ErrorAction, Fingerprint, Idempotency, InvalidToken,
    Key, KeyDigest, KeyGenerator, Lease, Lookup, MemoryStore, Operation, Outcome, RecordInfo,
    Recorded, Report, Retry, StoreError, Token, Unfinished,
};

const fn is_send_and_sync<T: Send + Sync + 'static>() {}

const _: () = {
    is_send_and_sync::<Idempotency>();
    is_send_and_sync::<Builder>();
    is_send_and_sync::<Operation<'static>>();
    is_send_and_sync::<Begin>();
    is_send_and_sync::<Lease>();
    is_send_and_sync::<Recorded>();
    is_send_and_sync::<Outcome<u64>>();
    is_send_and_sync::<Lookup<u64>>();
    is_send_and_sync::<Call>();
    is_send_and_sync::<Report>();
    is_send_and_sync::<Unfinished>();
    is_send_and_sync::<RecordInfo>();
    is_send_and_sync::<MemoryStore>();
    is_send_and_sync::<Key>();
    is_send_and_sync::<KeyDigest>();
    is_send_and_sync::<KeyGenerator>();
    is_send_and_sync::<Fingerprint>();
    is_send_and_sync::<Token>();
    is_send_and_sync::<InvalidToken>();
    is_send_and_sync::<ErrorAction>();
    is_send_and_sync::<Retry>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<StoreError>();
    is_send_and_sync::<ConfigError>();
};

const fn is_error<T: std::error::Error + Clone>() {}

const _: () = {
    is_error::<Error>();
    is_error::<StoreError>();
    is_error::<ConfigError>();
    is_error::<InvalidToken>();
    is_error::<Unfinished>();
};

/// A call can be spawned, whatever its body borrows from what it owns.
#[tokio::test]
async fn a_call_can_be_spawned() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let call = tokio::spawn(async move {
        let operation = idempotency.operation("face.spawned").key("1");
        operation.run(async || Ok::<_, Error>(1)).await
    });
    assert_eq!(call.await.unwrap().unwrap().into_inner(), 1);
}

/// `idem_core::InFlight` and its like stay for one release.
#[test]
fn a_moved_item_is_the_same_at_its_old_path() {
    #[allow(unused_imports)]
    use idem_core::{
        Action, AsToken, Errors, FingerprintPart, Frequency, HasErrorPolicy, InTransactionPolicy,
        Never, Reconcile, RerunWhen, RunsAgain, Sometimes, TransactionBody,
    };

    let old = (
        idem_core::InFlight::Reject,
        idem_core::Duplicate::Reject,
        idem_core::Abandoned::Reject,
        idem_core::MissingKey::Run,
        idem_core::StoreFailure::Run,
        idem_core::UnkeptAction::Release,
    );
    let new = (
        idem_core::policy::InFlight::Reject,
        idem_core::policy::Duplicate::Reject,
        idem_core::policy::Abandoned::Reject,
        idem_core::policy::MissingKey::Run,
        idem_core::policy::StoreFailure::Run,
        idem_core::policy::UnkeptAction::Release,
    );
    assert_eq!(old, new);
}

#[test]
fn an_error_in_flight_has_its_lease_under_both_names() {
    let error = Error::in_flight("face.in_flight", "1", Duration::from_secs(30));
    let Error::InFlight { lease_left, .. } = error else {
        panic!("{error:?}");
    };
    let Error::InFlight { retry_after, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(lease_left, Duration::from_secs(30));
    assert_eq!(retry_after, lease_left);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    let shown = format!("{error:?}");
    assert!(
        shown.contains("retry_after: 1s") && shown.contains("lease_left: 30s"),
        "{shown}"
    );
}
