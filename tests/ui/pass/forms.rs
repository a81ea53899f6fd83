//! The forms of every option.

use std::time::Duration;

use idem::{Error, Idempotency, KeyPart, MemoryStore, idempotent};

#[derive(Clone, serde::Serialize, KeyPart)]
struct OrderId(u64);

#[derive(Clone, serde::Serialize)]
struct Req {
    tenant: String,
    order_id: OrderId,
    keep: u64,
}

const TENANT: &str = "acme";

async fn lookup(_: &Req) -> Result<Option<u64>, Error> {
    std::future::ready(Ok(None)).await
}

#[idempotent(
    key = ("req.tenant", "req.order_id"),
    ttl = "5m",
    remember = "30d",
    name = "orders.create",
    fingerprint = "req",
    lease = "30s",
    in_flight = wait("5s"),
    duplicate = replay,
    abandoned = reconcile("lookup(&req)"),
    store_failure = reject,
    missing_key = reject,
    max_attempts = 5,
    detached,
    runtime = "idempotency",
    crate = "::idem",
)]
async fn strings(idempotency: Idempotency, req: Req) -> Result<u64, Error> {
    Ok(req.keep)
}

#[idempotent(
    key = (TENANT, req.order_id),
    ttl = Duration::from_secs(req.keep),
    lease = Duration::from_secs(30),
    in_flight = reject,
    duplicate = reject,
    abandoned = reject,
    store_failure = run,
    missing_key = run,
)]
async fn bare(req: &Req) -> Result<u64, Error> {
    Ok(req.keep)
}

#[tokio::test]
async fn every_form_of_every_option_compiles_and_runs() {
    let req = Req {
        tenant: "acme".to_owned(),
        order_id: OrderId(1),
        keep: 1,
    };
    let idempotency = Idempotency::new(MemoryStore::new());
    for _ in 0..2 {
        assert_eq!(strings(idempotency.clone(), req.clone()).await.unwrap(), 1);
    }
    let bare = idem::scope(idempotency, async { [bare(&req).await, bare(&req).await] }).await;
    assert!(matches!(bare, [Ok(1), Err(Error::Duplicate { .. })]));
}
