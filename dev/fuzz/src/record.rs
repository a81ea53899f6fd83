//! Records: any text that a store may hold.

use std::sync::Arc;

use bytes::Bytes;
use idem_core::record::{Encoded, InFlight, MOST_TAKEN_OVER, Metadata, Origin, Owner, Record};
use idem_core::wire::{self, Parsed, WireError};
use idem_core::{CodecId, Fingerprint};

use crate::Input;

/// The first byte says whether a text is read, or a record is made up and written.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() {
        0 => written(&made_up(&mut input), &mut input),
        _ => foreign(data),
    }
}

/// A text that may be no record at all.
fn foreign(text: &[u8]) {
    let read = decode(text);
    assert_eq!(
        decode(wire::without_waited(text)),
        read,
        "the mark of waiters is part of no field"
    );
    assert_eq!(
        wire::without_waited(wire::without_waited(text)),
        wire::without_waited(text),
        "it is there once"
    );
    match &read {
        Err(WireError::Foreign) => {
            assert!(!begins_as_a_record(text), "a record was taken for foreign")
        }
        Err(WireError::Version) => assert!(
            begins_as_a_record(text) && !text.starts_with(b"i1"),
            "not of this version"
        ),
        Err(_) => assert!(
            [b"i1", b"i2", b"i3", b"i4"]
                .iter()
                .any(|version| text.starts_with(*version)),
            "damaged is what begins as a record of a version that is read"
        ),
        Ok(Parsed::Record(record)) => {
            assert_eq!(
                decode(&wire::encode(record)),
                read,
                "a record that was read is written and read again"
            );
            same_but_for_zeros(text, &wire::encode(record));
            whole(text, record);
        }
        Ok(Parsed::Aside {
            attempt,
            fingerprint,
        }) => {
            let again = wire::encode_aside(*attempt, *fingerprint);
            assert_eq!(
                decode(&again),
                read,
                "a mark that was read is written and read again"
            );
            same_but_for_zeros(text, &again);
            cut(text);
        }
    }
}

/// A record as this version writes it.
fn written(record: &Record, input: &mut Input<'_>) {
    let text = wire::encode(record);
    assert_eq!(
        decode(&text),
        Ok(Parsed::Record(record.clone())),
        "a record reads back as it was written"
    );
    whole(&text, record);
    if let Record::InFlight(_) = record {
        let waited = [text.as_slice(), &[wire::WAITED]].concat();
        assert_eq!(wire::without_waited(&waited), text);
        foreign(&waited);
    }
    if let Record::Committed { .. } = record {
        let mut changed = text.clone();
        let at = usize::from(u16::from_be_bytes(input.array())) % changed.len();
        changed[at] ^= input.byte().max(1);
        assert!(
            decode(&changed).is_err(),
            "a committed record with a byte changed was read: {}",
            changed.escape_ascii()
        );
    }
    foreign(&text);
}

/// Checks the properties of each text that is a record.
fn whole(text: &[u8], record: &Record) {
    cut(text);
    match record {
        Record::InFlight(held) => {
            let mut other = held.owner.to_bytes();
            other[15] ^= 1;
            // Behind the version, which says how much there is to remember.
            let finds = |owner| text[2..].starts_with(&wire::owner_prefix(owner).as_bytes()[2..]);
            assert!(finds(held.owner), "a script finds its owner");
            assert!(!finds(Owner::from_bytes(other)), "and no other");
        }
        Record::Committed { outcome, .. } => {
            assert!(text.ends_with(&outcome.payload), "the outcome is the tail")
        }
        _ => {
            let begins = [b"i1f", b"i2f", b"i3f", b"i4f"]
                .iter()
                .any(|mark| text.starts_with(*mark));
            assert!(!begins, "nothing else begins as what is in flight");
        }
    }
}

