//! An address that moves on to the server that was promoted, while the connections to the demoted
//! one stay open.

use idem_core::{Error, Idempotency};
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use tokio::task::JoinSet;

use crate::failed::Failed;
use crate::waking::{HELD, LISTENERS, answered_after};
use crate::{LONG, Server, answer, connected, order, runtime, until};

/// The connections of each pool.
const CONNECTIONS: u32 = 4;
/// A server of MySQL that others follow, and one that does.
const LEADS: [&str; 2] = ["--log-bin=log", "--server-id=1"];
const FOLLOWS: [&str; 1] = ["--server-id=2"];
/// The user of the tests is an administrator, who writes to a server that is read-only.
const APP: &str = "CREATE USER app@'127.0.0.1'; GRANT ALL ON idem.* TO app@'127.0.0.1'";
const COMMITTED: &str = "SELECT count(*) FROM idem_records WHERE state = 'committed'";
const CLAIMED: &str =
    "SELECT count(*) FROM idem_records WHERE operation = 'during' AND state = 'in_flight'";

/// A kind of server of which one can follow another.
trait Replicated: Server {
    /// Starts a server, and a replica of it.
    async fn pair() -> [Self; 2];
    /// Promotes the replica, and demotes the first one, whose connections stay.
    async fn fail_over(servers: &[Self; 2]);

    /// The URL of the application through a proxy.
    fn app_through(&self, proxy: &Proxy) -> String {
        self.url_through(proxy.address().port())
    }
}

impl Replicated for PostgresServer {
    async fn pair() -> [Self; 2] {
        let old = Self::start().await.unwrap();
        let new = old.start_standby(&[]).await.unwrap();
        [old, new]
    }

    async fn fail_over([old, new]: &[Self; 2]) {
        new.promote().await.unwrap();
        let demote = "ALTER SYSTEM SET default_transaction_read_only = on";
        old.execute(demote).await;
        old.execute("SELECT pg_reload_conf()").await;
        // All connections have been told by then, and look before their next statement.
        let is_on = "SELECT count(*) FROM pg_settings \
            WHERE name = 'default_transaction_read_only' AND setting = 'on'";
        until("it is read-only", async || old.number(is_on).await == 1).await;
    }
}

impl Replicated for MariaDbServer {
    async fn pair() -> [Self; 2] {
        let old = Self::start_with(&LEADS).await.unwrap();
        let new = Self::start_with(&FOLLOWS).await.unwrap();
        let follow = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'idem', \
             MASTER_PASSWORD = 'wordpass'; START SLAVE",
            old.port()
        );
        new.execute(&follow).await;
        old.execute(APP).await;
        [old, new]
    }

    async fn fail_over([old, new]: &[Self; 2]) {
        old.execute("SET GLOBAL read_only = 1").await;
        new.execute("STOP SLAVE").await;
    }

    fn app_through(&self, proxy: &Proxy) -> String {
        let port = proxy.address().port();
        self.url_through(port).replace("idem:wordpass@", "app@")
    }
}

impl Replicated for MySqlServer {
    async fn pair() -> [Self; 2] {
        let old = Self::start_with(&LEADS).await.unwrap();
        let new = Self::start_with(&FOLLOWS).await.unwrap();
        // The name that both have by their common template. A server makes a name if it has none.
        std::fs::remove_file(new.dir().join("data/auto.cnf")).unwrap();
        new.restart().await.unwrap();
        let follow = format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {}, \
             SOURCE_USER = 'idem', SOURCE_LOG_FILE = 'log.000001', SOURCE_LOG_POS = 4, \
             SOURCE_SSL = 0, GET_SOURCE_PUBLIC_KEY = 1; START REPLICA",
            old.port()
        );
        new.execute(&follow).await;
        old.execute(APP).await;
        [old, new]
    }

    async fn fail_over([old, new]: &[Self; 2]) {
        old.execute("SET GLOBAL read_only = 1").await;
        new.execute("STOP REPLICA").await;
    }

    fn app_through(&self, proxy: &Proxy) -> String {
        let port = proxy.address().port();
        self.url_through(port).replace("idem@", "app@")
    }
}

/// Makes calls at once, so that several connections are open, and each has its statements prepared.
async fn warm(idempotency: &Idempotency, name: &str) {
    let mut calls = JoinSet::new();
    for number in 0..10 * CONNECTIONS {
        let idempotency = idempotency.clone();
        let key = format!("{name}, {number}");
        // Its limits are the usual ones, which a busy machine may need longer than.
        calls.spawn(async move {
            let answered = async {
                while let Err(error) = order(&idempotency, &key, number).await {
                    assert!(matches!(error, Error::Store { .. }), "{error}");
                }
            };
            tokio::time::timeout(LONG, answered).await.unwrap();
        });
    }
    calls.join_all().await;
}

