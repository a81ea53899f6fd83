//! The place of one record: its file, as it was found, and what is written there.
//!
//! A file is a line with two times, then the record as `idem_core::store::wire` writes it:
//!
//! ```text
//! directory 1 <expiry> <done for>
//! ```
//!
//! Both are in milliseconds, the expiry since the Unix epoch. A committed record is done for the
//! second time after its expiry.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use idem_core::record::{OnStep, Ownership, Record, RecordInfo};
use idem_core::store::wire::{self, Parsed};
use idem_core::{StoreError, StoreErrorKind};

const FORMAT: &str = "directory 1 ";

/// The place of a record, for as long as the lock of the directory is held.
pub(crate) struct Place {
    file: PathBuf,
    /// The time of the step.
    now: u64,
    pub(crate) found: Option<Kept>,
}

/// A record that was found.
pub(crate) struct Kept {
    pub(crate) record: Record,
    /// How long until it expires.
    pub(crate) left: Duration,
    expiry: u64,
    done_for: u64,
}

impl Place {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// `Unreadable` if it has no record.
    pub(crate) fn read(file: PathBuf) -> Result<Self, StoreError> {
        let mut place = Self {
            file,
            now: now(),
            found: None,
        };
        let text = match fs::read(&place.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(place),
            Err(error) => return Err(failed(error)),
        };
        let kept = parse(&text.into()).ok_or_else(|| place.unreadable())?;
        place.found = kept.at(place.now);
        if place.found.is_none() {
            place.remove()?;
        }
        Ok(place)
    }

    /// Carries out a step of an owner.
    pub(crate) fn owner_step(
        &self,
        effect: impl FnOnce(&Record) -> OnStep,
    ) -> Result<Ownership, StoreError> {
        let Some(kept) = &self.found else {
            return Ok(Ownership::Lost);
        };
        match effect(&kept.record) {
            OnStep::Answer(answer) => return Ok(answer),
            OnStep::Put {
                record,
                expires_in,
                then_done,
            } => self.put(&record, expires_in.unwrap_or(kept.left), then_done)?,
            OnStep::Remove => self.remove()?,
        }
        Ok(Ownership::Held)
    }

    /// Writes a record that expires in a time from now.
    pub(crate) fn put(
        &self,
        record: &Record,
        expires_in: Duration,
        then_done: Duration,
    ) -> Result<(), StoreError> {
        let expiry = self.now.saturating_add(millis(expires_in));
        self.write(record, expiry, millis(then_done))
    }

    /// Writes a record in place of another, whose times it keeps.
    pub(crate) fn replace(&self, kept: &Kept, record: &Record) -> Result<(), StoreError> {
        self.write(record, kept.expiry, kept.done_for)
    }

    fn write(&self, record: &Record, expiry: u64, done_for: u64) -> Result<(), StoreError> {
        let mut text = format!("{FORMAT}{expiry} {done_for}\n").into_bytes();
        text.extend(wire::encode(record));
        let new = self.file.with_extension("new");
        let write = || {
            if let Some(directory) = self.file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(&new, text)?;
            fs::rename(&new, &self.file)
        };
        write().map_err(failed)
    }

    pub(crate) fn remove(&self) -> Result<(), StoreError> {
        fs::remove_file(&self.file).map_err(failed)
    }

    fn unreadable(&self) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unreadable,
            format!(
                "{} is no record that this version reads; move it away",
                self.file.display()
            ),
        )
    }
}

impl Kept {
    /// What is left of it at a time.
    fn at(self, now: u64) -> Option<Self> {
        let left = self.expiry.saturating_sub(now);
        if left > 0 {
            let left = Duration::from_millis(left);
            return Some(Self { left, ..self });
        }
        let done = Self {
            record: self.record.expired()?,
            left: Duration::ZERO,
            expiry: self.expiry.saturating_add(self.done_for),
            done_for: 0,
        };
        if done.expiry > now {
            done.at(now)
        } else {
            None
        }
    }

    pub(crate) fn info(&self) -> RecordInfo {
        RecordInfo::new(&self.record, self.left)
    }

    pub(crate) fn lease_left(&self) -> Option<Duration> {
        self.record.lease_left(self.left)
    }

    pub(crate) fn lease_age(&self) -> Duration {
        self.record.lease_age(self.left)
    }
}

fn parse(text: &Bytes) -> Option<Kept> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let times = std::str::from_utf8(&text[..end]).ok()?;
    let (expiry, done_for) = times.strip_prefix(FORMAT)?.split_once(' ')?;
    let Parsed::Record(record) = wire::decode(&text.slice(end + 1..)).ok()? else {
        return None;
    };
    Some(Kept {
        record,
        left: Duration::ZERO,
        expiry: expiry.parse().ok()?,
        done_for: done_for.parse().ok()?,
    })
}

/// The time of the host, by which all processes that use the directory count.
#[allow(
    clippy::disallowed_methods,
    reason = "the host is the server of this store, and its clock the store's own"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The error of a file that could not be read or written.
pub(crate) fn failed(error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::Full,
        io::ErrorKind::PermissionDenied => StoreErrorKind::Refused,
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, format!("the directory of records: {error}")).with_source(error)
}
