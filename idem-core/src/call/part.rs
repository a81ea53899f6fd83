//! A part of a body that runs in a task of its own.

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;

use crate::call::body::{self, BodyExit};
use crate::lease::term::Term;
use crate::task::current;
use crate::task::inherited::Inherited;

/// The scope, the call and its lease, which a part of a body takes along into another task.
///
/// The body itself must wait for the part. A body that is dropped does not stop its parts; a lease
/// that is lost does.
pub struct BodyPart {
    inherited: Inherited,
    /// `None` outside of a body, and for a body that runs to its end even if its lease is lost.
    term: Option<Arc<Term>>,
}

impl BodyPart {
    /// Takes it from the body that is being polled.
    pub fn here() -> Self {
        Self {
            inherited: Inherited::here(),
            term: current::current().and_then(|call| call.stops_with().cloned()),
        }
    }

    /// Runs a future as a part of the body. If the lease is lost, the future is not polled again:
    /// it is dropped, and the result is `None`.
    pub async fn run<F: Future>(self, part: F) -> Option<F::Output> {
        let Self { inherited, term } = self;
        let part = pin!(Some(part));
        match inherited.around(body::run(term.as_deref(), part)).await {
            BodyExit::Returned(output) => Some(output),
            BodyExit::Lost(_) => None,
            BodyExit::Panicked(panic) => resume_unwind(panic),
        }
    }
}

impl fmt::Debug for BodyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyPart").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::MemoryStore;
    use crate::encoding::key::Key;
    use crate::error::Error;
    use crate::record::RecordId;
    use crate::runtime::handle::Idempotency;

    /// Counts how often it is dropped.
    struct Dropped(Arc<AtomicU32>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_part_in_another_task_has_the_call_of_its_body_and_its_runtime() {
        let idempotency = Idempotency::new(MemoryStore::new());
        let body = async || {
            let (sender, receiver) = oneshot::channel();
            sender.send(BodyPart::here()).expect("it is received");
            let part = tokio::spawn(async {
                let part = receiver.await.unwrap();
                part.run(async { current::current().expect("inside of a body").child_key("a") })
                    .await
            });
            let expected = current::current().unwrap().child_key("a");
            assert_eq!(part.await.unwrap().unwrap(), expected);
            // A call of the same key would wait for itself.
            let part = BodyPart::here();
            let again = idempotency.operation("orders").key("k");
            let again =
                tokio::spawn(part.run(async move { again.run(async || Ok::<_, Error>(())).await }));
            assert!(matches!(
                again.await.unwrap(),
                Some(Err(Error::Reentrant { .. }))
            ));
            Ok::<_, Error>(())
        };
        idempotency
            .operation("orders")
            .key("k")
            .run(body)
            .await
            .unwrap();
        // Outside of a body it is a future like any other.
        assert_eq!(
            BodyPart::here()
                .run(async { current::current().is_none() })
                .await,
            Some(true)
        );
    }

    #[tokio::test]
    async fn the_lease_of_a_body_stops_its_parts_unless_the_body_is_in_observe_mode() {
        let idempotency = Idempotency::new(MemoryStore::new());
        let guarded = idempotency.operation("orders").key("guarded");
        let observed = idempotency.operation("orders").key("observed").observe();
        for (operation, observes) in [(guarded, false), (observed, true)] {
            operation
                .run(async || {
                    assert_eq!(BodyPart::here().term.is_none(), observes);
                    Ok::<_, Error>(())
                })
                .await
                .unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p1_a_part_in_another_task_is_dropped_when_the_lease_is_lost_and_not_polled_after_it() {
        let id = RecordId::new("orders", &Key::encode("1").unwrap()).unwrap();
        let length = Duration::from_secs(10);
        let term = Arc::new(Term::first(id, length));
        let part = |term: &Arc<Term>| BodyPart {
            inherited: Inherited::here(),
            term: Some(term.clone()),
        };
        let dropped: Arc<AtomicU32> = Arc::default();
        let held = Dropped(dropped.clone());
        let waiting = tokio::spawn(part(&term).run(async move {
            let _held = held;
            std::future::pending::<()>().await;
        }));
        tokio::task::yield_now().await;
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        term.mark_lost();
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert_eq!(
            part(&term)
                .run(async { unreachable!("it is polled") })
                .await,
            None
        );
    }
}
