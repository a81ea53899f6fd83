//! Writes a record as the columns of a row, and reads a row as a record.

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
    pub(crate) lease: LeaseColumns,
    /// From now to `expires_at`. `None`: it stays as it is.
    pub(crate) expires_in: Option<i64>,
    /// `expires_at - valid_until`. `None`: the state does not change until the record expires.
    pub(crate) fade: Option<i64>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) outcome: OutcomeColumns,
    pub(crate) questions: i64,
    /// In flight: the call's trace, its run, and the record that was taken over, encoded as in other
    /// stores. Released: its run. Committed: the outcome's metadata.
    pub(crate) took_over: Option<String>,
    /// Changes with each write, so that a step can compare the row with what it has read.
    pub(crate) revision: i64,
}

/// The columns of a record in flight.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseColumns {
    pub(crate) owner: Option<[u8; 16]>,
    pub(crate) origin: Option<&'static str>,
    /// `expires_at - leased_at`.
    pub(crate) hold: Option<i64>,
    /// `lease_until - leased_at`.
    pub(crate) length: Option<i64>,
}

/// The columns of a committed record.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutcomeColumns {
    pub(crate) is_error: bool,
    pub(crate) codec: Option<String>,
    pub(crate) payload: Option<Bytes>,
}

impl Columns {
    /// Writes a record that expires in `expires_in`. A committed one then stays as done for
    /// `then_done`.
    pub(crate) fn new(record: &Record, expires_in: Option<Duration>, then_done: Duration) -> Self {
        let fade = |length: Duration| Some(millis(length)).filter(|length| *length > 0);
        let mut columns = Self {
            state: "",
            attempt: count(record.attempt()),
            lease: LeaseColumns::default(),
            // Zero would be written as no expiry.
            expires_in: expires_in.map(|length| millis(length.saturating_add(then_done)).max(1)),
            fade: None,
            fingerprint: record
                .fingerprint()
                .map(|fingerprint| fingerprint.to_string()),
            outcome: OutcomeColumns::default(),
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
                columns.lease = LeaseColumns {
                    owner: Some(held.owner.to_bytes()),
                    origin: Some(origin(held.origin)),
                    hold: Some(millis(held.hold).max(1)),
                    length: Some(millis(held.lease)),
                };
                columns.questions = count(held.questions);
                columns.took_over = in_flight_details(held);
            }
            Record::Released { questions, run, .. } => {
                columns.state = "released";
                columns.questions = count(*questions);
                columns.took_over = run.map(|run| format!("r{run}"));
            }
            Record::Committed { outcome, .. } => {
                columns.state = "committed";
                columns.fade = fade(then_done);
                columns.outcome = OutcomeColumns {
                    is_error: outcome.is_error,
                    codec: Some(outcome.codec.as_str().to_owned()),
                    payload: Some(outcome.payload.clone()),
                };
                columns.took_over = metadata_text(outcome.metadata.as_deref());
            }
            Record::Done { .. } => columns.state = "done",
        }
        columns
    }
}

/// How much later than necessary a sweep looks at a row, in milliseconds for each whole minute: a
/// sixteenth, so that the writes that follow need not change that time.
pub(crate) const SLACK: i64 = 3_750;

#[cfg(feature = "mysql")]
impl Columns {
    /// Returns the time from now until a sweep has something to do with the row: its outcome ends,
    /// or it expires. `None`: its times stay as they are.
    pub(crate) fn chore(&self) -> Option<i64> {
        let fade = self.fade.filter(|_| self.state == "committed");
        self.expires_in
            .map(|length| length - fade.unwrap_or_default())
    }

    /// Returns when a sweep looks at the row, from now: not before its [`chore`](Self::chore), at
    /// the latest, and if it is set again. A row that is kept for less than a minute has no slack.
    pub(crate) fn sweeps(&self) -> [Option<i64>; 3] {
        let chore = self.chore();
        let slack = |parts: i64| chore.map(|chore| chore + chore / 60_000 * SLACK * parts);
        [chore, slack(2), slack(1)]
    }
}

