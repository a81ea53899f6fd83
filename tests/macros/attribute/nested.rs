//! Calls inside of calls. The compiler looks through the types of all of them, and gives up at 128
//! levels (`recursion_limit`), which is not raised here: it compiles, or it does not.

use idem::{ErrorAction, Outcome};

use super::*;

type Res = Result<u64, Failure>;

/// How often the innermost body ran.
static RUNS: AtomicU32 = AtomicU32::new(0);

async fn innermost(id: u64) -> Res {
    tokio::task::yield_now().await;
    RUNS.fetch_add(1, Ordering::SeqCst);
    Ok(id)
}

/// Functions that call each other, the first name being the outermost one. `$call` makes a
/// call with the next one as its body.
macro_rules! chain {
    ($module:ident, $id:ident, [$($attribute:tt)*], $call:path, $($name:ident)*) => {
        mod $module {
            use super::*;
            chain!(@ $id, [$($attribute)*], $call, $($name)*);
        }
    };
    (@ $id:ident, [$($attribute:tt)*], $call:path, $name:ident) => {
        $($attribute)*
        pub(super) async fn $name($id: u64) -> Res {
            $call(stringify!($name), move || innermost($id)).await
        }
    };
    (@ $id:ident, [$($attribute:tt)*], $call:path, $name:ident $next:ident $($rest:ident)*) => {
        $($attribute)*
        pub(super) async fn $name($id: u64) -> Res {
            $call(stringify!($name), move || $next($id)).await
        }
        chain!(@ $id, [$($attribute)*], $call, $next $($rest)*);
    };
}

fn plain<F>(_: &str, inner: impl FnOnce() -> F) -> F {
    inner()
}

fn store() -> Idempotency {
    Idempotency::new(MemoryStore::new())
}

/// By hand, in a generic async function, as helpers of applications are.
async fn by_hand<F: Future<Output = Res>>(name: &'static str, inner: impl FnOnce() -> F) -> Res {
    let call = store().operation(name).key("k").run(inner);
    call.await.map(Outcome::into_inner)
}

/// As [`by_hand`], with a future that is moved into the body.
async fn of_future<F: Future<Output = Res>>(name: &'static str, inner: impl FnOnce() -> F) -> Res {
    async fn helper<F: Future<Output = Res>>(name: &'static str, inner: F) -> Res {
        let call = store().operation(name).key("k").run(|| inner);
        call.await.map(Outcome::into_inner)
    }
    helper(name, inner()).await
}

async fn with_policy<F: Future<Output = Res>>(
    name: &'static str,
    inner: impl FnOnce() -> F,
) -> Res {
    let mut inner = Some(inner);
    store()
        .operation(name)
        .key("k")
        .errors(|_: &Failure| ErrorAction::Release)
        .run(|| inner.take().expect("it runs once")())
        .await
        .map(Outcome::into_inner)
}

async fn detached_by_hand<F>(name: &'static str, inner: impl FnOnce() -> F + Send + 'static) -> Res
where
    F: Future<Output = Res> + Send + 'static,
{
    let call = store().operation(name).key("k").run_detached(inner);
    call.await.map(Outcome::into_inner)
}

