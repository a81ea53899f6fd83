//! The attribute on every kind of function that it is promised to work on, over `MemoryStore`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::{Idempotency, KeyPart, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Req {
    tenant: String,
    order_id: u64,
    cents: u64,
}

impl Req {
    fn new(order_id: u64) -> Self {
        Self {
            tenant: "acme".into(),
            order_id,
            cents: 100,
        }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error("{0}")]
    #[serde(skip)]
    Idempotency(String),
}

impl From<idem::Error> for Failure {
    fn from(error: idem::Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

/// How often bodies ran, handed to them by reference.
#[derive(Default)]
struct Runs(AtomicU32);

impl Runs {
    fn count(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
    fn total(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

async fn fresh<F: Future>(future: F) -> F::Output {
    idem::scope(Idempotency::new(MemoryStore::new()), future).await
}

mod arguments;
#[cfg(feature = "axum")]
mod handlers;
#[cfg(all(feature = "axum", feature = "sqlite"))]
mod in_transactions;
mod names;
mod nested;
mod watched;

mod free_functions {
    use super::*;

    #[idempotent(key = "req.order_id", ttl = "5m")]
    async fn by_string(runs: &Runs, req: Req) -> Result<u32, Failure> {
        let _ = req;
        Ok(runs.count())
    }

    #[idempotent(key = req.order_id, ttl = Duration::from_secs(5))]
    async fn bare(runs: &Runs, req: &Req) -> Result<u32, idem::Error> {
        Ok(runs.count())
    }

    const TENANT: &str = "acme";

    #[idempotent(
        key = (TENANT, "req.order_id"),
        fingerprint = ("req.cents", "&req.tenant"),
        name = "orders.parts",
    )]
    async fn parts(runs: &Runs, mut req: Req) -> Result<u32, Failure> {
        // The body may do with its arguments what it likes: key and fingerprint are made before.
        req.order_id += 1;
        req.cents += 1;
        drop(req);
        Ok(runs.count())
    }

    #[idempotent(key = "req.order_id")]
    async fn early_return(runs: &Runs, req: Req) -> Result<u32, Failure> {
        if req.cents == 0 {
            return Err(Failure::Declined);
        }
        let runs = runs.count();
        std::future::ready(Ok::<(), Failure>(())).await?;
        Ok(runs)
    }

    #[tokio::test]
    async fn duplicates_get_the_first_answer() {
        fresh(async {
            let runs = Runs::default();
            for _ in 0..3 {
                assert_eq!(by_string(&runs, Req::new(1)).await, Ok(1));
                assert_eq!(bare(&runs, &Req::new(1)).await.unwrap(), 2);
            }
            assert_eq!(by_string(&runs, Req::new(2)).await, Ok(3));
        })
        .await;
    }

    #[tokio::test]
    async fn p7_key_and_fingerprint_are_made_before_the_body_changes_its_arguments() {
        fresh(async {
            let runs = Runs::default();
            assert_eq!(parts(&runs, Req::new(1)).await, Ok(1));
            assert_eq!(parts(&runs, Req::new(1)).await, Ok(1));
            let other = Req { cents: 1, ..Req::new(1) };
            assert!(
                matches!(parts(&runs, other).await, Err(Failure::Idempotency(text)) if text.contains("other arguments"))
            );
            assert_eq!(runs.total(), 1);
        })
        .await;
    }

    #[tokio::test]
    async fn an_early_return_of_an_error_releases() {
        fresh(async {
            let runs = Runs::default();
            assert_eq!(
                early_return(
                    &runs,
                    Req {
                        cents: 0,
                        ..Req::new(1)
                    }
                )
                .await,
                Err(Failure::Declined)
            );
            assert_eq!(early_return(&runs, Req::new(1)).await, Ok(1));
        })
        .await;
    }
}

mod methods {
    use super::*;

    struct Service {
        idempotency: Idempotency,
        runs: Runs,
        last: u64,
    }

    impl Service {
        fn new() -> Self {
            Self {
                idempotency: Idempotency::new(MemoryStore::new()),
                runs: Runs::default(),
                last: 0,
            }
        }

        #[idempotent(
            key = "req.order_id",
            name = "service.by_ref",
            runtime = "self.idempotency"
        )]
        async fn by_ref(&self, req: Req) -> Result<u32, Failure> {
            let _ = req;
            Ok(self.runs.count())
        }

        #[idempotent(key = "order", name = "service.by_mut", runtime = self.idempotency)]
        async fn by_mut(&mut self, order: u64) -> Result<u32, Failure> {
            self.last = order;
            Ok(self.runs.count())
        }

        #[idempotent(key = "order", name = "service.by_arc", runtime = "self.idempotency")]
        async fn by_arc(self: Arc<Self>, order: u64) -> Result<u32, Failure> {
            let _ = order;
            Ok(self.runs.count())
        }
    }

    #[tokio::test]
    async fn every_receiver_works_and_operations_do_not_meet() {
        let mut service = Service::new();
        assert_eq!(service.by_ref(Req::new(1)).await, Ok(1));
        assert_eq!(service.by_mut(1).await, Ok(2));
        assert_eq!(service.last, 1);
        let service = Arc::new(service);
        assert_eq!(service.clone().by_arc(1).await, Ok(3));
        assert_eq!(service.clone().by_arc(1).await, Ok(3));
        assert_eq!(service.by_ref(Req::new(1)).await, Ok(1));
    }
}

mod generic_functions {
    use super::*;

