//! Opens the first connection to PostgreSQL, and detects a proxy in between.
//!
//! A proxy such as `PgBouncer` may give each transaction another connection of the server. Settings
//! of a session are lost then, and so are prepared statements, unless the proxy keeps track of
//! them.

use std::time::Duration;

use idem_core::StoreError;
use tokio::time::timeout;

use self::sqlx::postgres::{PgConnectOptions, PgConnection};
use self::sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};
use super::super::super::{sql, sqlx};
use super::super::dialect::postgres::statements::{CONVERTS_TEXT, TAKES_ANY_TEXT};
use super::super::dialect::postgres::{Postgresql, errors as codes};
use super::super::executor::errors;
use super::super::executor::{CONNECT_WAIT, TIME_LIMIT};

/// The limit of each statement, and of each wait for a lock, after the caller is gone.
fn limit() -> String {
    format!("{}ms", TIME_LIMIT.as_millis())
}

/// Opens a connection and closes it. Returns the options for all others, and whether statements
/// have a limit there.
pub(super) async fn connect(
    options: &PgConnectOptions,
    place: &str,
) -> Result<(PgConnectOptions, bool), StoreError> {
    match timeout(CONNECT_WAIT, look(options)).await {
        Ok(found) => found.map_err(|error| errors::unconnected::<Postgresql>(place, error)),
        Err(_) => Err(errors::unconnected_in_time::<Postgresql>(
            place,
            CONNECT_WAIT,
            false,
        )),
    }
}

async fn look(options: &PgConnectOptions) -> Result<(PgConnectOptions, bool), sqlx::Error> {
    let limited = options
        .clone()
        .options([("statement_timeout", limit()), ("lock_timeout", limit())]);
    // Directly, because the pool would try again and hide why.
    let (options, mut first) = match limited.connect().await {
        Ok(first) => (limited, first),
        Err(error) if codes::is_protocol_violation(&error) => {
            // A proxy refuses parameters that it does not know with this error.
            let plain = options.clone().extra_float_digits(None);
            let first = plain.connect().await?;
            (plain, first)
        }
        Err(error) => return Err(error),
    };
    let text =
        format!("SELECT setting, {TAKES_ANY_TEXT} FROM pg_settings WHERE name = 'lock_timeout'");
    let found = first.fetch_one(sqlx::raw_sql(sql(&text.into()))).await?;
    if !found.try_get::<bool, _>(1)? {
        return Err(sqlx::Error::Configuration(CONVERTS_TEXT.into()));
    }
    let is_limited = found.try_get::<String, _>(0)? == TIME_LIMIT.as_millis().to_string();
    if !is_limited {
        prepare_twice(&mut first, options.connect().await?).await?;
    }
    let _ = timeout(Duration::from_millis(100), first.close()).await;
    Ok((options, is_limited))
}

/// Two connections prepare two statements, to which sqlx gives one name. If they are one connection
/// of the server, the second is refused.
async fn prepare_twice(
    first: &mut PgConnection,
    mut second: PgConnection,
) -> Result<(), sqlx::Error> {
    first.execute(sqlx::query("SELECT 1")).await?;
    second.execute(sqlx::query("SELECT 2")).await?;
    let _ = timeout(Duration::from_millis(100), second.close()).await;
    Ok(())
}
