//! Steps beside a transaction: after a rollback, their run has a record of its own.

use std::sync::Mutex;

use idem_core::{Error, UnkeptAction};
use idem_sqlx::sqlx::{MySqlPool, PgPool};
use serde_json::{Value, json};

use super::{shown, steps, yes};
use crate::support::{idem, idem_answering, runtime};

macro_rules! beside {
    ($($test:ident $Pool:ident $server:ident;)+) => {$(
        #[tokio::test]
        async fn $test() {
            let url = idem_testkit::$server::shared().await.unwrap().url();
            let idempotency = runtime(&url).await;
            let pool = $Pool::connect(&url).await.unwrap();
            let operation = "orders.pay";
            let pay = async |key: &'static str, commits: bool| {
                let ran = Mutex::new(0);
                let order = idempotency.operation(operation).key(key);
                let paid = order.transaction(&pool, async |_| {
                    idem_core::step("charge", async || {
                        *ran.lock().unwrap() += 1;
                        Ok::<_, Error>("visa of Ada".to_owned())
                    })
                    .await?;
                    if commits { Ok(()) } else { Err(Error::config(operation, "rolled back")) }
                });
                assert_eq!(paid.await.is_ok(), commits);
                ran.into_inner().unwrap()
            };
            assert_eq!(pay("pay-1", false).await, 1);
            assert_eq!(pay("pay-1", false).await, 0);

            let gone = idem(&url, &["show", operation, "pay-1"]).with(3);
            for part in ["rolled back", "idem.step/orders.pay", "idem.step/orders.pay/charge", "committed"] {
                assert!(gone.out.contains(part), "{part}: {gone:?}");
            }
            let gone = idem(&url, &["show", operation, "pay-1", "--json"]).with(3).json();
            assert_eq!((steps(&gone).len(), &gone["state"]), (1, &Value::Null));
            let key = format!("pay-1:{}", gone["run"].as_str().unwrap());
            let alone = shown(&url, "idem.step/orders.pay", "pay-1");
            assert_eq!((&alone["state"], &alone["run"]), (&json!("released"), &gone["run"]));
            assert_eq!(shown(&url, "idem.step/orders.pay/charge", &key)["state"], json!("committed"));

            let asked = idem_answering(&url, &["forget", operation, "pay-1"], "n\n").with(4);
            assert!(asked.err.contains("its step runs again: charge."), "{asked:?}");
            assert!(asked.err.contains("rolled back"), "{asked:?}");
            assert_eq!(pay("pay-1", false).await, 0);
            idem(&url, &["forget", operation, "pay-1", "--yes", "--keep-steps"]).with(3);
            yes(&url, &["forget", operation, "pay-1"]).with(0);
            yes(&url, &["forget", operation, "pay-1"]).with(3);
            assert_eq!(pay("pay-1", false).await, 1);

            // A commit ends the run, also for a record that is forgotten after it.
            assert_eq!(pay("pay-1", true).await, 0);
            let committed = shown(&url, operation, "pay-1");
            assert!(committed.get("steps").is_none(), "{committed}");
            yes(&url, &["forget", operation, "pay-1"]).with(0);
            let gone = idem(&url, &["show", operation, "pay-1", "--json"]).with(3).json();
            assert!(gone.get("steps").is_none(), "{gone}");
            yes(&url, &["forget", operation, "pay-1"]).with(3);

            // A released record has no run of its own.
            let failed = idempotency.operation(operation).key("pay-4");
            let failed = failed.errors(|_: &Error| UnkeptAction::Release);
            let failed = failed.run(async || Err::<(), _>(Error::config(operation, "it fails")));
            failed.await.unwrap_err();
            assert_eq!(pay("pay-4", false).await, 1);
            let released = shown(&url, operation, "pay-4");
            assert_eq!((&released["state"], steps(&released).len()), (&json!("released"), 1));
            assert_eq!(released["run"], shown(&url, "idem.step/orders.pay", "pay-4")["run"]);
            yes(&url, &["forget", operation, "pay-4"]).with(0);
            idem(&url, &["show", "idem.step/orders.pay", "pay-4"]).with(3);
            assert_eq!(pay("pay-4", false).await, 1);

            // So does an outcome by hand end the run.
            let failed = idempotency.operation(operation).key("pay-5");
            let failed = failed.errors(|_: &Error| UnkeptAction::Release);
            let failed = failed.run(async || Err::<(), _>(Error::config(operation, "it fails")));
            failed.await.unwrap_err();
            assert_eq!(pay("pay-5", false).await, 1);
            shown(&url, "idem.step/orders.pay", "pay-5");
            let settle = ["settle", operation, "pay-5", "--value", "-", "--yes"];
            idem_answering(&url, &settle, "null").with(0);
            idem(&url, &["show", "idem.step/orders.pay", "pay-5"]).with(3);

            // Nothing is left of a customer, or of an operation.
            assert_eq!(pay("pay-2", false).await, 1);
            yes(&url, &["purge", "--first-part", "pay-2"]).with(0);
            let left = idem(&url, &["list", "--key", "pay-2*", "--json"]).with(0).json();
            assert_eq!(left["records"], json!([]));
            assert_eq!(pay("pay-3", false).await, 1);
            let purge = ["purge", "--operation", operation, "--key", "pay-3"];
            yes(&url, &purge).with(0);
            let left = idem(&url, &["list", "--key", "pay-3*", "--json"]).with(0).json();
            assert_eq!(left["records"], json!([]));
            assert_eq!(pay("pay-3", true).await, 1);
            let doctor = idem(&url, &["doctor"]);
            assert!(!doctor.out.contains("idem.step"), "{doctor:?}");
        }
    )+};
}

beside! {
    steps_beside_a_transaction_in_postgres_are_shown_and_forgotten PgPool PostgresServer;
    steps_beside_a_transaction_in_mariadb_are_shown_and_forgotten MySqlPool MariaDbServer;
}
