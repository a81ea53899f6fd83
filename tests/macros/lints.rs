//! The generated code adds no warning to the author's crate.
//!
//! Every group of lints is on here. The
//! allowed lints are those that would warn about these lines without the attribute as well.
//! `cargo xtask ci` runs clippy with warnings denied.

#![warn(clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction)]
#![allow(
    missing_docs,
    clippy::absolute_paths,
    clippy::allow_attributes_without_reason,
    clippy::arbitrary_source_item_ordering
)]
#![allow(
    clippy::blanket_clippy_restriction_lints,
    clippy::exhaustive_enums,
    clippy::implicit_return
)]
#![allow(
    clippy::missing_inline_in_public_items,
    clippy::question_mark_used,
    clippy::single_call_fn
)]
#![allow(
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    clippy::tests_outside_test_module
)]
#![warn(unused, nonstandard_style, rust_2018_idioms)]
#![warn(
    unreachable_pub,
    unused_qualifications,
    unused_results,
    trivial_casts,
    let_underscore_drop
)]

use std::sync::Arc;
use std::time::Duration;

use idem::{Error, ErrorPolicy, Idempotency, KeyPart, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, KeyPart)]
pub struct OrderId(u64);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, KeyPart)]
pub enum Payee {
    Customer(OrderId),
    Merchant { shop: String, till: u32 },
    House,
}

#[derive(Debug, Clone, Serialize)]
pub struct Req {
    order: OrderId,
    tenant: String,
    payee: Payee,
    keep: Duration,
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
pub enum OrderError {
    #[idem(keep)]
    Declined {
        code: u16,
    },
    #[idem(retry(max = 3, backoff = "100ms", then = abandon))]
    Gateway,
    #[idem(release)]
    Text(String),
    Idempotency,
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
#[idem(inner)]
pub struct Wrapped<E> {
    error: E,
}

impl From<Error> for OrderError {
    fn from(_: Error) -> Self {
        Self::Idempotency
    }
}

async fn gateway(id: OrderId) -> Result<u64, OrderError> {
    std::future::ready(Ok(id.0)).await
}

async fn lookup(id: OrderId) -> Result<Option<u64>, OrderError> {
    std::future::ready(Ok(Some(id.0))).await
}

#[idempotent(key = "req.order", ttl = "5m", remember = "30d", fingerprint = "req")]
async fn plain(req: &Req) -> Result<u64, Error> {
    std::future::ready(Ok(req.order.0)).await
}

#[idempotent(
    key = (req.tenant, (req.order, req.payee)),
    ttl = req.keep,
    lease = "30s",
    in_flight = wait("5s"),
    duplicate = replay,
    abandoned = reconcile(lookup(req.order)),
    store_failure = reject,
    missing_key = reject,
    max_attempts = 5,
    detached,
    name = "lints.options",
    errors(policy),
)]
async fn options(req: Req) -> Result<u64, OrderError> {
    gateway(req.order).await
}

#[idempotent(
    key = req.order,
    errors(
        OrderError::Declined { code: 1..=9 } => keep,
        OrderError::Declined { code } if *code == limit => keep(ttl = "1h"),
        OrderError::Declined { .. } | OrderError::Text(_) => release,
        OrderError::Gateway => retry(max = 3, backoff = req.keep, max_backoff = "10s", then = keep),
        OrderError::Idempotency => release,
    ),
)]
async fn arms(req: Req, mut id: OrderId, limit: u16) -> Result<u64, OrderError> {
    id.0 = id.0.max(req.order.0);
    gateway(id).await
}

#[idempotent(key = req.order, errors(_ => keep))]
async fn one_arm(req: Req) -> Result<u64, OrderError> {
    gateway(req.order).await
}

#[idempotent(key = id, name = "lints.generic", errors(_ => release))]
async fn generic<E: From<Error> + From<OrderError>>(id: u64) -> Result<u64, E> {
    Ok(gateway(OrderId(id)).await?)
}

struct Service {
    idempotency: Idempotency,
}

impl Service {
    #[idempotent(key = id, name = "lints.method", runtime = self.idempotency, errors(policy))]
    async fn method(&self, id: OrderId) -> Result<u64, OrderError> {
        gateway(id).await
    }

    #[idempotent(
        key = id,
        name = "lints.shared",
        errors(OrderError::Gateway => retry(max = 1), _ => abandon),
    )]
    async fn shared(self: Arc<Self>, id: OrderId) -> Result<u64, OrderError> {
        self.method(id).await
    }
}

#[tokio::test]
async fn what_is_linted_runs() {
    let service = Arc::new(Service {
        idempotency: Idempotency::new(MemoryStore::new()),
    });
    let req = Req {
        order: OrderId(7),
        tenant: "acme".to_owned(),
        payee: Payee::Merchant {
            shop: "s".to_owned(),
            till: 1,
        },
        keep: Duration::from_secs(1),
    };
    let answers = idem::scope(service.idempotency.clone(), async {
        let arms = arms(req.clone(), OrderId(1), 1).await;
        let options = options(req.clone()).await;
        let one_arm = one_arm(req.clone()).await;
        let shared = service.shared(OrderId(7)).await;
        let generic = generic::<OrderError>(7).await;
        [
            plain(&req).await.map_err(OrderError::from),
            arms,
            options,
            one_arm,
            shared,
            generic,
        ]
    })
    .await;
    assert!(
        answers.iter().all(|answer| matches!(answer, Ok(7))),
        "{answers:?}"
    );
}
