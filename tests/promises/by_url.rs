//! `idem::connect`: runtimes by the URL of their store.

use crate::support::{World, eventually};
use idem::{Error, Idempotency};

/// Long, because a machine may be busy.
const PATIENT: std::time::Duration = std::time::Duration::from_secs(15);

fn url(world: &World) -> String {
    match world {
        World::Memory(_) => "memory:".to_owned(),
        _ => world.url(),
    }
}

async fn call(idempotency: &Idempotency, key: &'static str) -> (u32, bool) {
    let operation = idempotency.operation("by_url.calls").key(key);
    let outcome = operation.run(async || Ok::<_, Error>(7)).await.unwrap();
    (*outcome.get(), outcome.is_replayed())
}

crate::over_all_stores! {
    async fn a_runtime_by_url_shares_the_records_of_the_store_there(world: World) {
        let by_url = idem::builder(url(&world)).time_limit(PATIENT);
        let by_url = by_url.connect().await.unwrap();
        assert_eq!(call(&by_url, "shared").await, (7, false));
        assert_eq!(call(&by_url, "shared").await, (7, true));
        // A store in memory is another one for each call of `connect`.
        let is_shared = !matches!(world, World::Memory(_));
        let other = world.process().await;
        assert_eq!(call(&other, "shared").await, (7, is_shared));
    }

    async fn a_runtime_by_url_alone_has_the_usual_limits(world: World) {
        let by_url = crate::support::connected(async || idem::connect(url(&world)).await).await;
        assert_eq!(by_url.lease(), Some(std::time::Duration::from_secs(30)));
        // They are short for a busy machine.
        eventually("it answers", async || {
            let info = by_url.operation("by_url.calls").key("nobody's").inspect().await;
            match info {
                Ok(info) => info.is_none(),
                Err(error) => {
                    assert!(error.to_string().contains(" within "), "{error}");
                    false
                }
            }
        })
        .await;
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_sqlite_database_in_memory_is_refused_with_and_without_a_limit() {
    for builder in [
        idem::builder("sqlite://:memory:"),
        idem::builder("sqlite://:memory:").time_limit(PATIENT),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert!(error.to_string().contains("MemoryStore"), "{error}");
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
#[tokio::test]
async fn a_malformed_url_of_a_database_is_refused_without_its_password() {
    for url in [
        #[cfg(feature = "postgres")]
        "postgres://user:hunter2@host:port/db",
        #[cfg(feature = "mysql")]
        "mysql://user:hunter2@host:port/db",
    ] {
        for builder in [idem::builder(url), idem::builder(url).time_limit(PATIENT)] {
            let error = builder.connect().await.unwrap_err();
            assert_eq!(error.kind(), idem::StoreErrorKind::Refused);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
