//! Errors that say what to do, come in time, and show no password.

use idem_core::{Store as _, StoreErrorKind};
use idem_sqlx::MySqlStore;
use idem_sqlx::sqlx::MySqlPool;
use idem_testkit::{MariaDbServer, MySqlServer};

use crate::failed::Failed;
use crate::{LONG, Server, connected, id, order, over_both_servers, recovers, refused, runtime};

/// `migrate()` makes no schema, so it would be called in vain.
async fn a_schema_that_is_missing<S: Server>() {
    let server = S::empty().await;
    let store = server.with_table("nowhere.records").await;
    let error = refused(&store).await.to_string();
    assert!(error.contains("the schema `nowhere`"), "{error}");
    let error = S::migrate(&store).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    let error = error.to_string();
    assert!(
        error.contains("nowhere") && !error.contains("migrate"),
        "{error}"
    );
}

#[tokio::test]
async fn real_mysql_names_a_missing_schema() {
    a_schema_that_is_missing::<MySqlServer>().await;
}

/// As each session has it that sets no mode of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mariadb_in_oracle_mode_is_refused_and_says_why() {
    let server = MariaDbServer::start_with(&["--sql-mode=ORACLE"])
        .await
        .unwrap();
    let says_why = |error: &dyn std::fmt::Display| {
        let error = error.to_string();
        assert!(
            error.contains("`sql_mode`") && error.contains("`ORACLE`"),
            "{error}"
        );
    };
    let pool = MySqlPool::connect(&server.url()).await.unwrap();
    let own = connected(async || MySqlStore::connect(server.url()).await).await;
    for store in [
        own,
        MySqlStore::builder(pool.clone()).time_limit(LONG).build(),
    ] {
        says_why(&store.migrate().await.unwrap_err());
        says_why(&refused(&store).await);
        let idempotency = runtime(store);
        let error = order(&idempotency, "k", 1).await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
        says_why(&error);
        let operation = idempotency.operation("orders").key("k");
        let called = operation.transaction(&pool, async |_| Err::<u32, _>(Failed::Down));
        says_why(&called.await.unwrap_err());
    }
    server.execute("SET GLOBAL sql_mode = ''").await;
    order(&runtime(server.store().await), "k", 1).await.unwrap();
}

over_both_servers! {
    async fn a_missing_table_is_an_error_that_names_migrate<S: Server>() {
        let server = S::empty().await;
        let store = server.with_table("idem_records").await;
        let error = refused(&store).await;
        assert!(
            error.to_string().contains("`migrate()`") && error.to_string().contains("SCHEMA"),
            "{error}"
        );
        S::migrate(&store).await.unwrap();
        recovers(&store).await;
        // Known to be there, and dropped since.
        server.execute("DROP TABLE idem_records").await;
        let error = refused(&store).await;
        assert!(error.to_string().contains("`migrate()`"), "{error}");
    }

    async fn a_wrong_password_is_refused_and_not_shown<S: Server>() {
        let server = S::empty().await;
        let url = server.url().replace("wordpass", "hush-hush");
        let error = S::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(
            !format!("{error} {error:?}").contains("hush-hush"),
            "{error:?}"
        );
    }

    async fn a_malformed_url_is_refused_and_not_shown<S: Server>() {
        for url in [
            "",
            "hush-hush",
            "http://user:hush-hush@host/",
            "postgres://user:hush-hush@host:port/x",
            "mysql://u:hush-hush@h:99999/x",
        ] {
            let error = S::connect(url).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Refused, "{url}: {error}");
            assert!(
                !format!("{error} {error:?}").contains("hush-hush"),
                "{error:?}"
            );
        }
    }

    async fn a_missing_database_is_refused<S: Server>() {
        let server = S::empty().await;
        let url = server.url();
        let (host, _) = url.rsplit_once('/').unwrap();
        let error = S::connect(&format!("{host}/nowhere")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    }

    async fn a_missing_schema_is_an_error_that_names_it<S: Server>() {
        a_schema_that_is_missing::<S>().await;
    }

    async fn an_invalid_table_name_is_an_error_of_the_first_step<S: Server>() {
        let server = S::empty().await;
        let error = refused(&server.with_table("records; DROP TABLE users").await).await;
        assert!(
            error.to_string().contains("not a valid table name"),
            "{error}"
        );
    }

    async fn a_damaged_row_is_unreadable_names_the_column_and_stays<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        let idempotency = runtime(store.clone());
        order(&idempotency, "k", 7).await.unwrap();
        server.execute("UPDATE idem_records SET codec = NULL").await;
        let error = order(&idempotency, "k", 8).await.unwrap_err();
        assert!(matches!(error, idem_core::Error::Codec { .. }), "{error}");
        assert!(error.to_string().contains("`codec`"), "{error}");
        server.execute("UPDATE idem_records SET codec = 'j'").await;
        assert_eq!(order(&idempotency, "k", 9).await.unwrap().into_inner(), 7);
        server
            .execute("UPDATE idem_records SET state = 'later'")
            .await;
        assert_eq!(
            store.inspect(&id("k")).await.unwrap_err().kind(),
            StoreErrorKind::Unreadable
        );
    }

    /// MySQL's usual collations fold case and ignore trailing spaces.
    async fn keys_that_differ_in_case_alone_are_two<S: Server>() {
        let server = S::empty().await;
        let idempotency = runtime(server.store().await);
        for (number, key) in [
            "straße",
            "Straße",
            "strasse",
            "a",
            "a ",
            "A",
            "ä",
            "\u{1F600}",
            "\u{1F601}",
        ]
        .into_iter()
        .enumerate()
        {
            let number = u32::try_from(number).unwrap();
            assert_eq!(
                order(&idempotency, key, number).await.unwrap().into_inner(),
                number,
                "{key:?}"
            );
        }
    }

    async fn the_longest_keys_and_names_fit<S: Server>() {
        let server = S::empty().await;
        let idempotency = runtime(server.store().await);
        let names = ["n".repeat(128), "ñ".repeat(64)];
        for name in &names {
            for length in [255, 256, 257, 100_000] {
                for key in ["k".repeat(length), "\u{1F600}".repeat(length - 192)] {
                    let call = || {
                        idempotency
                            .operation(name)
                            .key(&key)
                            .run(async || Ok::<_, idem_core::Error>(length))
                    };
                    assert!(!call().await.unwrap().is_replayed(), "{name} {length}");
                    assert!(call().await.unwrap().is_replayed(), "{name} {length}");
                }
            }
        }
    }

    async fn an_outcome_of_megabytes_is_replayed<S: Server>() {
        let server = S::empty().await;
        let idempotency = runtime(server.store().await);
        let text = "x".repeat(3 << 20);
        let call = || {
            idempotency
                .operation("orders")
                .key("k")
                .run(async || Ok::<_, idem_core::Error>(text.clone()))
        };
        assert_eq!(call().await.unwrap().into_inner(), text);
        let again = call().await.unwrap();
        assert!(again.is_replayed() && again.into_inner() == text);
    }
}