macro_rules! over {
    ($($name:ident: $Server:ty, $Store:ident, $PoolOptions:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let servers = <$Server as Replicated>::pair().await;
            let [old, new] = &servers;
            old.own_store().await;
            let at = |server: &$Server| format!("127.0.0.1:{}", server.port());
            let proxy = Proxy::start_opaque(&at(old)).await.unwrap();
            let url = old.app_through(&proxy);
            let pool = async || {
                let options = $PoolOptions::new().max_connections(CONNECTIONS);
                options.test_before_acquire(false).connect(&url).await.unwrap()
            };
            let own = runtime(connected(async || $Store::connect(&url).await).await);
            let given = runtime($Store::builder(pool().await).time_limit(LONG).build());
            let of_app = pool().await;
            let transaction = async |key: &str| {
                let operation = own.operation("transactions").key(key);
                let call = operation.transaction(&of_app, async |_| Ok::<_, Failed>(1));
                call.await.map(|outcome| outcome.is_replayed())
            };
            for (name, idempotency) in [("own", &own), ("given", &given)] {
                warm(idempotency, name).await;
            }
            let mut all = Vec::new();
            for _ in 0..CONNECTIONS {
                all.push(of_app.acquire().await.unwrap());
            }
            for mut on in all {
                on.return_to_pool().await;
            }
            assert!(!transaction("before").await.unwrap());
            // Its commit is the first statement that meets the demoted server.
            let during = own.operation("during").key("k").run(async || {
                until("its claim is replicated", async || new.number(CLAIMED).await == 1).await;
                Replicated::fail_over(&servers).await;
                proxy.lead_to(&at(new));
                Ok::<_, idem_core::Error>(7)
            });
            assert_eq!(during.await.unwrap().into_inner(), 7);
            let committed = old.number(COMMITTED).await;
            // After its limit, the commit goes on in the background.
            until("it is committed", async || new.number(COMMITTED).await == committed + 1).await;
            // No call fails for the sake of the connections of a store.
            for (name, idempotency) in [("own", &own), ("given", &given)] {
                let again = answer(async || order(idempotency, &format!("{name}, 0"), 8).await);
                let again = again.await;
                assert!(again.is_replayed() && again.into_inner() == 0);
                let during = async || {
                    let during = idempotency.operation("during").key("k");
                    during.run(async || Ok::<_, idem_core::Error>(8)).await
                };
                let during = answer(during).await;
                assert!(during.is_replayed() && during.into_inner() == 7);
                warm(idempotency, &format!("after, {name}")).await;
            }
            // In a transaction, a call may fail once for each connection of the application.
            let mut failures = 0;
            for number in 0..3 * CONNECTIONS {
                match transaction(&format!("after, {number}")).await {
                    Ok(is_replayed) => assert!(!is_replayed),
                    Err(Failed::Idem(error)) => {
                        assert!(error.is_retryable(), "{error}");
                        failures += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(failures <= CONNECTIONS, "{failures}");
            assert!(transaction("before").await.unwrap());
            assert!(!transaction("last").await.unwrap());
            assert_eq!(old.number(COMMITTED).await, committed);
        }
    )+};
}

over! {
    calls_over_postgres_go_on_at_the_promoted_server: PostgresServer, PostgresStore, PgPoolOptions;
    calls_over_mariadb_go_on_at_the_promoted_server: MariaDbServer, MySqlStore, MySqlPoolOptions;
    calls_over_real_mysql_go_on_at_the_promoted_server: MySqlServer, MySqlStore, MySqlPoolOptions;
}

/// No error comes on the connection that receives messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_listens_at_the_promoted_server() {
    let servers = <PostgresServer as Replicated>::pair().await;
    let [old, new] = &servers;
    let owner = runtime(old.store().await);
    let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", old.port()))
        .await
        .unwrap();
    let url = old.app_through(&proxy);
    let waiter = runtime(connected(async || PostgresStore::connect(&url).await).await);
    let listeners = format!("SELECT count(*) {LISTENERS}");
    answered_after(&owner, &waiter, "before", HELD).await;
    until("it listens", async || old.number(&listeners).await == 1).await;
    Replicated::fail_over(&servers).await;
    proxy.lead_to(&format!("127.0.0.1:{}", new.port()));
    let owner = runtime(new.store().await);
    // It connects there, for which a busy machine may need several tries.
    answer(async || order(&waiter, "connects", 1).await).await;
    answered_after(&owner, &waiter, "after", HELD).await;
    until("it listens there", async || {
        new.number(&listeners).await == 1
    })
    .await;
    until("and here no more", async || {
        old.number(&listeners).await == 0
    })
    .await;
}