    #[idempotent(key = "(kind, &item.key)", name = "generic.handle")]
    async fn handle<T, const N: usize>(
        runs: &Runs,
        kind: T,
        item: Item<'_, N>,
    ) -> Result<[u8; N], Failure>
    where
        T: KeyPart + Copy,
        [u8; N]: Serialize + for<'de> Deserialize<'de>,
    {
        runs.count();
        Ok(item.bytes)
    }

    struct Item<'a, const N: usize> {
        key: &'a str,
        bytes: [u8; N],
    }

    #[tokio::test]
    async fn type_and_const_parameters_work() {
        fresh(async {
            let runs = Runs::default();
            assert_eq!(
                handle(
                    &runs,
                    7u8,
                    Item {
                        key: "k",
                        bytes: [1, 2]
                    }
                )
                .await,
                Ok([1, 2])
            );
            assert_eq!(
                handle(
                    &runs,
                    7u8,
                    Item {
                        key: "k",
                        bytes: [3, 4]
                    }
                )
                .await,
                Ok([1, 2])
            );
            assert_eq!(runs.total(), 1);
        })
        .await;
    }
}

mod under_async_trait {
    use super::*;

    #[async_trait::async_trait]
    trait Gateway: Send + Sync {
        async fn charge(&self, req: Req, pair: (u64, u64)) -> Result<u32, Failure>;
    }

    struct Bank {
        idempotency: Idempotency,
        runs: Runs,
    }

    #[async_trait::async_trait]
    impl Gateway for Bank {
        #[idempotent(
            key = "(req.order_id, first)",
            name = "gateway.charge",
            runtime = "self.idempotency"
        )]
        async fn charge(&self, req: Req, (first, second): (u64, u64)) -> Result<u32, Failure> {
            if req.cents == 0 {
                return Err(Failure::Declined);
            }
            let _ = second;
            Ok(self.runs.count())
        }
    }

    #[tokio::test]
    async fn a_trait_object_works() {
        let bank: Box<dyn Gateway> = Box::new(Bank {
            idempotency: Idempotency::new(MemoryStore::new()),
            runs: Runs::default(),
        });
        assert_eq!(
            bank.charge(
                Req {
                    cents: 0,
                    ..Req::new(1)
                },
                (1, 2)
            )
            .await,
            Err(Failure::Declined)
        );
        assert_eq!(bank.charge(Req::new(1), (1, 2)).await, Ok(1));
        assert_eq!(bank.charge(Req::new(1), (1, 3)).await, Ok(1));
        assert_eq!(bank.charge(Req::new(1), (2, 2)).await, Ok(2));
    }
}

mod under_instrument {
    use super::*;

    #[tracing::instrument(skip(runs))]
    #[idempotent(key = "order")]
    async fn above(runs: &Runs, order: u64) -> Result<u32, Failure> {
        Ok(runs.count())
    }

    #[idempotent(key = "order")]
    #[tracing::instrument(skip(runs))]
    async fn below(runs: &Runs, order: u64) -> Result<u32, Failure> {
        Ok(runs.count())
    }

    #[tokio::test]
    async fn in_either_order() {
        fresh(async {
            let runs = Runs::default();
            assert_eq!(
                (above(&runs, 1).await, below(&runs, 1).await),
                (Ok(1), Ok(2))
            );
            assert_eq!(
                (above(&runs, 1).await, below(&runs, 1).await),
                (Ok(1), Ok(2))
            );
        })
        .await;
    }
}

