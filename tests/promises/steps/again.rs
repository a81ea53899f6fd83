//! A name that is used a second time in one try of the body, in transactions: what is in the
//! transaction decides.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use idem::{Error, ErrorAction, Idempotency, sqlx};

use crate::support::LONG;

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
enum Failure {
    #[error("kept")]
    Kept,
    #[error("released")]
    Released,
    #[error("the database: {0}")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// JSON has no such keys, so only an empty map can be recorded.
type Value = BTreeMap<(u8, u8), u8>;

/// What the first use of the name does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Succeeds,
    LeavesItsValueOut,
    KeepsItsError,
    Fails,
}

impl First {
    fn result(self) -> Result<Value, Failure> {
        match self {
            Self::Succeeds => Ok(Value::new()),
            Self::LeavesItsValueOut => Ok(Value::from([((1, 1), 1)])),
            Self::KeepsItsError => Err(Failure::Kept),
            Self::Fails => Err(Failure::Released),
        }
    }
}

/// The end of the transaction of the first use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    /// After the second use.
    Later,
    InCommit,
    InRollback,
}

fn action(error: &Failure) -> ErrorAction {
    if matches!(error, Failure::Kept) {
        ErrorAction::Keep
    } else {
        ErrorAction::Release
    }
}

macro_rules! over {
    ($($test:ident $feature:literal $Pool:ident $Store:ident $url:expr;)+) => {$(
        #[cfg(feature = $feature)]
        #[tokio::test]
        async fn $test() {
            let folder = tempfile::tempdir().unwrap();
            let url = $url;
            let url: String = url(folder.path().display().to_string()).await;
            let pool = sqlx::$Pool::connect(&url).await.unwrap();
            let store = idem::$Store::builder(pool.clone()).time_limit(LONG).build();
            store.migrate().await.unwrap();
            let idempotency = Idempotency::new(store);
            let firsts =
                [First::Succeeds, First::LeavesItsValueOut, First::KeepsItsError, First::Fails];
            let ends = [Ends::Later, Ends::InCommit, Ends::InRollback];
            let cases = firsts.iter().flat_map(|first| ends.map(|ends| (*first, ends)));
            for (first, ends) in cases {
                for is_inside in [false, true] {
                    if is_inside && ends != Ends::Later {
                        continue;
                    }
                    let case = format!("{first:?} {ends:?} {is_inside}");
                    let runs = AtomicU32::new(0);
                    let step = || idem::step_with("rows").errors(action);
                    let order = || idempotency.operation("steps.again").key(&case);
                    let second = if is_inside {
                        let placed = order().transaction_local(&pool, async |tx| {
                            let _ = step().run_in(tx, async |_| first.result()).await;
                            step().run_in(tx, async |_| {
                                runs.fetch_add(1, Ordering::SeqCst);
                                Ok::<Value, Failure>(Value::new())
                            }).await
                        });
                        placed.await.map(drop)
                    } else {
                        let placed = order().run(|| async {
                            let mut tx = pool.begin().await?;
                            let _ = step().run_in(&mut tx, async |_| first.result()).await;
                            match ends {
                                Ends::Later => {}
                                Ends::InCommit => {
                                    tx.commit().await?;
                                    tx = pool.begin().await?;
                                }
                                Ends::InRollback => {
                                    tx.rollback().await?;
                                    tx = pool.begin().await?;
                                }
                            }
                            let again = step().run_in(&mut tx, async |_| {
                                runs.fetch_add(1, Ordering::SeqCst);
                                Ok::<Value, Failure>(Value::new())
                            });
                            let again = again.await;
                            tx.commit().await?;
                            again
                        });
                        placed.await.map(drop)
                    };
                    let is_free = first == First::Fails || ends == Ends::InRollback;
                    assert_eq!(runs.load(Ordering::SeqCst), u32::from(is_free), "{case}");
                    match second {
                        Ok(()) => assert!(is_free, "{case}"),
                        Err(Failure::Idempotency(Error::Config { operation, reason, .. })) => {
                            assert_eq!(&*operation, "steps.again/rows", "{case}");
                            assert!(reason.contains("a step of the same name"), "{reason}");
                            assert!(!is_free, "{case}");
                        }
                        other => panic!("{case}: {other:?}"),
                    }
                }
            }
        }
    )+};
}

over! {
    a_second_use_does_not_replay_on_sqlite "sqlite" SqlitePool SqliteStore
        async |folder| format!("sqlite://{folder}/steps.db?mode=rwc");
    a_second_use_does_not_replay_on_postgres "postgres" PgPool PostgresStore
        async |_| idem_testkit::PostgresServer::shared().await.unwrap().url();
    a_second_use_does_not_replay_on_mariadb "mysql" MySqlPool MySqlStore
        async |_| idem_testkit::MariaDbServer::shared().await.unwrap().url();
}
