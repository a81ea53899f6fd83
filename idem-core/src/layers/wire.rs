//! How a record is written where it is kept as one text, as in Redis.
//!
//! A line of text that a person can read, then the outcome as the codec wrote it:
//!
//! | state | text |
//! | --- | --- |
//! | issued | `i1i.`, or `i1i <grace ms>.` |
//! | in flight | `i1f<owner><origin> <attempt> <lease ms> <hold ms> <fingerprint>.` and, with waiters, `w` |
//! | the same, with more to remember | `i2f`, the same fields, ` <questions>`, for each record that was taken over `<` and all these fields of it, `.` |
//! | the same, with more to say of the call | `i3f`, the same fields, and ` <metadata>` behind the questions of each record that has one |
//! | the same, with a run that the owners do not tell | `i4f`, the same fields, and ` r<run>` behind the questions and the metadata of each record that has one |
//! | released | `i1r <attempt>.` |
//! | the same, where some attempts only asked | `i2r <attempt> <questions>.` |
//! | the same, with a run that goes on | `i4r <attempt> <questions> r<run>.` |
//! | committed | `i1c <attempt> <codec> <fingerprint> <check> <outcome>` |
//! | committed, an error that is kept | `i1e <attempt> <codec> <fingerprint> <check> <error>` |
//! | committed, with more to say of the outcome | `i3c <attempt> <codec> <fingerprint> <metadata> <check> <outcome>`, and `i3e` |
//! | committed, outcome kept aside | `i1o <attempt> <fingerprint>.` |
//! | done | `i1d <attempt> <fingerprint>.` |
//!
//! `i1` to `i4` are the format and its version. The metadata is one word, without spaces
//! ([`Metadata::to_text`](crate::record::Metadata::to_text)). Owner, run and fingerprint are 22
//! characters of base64url, `-` stands for no fingerprint. The origin is what the claim found: `n`
//! nothing, `i` issued, `r` released, `a` abandoned. The owner comes first and has a fixed width, so
//! that a script checks it by comparing a prefix. Every header has an end of its own, and the check
//! covers header and outcome: what was cut short or changed is an error, never another record.
//!
//! Times are in whole milliseconds, and parts of one are cut off. The text has no expiry: the store
//! keeps it beside the text. In milliseconds, it is rounded up: the age of a lease is `hold` less
//! the time left, and a lease must not look older than it is.
//!
//! # Compatibility
//!
//! - A version reads every record that an earlier one wrote.
//! - A record is written in the lowest version that can express it. So a rolling deployment in
//!   which both versions run shares all records but those that need the addition: keys whose
//!   abandoned record was taken over, or whose question stayed without an answer (2), outcomes and
//!   records in flight with metadata (of operations with `abandoned = reject` or `reconcile` or with
//!   `max_attempts`, all of them) (3); keys that were released after their body had
//!   begun steps, or after a take-over (4).
//! - A record of a later version is an error ([`WireError::Version`]), from every step, and is left
//!   untouched. The caller gets [`Error::Codec`](crate::Error::Codec), and no body runs. Upgrade
//!   the process, or wait until the record has ended.
//! - An owner of an earlier version commits, renews and releases its own record, also after a claim
//!   by a later version that took the record over was undone.
//!
//! `idem-core/tests/core/wire/` holds a record of each kind, as each version wrote it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;

use crate::Fingerprint;
use crate::record::{CodecId, Encoded, InFlight, MOST_TAKEN_OVER, Metadata, Origin, Owner, Record};

/// Separates a record in flight from the one that it took over.
const OVER: u8 = b'<';
/// The mark of an in-flight record with waiters.
pub const WAITED: u8 = b'w';

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A whole record.
    Record(Record),
    /// A committed record whose outcome is kept aside, for a shorter time; without it the record is
    /// done.
    Aside {
        /// The attempt that succeeded.
        attempt: u64,
        /// The digest of the arguments that must be equal when the key comes again.
        fingerprint: Option<Fingerprint>,
    },
}

/// The reason that this version does not read a text as a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// It does not begin as a record does.
    Foreign,
    /// It begins like a record of another version.
    Version,
    /// It begins like a record, and is damaged after that.
    Damaged,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the value was not written by idem",
            Self::Version => {
                "the record has a format that this version of idem does not know; upgrade every \
                 process that shares the store"
            }
            Self::Damaged => "the record is damaged: cut short, or changed by hand",
        })
    }
}

impl std::error::Error for WireError {}

