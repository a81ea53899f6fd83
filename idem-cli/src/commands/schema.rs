//! The table for a migration file.

use std::io::{self, Write as _};

use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};

use crate::args::{Args, Database};
use crate::failure::Failure;
use crate::store;

/// Prints the statements that `migrate` runs.
pub(crate) fn run(database: Database, args: &Args) -> Result<(), Failure> {
    if args.prefix.is_some() {
        return Err(Failure::Arguments(
            "`--prefix` is for Redis, which has no table; SQL stores have `--table`".to_owned(),
        ));
    }
    let table = store::table_of(args);
    let statements = match database {
        Database::Postgres => PostgresStore::schema(table),
        Database::Mysql => MySqlStore::schema(table),
        Database::Sqlite => SqliteStore::schema(table),
    }?;
    let mut out = io::stdout().lock();
    out.write_all(statements.as_bytes())?;
    Ok(out.flush()?)
}
