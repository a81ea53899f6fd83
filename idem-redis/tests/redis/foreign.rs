//! Values at a key that this version of idem did not write.

use idem_core::record::Claimed;
use idem_core::{Store as _, StoreError, StoreErrorKind, wire};
use idem_redis::RedisStore;

use crate::{
    SECOND, claim, claim_for, claim_issued, commit, give_up, id, issue, release, renewal,
    server_and_store,
};

/// Every method on a key, and the error that each must give.
async fn errors(store: &RedisStore, key: &str) -> Vec<(&'static str, StoreError)> {
    let first = claim(key);
    vec![
        ("claim", store.claim(&first).await.unwrap_err()),
        (
            "claim of an issued key",
            store.claim(&claim_issued(key)).await.unwrap_err(),
        ),
        (
            "issue",
            store.issue(&[issue(key)]).await.remove(0).unwrap_err(),
        ),
        (
            "commit",
            store.commit(&commit(&first, 1, "1")).await.unwrap_err(),
        ),
        (
            "release",
            store.release(&release(&first)).await.unwrap_err(),
        ),
        (
            "give up",
            store.release(&give_up(&first)).await.unwrap_err(),
        ),
        (
            "renew",
            store.renew(&[renewal(&first)]).await.remove(0).unwrap_err(),
        ),
        ("wait", store.wait(&first.id, 1, SECOND).await.unwrap_err()),
        ("inspect", store.inspect(&first.id).await.unwrap_err()),
        ("remove", store.remove(&first.id).await.unwrap_err()),
    ]
}

#[tokio::test]
async fn somebody_elses_text_is_an_error_and_stays() {
    let (server, store) = server_and_store().await;
    for (value, says) in [
        ("hello", "not written by idem"),
        ("", "not written by idem"),
        ("{\"status\":\"done\"}", "not written by idem"),
        ("i2c 1 j - 0 - ______ {}", "upgrade"),
        ("i1c 1 j - ______ {\"id\":8}", "damaged"),
        ("i1r 1", "damaged"),
        ("i1fBwcHBwcHBwcHBwcHBwcHBwn 1 30000", "damaged"),
        ("i1o 1 -.w", "damaged"),
        ("i1i", "damaged"),
        ("i1i 0.", "damaged"),
        ("i1i x.", "damaged"),
        ("i1i 1 2.", "damaged"),
        ("i1i 99999999999999999999.", "damaged"),
        ("i1i.w", "damaged"),
    ] {
        let () = server
            .send(&["SET", "idem:orders:1", value, "PX", "60000"])
            .await;
        for (method, error) in errors(&store, "1").await {
            assert_eq!(
                error.kind(),
                StoreErrorKind::Unreadable,
                "{method} of {value:?}: {error}"
            );
            assert!(
                error.to_string().contains(says),
                "{method} of {value:?}: {error}"
            );
        }
        assert_eq!(server.get("idem:orders:1").await.unwrap(), value);
    }
}

#[tokio::test]
async fn a_damaged_record_of_the_caller_itself_is_not_written_over() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let whole = server.get("idem:orders:1").await.unwrap();
    let cut = &whole[..whole.len() - 4];
    let () = server
        .send(&["SET", "idem:orders:1", cut, "PX", "60000"])
        .await;
    let unreadable = |error: StoreError| assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    unreadable(store.claim(&first).await.unwrap_err());
    unreadable(store.commit(&commit(&first, 1, "1")).await.unwrap_err());
    unreadable(store.release(&release(&first)).await.unwrap_err());
    unreadable(store.renew(&[renewal(&first)]).await.remove(0).unwrap_err());
    assert_eq!(server.get("idem:orders:1").await.unwrap(), cut);
}

#[tokio::test]
async fn somebody_elses_hash_or_list_is_an_error_and_stays() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&["HSET", "idem:orders:hash", "field", "1"])
        .await;
    let () = server.send(&["RPUSH", "idem:orders:list", "1"]).await;
    for key in ["hash", "list"] {
        for (method, error) in errors(&store, key).await {
            assert_eq!(
                error.kind(),
                StoreErrorKind::Unreadable,
                "{method} of a {key}: {error}"
            );
            assert!(error.to_string().contains("not written by idem"), "{error}");
        }
    }
    let one: u32 = server.send(&["HLEN", "idem:orders:hash"]).await;
    let other: u32 = server.send(&["LLEN", "idem:orders:list"]).await;
    assert_eq!((one, other), (1, 1));
}

#[tokio::test]
async fn an_outcome_aside_that_is_damaged_is_an_error() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&["SET", "idem:orders:1", "i1o 1 -.", "PX", "60000"])
        .await;
    let () = server
        .send(&[
            "SET",
            "idem:{idem:orders:1}",
            "i1c 1 j - ______ {\"id\":8}",
            "PX",
            "60000",
        ])
        .await;
    assert_eq!(
        store.claim(&claim("1")).await.unwrap_err().kind(),
        StoreErrorKind::Unreadable
    );
    assert_eq!(
        store.inspect(&id("1")).await.unwrap_err().kind(),
        StoreErrorKind::Unreadable
    );
}

#[tokio::test]
async fn a_record_whose_expiry_was_taken_away_is_not_taken_over() {
    let (server, store) = server_and_store().await;
    let first = claim_for("1", std::time::Duration::from_millis(1));
    store.claim(&first).await.unwrap();
    let () = server.send(&["PERSIST", "idem:orders:1"]).await;
    let error = store.claim(&claim("1")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreadable);
    assert!(error.to_string().contains("no expiry"), "{error}");
    assert_eq!(
        store.inspect(&id("1")).await.unwrap_err().kind(),
        StoreErrorKind::Unreadable
    );
    assert_eq!(
        store.remove(&id("1")).await.unwrap_err().kind(),
        StoreErrorKind::Unreadable
    );
    assert_eq!(
        store.wait(&id("1"), 1, SECOND).await.unwrap_err().kind(),
        StoreErrorKind::Unreadable
    );
    // Its owner is known all the same, and what it does sets an expiry again.
    assert!(matches!(
        store.claim(&first).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
}

/// An owner whose record a later version has renewed in a form that this one does not know.
#[tokio::test]
async fn a_record_of_a_later_version_is_an_error_to_its_owner_too_and_stays() {
    let (server, store) = server_and_store().await;
    let own = claim("1");
    let owner = &wire::owner_prefix(own.owner)[3..];
    let later = format!("i5f{owner}n 1 30000 300000 - new.");
    let key = "idem:orders:1";
    let () = server.send(&["SET", key, &later, "PX", "300000"]).await;
    let errors = [
        store.claim(&own).await.unwrap_err(),
        store.commit(&commit(&own, 1, "1")).await.unwrap_err(),
        store.release(&release(&own)).await.unwrap_err(),
        store.renew(&[renewal(&own)]).await.remove(0).unwrap_err(),
        store.inspect(&own.id).await.unwrap_err(),
        store.remove(&own.id).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), StoreErrorKind::Unreadable, "{error}");
    }
    assert_eq!(server.get(key).await.unwrap(), later);
}