/// Writes a record.
pub fn encode(record: &Record) -> Vec<u8> {
    match record {
        Record::Issued { grace } => match millis(*grace) {
            0 => b"i1i.".to_vec(),
            grace => format!("i1i {grace}.").into_bytes(),
        },
        Record::InFlight(held) => in_flight(held),
        Record::Released {
            attempt,
            questions,
            run: Some(run),
        } => format!("i4r {attempt} {questions} r{run}.").into_bytes(),
        Record::Released {
            attempt,
            questions: 0,
            run: None,
        } => format!("i1r {attempt}.").into_bytes(),
        Record::Released {
            attempt,
            questions,
            run: None,
        } => format!("i2r {attempt} {questions}.").into_bytes(),
        Record::Committed {
            attempt,
            fingerprint,
            outcome,
        } => committed(*attempt, *fingerprint, outcome),
        Record::Done {
            attempt,
            fingerprint,
        } => format!("i1d {attempt} {}.", text(*fingerprint)).into_bytes(),
    }
}

/// Writes the mark of a committed record whose outcome is kept aside: for a store that cannot
/// change a record to done when its expiry has passed. Other stores do not need it.
pub fn encode_aside(attempt: u64, fingerprint: Option<Fingerprint>) -> Vec<u8> {
    format!("i1o {attempt} {}.", text(fingerprint)).into_bytes()
}

/// Returns the text with which this owner's records in flight begin, and no other record, in
/// version 1. In later versions, the second byte is that digit.
pub fn owner_prefix(owner: Owner) -> String {
    let mut prefix = String::with_capacity(25);
    prefix.push_str("i1f");
    BASE64.encode_string(owner.to_bytes(), &mut prefix);
    prefix
}

/// Returns an in-flight record without the mark for waiters.
pub fn without_waited(text: &[u8]) -> &[u8] {
    match text {
        [b'i', b'1'..=b'4', b'f', .., b'.', WAITED] => text.get(..text.len() - 1).unwrap_or(text),
        _ => text,
    }
}

/// Reads a record.
///
/// # Errors
///
/// The error says what is wrong if the text is not a whole record of this version.
pub fn decode(text: &Bytes) -> Result<Parsed, WireError> {
    let damaged = WireError::Damaged;
    let (version, state, fields) = match text.as_ref() {
        [b'i', version @ b'1', state, fields @ ..]
        | [
            b'i',
            version @ (b'2' | b'4'),
            state @ (b'f' | b'r'),
            fields @ ..,
        ]
        | [
            b'i',
            version @ b'3',
            state @ (b'c' | b'e' | b'f'),
            fields @ ..,
        ] => (*version, *state, fields),
        b"i1" | b"i2" | b"i3" | b"i4" => return Err(damaged),
        [b'i', b'0'..=b'9', ..] => return Err(WireError::Version),
        _ => return Err(WireError::Foreign),
    };
    if let b'c' | b'e' = state {
        let committed = decode_committed(text, |check, payload| intact(text, check, payload));
        return committed.ok_or(damaged).map(Parsed::Record);
    }
    let fields = match fields {
        [fields @ .., b'.', WAITED] if state == b'f' => fields,
        [fields @ .., b'.'] => fields,
        _ => return Err(damaged),
    };
    match (version, state) {
        (b'2'..=b'4', b'f') => decode_in_flight(fields, MOST_TAKEN_OVER)
            .filter(|held| version_of(held) == version)
            .map(|held| Parsed::Record(Record::InFlight(held))),
        (b'2' | b'4', _) => decode_released(version == b'4', fields).map(Parsed::Record),
        _ => decode_plain(state, fields),
    }
    .ok_or(damaged)
}

/// How much of a record [`decode_head`] needs, in bytes: more than any takes without its outcome.
pub const HEAD: usize = 2048;

/// Reads a record of which only the first [`HEAD`] bytes are at hand, for listings: a committed one
/// has an empty outcome, and its check was not looked at.
///
/// # Errors
///
/// Like [`decode`].
pub fn decode_head(text: &Bytes) -> Result<Parsed, WireError> {
    match text.as_ref() {
        [b'i', b'1' | b'3', b'c' | b'e', ..] => {
            let without = |check: &[u8], _: &[u8]| (check.len() == 6).then(Bytes::new);
            let committed = decode_committed(text, without);
            committed.map(Parsed::Record).ok_or(WireError::Damaged)
        }
        _ => decode(text),
    }
}

/// Returns the lowest version that can express a record in flight.
fn version_of(held: &InFlight) -> u8 {
    let records = || std::iter::successors(Some(held), |held| held.took_over.as_deref());
    if records().any(|held| held.run.is_some()) {
        b'4'
    } else if records().any(|held| described(held).is_some()) {
        b'3'
    } else if held.questions > 0 || held.took_over.is_some() {
        b'2'
    } else {
        b'1'
    }
}

/// The metadata of a call, if its record has any.
fn described(held: &InFlight) -> Option<&Metadata> {
    let metadata = held.metadata.as_deref()?;
    (!metadata.is_empty()).then_some(metadata)
}

