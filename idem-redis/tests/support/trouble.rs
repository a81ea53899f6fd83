//! Calls that go on while servers are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_core::{Error, Idempotency, Outcome};
use idem_testkit::{RedisServer, Reply};
use tokio::time::sleep;

use crate::still::HANGS;

/// The time that a busy machine may add to a promised time.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// Every call on servers that are gone must have failed within this time: two steps of 900 ms, and
/// what a busy machine adds.
pub(crate) const FAILS_WITHIN: Duration = Duration::from_secs(2 + BUSY.as_secs());

/// Has several servers carry out a command.
pub(crate) async fn tell_all(servers: &[RedisServer], command: &[&str]) {
    for server in servers {
        let reply = server.cli(command).await.unwrap();
        assert!(!matches!(reply, Reply::Error(_)), "{command:?}: {reply}");
    }
}

/// One call with a key, whose body counts.
pub(crate) async fn call(
    idempotency: &Idempotency,
    key: &str,
    bodies: &Arc<AtomicU64>,
) -> Result<u64, Error> {
    let bodies = bodies.clone();
    let body = || async move { Ok::<_, Error>(bodies.fetch_add(1, Ordering::SeqCst) + 1) };
    idempotency
        .operation("orders")
        .key(key)
        .run(body)
        .await
        .map(Outcome::into_inner)
}

/// Calls with ever new keys, one after the other, until they have succeeded for some time. No error
/// but one that may pass is seen. Gives how long the longest time without a success was.
pub(crate) async fn calls_go_on(
    idempotency: &Idempotency,
    prefix: &str,
    trouble: impl Future<Output = ()>,
) -> Duration {
    let bodies = Arc::new(AtomicU64::new(0));
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    let mut trouble = std::pin::pin!(trouble);
    let mut is_over = false;
    let mut good = 0;
    let mut number = 0_u64;
    while good < 50 {
        number += 1;
        let start = Instant::now();
        let key = format!("{prefix}{number}");
        let outcome = tokio::select! {
            biased;
            () = &mut trouble, if !is_over => { is_over = true; continue }
            outcome = call(idempotency, &key, &bodies) => outcome,
        };
        assert!(start.elapsed() < FAILS_WITHIN, "{:?}", start.elapsed());
        match outcome {
            Ok(_) => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                good += u32::from(is_over);
                // Not to fill the log.
                sleep(Duration::from_millis(5)).await;
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                // A failover is waited for longer than other events.
                assert!(last.elapsed() < 2 * HANGS, "still: {error}");
                good = 0;
            }
        }
    }
    longest
}