/// Cut short or extended, it is not a record any more, except for the waiters' mark.
fn cut(text: &[u8]) {
    // A long outcome is cut at some places only.
    let step = 1 + text.len() / 512;
    for end in (0..text.len()).rev().step_by(step) {
        let short = &text[..end];
        assert!(
            decode(short).is_err() || short == wire::without_waited(text),
            "{} was read",
            short.escape_ascii()
        );
    }
    for byte in [b'.', b' ', b'0', b'w', b'\n', 0] {
        let long = [text, &[byte]].concat();
        assert!(
            decode(&long).is_err() || wire::without_waited(&long) == text,
            "{} was read",
            long.escape_ascii()
        );
    }
}

/// A record is written as it was read, except for leading zeros of a number in a text written by
/// hand.
fn same_but_for_zeros(text: &[u8], again: &[u8]) {
    let text = wire::without_waited(text);
    let zeros = text
        .windows(3)
        .any(|three| three[0] == b' ' && three[1] == b'0' && three[2].is_ascii_digit());
    assert!(
        text == again || zeros,
        "{} would be written as {}",
        text.escape_ascii(),
        again.escape_ascii()
    );
}

fn begins_as_a_record(text: &[u8]) -> bool {
    matches!(text, [b'i', digit, ..] if digit.is_ascii_digit())
}

fn decode(text: &[u8]) -> Result<Parsed, WireError> {
    wire::decode(&Bytes::copy_from_slice(text))
}

/// Any record.
pub(crate) fn made_up(input: &mut Input<'_>) -> Record {
    match input.below(6) {
        0 => Record::Issued {
            grace: input.length(),
        },
        1 => Record::InFlight(in_flight(input, MOST_TAKEN_OVER)),
        2 => Record::Released {
            attempt: input.number(),
            questions: few(input),
            run: named_run(input),
        },
        3 => Record::Done {
            attempt: input.number(),
            fingerprint: fingerprint(input),
        },
        kind => Record::Committed {
            attempt: input.number(),
            fingerprint: fingerprint(input),
            outcome: Encoded::new(
                CodecId::parse(input.bytes()).unwrap_or(CodecId::JSON),
                Bytes::copy_from_slice(input.bytes()),
            )
            .with_is_error(kind == 5),
        },
    }
}

/// A record in flight that took over no more than so many, one from the other.
fn in_flight(input: &mut Input<'_>, room: usize) -> InFlight {
    InFlight::new(
        owner(input),
        input.number(),
        origin(input),
        input.length(),
        input.length(),
    )
    .with_fingerprint(fingerprint(input))
    .with_questions(few(input))
    .with_took_over((room > 0 && input.below(3) == 0).then(|| Box::new(in_flight(input, room - 1))))
    .with_metadata((input.below(3) == 0).then(|| {
        let trace = u128::from_be_bytes(input.array());
        let span = u64::from_be_bytes(input.array());
        let mut metadata = Metadata::default();
        metadata.trace = Some(format!("00-{trace:032x}-{span:016x}-{:02x}", input.byte()).into());
        metadata.type_name = input.flag().then(|| "Receipt".into());
        Arc::new(metadata)
    }))
    .with_run(named_run(input))
}

/// Often none.
fn named_run(input: &mut Input<'_>) -> Option<Owner> {
    (input.below(3) == 0).then(|| owner(input))
}

/// Often none.
fn few(input: &mut Input<'_>) -> u64 {
    if input.flag() { input.number() } else { 0 }
}

/// Few owners, so that two of them are often the same.
pub(crate) fn owner(input: &mut Input<'_>) -> Owner {
    match input.below(4) {
        0 => Owner::NOBODY,
        1 => Owner::from_bytes(input.array()),
        few => Owner::from_bytes([few; 16]),
    }
}

/// Few fingerprints, likewise.
pub(crate) fn fingerprint(input: &mut Input<'_>) -> Option<Fingerprint> {
    match input.below(4) {
        0 => None,
        few => Fingerprint::of(&few).ok(),
    }
}

fn origin(input: &mut Input<'_>) -> Origin {
    [
        Origin::Nothing,
        Origin::Issued,
        Origin::Released,
        Origin::Abandoned,
    ][usize::from(input.below(4))]
}