/// A row as it was read. Lengths of time are in milliseconds, by the database's clock.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) state: String,
    pub(crate) attempt: i64,
    pub(crate) lease: RowLease,
    /// Until the row expires.
    pub(crate) left: i64,
    /// `expires_at - valid_until`.
    pub(crate) fade: Option<i64>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) outcome: RowOutcome,
    pub(crate) questions: i64,
    pub(crate) took_over: Option<String>,
    pub(crate) revision: i64,
}

/// The columns of a record in flight, as they were read.
#[derive(Debug)]
pub(crate) struct RowLease {
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) origin: Option<String>,
    /// `lease_until - leased_at`.
    pub(crate) length: Option<i64>,
    /// `expires_at - leased_at`.
    pub(crate) hold: Option<i64>,
}

/// The columns of a committed record, as they were read.
#[derive(Debug)]
pub(crate) struct RowOutcome {
    pub(crate) is_error: bool,
    pub(crate) codec: Option<String>,
    pub(crate) payload: Option<Vec<u8>>,
}

/// The row at a key.
pub(crate) struct FoundRow {
    /// `None`: the row has expired.
    pub(crate) record: Option<Record>,
    /// How long the record stays in its state.
    pub(crate) left: Duration,
    /// How long a committed record stays as done after that.
    pub(crate) then_done: Duration,
    pub(crate) revision: i64,
}

impl Row {
    /// Reads the row as a record.
    ///
    /// # Errors
    ///
    /// `Unreadable`, naming the column.
    pub(crate) fn read(self) -> Result<FoundRow, StoreError> {
        let revision = self.revision;
        let Some(left) = length(self.left).filter(|left| !left.is_zero()) else {
            return Ok(FoundRow {
                record: None,
                left: Duration::ZERO,
                then_done: Duration::ZERO,
                revision,
            });
        };
        let read = self.record(left).map_err(damaged)?;
        Ok(FoundRow {
            record: Some(read.record),
            left: read.left,
            then_done: left.saturating_sub(read.left),
            revision,
        })
    }

    fn record(self, left: Duration) -> Result<ReadRecord, BadColumn> {
        let attempt = u64::try_from(self.attempt).map_err(|_| "attempt")?;
        let questions = u64::try_from(self.questions).map_err(|_| "questions")?;
        let fade = self
            .fade
            .map_or(Some(Duration::ZERO), length)
            .ok_or("valid_until")?;
        let fingerprint = match &self.fingerprint {
            None => None,
            Some(text) => Some(Fingerprint::parse(text.as_bytes()).ok_or("fingerprint")?),
        };
        let mut valid = left;
        let record = match self.state.as_str() {
            "issued" => Record::Issued { grace: fade },
            "in_flight" => {
                let details =
                    parse_in_flight_details(self.took_over.as_deref()).ok_or("took_over")?;
                let in_flight = self
                    .lease
                    .in_flight(attempt)?
                    .with_fingerprint(fingerprint)
                    .with_questions(questions)
                    .with_took_over(details.took_over)
                    .with_metadata(details.metadata)
                    .with_run(details.run);
                Record::InFlight(in_flight)
            }
            "released" => {
                let details =
                    parse_in_flight_details(self.took_over.as_deref()).ok_or("took_over")?;
                Record::Released {
                    attempt,
                    questions,
                    run: details.run,
                }
            }
            "committed" => match left.checked_sub(fade).filter(|left| !left.is_zero()) {
                Some(left) => {
                    valid = left;
                    Record::Committed {
                        attempt,
                        fingerprint,
                        outcome: self.outcome.encoded(self.took_over.as_deref())?,
                    }
                }
                // The outcome has expired, and is not swept yet.
                None => Record::Done {
                    attempt,
                    fingerprint,
                },
            },
            "done" => Record::Done {
                attempt,
                fingerprint,
            },
            _ => return Err("state"),
        };
        Ok(ReadRecord {
            record,
            left: valid,
        })
    }
}

