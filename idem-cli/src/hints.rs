//! Hints for failures whose cause may be the wrong database, table or prefix.

use idem_core::StoreErrorKind;
use idem_core::store::admin::Listing;
use idem_sqlx::sqlx::{self, AssertSqlSafe};

use crate::args::Args;
use crate::failure::Failure;
use crate::store::{AnyStore, quoted, table_of};

/// How many pages are searched for a first record.
const MOST_PAGES: usize = 10;

/// Adds to a failure that the table does not exist, or that the store has no record at all.
pub(crate) async fn explain(store: &AnyStore, args: &Args, failure: Failure) -> Failure {
    match failure {
        Failure::Store(error) if error.kind() == StoreErrorKind::Refused => {
            match missing_table(store, args).await {
                Some(Missing { what, remedy }) => Failure::Unavailable(format!("{what}; {remedy}")),
                None => error.into(),
            }
        }
        Failure::NoRecord(why) if is_empty(store).await => {
            let place = match store {
                AnyStore::Redis(_) => {
                    format!(
                        "with the prefix `{}`; check `--prefix`",
                        args.prefix.as_deref().unwrap_or("idem")
                    )
                }
                _ => format!("in the table `{}`; check `--table`", table_of(args)),
            };
            Failure::NoRecord(format!(
                "{why}. There is no record at all {place} and the database in the URL"
            ))
        }
        failure => failure,
    }
}

/// A table that does not exist.
pub(crate) struct Missing {
    pub(crate) what: String,
    pub(crate) remedy: String,
}

/// Returns the missing table; `None` if the table exists, or the database cannot be asked.
pub(crate) async fn missing_table(store: &AnyStore, args: &Args) -> Option<Missing> {
    let table = table_of(args);
    let (exists, tables) = match store {
        AnyStore::Redis(_) => return None,
        AnyStore::Postgres(_, pool) => {
            let exists =
                sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(quoted(table, '"'));
            let tables = "SELECT oid::regclass::text FROM pg_class \
                          WHERE obj_description(oid, 'pg_class') LIKE 'idem schema %' ORDER BY 1";
            (
                exists.fetch_one(pool).await,
                sqlx::query_scalar(tables).fetch_all(pool).await,
            )
        }
        AnyStore::MySql(_, pool) => {
            let (schema, name) = table
                .split_once('.')
                .map_or((None, table), |(schema, name)| (Some(schema), name));
            let exists = "SELECT count(*) > 0 FROM information_schema.tables \
                          WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
            let exists = sqlx::query_scalar(exists).bind(schema).bind(name);
            let tables = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE \
                table_schema = DATABASE() AND table_comment LIKE 'idem schema %' ORDER BY 1";
            (
                exists.fetch_one(pool).await,
                sqlx::query_scalar(tables).fetch_all(pool).await,
            )
        }
        AnyStore::Sqlite(_, pool) => {
            let (schema, name) = table.split_once('.').unwrap_or(("main", table));
            let exists = format!(
                "SELECT count(*) > 0 FROM \"{schema}\".sqlite_master WHERE type = 'table' AND name \
                 = ?"
            );
            let exists = sqlx::query_scalar(AssertSqlSafe(exists)).bind(name);
            let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%-- \
                idem schema %' ORDER BY 1";
            (
                exists.fetch_one(pool).await,
                sqlx::query_scalar(tables).fetch_all(pool).await,
            )
        }
    };
    let (Ok(false), Ok(tables)) = (exists, tables) else {
        return None;
    };
    let tables: Vec<String> = tables
        .into_iter()
        .map(|table: String| format!("`{table}`"))
        .collect();
    let here = match tables.as_slice() {
        [] => "has no table of idem: check it".to_owned(),
        tables => format!("has {}: check `--table`", tables.join(", ")),
    };
    Some(Missing {
        what: format!("there is no table `{table}`"),
        remedy: format!(
            "the database in the URL {here}. A service creates its table at start-up, by \
             `migrate()`"
        ),
    })
}

/// Whether the first pages of the store have no record.
async fn is_empty(store: &AnyStore) -> bool {
    let mut listing = Listing::all().limit(1);
    for _ in 0..MOST_PAGES {
        let Ok(page) = store.list(&listing).await else {
            return false;
        };
        if !(page.records.is_empty() && page.unreadable.is_empty()) {
            return false;
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return true,
        }
    }
    false
}
