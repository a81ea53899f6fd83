//! The trait for other drivers, proved by an adapter for tokio-postgres.

mod adapter;

use std::sync::atomic::{AtomicU32, Ordering};

use idem_core::store::record::{Claim, Owner, RecordId, Release, ReleaseTo};
use idem_core::store::{
    Began, Store, Transaction, TransactionAddress, Transactions, Written, collect_kept_errors,
};
use idem_core::{Error, Idempotency, Key, RecordState};
use idem_sqlx::PostgresStore;
use idem_sqlx::sqlx::PgPool;
use idem_testkit::PostgresServer;
use tokio::sync::Notify;
use tokio_postgres::{Client, Config, GenericClient, NoTls};

use self::adapter::{Connecting, Tx};
use crate::failed::{FailedBy, action};
use crate::own::Database;
use crate::pools::insert;
use crate::{LONG, Server as _};

type Failed = FailedBy<tokio_postgres::Error>;

async fn setup() -> (Config, Client, Idempotency) {
    on(&PostgresServer::empty().await).await
}

async fn on(database: &Database<PostgresServer>) -> (Config, Client, Idempotency) {
    let url = database.url();
    let store = database.store().await;
    let config: Config = url.parse().unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(crate::pools::CREATE).await.unwrap();
    (config, client, Idempotency::new(store))
}

async fn begin(connecting: &Connecting) -> Tx<Client> {
    let began = connecting.begin(None).await.unwrap();
    began.without_claim().unwrap()
}

async fn write<C: GenericClient + Sync>(tx: &Tx<C>, name: &str) -> Result<u32, Failed> {
    tx.client.execute(insert(name).0.as_str(), &[]).await?;
    Ok(7)
}