/// The name of a column with a value that no record has.
type BadColumn = &'static str;

/// A record, and how long it stays in its state.
struct ReadRecord {
    record: Record,
    left: Duration,
}

impl RowLease {
    fn in_flight(self, attempt: u64) -> Result<InFlight, BadColumn> {
        let origin = self.origin.as_deref().and_then(parse_origin);
        Ok(InFlight::new(
            owner(self.owner.as_deref()).ok_or("owner")?,
            attempt,
            origin.ok_or("origin")?,
            self.length.and_then(length).ok_or("lease_until")?,
            self.hold.and_then(length).ok_or("leased_at")?,
        ))
    }
}

impl RowOutcome {
    fn encoded(self, metadata: Option<&str>) -> Result<Encoded, BadColumn> {
        let codec = self
            .codec
            .and_then(|codec| CodecId::parse(codec.as_bytes()))
            .ok_or("codec")?;
        let payload = self.payload.ok_or("outcome")?.into();
        let metadata = match metadata {
            None => None,
            Some(text) => Some(Arc::new(Metadata::parse(text).ok_or("took_over")?)),
        };
        Ok(Encoded::new(codec, payload)
            .with_is_error(self.is_error)
            .with_metadata(metadata))
    }
}

/// Returns a length of time as it is written.
pub(crate) fn millis(length: Duration) -> i64 {
    i64::try_from(length.min(LONGEST).as_millis()).unwrap_or(i64::MAX)
}

/// Returns a length of time that was read, or `None` if it is negative.
pub(crate) fn length(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Encodes what a record in flight has besides its columns, with spaces between: its metadata, `r`
/// and its run, and the record that it took over.
fn in_flight_details(held: &InFlight) -> Option<String> {
    let metadata = metadata_text(held.metadata.as_deref());
    let run = held.run.map(|run| format!("r{run}"));
    // The encoding has only letters, digits and spaces.
    let encode =
        |held: &InFlight| String::from_utf8(wire::encode(&Record::InFlight(held.clone()))).ok();
    let took_over = held.took_over.as_deref().and_then(encode);
    let details: Vec<_> = [metadata, run, took_over].into_iter().flatten().collect();
    (!details.is_empty()).then(|| details.join(" "))
}

fn metadata_text(metadata: Option<&Metadata>) -> Option<String> {
    let said = metadata.filter(|metadata| !metadata.is_empty());
    said.map(Metadata::to_text)
}

/// What [`in_flight_details`] has encoded.
#[derive(Default)]
struct InFlightDetails {
    metadata: Option<Arc<Metadata>>,
    run: Option<Owner>,
    took_over: Option<Box<InFlight>>,
}

/// Decodes these details. `None`: the text is anything else.
fn parse_in_flight_details(text: Option<&str>) -> Option<InFlightDetails> {
    let mut details = InFlightDetails::default();
    let mut rest = text;
    while let Some(text) = rest {
        let (word, behind) = match text.split_once(' ') {
            Some((word, behind)) => (word, Some(behind)),
            None => (text, None),
        };
        rest = behind;
        match word.as_bytes().first()? {
            b'r' => details.run = Some(Owner::parse(&word[1..])?),
            b'i' => {
                details.took_over = Some(parse_in_flight(text)?);
                rest = None;
            }
            _ => details.metadata = Some(Arc::new(Metadata::parse(word)?)),
        }
    }
    Some(details)
}

fn parse_in_flight(text: &str) -> Option<Box<InFlight>> {
    match wire::decode(&text.to_owned().into()) {
        Ok(Parsed::Record(Record::InFlight(held))) => Some(Box::new(held)),
        _ => None,
    }
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
            "the row is no record that this version of idem can read (column `{column}`): it was \
             changed by hand, or written by a newer version; upgrade every process that shares the \
             table, or repair the row"
        ),
    )
}
