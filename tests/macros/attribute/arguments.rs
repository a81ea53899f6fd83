//! The fate of the arguments: the body has them all, and drops them in the order of any function.

use std::fmt::Debug;
use std::sync::Mutex;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn noisy(&self, name: &'static str) -> Noisy {
        Noisy(name, self.clone())
    }

    fn taken(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Says when it is dropped.
struct Noisy(&'static str, Log);

impl Drop for Noisy {
    fn drop(&mut self) {
        self.1.0.lock().unwrap().push(self.0);
    }
}

struct Pair {
    first: Noisy,
    second: Noisy,
}

/// Writes a function plainly and guarded, in its place and detached.
macro_rules! in_all_ways {
    ($module:ident, ($($parameters:tt)*) $body:block) => {
        mod $module {
            use super::*;

            pub(super) async fn plain($($parameters)*) -> Result<u64, Failure> $body

            #[idempotent(key = 1)]
            pub(super) async fn guarded($($parameters)*) -> Result<u64, Failure> $body

            #[idempotent(key = 1, detached)]
            pub(super) async fn detached($($parameters)*) -> Result<u64, Failure> $body
        }
    };
}

in_all_ways!(used, (a: Noisy, mut b: Noisy, c: Noisy) {
    let _local = c.1.noisy("local");
    b.0 = "b";
    tokio::task::yield_now().await;
    let _ = (&c, &a, &b);
    Ok(1)
});

in_all_ways!(unused, (_a: Noisy, b: Noisy, _c: Noisy) {
    let _local = b.1.noisy("local");
    Ok(1)
});

in_all_ways!(moved, (_a: Noisy, b: Noisy, Pair { first, second }: Pair) {
    drop(first);
    let _local = b.1.noisy("local");
    let _ = &second;
    Ok(1)
});

in_all_ways!(unnamed, (a: Noisy, _: Noisy) {
    let _local = a.1.noisy("local");
    Ok(1)
});

in_all_ways!(panics, (_a: Noisy, b: Noisy) {
    let _local = b.1.noisy("local");
    if b.0 == "b" {
        return Err(Failure::Declined);
    }
    Ok(1)
});

#[tokio::test]
async fn arguments_are_dropped_in_the_order_of_a_plain_function() {
    let log = Log::default();
    macro_rules! assert_alike {
        ($module:ident($($arguments:expr),*)) => {
            let _ = $module::plain($($arguments),*).await;
            let plain = log.taken();
            assert!(plain.len() > 2, "{plain:?}");
            let _ = fresh($module::guarded($($arguments),*)).await;
            // Unbound values stay in the function, which ends after its body.
            if stringify!($module) != "unnamed" {
                assert_eq!(log.taken(), plain, "{}", stringify!($module));
            }
            log.taken();
            let _ = fresh($module::detached($($arguments),*)).await;
            assert_eq!(log.taken(), plain, "{} detached", stringify!($module));
        };
    }
    assert_alike!(used(log.noisy("a"), log.noisy("?"), log.noisy("c")));
    assert_alike!(unused(log.noisy("a"), log.noisy("b"), log.noisy("c")));
    assert_alike!(moved(
        log.noisy("a"),
        log.noisy("b"),
        Pair {
            first: log.noisy("first"),
            second: log.noisy("second")
        }
    ));
    assert_alike!(unnamed(log.noisy("a"), log.noisy("_")));
    assert_alike!(panics(log.noisy("a"), log.noisy("b")));
}

/// A gate that a body waits at, after it has signalled that it runs.
#[derive(Clone, Default)]
struct Gate {
    entered: Arc<Notify>,
    open: Arc<Notify>,
}

impl Gate {
    async fn pass(&self) -> Result<u32, Failure> {
        self.entered.notify_one();
        self.open.notified().await;
        Ok(1)
    }
}

struct Limit {
    permit: OwnedSemaphorePermit,
    id: u64,
}

struct Limited(OwnedSemaphorePermit);

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Refusal {
    Limited { permit: u16 },
    Other,
}

impl From<Failure> for Refusal {
    fn from(_: Failure) -> Self {
        Self::Other
    }
}

impl From<idem::Error> for Refusal {
    fn from(_: idem::Error) -> Self {
        Self::Other
    }
}

#[idempotent(key = 1, detached)]
async fn unused_name(gate: Gate, _permit: OwnedSemaphorePermit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = 1, detached)]
async fn no_name(gate: Gate, _: OwnedSemaphorePermit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = limit.id, detached)]
async fn only_in_the_key(gate: Gate, limit: Limit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = id, detached)]
async fn left_out_of_a_tuple(
    gate: Gate,
    (id, _): (u64, OwnedSemaphorePermit),
) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = id, detached)]
async fn left_out_of_a_struct(gate: Gate, Limit { id, permit: _ }: Limit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = 1, detached)]
async fn the_rest(gate: Gate, Limit { id, .. }: Limit) -> Result<u32, Failure> {
    assert_eq!(id, 7);
    gate.pass().await
}

