//! Runs of steps beside transactions that the attempt which records the outcome has not seen: it
//! comes to no step.

use std::sync::atomic::{AtomicU32, Ordering};

use idem::{ErrorAction, Idempotency, sqlx};
use idem_testkit::Proxy;
use tokio::sync::Notify;

use super::{OrderError, has_run};
use crate::support::{LONG, eventually};

/// How an attempt records its outcome.
#[derive(Clone, Copy, Debug)]
enum Way {
    Library,
    Caller,
    /// An error, which the library commits.
    Kept,
    /// An error, after which a guard rolls the transaction back.
    KeptByGuard,
    Observed,
}

const WAYS: [Way; 5] = [
    Way::Library,
    Way::Caller,
    Way::Kept,
    Way::KeptByGuard,
    Way::Observed,
];

/// Each database that has several writers, its name of a session, the end of one, and whether one
/// waits for a lock.
macro_rules! over {
    ($($module:ident $feature:literal $Pool:ident $Db:ident $Store:ident $server:ident
        $session:literal $kill:literal $waits:literal $begins:literal $messages:literal;)+) => {$(
        #[cfg(feature = $feature)]
        mod $module {
            use idem::{sqlx::$Pool as Pool, $Store as Store};
            use idem_testkit::$server as Server;

            use super::*;

            struct Bank {
                pool: Pool,
                idempotency: Idempotency,
                operation: &'static str,
                charges: AtomicU32,
            }

            impl Bank {
                async fn open(operation: &'static str) -> Self {
                    let pool = Pool::connect(&Server::shared().await.unwrap().url()).await;
                    let pool = pool.unwrap();
                    let store = Store::builder(pool.clone()).time_limit(LONG).build();
                    store.migrate().await.unwrap();
                    Self {
                        pool,
                        idempotency: Idempotency::new(store),
                        operation,
                        charges: AtomicU32::new(0),
                    }
                }

                /// Its outcome is no longer valid as soon as it is recorded.
                fn order(&self, key: &str) -> idem::Operation<'static> {
                    let order = self.idempotency.operation(self.operation).key(key);
                    order.ttl("1ms").wait(LONG)
                }

                async fn charge(&self) -> Result<u32, OrderError> {
                    idem::step("charge", async || {
                        Ok(self.charges.fetch_add(1, Ordering::SeqCst) + 1)
                    })
                    .await
                }

                /// An attempt that charges, and is rolled back.
                async fn fail(&self, key: &str) {
                    let failed = self.order(key).transaction(&self.pool, async |_| {
                        self.charge().await?;
                        Err::<u32, _>(OrderError::Declined)
                    });
                    failed.await.unwrap_err();
                    assert!(has_run(self.order(key)).await);
                }

                /// An attempt that records an outcome, and comes to no step.
                async fn pass(&self, key: &str, way: Way) {
                    let order = self.order(key);
                    let pool = &self.pool;
                    let keeps = |_: &OrderError| ErrorAction::Keep;
                    let declined = match way {
                        Way::Library => {
                            let passed = order.transaction(pool, async |_| Ok::<_, OrderError>(0));
                            passed.await.map(drop)
                        }
                        Way::Caller | Way::Observed => {
                            let order = match way {
                                Way::Observed => order.observe(),
                                _ => order,
                            };
                            let mut tx = pool.begin().await.unwrap();
                            let passed = order.run_in(&mut tx, async |_| Ok::<_, OrderError>(0));
                            passed.await.unwrap();
                            tx.commit().await.unwrap();
                            return;
                        }
                        Way::Kept => {
                            let order = order.errors(keeps);
                            let kept = order.transaction(pool, async |_| {
                                Err::<u32, _>(OrderError::Declined)
                            });
                            kept.await.map(drop)
                        }
                        Way::KeptByGuard => {
                            let kept = idem::guard::transaction(pool, async |tx| {
                                let order = self.order(key).errors(keeps);
                                let kept = order.run_in(tx, async |_| {
                                    Err::<u32, _>(OrderError::Declined)
                                });
                                kept.await
                            });
                            kept.await.map(drop)
                        }
                    };
                    let is_kept = matches!(way, Way::Kept | Way::KeptByGuard);
                    assert_eq!(declined.is_err(), is_kept, "{declined:?}");
                }

                /// A later call, which charges. Returns how many charges there were then.
                async fn place(&self, key: &str) -> u32 {
                    while self.order(key).inspect().await.unwrap().is_some() {}
                    let placed = self.order(key).transaction(&self.pool, async |_| {
                        self.charge().await
                    });
                    assert!(!placed.await.unwrap().is_replayed());
                    self.charges.load(Ordering::SeqCst)
                }

                /// Asks the server about a session.
                async fn ask(&self, statement: String) -> i64 {
                    let asked = sqlx::query_scalar(sqlx::AssertSqlSafe(statement));
                    asked.fetch_one(&self.pool).await.unwrap()
                }
            }

            #[tokio::test]
            async fn p2_an_outcome_without_a_step_ends_the_steps_of_an_attempt_that_was_rolled_back() {
                for way in WAYS {
                    let bank = Bank::open("steps.unseen.rolled_back").await;
                    let key = format!("{way:?}");
                    bank.fail(&key).await;
                    bank.pass(&key, way).await;
                    assert_eq!(bank.place(&key).await, 2, "{way:?}");
                    // Once more, over the end of the run before.
                    bank.pass(&key, way).await;
                    assert_eq!(bank.place(&key).await, 3, "{way:?}");
                }
            }

            #[tokio::test]
            async fn p2_an_outcome_without_a_step_ends_the_steps_of_an_attempt_that_was_killed() {
                let bank = Bank::open("steps.unseen.killed").await;
                let mut tx = bank.pool.begin().await.unwrap();
                let session = sqlx::query_scalar($session).fetch_one(&mut *tx).await;
                let session: i64 = session.unwrap();
                let charged = bank.order("o-1").run_in(&mut tx, async |_| bank.charge().await);
                charged.await.unwrap();
                let kill = sqlx::AssertSqlSafe(format!($kill, session));
                sqlx::raw_sql(kill).execute(&bank.pool).await.unwrap();
                bank.pass("o-1", Way::Library).await;
                drop(tx);
                assert_eq!(bank.place("o-1").await, 2);
            }

            /// The claim of the second attempt is older than the step of the first one.
            #[tokio::test]
            async fn p2_an_outcome_without_a_step_ends_steps_that_were_begun_while_it_waited() {
                let bank = Bank::open("steps.unseen.waited").await;
                let one = sqlx::pool::PoolOptions::<sqlx::$Db>::new().max_connections(1);
                let one = one
                    .connect_with((*bank.pool.connect_options()).clone())
                    .await
                    .unwrap();
                let session: i64 = sqlx::query_scalar($session).fetch_one(&one).await.unwrap();
                let begun = Notify::new();
                let second = async {
                    begun.notified().await;
                    let order = bank.order("o-1");
                    let passed = order.transaction(&one, async |_| Ok::<_, OrderError>(0));
                    assert!(!passed.await.unwrap().is_replayed());
                };
                let first = async {
                    let failed = bank.order("o-1").transaction(&bank.pool, async |_| {
                        begun.notify_one();
                        eventually("the second attempt waits", async || {
                            bank.ask(format!($waits, session)).await > 0
                        })
                        .await;
                        bank.charge().await?;
                        Err::<u32, _>(OrderError::Declined)
                    });
                    failed.await.unwrap_err();
                };
                tokio::join!(first, second);
                assert_eq!(bank.place("o-1").await, 2);
            }

            /// A look that locks what it does not find would hold up the step, which the transaction
            /// of its call waits for.
            #[tokio::test]
            async fn after_an_outcome_at_serializable_another_call_of_the_transaction_has_a_step() {
                let bank = Bank::open("steps.unseen.serializable").await;
                let mut tx = bank.pool.begin_with($begins).await.unwrap();
                let first = bank.order("o-1").run_in(&mut tx, async |_| Ok::<_, OrderError>(0));
                first.await.unwrap();
                let second = bank.order("o-2").run_in(&mut tx, async |_| bank.charge().await);
                let second = tokio::time::timeout(LONG / 2, second).await;
                assert_eq!(second.expect("its step waits").unwrap().into_inner(), 1);
                tx.commit().await.unwrap();
            }

            #[tokio::test]
            async fn a_call_without_a_step_costs_no_message_for_the_look() {
                let bank = Bank::open("steps.unseen.cost").await;
                let server = Server::shared().await.unwrap();
                let proxy = Proxy::start(&server.url()).await.unwrap();
                let all = proxy.passing(|_| true);
                let one = sqlx::pool::PoolOptions::<sqlx::$Db>::new().max_connections(1);
                let url = server.url_through(proxy.address().port());
                let one = one.connect(&url).await.unwrap();
                let mut before = 0;
                // Statements are prepared at first.
                for key in 0..20 {
                    before = all.calls();
                    let order = bank.order(&format!("o-{key}"));
                    order.transaction(&one, async |_| Ok::<_, OrderError>(0)).await.unwrap();
                }
                assert_eq!(all.calls() - before, $messages);
            }
        }
    )+};
}

over! {
    postgres "postgres" PgPool Postgres PostgresStore PostgresServer
        "SELECT pg_backend_pid()::bigint" "SELECT pg_terminate_backend({})"
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {} AND wait_event_type = 'Lock'"
        "BEGIN ISOLATION LEVEL SERIALIZABLE" 4;
    mariadb "mysql" MySqlPool MySql MySqlStore MariaDbServer
        "SELECT CAST(connection_id() AS SIGNED)" "KILL {}"
        "SELECT count(*) FROM information_schema.processlist WHERE id = {} \
            AND command = 'Query' AND info LIKE '%INSERT IGNORE%'"
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION" 4;
    real_mysql "mysql" MySqlPool MySql MySqlStore MySqlServer
        "SELECT CAST(connection_id() AS SIGNED)" "KILL {}"
        "SELECT count(*) FROM information_schema.processlist WHERE id = {} \
            AND command = 'Query' AND info LIKE '%INSERT IGNORE%'"
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION" 5;
}
