//! The statements of steps in a caller's transaction.
//!
//! They are texts, not prepared statements: see `Mysql::in_text`. sqlx logs the text of each
//! statement that is slow, and these wait for locks. So the key and the outcome are in variables of
//! the session, which a statement that waits for nothing sets before.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::{Owner, RecordId};

use super::super::super::Guard;
use super::{LEVEL, Statements, push_bytes, push_cells, push_id, push_text, push_values};
use crate::row::{Columns, LeaseColumns};

/// Larger outcomes are sent in four pieces. In hexadecimal, each of them is half as long as the
/// outcome, which may be as long as a message (`max_allowed_packet`).
const PIECE: usize = 16 * 1024;

/// Reads how many bytes of the outcome have arrived: none, if it is larger than
/// `max_allowed_packet`.
pub(in super::super) const ARRIVED: &str = "SELECT CAST(LENGTH(@idem_outcome) AS SIGNED)";

/// Sets the limit that the session had before [`limit`].
pub(in super::super) const UNLIMIT: &str = "SET SESSION innodb_lock_wait_timeout = \
    COALESCE(@idem_lock_wait, @@SESSION.innodb_lock_wait_timeout)";

/// Ends [`Statements::look`].
pub(in super::super) const END_LOOK: &str = "HANDLER idem_beside CLOSE";

/// Undoes what an insert has left behind that failed.
pub(in super::super) fn unlock() -> String {
    format!("DO RELEASE_LOCK(@idem_lock); {UNLIMIT}")
}

/// Limits how long statements wait for locks: `InnoDB` counts whole seconds. `MariaDB` takes zero
/// for not at all, and `MySQL` makes it one.
pub(in super::super) fn limit(wait: Duration) -> String {
    limit_to(&whole_seconds(wait).to_string())
}

fn limit_to(seconds: &str) -> String {
    format!(
        "SET @idem_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION \
         innodb_lock_wait_timeout = {seconds}"
    )
}

fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0))
        .min(1_000_000)
}

/// Begins statements that undo a step if one of them fails, even if its future was dropped and
/// nothing reads the error. Only `MariaDB` can do that; for `MySQL` the text is a comment.
fn begin_undoing(undo: &str) -> String {
    format!(
        "/*M! BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN {undo}; RESIGNAL; END; \
         */"
    )
}

/// Has the statement that follows wait for no lock, of a row or of a table. Only `MariaDB` has it.
/// The limit is that of the statement, so nothing must set it again.
const AT_ONCE: &str = "SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 0 FOR";

/// As [`AT_ONCE`], unless a lock that is not free would end the whole transaction.
const AT_ONCE_IF_HARMLESS: &str = "SET STATEMENT innodb_lock_wait_timeout = \
    @@innodb_rollback_on_timeout * @@innodb_lock_wait_timeout, lock_wait_timeout = 0 FOR";

/// Ends them.
const END: &str = "/*M!; END */";

/// The row that a claim overwrites if it finds it.
const TAKEN: &str = "(expires_at <= UTC_TIMESTAMP(6) OR state IN ('released', 'issued') \
    OR state = 'in_flight' AND lease_until <= UTC_TIMESTAMP(6))";

/// How long the holder of the server's lock waits for a row, in seconds.
const SLICE: u64 = 1;

impl Statements {
    /// Sets the variables that the statements here use: the key, the name of the server's lock for
    /// it, and the outcome.
    pub(in super::super) fn set(&self, id: &RecordId, outcome: Option<&[u8]>) -> Vec<Arc<str>> {
        let mut text = self.name_key(id);
        let Some(outcome) = outcome else {
            return vec![text.into()];
        };
        let length = if outcome.len() > PIECE {
            outcome.len().div_ceil(4)
        } else {
            PIECE
        };
        let mut pieces = outcome.chunks(length);
        text.push_str(", @idem_outcome = ");
        push_bytes(&mut text, Some(pieces.next().unwrap_or_default()));
        let mut texts = vec![text.into()];
        for piece in pieces {
            let mut text = "SET @idem_outcome = CONCAT(@idem_outcome, ".to_owned();
            push_bytes(&mut text, Some(piece));
            text.push(')');
            texts.push(text.into());
        }
        texts
    }

    /// Sets the key, and the name of the server's lock for it.
    ///
    /// Names of locks belong to the whole server, so the database is in them. They have at most 64
    /// characters. They are made of bytes, because a name of a database and a key need not have a
    /// character set in common.
    pub(in super::super) fn name_key(&self, id: &RecordId) -> String {
        let mut text = format!("{}, @idem_key = ", self.check);
        push_text(&mut text, Some(id.key().as_bytes()));
        text.push_str(
            " COLLATE utf8mb4_bin, @idem_lock = CONCAT('idem.', \
            SUBSTR(SHA2(CONCAT_WS(x'2e', CAST(DATABASE() AS BINARY), ",
        );
        push_bytes(&mut text, Some(self.table_name.as_bytes()));
        text.push_str(", ");
        push_bytes(&mut text, Some(id.as_str().as_bytes()));
        text.push_str("), 256), 1, 48))");
        text
    }

