//! A record as the columns of a row, and a row as a record. The only place that knows both.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use idem_core::store::record::{Encoded, InFlight, Metadata, Origin, Owner, Record};
use idem_core::store::wire::{self, Parsed};
use idem_core::{CodecId, Fingerprint, StoreError, StoreErrorKind};

/// Longer times are cut to this: a hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// What is written into a row. Lengths of time are in milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) state: &'static str,
    pub(crate) attempt: i64,
    pub(crate) owner: Option<[u8; 16]>,
    pub(crate) origin: Option<&'static str>,
    /// In flight: `expires_at - leased_at`.
    pub(crate) hold: Option<i64>,
    /// In flight: `lease_until - leased_at`.
    pub(crate) lease: Option<i64>,
    /// From now to `expires_at`; `None`: it stays as it is.
    pub(crate) expires_in: Option<i64>,
    /// `expires_at - valid_until`; `None`: the record stays what it is until it expires.
    pub(crate) fade: Option<i64>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) is_error: bool,
    pub(crate) codec: Option<String>,
    pub(crate) outcome: Option<Bytes>,
    pub(crate) questions: i64,
    /// In flight: the trace of the call, and the record that was taken over, as other stores write
    /// it. Committed: what else is known of the outcome.
    pub(crate) took_over: Option<String>,
    /// Another one with each write, so that a row that was read can be compared.
    pub(crate) revision: i64,
}

impl Columns {
    /// Writes a record that expires in `expires_in`, and for a committed one is done for the last
    /// `then_done` of that.
    pub(crate) fn new(record: &Record, expires_in: Option<Duration>, then_done: Duration) -> Self {
        let fade = |length: Duration| Some(millis(length)).filter(|length| *length > 0);
        let mut columns = Self {
            state: "",
            attempt: count(record.attempt()),
            owner: None,
            origin: None,
            hold: None,
            lease: None,
            // An expiry of zero would be none at all.
            expires_in: expires_in.map(|length| millis(length.saturating_add(then_done)).max(1)),
            fade: None,
            fingerprint: record.fingerprint().map(|fingerprint| fingerprint.to_string()),
            is_error: false,
            codec: None,
            outcome: None,
            questions: 0,
            took_over: None,
            revision: fastrand::i64(..),
        };
        match record {
            Record::Issued { grace } => {
                columns.state = "issued";
                columns.fade = fade(*grace);
            }
            Record::InFlight(held) => {
                columns.state = "in_flight";
                columns.owner = Some(held.owner.to_bytes());
                columns.origin = Some(origin(held.origin));
                columns.hold = Some(millis(held.hold).max(1));
                columns.lease = Some(millis(held.lease));
                columns.questions = count(held.questions);
                columns.took_over = more_of(held);
            }
            Record::Released { questions, .. } => {
                columns.state = "released";
                columns.questions = count(*questions);
            }
            Record::Committed { outcome, .. } => {
                columns.state = "committed";
                columns.fade = fade(then_done);
                columns.is_error = outcome.is_error;
                columns.codec = Some(outcome.codec.as_str().to_owned());
                columns.outcome = Some(outcome.payload.clone());
                let metadata = outcome.metadata.as_deref().filter(|metadata| !metadata.is_empty());
                columns.took_over = metadata.map(Metadata::to_text);
            }
            Record::Done { .. } => columns.state = "done",
        }
        columns
    }
}

/// A row as it was read. Lengths of time are in milliseconds, by the database's clock.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) state: String,
    pub(crate) attempt: i64,
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) origin: Option<String>,
    pub(crate) lease: Option<i64>,
    pub(crate) hold: Option<i64>,
    /// Until the row expires.
    pub(crate) left: i64,
    /// `expires_at - valid_until`.
    pub(crate) fade: Option<i64>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) is_error: bool,
    pub(crate) codec: Option<String>,
    pub(crate) outcome: Option<Vec<u8>>,
    pub(crate) questions: i64,
    pub(crate) took_over: Option<String>,
    pub(crate) revision: i64,
}

/// The row at a key.
pub(crate) struct FoundRow {
    /// The record, `None` where the row has expired.
    pub(crate) record: Option<Record>,
    /// How long it is that record.
    pub(crate) left: Duration,
    /// For a committed one: how long after that it stays as done.
    pub(crate) then_done: Duration,
    pub(crate) revision: i64,
}

impl Row {
    /// Reads the row as a record.
    ///
    /// # Errors
    ///
    /// `Unreadable`, naming the column.
    pub(crate) fn found(self) -> Result<FoundRow, StoreError> {
        let revision = self.revision;
        let Some(left) = length(self.left).filter(|left| !left.is_zero()) else {
            return Ok(FoundRow { record: None, left: Duration::ZERO, then_done: Duration::ZERO, revision });
        };
        let whole = left;
        let (record, left) = self.record(left).map_err(damaged)?;
        Ok(FoundRow { record: Some(record), left, then_done: whole.saturating_sub(left), revision })
    }

