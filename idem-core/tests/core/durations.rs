//! Durations that are texts, wherever a builder takes one.

use std::time::Duration;

use idem_core::{Error, Idempotency, MemoryStore, Operation};

type Res = Result<u32, Error>;

async fn run(call: Operation<'_>) -> Result<bool, Error> {
    let outcome = call.run(async || Res::Ok(1)).await?;
    Ok(outcome.is_replayed())
}

#[tokio::test(start_paused = true)]
async fn a_text_is_as_good_as_a_duration() {
    let hour = Duration::from_secs(3_600);
    let idempotency = Idempotency::builder(MemoryStore::new())
        .ttl("1h")
        .remember("2h")
        .lease(String::from("10s"))
        .wait("1s")
        .hold("90d")
        .limit_token_failures(10, "1m")
        .try_build()
        .unwrap();
    assert_eq!(idempotency.lease(), Some(Duration::from_secs(10)));
    let call = |key| idempotency.operation("durations").key(key);
    for (key, call) in [
        ("default", call("default")),
        (
            "text",
            call("text")
                .ttl("1h")
                .remember("2h")
                .lease("5s")
                .wait("0s")
                .hold("1d"),
        ),
        ("duration", call("duration").ttl(hour).remember(hour * 2)),
    ] {
        assert!(!run(call).await.unwrap(), "{key}");
    }
    let token = call("t").issue(&"ada", "1h").await;
    assert!(matches!(token, Err(Error::Config { .. })), "it has a key");
    tokio::time::advance(Duration::from_secs(3_599)).await;
    for key in ["default", "text", "duration"] {
        assert!(run(call(key)).await.unwrap(), "{key}");
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    for key in ["default", "text", "duration"] {
        assert!(
            matches!(run(call(key)).await, Err(Error::AlreadyDone { .. })),
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_text_that_is_no_duration_is_a_config_error_that_names_the_setting() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let call = || idempotency.operation("durations").key("k");
    for (name, call) in [
        ("ttl", call().ttl("5")),
        ("remember", call().remember("1 month")),
        ("hold", call().hold("")),
        ("lease", call().lease("-5s")),
        ("wait", call().wait("soon")),
    ] {
        let error = run(call).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(
            error.to_string().contains(&format!("`{name}`: ")),
            "{error}"
        );
    }
    let token = idempotency
        .operation("durations")
        .issue(&"ada", "5")
        .await
        .unwrap_err();
    assert!(
        token
            .to_string()
            .contains("the token's `ttl`: `5` needs a unit"),
        "{token}"
    );
    // A runtime says so when it is built, or at each call.
    let builder = || Idempotency::builder(MemoryStore::new());
    for (name, builder) in [
        ("`ttl`", builder().ttl("5").lease("6")),
        ("`remember`", builder().remember("1 month")),
        ("`hold`", builder().hold("")),
        ("`lease`", builder().lease("-5s")),
        ("`wait`", builder().wait("soon")),
        (
            "`limit_token_failures`",
            builder().limit_token_failures(1, "1"),
        ),
    ] {
        let idempotency = builder.build();
        let error = run(idempotency.operation("durations").key("k"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
        let lock = idempotency
            .lock("durations")
            .key("k")
            .acquire()
            .await
            .unwrap_err();
        assert!(lock.to_string().contains(name), "{lock}");
        assert!(idem_core::install(idempotency).is_err(), "{name}");
    }
    assert!(builder().wait("soon").try_build().is_err());
    // Where nothing is guarded, nothing can be wrong with it.
    let disabled = Idempotency::disabled();
    assert!(
        run(disabled.operation("durations").key("k").ttl("5"))
            .await
            .is_ok()
    );
}
