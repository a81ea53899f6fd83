//! The printed table is the one that `migrate` makes, and the stores take it.

use idem_core::{Error, Idempotency};
use idem_sqlx::sqlx::{self, AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{MariaDbServer, PostgresServer};

use crate::support::{LIMIT, folder, idem};

macro_rules! over {
    ($module:ident, $Store:ident, $Pool:ident, $database:literal, $mark:literal, $shape:expr) => {
        mod $module {
            use super::*;

            /// The database's description of a table and its indexes, without the table's name.
            /// MySQL has index names for each table, and `migrate` gives every table the same ones.
            async fn shape(pool: &$Pool, table: &str) -> Vec<String> {
                let mut rows = Vec::new();
                for question in $shape {
                    let question = AssertSqlSafe(question.replace("TABLE_NAME", table));
                    let found: Vec<String> =
                        sqlx::query_scalar(question).fetch_all(pool).await.unwrap();
                    assert!(!found.is_empty(), "{table}");
                    rows.extend(found);
                }
                if $database == "mysql" {
                    return rows;
                }
                rows.into_iter()
                    .map(|row| row.replace(table, "TABLE_NAME"))
                    .collect()
            }

            fn store(pool: &$Pool, table: &str) -> $Store {
                let builder = $Store::builder(pool.clone()).table(table);
                builder.time_limit(LIMIT).build()
            }

            async fn has_a_working_table(pool: &$Pool, table: &str) {
                let idempotency = Idempotency::new(store(pool, table));
                for is_replayed in [false, true] {
                    let call = idempotency.operation("orders").key("k");
                    let outcome = call.run(async || Ok::<u32, Error>(7)).await.unwrap();
                    assert_eq!(outcome.is_replayed(), is_replayed, "{table}");
                }
            }

            pub(super) async fn all(pool: &$Pool) {
                let print = |args: &[&str]| {
                    let args = [&["schema", $database], args].concat();
                    idem("", &args).with(0).out
                };
                // The database is empty.
                for (table, args) in [
                    ("idem_records", &[][..]),
                    ("printed_records", &["--table", "printed_records"]),
                ] {
                    let printed = print(args);
                    assert_eq!(printed, $Store::schema(table).unwrap());
                    sqlx::raw_sql(AssertSqlSafe(printed))
                        .execute(pool)
                        .await
                        .unwrap();
                    has_a_working_table(pool, table).await;
                }
                let made = store(pool, "made_records");
                made.migrate().await.unwrap();
                let shape_of_made = shape(pool, "made_records").await;
                for table in ["idem_records", "printed_records"] {
                    assert_eq!(shape(pool, table).await, shape_of_made, "{table}");
                }
                assert_eq!(
                    print(&[]).replace($mark, ""),
                    $Store::SCHEMA.replace($mark, "")
                );
            }
        }
    };
}

over!(
    on_postgres,
    PostgresStore,
    PgPool,
    "postgres",
    '"',
    [
        "SELECT column_name || ' ' || data_type || ' ' || is_nullable || ' ' || \
            coalesce(collation_name, '') || ' ' || coalesce(column_default, '') \
            FROM information_schema.columns WHERE table_name = 'TABLE_NAME' ORDER BY \
            ordinal_position",
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'TABLE_NAME' ORDER BY indexname",
        "SELECT array_to_string(reloptions, ',') || obj_description(oid, 'pg_class') FROM pg_class \
            WHERE relname = 'TABLE_NAME'",
    ]
);
over!(
    on_mariadb,
    MySqlStore,
    MySqlPool,
    "mysql",
    '`',
    [
        "SELECT CONCAT_WS(' ', column_name, column_type, is_nullable, collation_name, \
            column_default) FROM information_schema.columns WHERE table_name = 'TABLE_NAME' ORDER \
            BY ordinal_position",
        "SELECT CONCAT_WS(' ', index_name, seq_in_index, column_name, non_unique) FROM \
            information_schema.statistics WHERE table_name = 'TABLE_NAME' ORDER BY index_name, \
            seq_in_index",
        "SELECT CONCAT_WS(' ', engine, row_format, table_comment) FROM information_schema.tables \
            WHERE table_name = 'TABLE_NAME'",
    ]
);
over!(
    on_sqlite,
    SqliteStore,
    SqlitePool,
    "sqlite",
    '"',
    [
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'TABLE_NAME' AND sql IS NOT NULL ORDER BY name"
    ]
);

#[tokio::test]
async fn the_printed_table_of_postgres_is_the_one_that_migrate_makes() {
    let url = PostgresServer::shared().await.unwrap().url();
    // A database without a table, whatever other tests have in theirs.
    sqlx::raw_sql("CREATE DATABASE printed")
        .execute(&PgPool::connect(&url).await.unwrap())
        .await
        .unwrap();
    let printed = format!("{}printed", url.strip_suffix("postgres").unwrap());
    on_postgres::all(&PgPool::connect(&printed).await.unwrap()).await;
}

#[tokio::test]
async fn the_printed_table_of_mariadb_is_the_one_that_migrate_makes() {
    let server = MariaDbServer::start().await.unwrap();
    on_mariadb::all(&MySqlPool::connect(&server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn the_printed_table_of_sqlite_is_the_one_that_migrate_makes() {
    let dir = folder();
    let url = format!("sqlite://{}/shop.db?mode=rwc", dir.path().display());
    on_sqlite::all(&SqlitePool::connect(&url).await.unwrap()).await;
}

#[test]
fn a_database_or_a_name_that_there_is_not_is_a_wrong_argument() {
    for (args, says) in [
        (&["schema"][..], "<DATABASE>"),
        (&["schema", "oracle"], "postgres, mysql, sqlite"),
        (&["schema", "postgres", "--table", "a b"], "schema.name"),
        (&["schema", "mysql", "--prefix", "shop"], "--table"),
    ] {
        let ended = idem("", args).with(2);
        assert!(ended.err.contains(says), "{args:?}: {ended:?}");
        assert_eq!(ended.out, "", "{args:?}");
    }
}