/// Reads a record in flight with its number of questions, its metadata and its run, and at most
/// `room` records that it took over.
fn decode_in_flight(text: &[u8], room: usize) -> Option<InFlight> {
    let mut parts = text.splitn(2, |byte| *byte == OVER);
    let mut fields = parts.next()?.split(|byte| *byte == b' ');
    let mut held = in_flight_fields(&mut fields)?;
    held.questions = number(fields.next()?)?;
    for field in fields {
        match field {
            [b'r', run @ ..] if held.run.is_none() => held.run = Some(owner(run)?),
            text if held.metadata.is_none() && held.run.is_none() => {
                held.metadata = Some(Arc::new(metadata(text)?));
            }
            _ => return None,
        }
    }
    held.took_over = match parts.next() {
        Some(over) => Some(Box::new(decode_in_flight(over, room.checked_sub(1)?)?)),
        None => None,
    };
    Some(held)
}

/// Reads the fields of each record in flight.
fn in_flight_fields<'a>(fields: &mut impl Iterator<Item = &'a [u8]>) -> Option<InFlight> {
    let (&letter, of) = fields.next()?.split_last()?;
    let (owner, origin) = (owner(of)?, origin(letter)?);
    let attempt = number(fields.next()?)?;
    let lease = Duration::from_millis(number(fields.next()?)?);
    let hold = Duration::from_millis(number(fields.next()?)?);
    let fingerprint = fingerprint(fields.next()?)?;
    Some(InFlight::new(owner, attempt, origin, lease, hold).with_fingerprint(fingerprint))
}

fn decode_released(has_run: bool, fields: &[u8]) -> Option<Record> {
    let mut fields = fields.split(|byte| *byte == b' ');
    let is_empty = fields.next()?.is_empty();
    let released = Record::Released {
        attempt: number(fields.next()?)?,
        questions: number(fields.next()?).filter(|questions| has_run || *questions > 0)?,
        run: if has_run {
            Some(owner(fields.next()?.strip_prefix(b"r")?)?)
        } else {
            None
        },
    };
    (is_empty && fields.next().is_none()).then_some(released)
}

fn decode_plain(state: u8, fields: &[u8]) -> Option<Parsed> {
    let mut fields = fields.split(|byte| *byte == b' ');
    // Only a record in flight has a first field without a space before it.
    if state != b'f' && !fields.next()?.is_empty() {
        return None;
    }
    let parsed = match state {
        b'i' => {
            // Zero is not written.
            let grace = fields
                .next()
                .map_or(Some(0), |field| number(field).filter(|grace| *grace > 0))?;
            Parsed::Record(Record::Issued {
                grace: Duration::from_millis(grace),
            })
        }
        b'f' => Parsed::Record(Record::InFlight(in_flight_fields(&mut fields)?)),
        b'r' => Parsed::Record(Record::Released {
            attempt: number(fields.next()?)?,
            questions: 0,
            run: None,
        }),
        b'o' => Parsed::Aside {
            attempt: number(fields.next()?)?,
            fingerprint: fingerprint(fields.next()?)?,
        },
        b'd' => Parsed::Record(Record::Done {
            attempt: number(fields.next()?)?,
            fingerprint: fingerprint(fields.next()?)?,
        }),
        _ => return None,
    };
    fields.next().is_none().then_some(parsed)
}

/// Reads a committed record, of whose check and payload `payload` makes the outcome's.
fn decode_committed(
    text: &[u8],
    payload: impl FnOnce(&[u8], &[u8]) -> Option<Bytes>,
) -> Option<Record> {
    let [_, version, state, fields @ ..] = text else {
        return None;
    };
    let says_more = *version == b'3';
    let mut parts = fields.splitn(6 + usize::from(says_more), |byte| *byte == b' ');
    let empty = parts.next()?;
    let attempt = parts.next()?;
    let codec = parts.next()?;
    let print = parts.next()?;
    let metadata = if says_more {
        Some(Arc::new(metadata(parts.next()?)?))
    } else {
        None
    };
    let payload = payload(parts.next()?, parts.next()?)?;
    empty.is_empty().then_some(Record::Committed {
        attempt: number(attempt)?,
        fingerprint: fingerprint(print)?,
        outcome: Encoded {
            is_error: *state == b'e',
            codec: CodecId::parse(codec)?,
            payload,
            metadata,
        },
    })
}

/// Returns the payload, if it and the header are as they were written.
fn intact(text: &Bytes, check: &[u8], payload: &[u8]) -> Option<Bytes> {
    let header = text.get(..text.len() - payload.len() - check.len() - 1)?;
    (check == checksum(header, payload)).then(|| text.slice_ref(payload))
}

fn metadata(text: &[u8]) -> Option<Metadata> {
    Metadata::parse(std::str::from_utf8(text).ok()?)
}