#[idempotent(key = 1, detached, errors(_ => retry(max = 3)))]
async fn retried(gate: Gate, _permit: OwnedSemaphorePermit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = 1, detached, errors(_ => retry(max = 3)))]
async fn retried_without_a_name(gate: Gate, _: OwnedSemaphorePermit) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = missing, missing_key = run, detached)]
async fn without_a_record(
    gate: Gate,
    _permit: OwnedSemaphorePermit,
    missing: Option<u8>,
) -> Result<u32, Failure> {
    gate.pass().await
}

#[idempotent(key = 1, detached)]
#[tracing::instrument(skip_all)]
async fn instrumented(gate: Gate, _: OwnedSemaphorePermit) -> Result<u32, Failure> {
    gate.pass().await
}

impl Limited {
    #[idempotent(key = 1, name = "arguments.self", detached)]
    async fn of_self(self, gate: Gate) -> Result<u32, Failure> {
        gate.pass().await
    }
}

#[async_trait::async_trait]
trait Boxed {
    async fn named(
        self: Arc<Self>,
        gate: Gate,
        permit: OwnedSemaphorePermit,
    ) -> Result<u32, Failure>;
    async fn unnamed(
        self: Arc<Self>,
        gate: Gate,
        permit: OwnedSemaphorePermit,
    ) -> Result<u32, Failure>;
}

#[async_trait::async_trait]
impl Boxed for () {
    #[idempotent(key = 1, name = "arguments.boxed", detached)]
    async fn named(
        self: Arc<Self>,
        gate: Gate,
        _permit: OwnedSemaphorePermit,
    ) -> Result<u32, Failure> {
        gate.pass().await
    }

    #[idempotent(key = 1, name = "arguments.boxed.unnamed", detached)]
    async fn unnamed(self: Arc<Self>, gate: Gate, _: OwnedSemaphorePermit) -> Result<u32, Failure> {
        gate.pass().await
    }
}

mod limits {
    pub(super) fn permit(code: u16) -> bool {
        code > 3
    }
}

#[idempotent(
    key = 1,
    detached,
    errors(Refusal::Limited { permit } if *permit > 3 => keep, _ => release),
)]
async fn named_like_a_binding(gate: Gate, permit: OwnedSemaphorePermit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(
    key = permit.num_permits(),
    detached,
    errors(Refusal::Limited { permit: code } if limits::permit(*code) => keep, _ => release),
)]
async fn named_like_a_function(gate: Gate, permit: OwnedSemaphorePermit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(
    key = 1,
    detached,
    errors(
        Refusal::Limited { permit } => keep(ttl = Duration::from_secs(u64::from(*permit))),
        _ => release,
    ),
)]
async fn named_like_a_value(gate: Gate, permit: OwnedSemaphorePermit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(
    key = 1,
    detached,
    errors(Refusal::Limited { permit } if *permit > 3 => retry(max = 1), _ => release),
)]
async fn named_like_a_binding_and_retried(
    gate: Gate,
    permit: OwnedSemaphorePermit,
) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(key = 1, detached, errors(_ if limit.id > 3 => keep, _ => release))]
async fn with_a_field_in_a_guard(gate: Gate, limit: Limit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(key = 1, detached, errors(_ if limit.id > 3 => retry(max = 1), _ => release))]
async fn with_a_field_in_a_guard_and_retried(gate: Gate, limit: Limit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(key = 1, detached, errors(_ if limit.id > 3 => keep, _ => release))]
async fn with_a_field_in_guard_and_body(gate: Gate, limit: Limit) -> Result<u32, Refusal> {
    gate.pass().await?;
    Ok(u32::try_from(limit.id).unwrap())
}

#[idempotent(
    key = missing,
    missing_key = run,
    detached,
    errors(_ if limit.id > 3 => keep, _ => release),
)]
async fn with_a_field_and_no_record(
    gate: Gate,
    limit: Limit,
    missing: Option<u8>,
) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

#[idempotent(key = 1, detached, observe, errors(_ if limit.id > 3 => retry(max = 1), _ => release))]
async fn with_a_field_and_observed(gate: Gate, limit: Limit) -> Result<u32, Refusal> {
    Ok(gate.pass().await?)
}