chain!(bare, id, [], plain, a b c d e f g h i j k l m n o p q r s t u v w x);
chain!(annotated, id, [#[idempotent(key = id)]], plain, a b c d e f g h i j k l);
chain!(instrumented, id, [#[tracing::instrument]], plain, a b c d e f g h);
chain!(
    annotated_inside, id, [#[tracing::instrument] #[idempotent(key = id)]], plain, a b c d e f g h
);
chain!(
    annotated_outside, id, [#[idempotent(key = id)] #[tracing::instrument]], plain, a b c d e f g h
);
chain!(detached, id, [#[idempotent(key = id, detached)]], plain, a b c d e f g h i j k l);
chain!(
    detached_and_instrumented, id, [#[tracing::instrument] #[idempotent(key = id, detached)]],
    plain, a b c d e f g h i j k l
);
chain!(
    retried, id, [#[idempotent(key = id, errors(_ => retry(max = 3)))]], plain, a b c d e f g h
);
chain!(
    detached_and_retried, id, [#[idempotent(key = id, detached, errors(_ => retry(max = 3)))]],
    plain, a b c d e f g h i j k l
);
chain!(hand, id, [], by_hand, a b c d e f);
chain!(hand_of_future, id, [], of_future, a b c);
chain!(hand_with_policy, id, [], with_policy, a b c d e f);
chain!(hand_detached, id, [], detached_by_hand, a b c d e f g h i j k l);

/// Polls each chain here, in a task of its own, and in a handler.
macro_rules! each_runs {
    ($($module:ident)*) => {$({
        let idempotency = store();
        RUNS.store(0, Ordering::SeqCst);
        let name = stringify!($module);
        assert_eq!(idem::scope(store(), $module::a(1)).await.unwrap(), 1, "{name}");
        let spawned = tokio::spawn(idem::scope(idempotency.clone(), $module::a(2)));
        assert_eq!(spawned.await.unwrap().unwrap(), 2, "{name}");
        #[cfg(feature = "axum")]
        {
            use tower::ServiceExt as _;

            let handler = async |axum::extract::Path(id): axum::extract::Path<u64>| {
                idem::scope(store(), $module::a(id)).await.map_err(|_| "it failed")?;
                Ok::<_, &'static str>(id.to_string())
            };
            let router: axum::Router =
                axum::Router::new().route("/{id}", axum::routing::post(handler));
            let request = axum::http::Request::post("/3").body(axum::body::Body::empty());
            let response = router.oneshot(request.unwrap()).await.unwrap();
            assert_eq!(response.status(), 200, "{name}");
        }
        let expected = if cfg!(feature = "axum") { 3 } else { 2 };
        assert_eq!(RUNS.load(Ordering::SeqCst), expected, "{name}");
    })*};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_nest_in_tasks_and_handlers_as_deep_as_functions_that_are_not_annotated() {
    each_runs!(
        bare annotated instrumented annotated_inside annotated_outside detached
        detached_and_instrumented retried detached_and_retried hand hand_of_future hand_with_policy
        hand_detached
    );
}

/// The size of a future, and of a body of each kind of call around a future of `SIZE` bytes.
#[allow(clippy::large_futures, reason = "what is measured")]
mod sizes {
    use super::*;

    /// Bytes of a call beside its body.
    const MORE: usize = 1_700;
    /// Of one that is made in place, and not retried.
    const MORE_IN_PLACE: usize = 1_128;
    const SIZE: usize = 16 * 1024;

    async fn large() -> Res {
        let mut state = [0_u8; SIZE];
        tokio::task::yield_now().await;
        std::hint::black_box(&mut state);
        Ok(1)
    }

    #[idempotent(key = 1)]
    async fn annotated() -> Res {
        large().await
    }

    #[idempotent(key = 1, errors(_ => retry(max = 3)))]
    async fn retried() -> Res {
        large().await
    }

    #[idempotent(key = 1, detached)]
    async fn detached() -> Res {
        large().await
    }

    #[idempotent(key = 1, detached, errors(_ => retry(max = 3)))]
    async fn detached_and_retried() -> Res {
        large().await
    }

    #[test]
    fn the_future_of_a_call_does_not_contain_its_body() {
        let body = size_of_val(&large());
        let (runtime, other) = (store(), store());
        let operation = || runtime.operation("a").key("k");
        let policy = |_: &Failure| ErrorAction::Release;
        let rows = [
            ("annotated", size_of_val(&annotated()), 0),
            ("retried", size_of_val(&retried()), 0),
            ("detached", size_of_val(&detached()), 0),
            ("detached, retried", size_of_val(&detached_and_retried()), 0),
            ("by hand", size_of_val(&operation().run(large)), 0),
            (
                "with a policy",
                size_of_val(&operation().errors(policy).run(large)),
                0,
            ),
            (
                "detached by hand",
                size_of_val(&operation().run_detached(large)),
                0,
            ),
            (
                "detached by hand, with a policy",
                size_of_val(&operation().errors(policy).run_detached(large)),
                0,
            ),
            (
                "a future, by hand",
                {
                    let inner = large();
                    size_of_val(&operation().run(|| inner))
                },
                2,
            ),
            (
                "a future, detached by hand",
                {
                    let inner = large();
                    size_of_val(&operation().run_detached(|| inner))
                },
                0,
            ),
            ("scope", size_of_val(&idem::scope(other, large())), 2),
            ("watch", size_of_val(&idem::watch(large())), 2),
        ];
        for (name, size, times) in rows {
            let more = size.saturating_sub(times * body);
            let most = if ["annotated", "by hand"].contains(&name) {
                MORE_IN_PLACE
            } else {
                MORE
            };
            assert!(more <= most, "{name}: {size} bytes for a body of {body}");
        }
    }

    /// Bytes of a call in a transaction beside its body.
    #[cfg(feature = "sqlite")]
    const MORE_IN_TRANSACTION: usize = 3_000;

    /// The size of a future, which is dropped.
    macro_rules! size {
        ($future:expr) => {{
            let future = $future;
            size_of_val(&future)
        }};
    }

    /// Checks that each future has its body so many times at most.
    fn check(rows: &[(&str, usize, usize)], most: usize) {
        let body = size_of_val(&large());
        for (name, size, times) in rows {
            let more = size.saturating_sub(times * body);
            println!("{name}: {more} bytes more than {times} bodies");
            assert!(more <= most, "{name}: {size} bytes for a body of {body}");
        }
    }

    #[test]
    fn the_future_of_a_step_does_not_contain_its_body_and_that_of_a_lock_does_once() {
        let runtime = store();
        let lock = || runtime.lock("nested.lock").key("k");
        let policy = |_: &Failure| ErrorAction::Release;
        let step = || idem::step_with("a");
        let rows = [
            ("step", size!(idem::step("a", large)), 0),
            ("step_with", size!(step().run(large)), 0),
            ("with a policy", size!(step().errors(policy).run(large)), 0),
            ("acquire", size!(lock().acquire()), 0),
            ("acquire_all", size!(lock().acquire_all()), 0),
            ("lock", size!(lock().run(async |_| large().await)), 1),
        ];
        check(&rows, MORE);
    }

    #[cfg(feature = "sqlite")]
    mod in_transactions {
        use idem::SqliteStore;
        use idem::sqlx::{SqlitePool, SqliteTransaction};

        use super::*;

        #[idempotent(name = "nested.tx", key = 1, transaction = tx)]
        async fn annotated(tx: &mut SqliteTransaction<'_>) -> Res {
            let _ = tx;
            large().await
        }

        #[tokio::test]
        async fn the_future_of_a_call_in_a_transaction_contains_only_a_body_that_may_not_be_send() {
            let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
            let runtime = Idempotency::new(SqliteStore::new(pool.clone()));
            let call = || runtime.operation("nested.tx").key("k");
            let step = || idem::step_with("a");
            let mut tx = pool.begin().await.unwrap();
            let body = async |_: &mut SqliteTransaction<'static>| large().await;
            let rows = [
                // It may be one that is not `Send`.
                ("annotated", size!(annotated(&mut tx)), 1),
                ("run_in", size!(call().run_in(&mut tx, body)), 0),
                ("run_in_local", size!(call().run_in_local(&mut tx, body)), 1),
                ("transaction", size!(call().transaction(&pool, body)), 0),
                (
                    "transaction_local",
                    size!(call().transaction_local(&pool, body)),
                    1,
                ),
                ("step.run_in", size!(step().run_in(&mut tx, body)), 0),
                (
                    "step.transaction",
                    size!(step().transaction(&pool, body)),
                    0,
                ),
            ];
            check(&rows, MORE_IN_TRANSACTION);
        }
    }

    #[test]
    fn nested_calls_are_as_large_as_one() {
        macro_rules! equal {
            ($($module:ident $last:ident)*) => {$(
                let (many, one) = ($module::a(1), $module::$last(1));
                assert_eq!(size_of_val(&many), size_of_val(&one), stringify!($module));
            )*};
        }
        equal!(annotated l annotated_outside h retried h detached l detached_and_retried l);
    }
}