    /// Reads a row that is committed now. Fails in a transaction, whose snapshot may be older; the
    /// mode that is set there is the usual one. Without `autocommit`, this would begin one.
    pub(in super::super) fn find(&self, id: &RecordId) -> Arc<str> {
        // It has the key in it, so it waits for no table for longer than a statement that is slow.
        let hint = "SELECT /*+ MAX_EXECUTION_TIME(100) */";
        let mut text = format!(
            "SET TRANSACTION READ WRITE; /*M! SET STATEMENT lock_wait_timeout = 0 FOR */ {}",
            self.then_read.replacen("SELECT", hint, 1)
        );
        push_id(&mut text, id);
        // Where there is no row, the claim that follows looks at its session.
        let usable = &self.usable;
        let _ = write!(
            text,
            " AND @@autocommit = 1 AND {LEVEL} <> 'READ-UNCOMMITTED' AND {usable} > 0"
        );
        text.into()
    }

    /// Writes a row, without a wait for another transaction. If it fails because of a row, it keeps
    /// a shared lock on it. Whoever has one must not wait in
    /// [`insert_within`](Self::insert_within): so the transaction is rolled back.
    pub(in super::super) fn insert_at_once(&self, id: &RecordId, columns: &Columns) -> Arc<str> {
        let mut row = String::with_capacity(1024);
        push_cells(&mut row, id, columns);
        let insert = &self.inserts.insert;
        format!("{}; {AT_ONCE} {insert}({row})", self.check).into()
    }

