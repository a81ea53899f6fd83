//! The attribute with `token` and `subject`.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use idem::{Error, Idempotency, MemoryStore, Token, idempotent};

use super::{Res, TTL, is_unknown};

struct Form {
    token: String,
    amount: u32,
}

struct User {
    id: u64,
    tenant: &'static str,
}

static RUNS: AtomicU32 = AtomicU32::new(0);

#[idempotent(
    token = "form.token",
    subject = "user.id",
    fingerprint = "form.amount",
    name = "t.attribute.submit"
)]
async fn submit(user: &User, form: Form) -> Res {
    RUNS.fetch_add(1, SeqCst);
    Ok(form.amount)
}

#[idempotent(
    token = token,
    subject = (user.tenant, "user.id"),
    duplicate = reject,
    name = "t.attribute.reject",
)]
async fn reject(user: User, token: Token) -> Res<(u64, String)> {
    Ok((user.id, token.to_string()))
}

#[idempotent(
    token = token,
    subject = "user.id",
    detached,
    runtime = "idempotency",
    name = "t.attribute.detached",
)]
async fn detached(idempotency: Idempotency, user: User, token: Option<String>) -> Res<(u64, bool)> {
    Ok((user.id, token.is_some() && !idempotency.is_disabled()))
}

#[tokio::test]
async fn the_attribute_runs_the_first_submission_and_replays_or_rejects_the_others() {
    let idempotency = Idempotency::new(MemoryStore::new());
    idem::scope(idempotency.clone(), async {
        let user = User { id: 1, tenant: "a" };
        let other = User { id: 2, tenant: "a" };
        let token = idempotency
            .operation("t.attribute.submit")
            .issue(&user.id, TTL)
            .await
            .unwrap();
        let form = |amount| Form {
            token: token.to_string(),
            amount,
        };
        assert!(is_unknown(&submit(&other, form(5)).await));
        for _ in 0..3 {
            assert_eq!(submit(&user, form(5)).await.unwrap(), 5);
        }
        assert!(matches!(
            submit(&user, form(6)).await,
            Err(Error::FingerprintMismatch { .. })
        ));
        assert!(is_unknown(
            &submit(
                &user,
                Form {
                    token: "x".into(),
                    amount: 5
                }
            )
            .await
        ));
        assert_eq!(RUNS.load(SeqCst), 1);

        let token = idempotency
            .operation("t.attribute.reject")
            .issue(&(user.tenant, user.id), TTL)
            .await
            .unwrap();
        let user = || User { id: 1, tenant: "a" };
        assert!(is_unknown(
            &reject(
                User {
                    tenant: "b",
                    ..user()
                },
                token.clone()
            )
            .await
        ));
        assert_eq!(
            reject(user(), token.clone()).await.unwrap(),
            (1, token.to_string())
        );
        assert!(matches!(
            reject(user(), token).await,
            Err(Error::Duplicate { .. })
        ));

        let token = idempotency
            .operation("t.attribute.detached")
            .issue(&1_u64, TTL)
            .await
            .unwrap();
        assert!(is_unknown(
            &detached(idempotency.clone(), user(), None).await
        ));
        let answer = detached(idempotency.clone(), user(), Some(token.to_string())).await;
        assert_eq!(answer.unwrap(), (1, true));
    })
    .await;
}
