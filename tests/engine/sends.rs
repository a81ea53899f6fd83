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
    spawns(operation().issue_many(["subject"], "1h"));
    spawns(idempotency.shutdown(Duration::ZERO));
    spawns(idem::connect("memory:"));
    spawns(idem::builder("memory:").connect());
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
    use idem::guard::{Rows, States, Versions};
    use idem::sqlx::{SqlitePool, SqliteTransaction};
    use idem::{MySqlStore, PostgresStore, SqliteStore};

    use super::*;

    type Tx<'a> = SqliteTransaction<'a>;

    fn transactions(
        idempotency: &'static Idempotency,
        pool: &'static SqlitePool,
        tx: &mut Tx<'static>,
        (call, lease): (&Call, &Lease),
        (states, versions, rows): (&States, &Versions, &Rows),
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
        sends(states.advance(tx, 1_i64, &["open"], "paid"));
        sends(states.take::<_, i64>(tx, "open", 1));
        sends(versions.advance(tx, 1_i64, 1, "k"));
        sends(rows.lock(tx, 1_i64, Duration::ZERO));
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

#[cfg(feature = "kafka")]
#[allow(dead_code)]
fn kafka(consumer: idem::kafka::Consumer, publisher: &'static idem::kafka::Publisher) {
    use idem::kafka::Delivery;

    spawns(consumer.run(async |_: Delivery| body().await.map(drop), pending::<()>()));
    spawns(publisher.publish("a", "b", Some("c"), "d"));
    spawns(publisher.publish_json("a", "b", None, &1));
}

#[cfg(feature = "http")]
#[allow(dead_code)]
fn http(
    response: idem::http::ResponseFuture<Error>,
    marked: idem::http::MarkedFuture<String, Error>,
    lookup: idem::http::LookupFuture,
) {
    spawns(response);
    spawns(marked);
    spawns(lookup);
}

/// The servers, proxies and faults of the test kit.
#[allow(dead_code)]
mod in_the_kit {
    use idem_testkit::{
        Gate, MariaDbServer, MySqlServer, NatsServer, Passing, PgBouncerServer, PostgresServer,
        Proxy, RabbitMqServer, RedisCluster, RedisClusterBuilder, RedisSentinels,
        RedisSentinelsBuilder, RedisServer, RedisServerBuilder, Step,
    };

    use super::*;

    fn redis(
        server: &'static RedisServer,
        cluster: &'static RedisCluster,
        sentinels: &'static RedisSentinels,
        builders: (
            RedisServerBuilder,
            RedisClusterBuilder,
            RedisSentinelsBuilder,
        ),
    ) {
        spawns(RedisServer::start());
        spawns(RedisServer::shared());
        spawns(server.restart());
        spawns(server.cli(&["PING"]));
        spawns(RedisCluster::start());
        spawns(RedisCluster::shared());
        spawns(cluster.master_of("k"));
        spawns(cluster.failed_over("k", 0));
        spawns(cluster.settled());
        spawns(RedisSentinels::start());
        spawns(RedisSentinels::shared());
        spawns(sentinels.master());
        spawns(sentinels.failed_over(0));
        spawns(sentinels.settled());
        spawns(builders.0.start());
        spawns(builders.1.start());
        spawns(builders.2.start());
    }

    fn databases(
        postgres: &'static PostgresServer,
        pgbouncer: &'static PgBouncerServer,
        mariadb: &'static MariaDbServer,
        mysql: &'static MySqlServer,
    ) {
        spawns(PostgresServer::start());
        spawns(PostgresServer::start_with(&[]));
        spawns(PostgresServer::shared());
        spawns(postgres.restart());
        spawns(postgres.start_standby(&[]));
        spawns(postgres.promote());
        spawns(PgBouncerServer::start(postgres));
        spawns(PgBouncerServer::start_with(postgres, &[]));
        spawns(pgbouncer.restart());
        spawns(MariaDbServer::start());
        spawns(mariadb.restart());
        spawns(MySqlServer::start());
        spawns(mysql.restart());
    }

    fn others(
        nats: &'static NatsServer,
        rabbitmq: &'static RabbitMqServer,
        (gate, passing): (&'static Gate, &'static Passing),
        faults: &'static idem_testkit::Faults,
    ) {
        spawns(NatsServer::start());
        spawns(NatsServer::shared());
        spawns(nats.restart());
        spawns(RabbitMqServer::start());
        spawns(RabbitMqServer::shared());
        spawns(rabbitmq.restart());
        spawns(Proxy::start("a"));
        spawns(Proxy::start_opaque("a"));
        spawns(gate.reached());
        spawns(passing.reached(1));
        spawns(faults.reached(Step::Claim, 1));
    }
}

/// Futures of this name are not in the list: of adapters and operators' programs, and those that
/// take a body as it is.
const LEFT_OUT: &[&str] = &[
    // The glue of generated code, in `tests/macros/attribute/nested.rs`.
    "run_again",
    "run_detached_again",
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
    // For one thread: their bodies need not be `Send`.
    "run_in_local",
    "transaction_local",
    // For test programs, which block on them: the conformance suite.
    "run_all",
    "run_all_admin",
    // For drivers: inside of `transaction`, which is in the list.
    "collect_kept_errors",
    "write_in",
    "run_rounds",
];

/// A new public future is added to the list, or is left out with a reason.
#[test]
fn the_list_has_every_public_future() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = include_str!("sends.rs");
    let crates = [
        ".",
        "idem-core",
        "idem-queue",
        "idem-amqp",
        "idem-nats",
        "idem-kafka",
        "idem-redis",
        "idem-http",
        "idem-actix",
        "idem-sqlx",
        "idem-testkit",
    ];
    let mut missing = Vec::new();
    for name in crates {
        for file in files(&root.join(name).join("src")) {
            let text = std::fs::read_to_string(file).unwrap();
            let items = text.match_indices('\n').filter_map(|(end, _)| {
                let line = text[end + 1..].trim_start_matches(' ');
                line.strip_prefix("pub ")
            });
            for function in items.filter_map(returns_a_future) {
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

/// The name of a function that is declared at the beginning of a text, if it returns a future.
fn returns_a_future(text: &str) -> Option<&str> {
    let head = text.split(['{', ';']).next()?;
    let plain = head
        .strip_prefix("fn ")
        .filter(|head| head.contains("-> impl Future"));
    let name = plain.or_else(|| head.strip_prefix("async fn "))?;
    name.split(['(', '<']).next()
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
