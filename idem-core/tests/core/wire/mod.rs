//! The format of records in a store, pinned: records outlive deployments.

use bytes::Bytes;
use idem_core::record::{Owner, Record};
use idem_core::wire::{self, Parsed, WireError};

/// Version, what a record says, and its text.
fn golden() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    include_str!("records.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut columns = line.splitn(3, '\t');
            (
                columns.next().unwrap(),
                columns.next().unwrap(),
                columns.next().unwrap(),
            )
        })
}

fn says(parsed: &Parsed) -> String {
    let record = match parsed {
        Parsed::Aside {
            attempt,
            fingerprint,
        } => return format!("aside {attempt} {}", fingerprint.is_some()),
        Parsed::Record(record) => record,
    };
    let print = record.fingerprint().is_some();
    match record {
        Record::Issued { grace } => format!("issued {}", grace.as_millis()),
        Record::InFlight(held) => {
            let over =
                std::iter::successors(held.took_over.as_deref(), |over| over.took_over.as_deref())
                    .count();
            let lease = held.lease.as_millis();
            let hold = held.hold.as_millis();
            let metadata = held
                .metadata
                .as_ref()
                .map(|metadata| format!(" {}", metadata.to_text()))
                .unwrap_or_default();
            let run = run(held.run);
            format!(
                "in flight {:?} {} {lease} {hold} {print} {} {over}{metadata}{run}",
                held.origin, held.attempt, held.questions
            )
        }
        Record::Released {
            attempt,
            questions,
            run: of,
        } => format!("released {attempt} {questions}{}", run(*of)),
        Record::Committed {
            attempt, outcome, ..
        } => {
            let payload = String::from_utf8(outcome.payload.to_vec()).unwrap();
            let metadata = outcome
                .metadata
                .as_ref()
                .map(|metadata| metadata.to_text() + " ")
                .unwrap_or_default();
            format!(
                "committed {attempt} {print} {} {metadata}{payload}",
                outcome.is_error
            )
        }
        Record::Done { attempt, .. } => format!("done {attempt} {print}"),
    }
}

fn run(run: Option<Owner>) -> String {
    run.map(|run| format!(" r{run}")).unwrap_or_default()
}

fn write(parsed: &Parsed) -> Vec<u8> {
    match parsed {
        Parsed::Aside {
            attempt,
            fingerprint,
        } => wire::encode_aside(*attempt, *fingerprint),
        Parsed::Record(record) => wire::encode(record),
    }
}

#[test]
fn records_of_every_version_are_read_and_written_in_the_lowest_version_that_can_say_them() {
    for (version, what, text) in golden() {
        let parsed = wire::decode(&Bytes::from_static(text.as_bytes())).unwrap();
        assert_eq!(says(&parsed), what, "{text}");
        assert_eq!(String::from_utf8(write(&parsed)).unwrap(), text, "{what}");
        assert_eq!(&text[..2], ["i", version].concat(), "{what}");
    }
}

#[test]
fn a_record_of_a_later_version_is_neither_damaged_nor_foreign() {
    for (_, what, text) in golden() {
        let later = ["i5", &text[2..]].concat();
        assert_eq!(
            wire::decode(&later.into()),
            Err(WireError::Version),
            "{what}"
        );
    }
}
