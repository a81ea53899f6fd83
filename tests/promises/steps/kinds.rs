//! One table over the kinds of calls: whatever a body is, a later run of it goes on after its
//! finished steps.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use idem::{Idempotency, MemoryStore, idempotent};

use super::{EFFECTS, Failure, Shop};

#[idempotent(name = "kinds.plain", key = order)]
async fn plain(shop: Arc<Shop>, order: &str) -> Result<u32, Failure> {
    shop.place().await
}

#[idempotent(name = "kinds.detached", key = order, detached)]
async fn detached(shop: Arc<Shop>, order: String) -> Result<u32, Failure> {
    shop.place().await
}

#[idempotent(
    name = "kinds.retried",
    key = order,
    errors(Failure::Down => retry(max = 1, backoff = "1ms"), _ => release)
)]
async fn retried(shop: Arc<Shop>, order: &str) -> Result<u32, Failure> {
    shop.place().await
}

#[idempotent(
    name = "kinds.kept",
    key = order,
    errors(Failure::Idempotency(_) => keep, _ => release),
)]
async fn kept(shop: Arc<Shop>, order: &str) -> Result<u32, Failure> {
    shop.place().await
}

#[idempotent(name = "kinds.generic", key = "(7, order)", fingerprint = order, abandoned = reject)]
async fn generic<K: idem::KeyPart + serde::Serialize + Send>(
    shop: Arc<Shop>,
    order: K,
) -> Result<u32, Failure> {
    let call = idem::current().unwrap();
    assert_eq!(call.operation(), "kinds.generic");
    shop.place().await
}

struct Service(Arc<Shop>);

#[async_trait::async_trait]
trait Places {
    async fn place(&self, order: &str) -> Result<u32, Failure>;
}

#[async_trait::async_trait]
impl Places for Service {
    #[idempotent(name = "kinds.method", key = order)]
    async fn place(&self, order: &str) -> Result<u32, Failure> {
        let items = ["pen".to_owned()];
        // The borrows of a step go to another thread with the call.
        let count = idem::step("count", async || {
            tokio::task::yield_now().await;
            Ok::<_, Failure>(items.len())
        });
        assert_eq!(count.await?, 1);
        self.0.place().await
    }
}

type Kind = fn(Arc<Shop>) -> BoxFuture<'static, Result<u32, Failure>>;

const KINDS: [(&str, Kind); 7] = [
    ("plain", |shop| plain(shop, "o-1").boxed()),
    ("detached", |shop| detached(shop, "o-1".to_owned()).boxed()),
    ("retried", |shop| retried(shop, "o-1").boxed()),
    ("kept", |shop| kept(shop, "o-1").boxed()),
    ("generic", |shop| generic(shop, "o-1".to_owned()).boxed()),
    ("method", |shop| {
        async move { Service(shop).place("o-1").await }.boxed()
    }),
    ("by hand", |shop| {
        async move {
            let idempotency = Idempotency::new(MemoryStore::new());
            let order = || idempotency.operation("kinds.hand").key("o-1");
            for _ in 0..2 {
                let _ = order().run(|| shop.place()).await;
            }
            order()
                .run(|| shop.place())
                .await
                .map(idem::Outcome::into_inner)
        }
        .boxed()
    }),
];

/// The runtimes that make a difference.
fn runtimes() -> Vec<(&'static str, Idempotency)> {
    let builder = || Idempotency::builder(MemoryStore::new());
    let runtimes = vec![("default", builder().build())];
    #[cfg(feature = "encryption")]
    let runtimes = {
        let mut runtimes = runtimes;
        let keys = idem::KeyRing::new("k1", idem::EncryptionKey::new([7; 32])).unwrap();
        let codec = idem::EncryptedCodec::new(keys);
        runtimes.push(("encrypted", builder().codec(codec).build()));
        runtimes
    };
    runtimes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_every_kind_of_call_a_later_run_goes_on_after_the_finished_steps() {
    for (label, runtime) in runtimes() {
        for (name, kind) in KINDS {
            let shop = Arc::new(Shop::failing(2));
            let answer = idem::scope(runtime.clone(), async {
                let mut calls = 0;
                loop {
                    calls += 1;
                    let answer = tokio::time::timeout(crate::support::LONG, kind(shop.clone()));
                    let answer = answer.await.expect("the call ends");
                    if answer.is_ok() || calls == 3 {
                        break answer;
                    }
                }
            });
            assert_eq!(answer.await.unwrap(), 7, "{name} {label}");
            assert_eq!(shop.effects(), EFFECTS, "{name} {label}");
        }
        runtime.shutdown(crate::support::LONG).await.unwrap();
    }
}