mod key_parts {
    use super::*;

    #[derive(KeyPart)]
    struct OrderId(u64);

    #[derive(KeyPart)]
    struct Composite<'a, T> {
        shop: &'a str,
        number: T,
    }

    #[derive(KeyPart)]
    enum Channel {
        Web,
        Till { number: u32 },
    }

    fn text<K: KeyPart>(key: K) -> String {
        idem::Key::encode(&key).unwrap().as_str().to_owned()
    }

    #[test]
    fn the_derive_writes_newtypes_structs_and_enums() {
        assert_eq!(text(OrderId(7)), "7");
        assert_eq!(text((OrderId(7), "x")), "7:x");
        assert_eq!(
            text(Composite {
                shop: "a:b",
                number: 7
            }),
            "(a%3Ab:7)"
        );
        assert_eq!(text((Channel::Web, 1)), "Web:1");
        assert_eq!(text(Channel::Till { number: 3 }), "(Till:3)");
    }
}

mod switches {
    use super::*;

    #[idempotent(key = "key", missing_key = run)]
    async fn optional(runs: &Runs, key: Option<&str>) -> Result<u32, Failure> {
        Ok(runs.count())
    }

    #[idempotent(key = "key")]
    async fn required(runs: &Runs, key: Option<&str>) -> Result<u32, idem::Error> {
        Ok(runs.count())
    }

    #[idempotent(key = "key", duplicate = reject)]
    async fn once(runs: &Runs, key: &str) -> Result<u32, idem::Error> {
        Ok(runs.count())
    }

    #[tokio::test]
    async fn a_missing_key_is_refused_or_runs_unguarded() {
        fresh(async {
            let runs = Runs::default();
            for missing in [None, Some("")] {
                assert!(matches!(
                    required(&runs, missing).await,
                    Err(idem::Error::MissingKey { .. })
                ));
            }
            assert_eq!(runs.total(), 0);
            assert_eq!(optional(&runs, None).await, Ok(1));
            assert_eq!(optional(&runs, Some("")).await, Ok(2));
            assert_eq!(optional(&runs, Some("k")).await, Ok(3));
            assert_eq!(optional(&runs, Some("k")).await, Ok(3));
        })
        .await;
    }

    #[tokio::test]
    async fn duplicates_can_be_rejected() {
        fresh(async {
            let runs = Runs::default();
            assert_eq!(once(&runs, "k").await.unwrap(), 1);
            assert!(matches!(
                once(&runs, "k").await,
                Err(idem::Error::Duplicate { .. })
            ));
        })
        .await;
    }

    #[tokio::test]
    async fn without_a_runtime_nothing_runs_and_the_error_says_what_to_call() {
        let runs = Runs::default();
        let error = required(&runs, Some("k")).await.unwrap_err();
        assert!(matches!(error, idem::Error::NotInstalled { .. }));
        assert!(error.to_string().contains("idem::install"), "{error}");
        assert_eq!(runs.total(), 0);
    }

    /// As a key, and as what must be equal.
    struct Panics;

    impl KeyPart for Panics {
        fn write_to(&self, _: &mut idem::KeyWriter<'_>) {
            panic!("the key is computed")
        }
    }

    impl Serialize for Panics {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("the fingerprint is computed")
        }
    }

    #[idempotent(key = part, fingerprint = part)]
    async fn never_written(runs: &Runs, part: Panics) -> Result<u32, idem::Error> {
        Ok(runs.count())
    }

    #[tokio::test]
    async fn a_disabled_runtime_computes_neither_key_nor_fingerprint() {
        let runs = Runs::default();
        let disabled = Idempotency::disabled();
        let by_hand = disabled.operation("switches.disabled").key(&Panics);
        let by_hand = by_hand.fingerprint(&Panics);
        let ran = by_hand
            .run(async || Ok::<_, idem::Error>(runs.count()))
            .await;
        assert_eq!(ran.unwrap().into_inner(), 1);
        let ran = idem::scope(disabled, never_written(&runs, Panics)).await;
        assert_eq!(ran.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_disabled_runtime_runs_every_body() {
        idem::scope(Idempotency::disabled(), async {
            let runs = Runs::default();
            assert_eq!(once(&runs, "k").await.unwrap(), 1);
            assert_eq!(once(&runs, "k").await.unwrap(), 2);
            assert_eq!(required(&runs, None).await.unwrap(), 3);
        })
        .await;
    }
}