impl Limit {
    #[idempotent(
        key = 1,
        name = "arguments.limit",
        detached,
        errors(_ if self.id > 3 => keep, _ => release),
    )]
    async fn of_self_in_a_guard(self, gate: Gate) -> Result<u32, Refusal> {
        Ok(gate.pass().await?)
    }
}

#[async_trait::async_trait]
trait BoxedLimit {
    async fn in_a_guard(self: Arc<Self>, gate: Gate, limit: Limit) -> Result<u32, Refusal>;
}

#[async_trait::async_trait]
impl BoxedLimit for () {
    #[idempotent(
        key = 1,
        name = "arguments.boxed.guard",
        detached,
        errors(_ if limit.id > 3 => keep, _ => release),
    )]
    async fn in_a_guard(self: Arc<Self>, gate: Gate, limit: Limit) -> Result<u32, Refusal> {
        Ok(gate.pass().await?)
    }
}

/// Lets the caller go away while the body runs, and sees that the permit is still taken.
async fn assert_kept<E: Debug, Call: Future<Output = Result<u32, E>>>(
    what: &str,
    call: impl FnOnce(Gate, OwnedSemaphorePermit) -> Call,
) {
    let gate = Gate::default();
    let limit = Arc::new(Semaphore::new(1));
    let permit = limit.clone().acquire_owned().await.unwrap();
    let idempotency = Idempotency::new(MemoryStore::new());
    let mut call = Box::pin(idem::scope(idempotency.clone(), call(gate.clone(), permit)));
    tokio::select! {
        () = gate.entered.notified() => {}
        answer = &mut call => panic!("{what}: {answer:?}"),
    }
    drop(call);
    assert_eq!(
        limit.available_permits(),
        0,
        "{what}: the body goes on without its permit"
    );
    gate.open.notify_one();
    // Given back when the body ends.
    drop(limit.acquire().await.unwrap());
    idempotency.shutdown(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn p8_a_detached_body_keeps_the_arguments_that_it_does_not_name() {
    assert_kept("unused", unused_name).await;
    assert_kept("no name", no_name).await;
    assert_kept("key", |gate, permit| {
        only_in_the_key(gate, Limit { permit, id: 1 })
    })
    .await;
    assert_kept("tuple", |gate, permit| {
        left_out_of_a_tuple(gate, (1, permit))
    })
    .await;
    assert_kept("struct", |gate, permit| {
        left_out_of_a_struct(gate, Limit { permit, id: 1 })
    })
    .await;
    assert_kept("rest", |gate, permit| {
        the_rest(gate, Limit { permit, id: 7 })
    })
    .await;
    assert_kept("retried", retried).await;
    assert_kept("retried without a name", retried_without_a_name).await;
    assert_kept("without a record", |gate, permit| {
        without_a_record(gate, permit, None)
    })
    .await;
    assert_kept("instrumented", instrumented).await;
    assert_kept("self", |gate, permit| Limited(permit).of_self(gate)).await;
    assert_kept("async_trait", |gate, permit| {
        Arc::new(()).named(gate, permit)
    })
    .await;
    assert_kept("async_trait without a name", |gate, permit| {
        Arc::new(()).unnamed(gate, permit)
    })
    .await;
    let Limited(permit) = Limited(Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap());
    drop(Limit { permit, id: 1 }.permit);
}

#[tokio::test]
async fn p8_a_detached_body_keeps_the_arguments_that_the_policy_of_its_errors_names() {
    let limited = |permit| Limit { permit, id: 1 };
    assert_kept("binding", named_like_a_binding).await;
    assert_kept("function", named_like_a_function).await;
    assert_kept("value", named_like_a_value).await;
    assert_kept("binding, retried", named_like_a_binding_and_retried).await;
    assert_kept("field", |gate, permit| {
        with_a_field_in_a_guard(gate, limited(permit))
    })
    .await;
    assert_kept("field, retried", |gate, permit| {
        with_a_field_in_a_guard_and_retried(gate, limited(permit))
    })
    .await;
    assert_kept("no record", |gate, permit| {
        with_a_field_and_no_record(gate, limited(permit), None)
    })
    .await;
    assert_kept("observed", |gate, permit| {
        with_a_field_and_observed(gate, limited(permit))
    })
    .await;
    assert_kept("guard and body", |gate, permit| {
        with_a_field_in_guard_and_body(gate, limited(permit))
    })
    .await;
    assert_kept("self", |gate, permit| {
        limited(permit).of_self_in_a_guard(gate)
    })
    .await;
    assert_kept("async_trait", |gate, permit| {
        Arc::new(()).in_a_guard(gate, limited(permit))
    })
    .await;
    let limit = Refusal::Limited { permit: 1 };
    assert!(matches!(limit, Refusal::Limited { permit: 1 }));
}