    fn record(self, left: Duration) -> Result<(Record, Duration), &'static str> {
        let attempt = u64::try_from(self.attempt).map_err(|_| "attempt")?;
        let questions = u64::try_from(self.questions).map_err(|_| "questions")?;
        let fade = self.fade.map_or(Some(Duration::ZERO), length).ok_or("valid_until")?;
        let fingerprint = match &self.fingerprint {
            None => None,
            Some(text) => Some(Fingerprint::parse(text.as_bytes()).ok_or("fingerprint")?),
        };
        let record = match self.state.as_str() {
            "issued" => Record::Issued { grace: fade },
            "in_flight" => {
                let (trace, took_over) = parse_more(self.took_over.as_deref()).ok_or("took_over")?;
                Record::InFlight(
                    InFlight::new(
                        owner(self.owner.as_deref()).ok_or("owner")?,
                        attempt,
                        self.origin.as_deref().and_then(parse_origin).ok_or("origin")?,
                        self.lease.and_then(length).ok_or("lease_until")?,
                        self.hold.and_then(length).ok_or("leased_at")?,
                    )
                    .with_fingerprint(fingerprint)
                    .with_questions(questions)
                    .with_took_over(took_over)
                    .with_trace(trace),
                )
            }
            "released" => Record::Released { attempt, questions },
            "committed" => {
                // Read past its time, before anybody has swept it.
                let Some(valid) = left.checked_sub(fade).filter(|valid| !valid.is_zero()) else {
                    return Ok((Record::Done { attempt, fingerprint }, left));
                };
                let codec = self.codec.and_then(|codec| CodecId::parse(codec.as_bytes())).ok_or("codec")?;
                let payload = self.outcome.ok_or("outcome")?.into();
                let metadata = match self.took_over {
                    None => None,
                    Some(text) => Some(Arc::new(Metadata::parse(&text).ok_or("took_over")?)),
                };
                let outcome = Encoded::new(codec, payload).with_is_error(self.is_error).with_metadata(metadata);
                return Ok((Record::Committed { attempt, fingerprint, outcome }, valid));
            }
            "done" => Record::Done { attempt, fingerprint },
            _ => return Err("state"),
        };
        Ok((record, left))
    }
}

/// A length of time as it is written.
pub(crate) fn millis(length: Duration) -> i64 {
    i64::try_from(length.min(LONGEST).as_millis()).unwrap_or(i64::MAX)
}

/// A length of time as it was read; `None` if it is negative.
pub(crate) fn length(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What a record in flight has besides its columns: `t` and its trace, a space, the record that it
/// took over.
fn more_of(held: &InFlight) -> Option<String> {
    let trace = held.trace.as_ref().map(|trace| format!("t{trace}"));
    // Letters, digits and spaces.
    let over = |held: &InFlight| String::from_utf8(wire::encode(&Record::InFlight(held.clone()))).ok();
    match (trace, held.took_over.as_deref().and_then(over)) {
        (Some(trace), Some(over)) => Some(format!("{trace} {over}")),
        (trace, over) => trace.or(over),
    }
}

/// Reads what [`more_of`] wrote; `None` if it is anything else.
#[allow(clippy::type_complexity)]
fn parse_more(text: Option<&str>) -> Option<(Option<Arc<str>>, Option<Box<InFlight>>)> {
    let Some(text) = text else { return Some((None, None)) };
    let (trace, over) = if text.starts_with('t') {
        let (trace, over) = text.split_once(' ').map_or((text, None), |(trace, over)| (trace, Some(over)));
        (Some(Metadata::parse(trace)?.trace?), over)
    } else {
        (None, Some(text))
    };
    let over = match over {
        None => None,
        Some(text) => match wire::decode(&text.to_owned().into()) {
            Ok(Parsed::Record(Record::InFlight(held))) => Some(Box::new(held)),
            _ => return None,
        },
    };
    Some((trace, over))
}

fn owner(bytes: Option<&[u8]>) -> Option<Owner> {
    Some(Owner::from_bytes(bytes?.try_into().ok()?))
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Nothing => "nothing",
        Origin::Issued => "issued",
        Origin::Released => "released",
        Origin::Abandoned => "abandoned",
    }
}

fn parse_origin(text: &str) -> Option<Origin> {
    match text {
        "nothing" => Some(Origin::Nothing),
        "issued" => Some(Origin::Issued),
        "released" => Some(Origin::Released),
        "abandoned" => Some(Origin::Abandoned),
        _ => None,
    }
}

fn damaged(column: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreadable,
        format!(
            "the row is no record that this version of idem can read (column `{column}`): it was changed by hand, or written by a newer version; upgrade every process that shares the table, or repair the row"
        ),
    )
}