async fn rows(client: &Client, name: &str) -> i64 {
    client
        .query_one("SELECT count(*) FROM business WHERE name = $1", &[&name])
        .await
        .unwrap()
        .get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_another_driver_holds_rows_and_record_and_duplicates_change_no_row() {
    let (_, mut client, idempotency) = setup().await;
    for replayed in [false, true] {
        let mut tx = Tx::new(client.transaction().await.unwrap());
        let operation = idempotency.operation("other").key("k").fingerprint(&1_u8);
        let outcome = operation
            .run_in(&mut tx, async |tx| write(tx, "k").await)
            .await
            .unwrap();
        assert_eq!((outcome.is_replayed(), outcome.into_inner()), (replayed, 7));
        tx.client.commit().await.unwrap();
    }
    assert_eq!(rows(&client, "k").await, 1);
    // An ordinary record, for calls with a lease too; and another payload is refused.
    let operation = idempotency.operation("other").key("k");
    assert!(
        operation
            .run(async || Ok::<u32, Error>(0))
            .await
            .unwrap()
            .is_replayed()
    );
    let mut tx = Tx::new(client.transaction().await.unwrap());
    let operation = idempotency.operation("other").key("k").fingerprint(&2_u8);
    let refused = operation
        .run_in(&mut tx, async |tx| write(tx, "k").await)
        .await;
    assert!(matches!(
        refused,
        Err(Failed::Idem(Error::FingerprintMismatch { .. }))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_over_another_driver_run_one_body() {
    let (config, client, idempotency) = setup().await;
    let connecting = Connecting(config);
    let ran = AtomicU32::new(0);
    let call = async || {
        let operation = idempotency
            .operation("other")
            .key("crowd of another driver")
            .wait(LONG);
        let outcome = operation.transaction(&connecting, async |tx| {
            ran.fetch_add(1, Ordering::Relaxed);
            write(tx, "crowd of another driver").await
        });
        outcome.await.unwrap().into_inner()
    };
    let answers = tokio::join!(call(), call(), call(), call(), call(), call());
    assert_eq!(answers, (7, 7, 7, 7, 7, 7));
    assert_eq!(
        (
            rows(&client, "crowd of another driver").await,
            ran.load(Ordering::Relaxed)
        ),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_without_a_step_over_another_driver_ends_the_steps_of_an_earlier_attempt() {
    let (config, _client, idempotency) = setup().await;
    let connecting = Connecting(config);
    let charges = AtomicU32::new(0);
    let order = || idempotency.operation("other.steps").key("k").ttl("1ms");
    let place = async |commits: bool| {
        let placed = order().transaction(&connecting, async |_| {
            let charge = idem_core::step("charge", async || {
                Ok::<_, Failed>(charges.fetch_add(1, Ordering::Relaxed))
            });
            charge.await?;
            if commits {
                Ok(())
            } else {
                Err(Failed::Declined)
            }
        });
        placed.await.is_ok()
    };
    assert!(!place(false).await);
    let passed = order().transaction(&connecting, async |_| Ok::<_, Failed>(()));
    passed.await.unwrap();
    while order().inspect().await.unwrap().is_some() {}
    assert!(place(true).await);
    assert_eq!(charges.into_inner(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_drops_and_roll_backs_over_another_driver_leave_what_they_should() {
    let database = PostgresServer::empty().await;
    let (_, mut first, idempotency) = on(&database).await;
    let operation = |key: &'static str| idempotency.operation("other").key(key).errors(action);

    let mut tx = Tx::new(first.transaction().await.unwrap());
    let failed = operation("released").run_in(&mut tx, async |tx| {
        write(tx, "released").await?;
        Err::<u32, _>(Failed::Down)
    });
    assert!(matches!(failed.await, Err(Failed::Down)));
    let kept = operation("kept").run_in(&mut tx, async |tx| {
        write(tx, "kept").await?;
        Err::<u32, _>(Failed::Declined)
    });
    assert!(matches!(kept.await, Err(Failed::Declined)));
    let written = Notify::new();
    let dropped = operation("dropped").run_in(&mut tx, async |tx| {
        write(tx, "dropped").await?;
        written.notify_one();
        std::future::pending::<Result<u32, Failed>>().await
    });
    tokio::select! {
        _ = dropped => panic!("the body does not end"),
        () = written.notified() => {}
    }
    write(&tx, "after").await.unwrap();
    tx.client.commit().await.unwrap();

    let (_, mut client, _) = on(&database).await;
    for (key, count, state) in [
        ("released", 0, None),
        ("kept", 0, Some(RecordState::Committed)),
        ("dropped", 0, None),
        ("after", 1, None),
    ] {
        assert_eq!(rows(&client, key).await, count, "{key}");
        let found = idempotency
            .operation("other")
            .key(key)
            .inspect()
            .await
            .unwrap();
        assert_eq!(found.map(|found| found.state), state, "{key}");
    }
    let mut tx = Tx::new(client.transaction().await.unwrap());
    let again = operation("kept")
        .run_in(&mut tx, async |tx| write(tx, "kept").await)
        .await;
    assert!(matches!(again, Err(Failed::Declined)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_two_drivers_wait_for_each_other() {
    let database = PostgresServer::empty().await;
    let (config, client, idempotency) = on(&database).await;
    let pool = PgPool::connect(&database.url()).await.unwrap();
    let mut owner = pool.begin().await.unwrap();
    let operation = idempotency.operation("other").key("both");
    let body = async |_: &mut idem_sqlx::sqlx::PgTransaction<'_>| Ok::<u32, Error>(1);
    operation.run_in(&mut owner, body).await.unwrap();

    let connecting = Connecting(config);
    let refused = idempotency
        .operation("other")
        .key("both")
        .in_flight(idem_core::InFlight::Reject);
    let refused = refused
        .transaction(&connecting, async |tx| write(tx, "both").await)
        .await;
    assert!(matches!(refused, Err(Failed::Idem(Error::InFlight { .. }))));
    let waiting = idempotency.operation("other").key("both").wait(LONG);
    let waiting = waiting.transaction(&connecting, async |tx| write(tx, "both").await);
    let (waited, ()) = tokio::join!(waiting, async { owner.commit().await.unwrap() });
    assert_eq!(waited.unwrap().into_inner(), 1);
    assert_eq!(rows(&client, "both").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_driver_records_the_kept_errors_of_a_transaction_that_it_rolls_back() {
    let (config, client, idempotency) = setup().await;
    let connecting = Connecting(config);
    let operation = |key: &'static str| idempotency.operation("other").key(key).errors(action);
    let runs = AtomicU32::new(0);

    let mut tx = begin(&connecting).await;
    let address = TransactionAddress::of(&tx);
    let body = async {
        write(&tx, "collected, before").await?;
        let declined = operation("collected").run_in(&mut tx, async |tx| {
            runs.fetch_add(1, Ordering::Relaxed);
            write(tx, "collected").await?;
            Err::<u32, _>(Failed::Declined)
        });
        declined.await
    };
    let (declined, kept) = collect_kept_errors(address, body).await;
    assert!(matches!(declined, Err(Failed::Declined)));
    tx.roll_back().await.unwrap();
    let [record] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(record.id().operation(), "other");
    for answer in [Written::Recorded, Written::KeyTaken] {
        let mut tx = begin(&connecting).await;
        assert_eq!(record.write_in(&mut tx).await.unwrap(), answer);
        <Connecting as Transactions<PostgresStore>>::commit(tx)
            .await
            .unwrap();
    }

    let mut tx = begin(&connecting).await;
    let again = operation("collected").run_in(&mut tx, async |tx| {
        runs.fetch_add(1, Ordering::Relaxed);
        write(tx, "collected").await
    });
    assert!(matches!(again.await, Err(Failed::Declined)));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    for name in ["collected", "collected, before"] {
        assert_eq!(rows(&client, name).await, 0, "{name}");
    }
}

/// So that a later attempt finds the steps of the earlier ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_over_another_driver_goes_on_with_the_run_of_its_key() {
    let database = PostgresServer::empty().await;
    let (_, mut client, _) = on(&database).await;
    let store = database.store().await;
    let claim = |id: &RecordId| Claim::new(id.clone(), Owner::generate(), LONG, LONG * 2);
    for (key, takes_over) in [("released", false), ("abandoned", true)] {
        let id = RecordId::new("other", &Key::encode(key).unwrap()).unwrap();
        let first = claim(&id);
        let to = if takes_over {
            ReleaseTo::Abandoned
        } else {
            ReleaseTo::Released { keep: LONG }
        };
        store.claim(&first).await.unwrap();
        let release = Release::new(id.clone(), first.owner, to).with_run(true);
        store.release(&release).await.unwrap();

        let second = claim(&id);
        assert_eq!(
            claimed_run(&mut client, &store, &second).await,
            (2, Some(first.owner))
        );
        // The store reads it, and gives it up like a record of its own.
        let seen = store.inspect(&id).await.unwrap().unwrap();
        assert_eq!((seen.attempt, seen.run), (2, Some(first.owner)));
        let release = Release::new(id.clone(), second.owner, to);
        store.release(&release).await.unwrap();
        let third = claim(&id);
        assert_eq!(
            claimed_run(&mut client, &store, &third).await,
            (3, Some(first.owner))
        );
    }
}

/// Claims in a transaction, which commits, and returns the attempt and the run that it saw.
async fn claimed_run(
    client: &mut Client,
    store: &PostgresStore,
    claim: &Claim,
) -> (u64, Option<Owner>) {
    let mut tx = Tx::new(client.transaction().await.unwrap());
    let before = tx.inspect(store, &claim.id).await.unwrap().unwrap();
    let claimed = tx.claim(store, claim, LONG).await.unwrap();
    assert!(matches!(claimed, Began::Owner(_)), "{claimed:?}");
    let seen = tx.inspect(store, &claim.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.run), (RecordState::InFlight, before.run));
    tx.client.commit().await.unwrap();
    (seen.attempt, seen.run)
}