/// More than any header takes, so that a record is written with one allocation.
const HEADER: usize = 128;

fn in_flight(held: &InFlight) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    let version = version_of(held);
    out.extend_from_slice(&[b'i', version, b'f']);
    if version == b'1' {
        push_in_flight(&mut out, held);
    } else {
        let mut next = Some(held);
        while let Some(held) = next {
            push_in_flight(&mut out, held);
            out.push(b' ');
            push_number(&mut out, held.questions);
            if let Some(metadata) = described(held) {
                out.push(b' ');
                out.extend_from_slice(metadata.to_text().as_bytes());
            }
            if let Some(run) = held.run {
                out.extend_from_slice(b" r");
                push_base64(&mut out, &run.to_bytes());
            }
            next = held.took_over.as_deref();
            if next.is_some() {
                out.push(OVER);
            }
        }
    }
    out.push(b'.');
    out
}

fn push_in_flight(out: &mut Vec<u8>, held: &InFlight) {
    let InFlight {
        owner,
        attempt,
        origin,
        lease,
        hold,
        fingerprint,
        ..
    } = held;
    let origin = match origin {
        Origin::Nothing => b'n',
        Origin::Issued => b'i',
        Origin::Released => b'r',
        Origin::Abandoned => b'a',
    };
    push_base64(out, &owner.to_bytes());
    out.push(origin);
    for number in [*attempt, millis(*lease), millis(*hold)] {
        out.push(b' ');
        push_number(out, number);
    }
    out.push(b' ');
    push_fingerprint(out, *fingerprint);
}

fn committed(attempt: u64, fingerprint: Option<Fingerprint>, outcome: &Encoded) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + outcome.payload.len());
    let metadata = outcome
        .metadata
        .as_deref()
        .filter(|metadata| !metadata.is_empty());
    out.extend_from_slice(match (metadata, outcome.is_error) {
        (None, false) => b"i1c ",
        (None, true) => b"i1e ",
        (Some(_), false) => b"i3c ",
        (Some(_), true) => b"i3e ",
    });
    push_number(&mut out, attempt);
    out.push(b' ');
    out.extend_from_slice(outcome.codec.as_str().as_bytes());
    out.push(b' ');
    push_fingerprint(&mut out, fingerprint);
    out.push(b' ');
    if let Some(metadata) = metadata {
        out.extend_from_slice(metadata.to_text().as_bytes());
        out.push(b' ');
    }
    let check = checksum(&out, &outcome.payload);
    out.extend_from_slice(&check);
    out.push(b' ');
    out.extend_from_slice(&outcome.payload);
    out
}

fn push_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_fingerprint(out: &mut Vec<u8>, fingerprint: Option<Fingerprint>) {
    match fingerprint {
        Some(fingerprint) => push_base64(out, fingerprint.as_bytes()),
        None => out.push(b'-'),
    }
}

fn push_base64(out: &mut Vec<u8>, bytes: &[u8; 16]) {
    let mut text = [0; 22];
    // Sixteen bytes are 22 characters of base64 without padding.
    let _ = BASE64.encode_slice(bytes, &mut text);
    out.extend_from_slice(&text);
}

/// A CRC-32 as six characters. It finds accidents; it does not stop an enemy who can write to the
/// store.
fn checksum(header: &[u8], payload: &[u8]) -> [u8; 6] {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(payload);
    let mut check = [0; 6];
    // Four bytes are six characters of base64 without padding.
    let _ = BASE64.encode_slice(crc.finalize().to_be_bytes(), &mut check);
    check
}

fn text(fingerprint: Option<Fingerprint>) -> String {
    fingerprint.map_or_else(|| "-".to_owned(), |fingerprint| fingerprint.to_string())
}

/// The outer option: whether the field can be read. The inner one: whether there is a fingerprint.
#[allow(clippy::option_option)]
fn fingerprint(field: &[u8]) -> Option<Option<Fingerprint>> {
    if field == b"-" {
        Some(None)
    } else {
        Fingerprint::parse(field).map(Some)
    }
}

fn owner(field: &[u8]) -> Option<Owner> {
    let mut bytes = [0; 16];
    (field.len() == 22 && BASE64.decode_slice_unchecked(field, &mut bytes) == Ok(16))
        .then(|| Owner::from_bytes(bytes))
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn origin(letter: u8) -> Option<Origin> {
    match letter {
        b'n' => Some(Origin::Nothing),
        b'i' => Some(Origin::Issued),
        b'r' => Some(Origin::Released),
        b'a' => Some(Origin::Abandoned),
        _ => None,
    }
}

fn number(field: &[u8]) -> Option<u64> {
    // Not `parse` alone: it would take a sign.
    if field.is_empty() || !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
