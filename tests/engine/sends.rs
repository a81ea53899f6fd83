//! All public futures in one list: each can be awaited in `tokio::spawn` and in a handler.

use std::future::{Future, pending};
use std::path::Path;
use std::time::Duration;

use idem::{Call, Error, Idempotency, Lease, Lock, Locks, Outcome};

fn sends<F: Future + Send>(_: F) {}

fn spawns<F: Future<Output: Send> + Send + 'static>(future: F) {
    drop(tokio::spawn(future));
}

async fn body() -> Result<u32, Error> {
    Ok(1)
}

/// Not run: the compiler checks it.
#[allow(dead_code)]
fn calls(idempotency: &'static Idempotency, call: &Call, lease: &'static Lease) {
    let operation = || idempotency.operation("a").key("k");
    spawns(operation().run(body));
    spawns(operation().run_detached(body));
    spawns(
        operation()
            .errors_by_type::<NoPolicy>()
            .run(|| async { Ok::<_, NoPolicy>(1) }),
    );
    spawns(operation().begin());
    spawns(operation().lookup::<u32>());
    spawns(operation().inspect());
    spawns(operation().forget());
    spawns(operation().release());
    spawns(operation().settle(&1));
    spawns(operation().settle_error(&1));
    spawns(operation().issue("subject", "1h"));
    spawns(idempotency.shutdown(Duration::ZERO));
    spawns(idem::scope(idempotency.clone(), body()));
    spawns(idem::watch(body()));
    sends(idem::step("a", body));
    sends(idem::step_with("a").run(body));
    sends(call.step("a", body));
    sends(lease.commit(&1));
    sends(lease.commit_error(&1, None));
    sends(lease.release());
    sends(lease.lost());
}

#[derive(Debug, serde::Serialize, serde::Deserialize, idem::ErrorPolicy)]
struct NoPolicy;

impl From<Error> for NoPolicy {
    fn from(_: Error) -> Self {
        Self
    }
}

#[allow(dead_code)]
fn locks(idempotency: &'static Idempotency, lock: &Lock, locks: &Locks) {
    let builder = || idempotency.lock("a").key("k");
    spawns(builder().acquire());
    spawns(builder().acquire_all());
    spawns(builder().run(async |_: &Lock| Ok::<_, Error>(())));
    sends(lock.lost());
    sends(lock.release());
    sends(locks.lost());
    sends(locks.release());
}

#[cfg(feature = "sqlite")]
#[allow(dead_code)]
mod in_transactions {
    use idem::sqlx::{SqlitePool, SqliteTransaction};
    use idem::{MySqlStore, PostgresStore, SqliteStore};

    use super::*;

    type Tx<'a> = SqliteTransaction<'a>;

    fn transactions(
        idempotency: &'static Idempotency,
        pool: &'static SqlitePool,
        tx: &mut Tx<'static>,
        (call, lease): (&Call, &Lease),
    ) {
        let operation = || idempotency.operation("a").key("k");
        let body = async |_: &mut Tx<'_>| Ok::<_, Error>(1);
        let done: fn(_) -> Result<u32, Error> =
            |outcome: Result<Outcome<u32>, Error>| outcome.map(Outcome::into_inner);
        spawns(async move { done(operation().transaction(pool, body).await) });
        spawns(async move {
            let when = |_: &Error| false;
            done(operation().rerun_when(when).transaction(pool, body).await)
        });
        sends(operation().run_in(tx, body));
        sends(call.commit_in(tx, &1));
        sends(lease.commit_in(tx, &1));
        sends(idem::guard::transaction(pool, async |_: &mut Tx<'_>| {
            Ok::<_, Failed>(1)
        }));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("failed")]
    struct Failed;

    impl From<idem::sqlx::Error> for Failed {
        fn from(_: idem::sqlx::Error) -> Self {
            Self
        }
    }

    fn stores(sqlite: &'static SqliteStore) {
        spawns(SqliteStore::connect("a"));
        spawns(sqlite.migrate());
        spawns(sqlite.sweep());
        spawns(PostgresStore::connect("a"));
        spawns(MySqlStore::connect("a"));
    }
}

#[cfg(feature = "redis")]
#[allow(dead_code)]
fn redis(store: &'static idem::RedisStore) {
    spawns(idem::RedisStore::connect("a"));
    spawns(idem::RedisStore::builder().connect());
    spawns(store.check());
    spawns(store.survey());
}

#[cfg(all(feature = "amqp", feature = "nats"))]
#[allow(dead_code)]
fn queues(
    amqp: idem::amqp::Consumer<'static>,
    nats: idem::nats::Consumer,
    amqp_publisher: &'static idem::amqp::Publisher<'static>,
    nats_publisher: &'static idem::nats::Publisher,
) {
    use idem::amqp::Delivery;

    // Handlers that call annotated functions, as the guide has them.
    spawns(amqp.run(async |_: Delivery| body().await.map(drop), pending::<()>()));
    spawns(nats.run(async |_: Delivery| body().await.map(drop), pending::<()>()));
    spawns(amqp_publisher.publish("a", "b", "c", "d"));
    spawns(amqp_publisher.publish_json("a", "b", "c", &1));
    spawns(nats_publisher.publish("a", "b", "c"));
    spawns(nats_publisher.publish_json("a", "b", &1));
}

/// Futures of this name are not in the list: of adapters and operators' programs, and those that
/// take a body as it is.
const LEFT_OUT: &[&str] = &[
    // The glue of generated code, in `tests/macros/attribute/nested.rs`.
    "run_again",
    "question",
    // For adapters: what they await is `Send` by its bounds.
    "run_boxed",
    "waiting_at_most",
    "until_free",
    // For operators' programs, which block on them: the trail of decisions.
    "note",
    "end",
    "of",
    "of_digest",
    "of_operation",
    "entry",
    "intervene",
    // For drivers: inside of `transaction`, which is in the list.
    "collect_kept_errors",
    "write_in",
];

/// A new public future is added to the list, or is left out with a reason.
#[test]
fn the_list_has_every_public_future() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = include_str!("sends.rs");
    let crates = ["core", "queue", "amqp", "nats", "redis"];
    let mut missing = Vec::new();
    for name in crates {
        for file in files(&root.join(format!("idem-{name}/src"))) {
            let text = std::fs::read_to_string(file).unwrap();
            for function in text.lines().filter_map(|line| {
                line.trim_start()
                    .strip_prefix("pub async fn ")?
                    .split(['(', '<'])
                    .next()
            }) {
                let is_called = [".", "::"].iter().any(|dot| {
                    ["(", "::<"]
                        .iter()
                        .any(|end| list.contains(&format!("{dot}{function}{end}")))
                });
                if !is_called && !LEFT_OUT.contains(&function) {
                    missing.push(function.to_owned());
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}
