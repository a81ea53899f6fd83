//! Settings at their limits.

use std::time::Duration;

use idem::{Error, Idempotency, MemoryStore, StoreErrorKind};

use super::{Res, SHORT};
use crate::support::{LONG, eventually};

#[tokio::test]
async fn a_remember_that_is_too_short_is_refused_in_either_order_and_a_default_one_is_raised() {
    let short = Duration::from_secs(1);
    let long = Duration::from_secs(10);
    let idempotency = Idempotency::builder(MemoryStore::new())
        .ttl(short)
        .remember(short)
        .build();
    let call = || idempotency.operation("edges.remember").key("k");
    let run =
        async |operation: idem::Operation<'_>| operation.run(async || Ok::<_, Error>(1)).await;
    assert!(matches!(
        run(call().remember(short).ttl(long)).await,
        Err(Error::Config { .. })
    ));
    assert!(matches!(
        run(call().ttl(long).remember(short)).await,
        Err(Error::Config { .. })
    ));
    assert_eq!(run(call().ttl(long)).await.unwrap().into_inner(), 1);
    let built = |builder: idem::Builder| builder.try_build().map(drop);
    let builder = || Idempotency::builder(MemoryStore::new());
    assert!(built(builder().remember(short).ttl(long)).is_err());
    assert_eq!(
        built(builder().ttl(long).remember(short)),
        built(builder().remember(short).ttl(long))
    );
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused_when_built_installed_and_called() {
    let builder = || Idempotency::builder(MemoryStore::new()).lease(Duration::ZERO);
    assert!(
        builder()
            .try_build()
            .unwrap_err()
            .to_string()
            .contains("lease")
    );
    let idempotency = builder().build();
    assert!(
        idem::install(idempotency.clone())
            .unwrap_err()
            .to_string()
            .contains("lease")
    );
    let refused = |answer: Res<idem::Outcome<u32>>| matches!(answer, Err(Error::Config { .. }));
    assert!(refused(
        idempotency
            .operation("op")
            .key("k")
            .run(async || panic!("ran"))
            .await
    ));
    let sound = Idempotency::new(MemoryStore::new());
    let call = || sound.operation("op").key("k");
    assert!(refused(
        call().ttl(Duration::ZERO).run(async || panic!("ran")).await
    ));
    assert!(refused(
        call()
            .ttl(LONG)
            .remember(SHORT)
            .run(async || panic!("ran"))
            .await
    ));
    assert!(refused(
        call().max_attempts(0).run(async || panic!("ran")).await
    ));
    assert!(refused(
        call()
            .lease(Duration::MAX)
            .run(async || panic!("ran"))
            .await
    ));
    for name in ["", "a b", "a:b", "a::", "{a}"] {
        assert!(
            refused(
                sound
                    .operation(name)
                    .key("k")
                    .run(async || panic!("ran"))
                    .await
            ),
            "{name}"
        );
    }
    assert_eq!(
        call().run(async || Res::Ok(1)).await.unwrap().into_inner(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn p2_a_full_memory_store_refuses_new_keys_and_evicts_none() {
    let idempotency = Idempotency::new(MemoryStore::with_capacity(2));
    let call = |key: u32, ttl: Duration| {
        idempotency
            .operation("op")
            .key(&key)
            .ttl(ttl)
            .run(async move || Res::Ok(key))
    };
    let _ = call(1, LONG).await.unwrap();
    let _ = call(2, SHORT).await.unwrap();
    let full = call(3, LONG).await;
    assert!(matches!(&full, Err(error @ Error::Store { source, .. })
        if source.kind() == StoreErrorKind::Full && error.is_retryable()));
    assert!(full.unwrap_err().to_string().contains("with_capacity"));
    assert!(call(1, LONG).await.unwrap().is_replayed());
    // Expired records make room.
    eventually("a place is free", async || call(4, LONG).await.is_ok()).await;
    assert!(call(1, LONG).await.unwrap().is_replayed());
}