    /// Writes a row where there is none, and reads the one that stands there then, whatever this
    /// transaction has read before.
    pub(in super::super) fn insert_within(
        &self,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Arc<str> {
        let mut row = String::with_capacity(1024);
        push_text(&mut row, Some(id.operation().as_bytes()));
        row.push_str(", @idem_key");
        push_values(&mut row, columns);
        let insert = &self.inserts.insert_ignoring;
        let insert = format!("{insert}{row} FROM DUAL WHERE @idem_locked = 1;");
        self.lock_and_read(id, wait, &insert)
    }

    /// Reads the row of a key that is never inserted, whatever this transaction has read before.
    pub(in super::super) fn read_within(&self, id: &RecordId, wait: Duration) -> Arc<str> {
        self.lock_and_read(id, wait, "")
    }

    /// Reads a row behind the server's lock of its key, and locks it: exclusively if a claim
    /// overwrites it, else together with those that replay it too.
    ///
    /// Of several inserts that wait for one row, all but one meet a deadlock when its owner rolls
    /// back, and so do two claims that share the lock on a row which both overwrite. So they queue
    /// for a lock of the server. It is taken before any lock of a row, and given back in the same
    /// message: at SERIALIZABLE, even a plain read would lock. No statement can tell that level,
    /// because the session's variable does not show that of a single transaction.
    ///
    /// Its holder may wait for a transaction that waits for the lock of the server, because of
    /// another claim in it. No server sees that circle. So the holder waits for a row in slices,
    /// and lets the next one try, whose wait closes a circle that the server sees. Not where the
    /// end of a slice would roll the whole transaction back.
    fn lock_and_read(&self, id: &RecordId, wait: Duration, insert: &str) -> Arc<str> {
        let table = &self.table_name;
        let then_read = &self.then_read;
        let unlock = unlock();
        let begin = begin_undoing(&unlock);
        let seconds = whole_seconds(wait);
        let slice = seconds.min(SLICE);
        let limit = limit_to(&format!(
            "IF(@@innodb_rollback_on_timeout, {seconds}, {slice})"
        ));
        let at = at(id);
        format!(
            "{begin} {limit}; \
             SELECT @idem_locked := COALESCE(GET_LOCK(@idem_lock, {seconds}), 0); {insert} \
             SELECT COUNT(*) INTO @idem_takes FROM {table} \
             WHERE {at} AND @idem_locked = 1 AND {TAKEN} LOCK IN SHARE MODE; \
             {then_read}{at} AND @idem_takes = 1 FOR UPDATE; \
             {then_read}{at} AND @idem_locked = 1 AND @idem_takes = 0 LOCK IN SHARE MODE; \
             {unlock} {END}"
        )
        .into()
    }

    /// Reads a row as it is now.
    pub(in super::super) fn read_now(&self, id: &RecordId) -> Arc<str> {
        format!("{}{} LOCK IN SHARE MODE", self.then_read, at(id)).into()
    }

    /// Reads a row by its key, in front of other statements of a message, without a lock. At
    /// SERIALIZABLE a SELECT would lock it, or where there is none, a range in which others write
    /// their steps. This one never does.
    pub(in super::super) fn look(&self, id: &RecordId) -> String {
        let table = &self.table_name;
        let mut text =
            format!("HANDLER {table} OPEN AS idem_beside; HANDLER idem_beside READ `PRIMARY` = (");
        push_text(&mut text, Some(id.operation().as_bytes()));
        text.push_str(", ");
        push_text(&mut text, Some(id.key().as_bytes()));
        text.push_str("); ");
        text.push_str(END_LOOK);
        text.push_str("; ");
        text
    }

    /// As `put_owned`, for a row that this transaction has claimed, with all values in the text: it
    /// waits for no lock. If this transaction has ended, another one may have locked the row. Then
    /// it fails. The row that it returns begins with how many rows it has changed. `None`: the
    /// outcome is sent in pieces.
    pub(in super::super) fn put_claimed(
        &self,
        id: &RecordId,
        owner: Owner,
        columns: &Columns,
    ) -> Option<Arc<str>> {
        let payload = columns.outcome.payload.as_deref();
        if payload.is_some_and(|payload| payload.len() > PIECE) {
            return None;
        }
        let mut key = String::new();
        push_text(&mut key, Some(id.key().as_bytes()));
        let mut outcome = String::new();
        push_bytes(&mut outcome, payload);
        let put = self.put_in_text(id, Guard::Claimed(owner), columns, [key, outcome]);
        let usable = &self.usable;
        Some(format!("{AT_ONCE_IF_HARMLESS} {put}; SELECT ROW_COUNT(), {usable} LIMIT 1").into())
    }

    /// As `put_owned` or `put_as_read`.
    pub(in super::super) fn put_within(
        &self,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Arc<str> {
        let outcome = columns
            .outcome
            .payload
            .as_ref()
            .map_or("NULL", |_| "@idem_outcome")
            .to_owned();
        let put = self.put_in_text(id, guard, columns, ["@idem_key".to_owned(), outcome]);
        // The session need not keep it.
        format!("{put}; SET @idem_outcome = NULL").into()
    }

    /// As [`put_within`](Self::put_within), with the key and the outcome in the text.
    pub(super) fn put_in_text(
        &self,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
        [key, outcome]: [String; 2],
    ) -> String {
        let statement = match guard {
            Guard::Owner(_) | Guard::Claimed(_) => &self.writes.put_owned,
            Guard::Revision(_) | Guard::RanOut(_) => &self.writes.put_as_read,
        };
        let Columns {
            expires_in, fade, ..
        } = *columns;
        let LeaseColumns { hold, length, .. } = columns.lease;
        let [earliest, latest, anew] = columns.sweeps();
        let mut values = Values(Vec::with_capacity(24));
        // In the order in which they are bound otherwise.
        values.text(Some(columns.state));
        values.number(Some(columns.attempt));
        values.bytes(columns.lease.owner.as_ref().map(<[u8; 16]>::as_slice));
        values.text(columns.lease.origin);
        for time in [
            expires_in, hold, length, expires_in, fade, expires_in, expires_in, hold, earliest,
            latest, anew,
        ] {
            values.number(time);
        }
        values.text(columns.fingerprint.as_deref());
        values.number(Some(i64::from(columns.outcome.is_error)));
        values.text(columns.outcome.codec.as_deref());
        values.0.push(outcome);
        values.number(Some(columns.questions));
        values.text(columns.took_over.as_deref());
        values.number(Some(columns.revision));
        values.text(Some(id.operation()));
        values.0.push(key);
        match guard {
            Guard::Owner(owner) | Guard::Claimed(owner) => {
                values.bytes(Some(&owner.to_bytes()));
            }
            Guard::Revision(revision) | Guard::RanOut(revision) => {
                values.number(Some(revision));
                values.number(Some(i64::from(matches!(guard, Guard::RanOut(_)))));
            }
        }
        values.put_into(statement)
    }
}

fn at(id: &RecordId) -> String {
    let mut text = "operation = ".to_owned();
    push_text(&mut text, Some(id.operation().as_bytes()));
    text.push_str(" AND `key` = @idem_key");
    text
}

/// The values of a statement, as text.
struct Values(Vec<String>);

impl Values {
    fn number(&mut self, value: Option<i64>) {
        self.0
            .push(value.map_or_else(|| "NULL".to_owned(), |value| value.to_string()));
    }

    fn text(&mut self, value: Option<&str>) {
        let mut text = String::new();
        push_text(&mut text, value.map(str::as_bytes));
        self.0.push(text);
    }

    fn bytes(&mut self, value: Option<&[u8]>) {
        let mut text = String::new();
        push_bytes(&mut text, value);
        self.0.push(text);
    }

    /// In place of the question marks. No table's name has one.
    fn put_into(self, statement: &str) -> String {
        let mut text = String::with_capacity(2048);
        let mut values = self.0.iter();
        for (index, part) in statement.split('?').enumerate() {
            if index > 0 {
                text.push_str(values.next().map_or("NULL", String::as_str));
            }
            text.push_str(part);
        }
        text
    }
}
