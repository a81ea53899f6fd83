//! Leases whose records another transaction has locked.

use idem_core::store::record::{Claim, Owner, Ownership, RecordId, Renewal};
use idem_core::{Key, Store as _, StoreErrorKind};
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::{self, AssertSqlSafe, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, PostgresServer};

use crate::{LONG, Server as _};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

macro_rules! over {
    ($module:ident, $Store:ident, $PoolOptions:ident, $Server:ty, $set:literal, $key:literal) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_locked_record_does_not_hold_up_the_renewal_of_others() {
                let server = <$Server>::empty().await;
                for level in LEVELS {
                    let options = $PoolOptions::new().after_connect(move |on, _| {
                        let set = AssertSqlSafe(format!($set, level));
                        Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
                    });
                    let pool = options.connect(&server.url()).await.unwrap();
                    let store = $Store::builder(pool.clone()).time_limit(LONG).build();
                    crate::connected(async || store.migrate().await).await;
                    let claimed = async |key: &str| {
                        let id = RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
                        let claim = Claim::new(id, Owner::generate(), LONG, LONG * 2);
                        store.claim(&claim).await.unwrap();
                        Renewal::new(claim.id, claim.owner, LONG * 3)
                    };
                    // An update of the record, and one that changes nothing.
                    for change in ["+ 1", ""] {
                        let (first, locked, last) =
                            tokio::join!(claimed("a"), claimed("b"), claimed("c"));
                        let gone = Renewal::new(first.id.clone(), Owner::generate(), LONG);
                        let late = Renewal::new(locked.id.clone(), Owner::generate(), LONG);
                        let mut tx = pool.begin().await.unwrap();
                        let lock = format!(
                            "UPDATE idem_records SET attempt = attempt {change} WHERE operation = \
                             'orders' AND {} = '{}'",
                            $key,
                            locked.id.key()
                        );
                        tx.execute(sqlx::raw_sql(AssertSqlSafe(lock)))
                            .await
                            .unwrap();
                        let all = [first, locked, gone, late, last];
                        let renewed = store.renew(&all).await;
                        let [
                            Ok(Ownership::Held),
                            Err(error),
                            Ok(Ownership::Lost),
                            Ok(Ownership::Lost),
                            Ok(Ownership::Held),
                        ] = &renewed[..]
                        else {
                            panic!("{level}: {renewed:?}")
                        };
                        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                        for (renewal, is_renewed) in
                            [(&all[0], true), (&all[1], false), (&all[4], true)]
                        {
                            let left = store
                                .inspect(&renewal.id)
                                .await
                                .unwrap()
                                .unwrap()
                                .expires_in;
                            assert_eq!(left > LONG * 2, is_renewed, "{level}: {left:?}");
                        }
                        tx.rollback().await.unwrap();
                        let again = store.renew(&all[1..2]).await;
                        assert!(matches!(again[..], [Ok(Ownership::Held)]), "{again:?}");
                        sqlx::raw_sql("DELETE FROM idem_records")
                            .execute(&pool)
                            .await
                            .unwrap();
                    }
                }
            }
        }
    };
}

over!(
    on_postgres,
    PostgresStore,
    PgPoolOptions,
    PostgresServer,
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    "key"
);
over!(
    on_mariadb,
    MySqlStore,
    MySqlPoolOptions,
    MariaDbServer,
    "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    "`key`"
);
