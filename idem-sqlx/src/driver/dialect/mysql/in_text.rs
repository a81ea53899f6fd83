//! Parts of steps that are texts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use idem_core::store::record::{Owner, RecordId};

use self::sqlx::mysql::{MySqlConnection, MySqlRow};
use self::sqlx::{Executor as _, Row as _};
use super::super::super::super::{sql, sqlx};
use super::super::{Dialect as _, Guard, InsertResult};
use super::statements::{self, within};
use super::{Mysql, READS_UNCOMMITTED, errors};
use crate::row::{Columns, Row};

impl Mysql {
    /// Sets the variables of the session that the statements of [`within`] refer to. Returns whether
    /// a [look](statements::Statements::look) in front of them has found a row.
    pub(super) async fn set(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        outcome: Option<&[u8]>,
        look: &str,
    ) -> Result<bool, sqlx::Error> {
        let mut texts = self.statements.set(id, outcome);
        if let Some(first) = texts.first_mut()
            && !look.is_empty()
        {
            *first = format!("{look}{first}").into();
        }
        let mut has_found = false;
        for text in &texts {
            has_found |= !on.fetch_all(sqlx::raw_sql(sql(text))).await?.is_empty();
        }
        let Some(outcome) = outcome.filter(|_| texts.len() > 1) else {
            return Ok(has_found);
        };
        let arrived: Option<i64> = on
            .fetch_one(sqlx::raw_sql(within::ARRIVED))
            .await?
            .try_get(0)?;
        if arrived.is_some_and(|length| {
            usize::try_from(length).is_ok_and(|length| length == outcome.len())
        }) {
            return Ok(has_found);
        }
        Err(sqlx::Error::Encode(
            "the outcome is larger than `max_allowed_packet` of the server".into(),
        ))
    }

    /// Returns a row that was read outside of any transaction. If that read may have seen more than
    /// what is committed, reads it again.
    pub(super) async fn committed(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        row: MySqlRow,
    ) -> Result<Option<Row>, sqlx::Error> {
        if !row.try_get::<bool, _>(READS_UNCOMMITTED)? {
            return super::super::read_row!(row).map(Some);
        }
        let text = self.statements.read_committed(id);
        on.fetch_optional(sqlx::raw_sql(sql(&text)))
            .await?
            .map(|row| super::super::read_row!(row))
            .transpose()
    }

    /// Writes a row where there is none. `false`: there is one, or another transaction has locked
    /// its place. `None`: the server has no limit for one statement, and is not asked again.
    pub(super) async fn insert_unless_locked(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<bool>, sqlx::Error> {
        let text = self.statements.insert_at_once(id, columns);
        match on.execute(sqlx::raw_sql(sql(&text))).await {
            Ok(_) => Ok(Some(true)),
            Err(sqlx::Error::Database(error)) if errors::is_unknown_statement(&*error) => {
                self.lacks_set_statement.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(sqlx::Error::Database(error))
                if error.is_unique_violation()
                    || Self::is_lock_timeout(&*error)
                    || Self::is_statement_timeout(&*error) =>
            {
                Ok(Some(false))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message that waits behind the server's lock of a key, and returns the row that it
    /// has read. One message: nothing can come between taking that lock and giving it back, but an
    /// error.
    pub(super) async fn lock_and_read(
        &self,
        on: &mut MySqlConnection,
        text: &Arc<str>,
    ) -> Result<InsertResult, sqlx::Error> {
        let rows = match on.fetch_all(sqlx::raw_sql(sql(text))).await {
            Ok(rows) => rows,
            Err(error) => return Err(Self::unlock(on, error).await),
        };
        let mut found = InsertResult::NotVisible;
        for row in rows {
            if row.len() > 1 {
                found = InsertResult::Row(Box::new(super::super::read_row!(row)?));
            } else if row.try_get::<i64, _>(0)? == 0 {
                return Ok(InsertResult::Locked);
            }
        }
        Ok(found)
    }

    /// Overwrites a row with what [`set`](Self::set) has set.
    pub(super) async fn put_set(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        let text = self.statements.put_within(id, guard, columns);
        Ok(on.execute(sqlx::raw_sql(sql(&text))).await?.rows_affected() > 0)
    }

    /// Looks for a row `beside`, and overwrites another one that this transaction has claimed: in one
    /// message, unless another transaction has locked the row, because this one has ended, or the
    /// table; the outcome is too long for that; or the server has no limit for one statement.
    /// Returns what [`put_and_look`](super::Dialect::put_and_look) does.
    pub(super) async fn put_claimed(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        owner: Owner,
        columns: &Columns,
        beside: Option<&RecordId>,
    ) -> Result<Option<bool>, sqlx::Error> {
        let beside = beside.filter(|_| !self.lacks_handler.load(Ordering::Relaxed));
        let look = beside.map_or_else(String::new, |beside| self.statements.look(beside));
        let put = self.statements.put_claimed(id, owner, columns);
        if !self.lacks_set_statement.load(Ordering::Relaxed)
            && let Some(put) = put
        {
            let text = Arc::from(format!("{look}{put}"));
            match on.fetch_all(sqlx::raw_sql(sql(&text))).await {
                Ok(rows) => {
                    let changed: Option<i64> = rows.last().map(|row| row.try_get(0)).transpose()?;
                    return Ok((changed > Some(0)).then_some(rows.len() > 1));
                }
                Err(sqlx::Error::Database(error)) if errors::is_unknown_statement(&*error) => {
                    self.lacks_set_statement.store(true, Ordering::Relaxed);
                }
                Err(sqlx::Error::Database(error)) if Self::is_lock_timeout(&*error) => {}
                Err(error) => return Err(Self::end_look(on, error).await),
            }
        }
        let payload = columns.outcome.payload.as_deref();
        let has_beside = match self.set(on, id, payload, &look).await {
            Err(sqlx::Error::Database(error))
                if !look.is_empty() && errors::is_unknown_look(&*error) =>
            {
                self.lacks_handler.store(true, Ordering::Relaxed);
                self.set(on, id, payload, "").await?
            }
            Err(error) => return Err(Self::end_look(on, error).await),
            Ok(has_beside) => has_beside,
        };
        let is_written = self.put_set(on, id, Guard::Claimed(owner), columns).await?;
        Ok(is_written.then_some(has_beside))
    }

    /// Ends a look whose message has failed, if it has begun: another one could not begin.
    async fn end_look(on: &mut MySqlConnection, error: sqlx::Error) -> sqlx::Error {
        let _ = on.execute(sqlx::raw_sql(within::END_LOOK)).await;
        error
    }

    /// Undoes what an insert has left behind that failed.
    pub(super) async fn unlock(on: &mut MySqlConnection, error: sqlx::Error) -> sqlx::Error {
        let text = Arc::from(within::unlock());
        let _ = on.execute(sqlx::raw_sql(sql(&text))).await;
        error
    }

    /// Ends what a failed message has begun. If this fails too, the connection is lost.
    pub(super) async fn undo(&self, on: &mut MySqlConnection, error: sqlx::Error) -> sqlx::Error {
        let text = statements::undo(self.lock_limit);
        let _ = on.execute(sqlx::raw_sql(sql(&text))).await;
        error
    }
}
