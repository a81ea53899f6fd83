//! The records of kept errors, written after the transaction that had them is rolled back.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use idem_core::store::{KeptRecord, Written};

use self::sqlx::{Error, Pool};
use super::super::super::sqlx;
use super::steps::Supported;

/// Writes these records, and nothing else, in a transaction of their own. After an error nothing is
/// written, or the error says that this is unknown.
pub(super) async fn record<DB: Supported>(
    pool: &Pool<DB>,
    kept: &[KeptRecord],
    body: String,
) -> Result<(), Error> {
    let written = write(pool, kept).await;
    written.map_err(|why| Error::Io(io::Error::other(NotRecorded { body, why })))
}

async fn write<DB: Supported>(pool: &Pool<DB>, kept: &[KeptRecord]) -> Result<(), Failure> {
    let mut tx = DB::begin(pool, None).await?;
    for record in kept {
        let failure: Failure = match DB::write_kept(&mut tx, record).await {
            Ok(Written::Recorded) => continue,
            Ok(Written::KeyTaken) => KeyTaken.into(),
            Err(error) => error.into(),
        };
        DB::roll_back(tx).await;
        return Err(failure);
    }
    Ok(DB::commit(tx).await?)
}

type Failure = Box<dyn StdError + Send + Sync>;

/// The body failed, and the record of an error that was kept in it is not written.
#[derive(Debug)]
struct NotRecorded {
    body: String,
    why: Failure,
}

impl fmt::Display for NotRecorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the transaction is rolled back ({}), and a second one, which records the error that a \
             guarded call in it kept, failed: {}; call again with the same key",
            self.body, self.why
        )
    }
}

impl StdError for NotRecorded {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.why)
    }
}

/// Another caller has claimed the key between the two transactions. All must run again.
#[derive(Debug)]
pub(super) struct KeyTaken;

impl fmt::Display for KeyTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another call has claimed its key in between")
    }
}

impl StdError for KeyTaken {}
