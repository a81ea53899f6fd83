//! A record with its times, and how it is written into a pack.
//!
//! The bytes of a pack never leave the process, so their form may change at any time. The fields
//! that every search reads have a fixed place. After that numbers take as many bytes as they need,
//! and missing fields take none:
//!
//! | | |
//! | --- | --- |
//! | length of the id | 4 bytes |
//! | tag | the state, and whether there is a fingerprint and a time to stay as done |
//! | expiry | seconds in 8 bytes, nanoseconds in 4 |
//! | id | the text |
//! | time as done, attempt, fingerprint | |
//! | in flight | owner, origin, lease, hold, questions, trace, run; whether it took one over, and all this of that one |
//! | released | questions, run |
//! | issued | grace |
//! | committed | codec, metadata as text where there is any, then the payload with its length |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::encoding::fingerprint::Fingerprint;
use crate::record::{CodecId, Encoded, InFlight, MOST_TAKEN_OVER, Metadata, Origin, Owner, Record};

const STATE: u8 = 0b0111;
const ISSUED: u8 = 0;
const IN_FLIGHT: u8 = 1;
const RELEASED: u8 = 2;
const COMMITTED: u8 = 3;
const COMMITTED_ERROR: u8 = 4;
const DONE: u8 = 5;
const HAS_FINGERPRINT: u8 = 0b0_1000;
const HAS_THEN_DONE: u8 = 0b1_0000;
const HAS_METADATA: u8 = 0b10_0000;

/// How many bytes there are before the id.
const FIXED: usize = 4 + 1 + 8 + 4;
/// The most bytes of a written record without its id and its payload.
pub(super) const MOST_OVERHEAD: usize = 241 + 209 * MOST_TAKEN_OVER;

/// A record, and when it changes by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) record: Record,
    /// When the record changes by itself, by the store's clock.
    pub(super) expires: Duration,
    /// For a committed one: how long after that it stays as done.
    pub(super) then_done: Duration,
}

impl Slot {
    /// Lets time pass: an expired record becomes done, or is over. Returns whether it is over.
    pub(super) fn pass(&mut self, now: Duration) -> bool {
        if now < self.expires {
            return false;
        }
        if let Some(expired) = self.record.expired() {
            self.record = expired;
            self.expires = self.expires.saturating_add(self.then_done);
            self.then_done = Duration::ZERO;
        }
        now >= self.expires
    }

    /// Writes it at the end of a pack.
    pub(super) fn write(&self, id: &[u8], out: &mut Vec<u8>) {
        let state = match &self.record {
            Record::Issued { .. } => ISSUED,
            Record::InFlight(_) => IN_FLIGHT,
            Record::Released { .. } => RELEASED,
            Record::Committed { outcome, .. } if outcome.is_error => COMMITTED_ERROR,
            Record::Committed { .. } => COMMITTED,
            Record::Done { .. } => DONE,
        };
        let fingerprint = self.record.fingerprint();
        let then_done = Some(self.then_done).filter(|time| !time.is_zero());
        let metadata = match &self.record {
            Record::Committed { outcome, .. } => outcome.metadata.as_deref(),
            _ => None,
        };
        let id_len = u32::try_from(id.len()).unwrap_or_default();
        let tag = state
            | if fingerprint.is_some() {
                HAS_FINGERPRINT
            } else {
                0
            }
            | if then_done.is_some() {
                HAS_THEN_DONE
            } else {
                0
            }
            | if metadata.is_some() { HAS_METADATA } else { 0 };
        out.extend_from_slice(&id_len.to_le_bytes());
        out.push(tag);
        out.extend_from_slice(&self.expires.as_secs().to_le_bytes());
        out.extend_from_slice(&self.expires.subsec_nanos().to_le_bytes());
        out.extend_from_slice(id);
        if let Some(time) = then_done {
            write_time(time, out);
        }
        write_number(self.record.attempt(), out);
        if let Some(fingerprint) = fingerprint {
            out.extend_from_slice(fingerprint.as_bytes());
        }
        match &self.record {
            Record::InFlight(held) => write_in_flight(held, out),
            Record::Released { questions, run, .. } => {
                write_number(*questions, out);
                write_run(*run, out);
            }
            Record::Committed { outcome, .. } => {
                write_bytes(outcome.codec.as_str().as_bytes(), out);
                if let Some(metadata) = metadata {
                    write_bytes(metadata.to_text().as_bytes(), out);
                }
                write_bytes(&outcome.payload, out);
            }
            Record::Issued { grace } => write_time(*grace, out),
            Record::Done { .. } => {}
        }
    }
}

/// A record in a pack, read as far as its id.
pub(super) struct Packed<'a> {
    tag: u8,
    expires: Duration,
    then_done: Duration,
    /// The id's text.
    pub(super) id: &'a [u8],
    start: usize,
    rest: Reader<'a>,
}

impl<'a> Packed<'a> {
    /// Reads the record that was written at a place of a pack.
    pub(super) fn at(pack: &'a [u8], start: usize) -> Self {
        let mut rest = Reader { pack, at: start };
        let id_len = u32::from_le_bytes(rest.array());
        let tag = rest.byte();
        let expires = Duration::new(
            u64::from_le_bytes(rest.array()),
            u32::from_le_bytes(rest.array()),
        );
        let id = rest.take(id_len as usize);
        let then_done = if tag & HAS_THEN_DONE == 0 {
            Duration::ZERO
        } else {
            rest.time()
        };
        Self {
            tag,
            expires,
            then_done,
            id,
            start,
            rest,
        }
    }

    /// Reads the id of the record that was written at a place of a pack.
    pub(super) fn id_at(pack: &'a [u8], start: usize) -> &'a [u8] {
        let mut rest = Reader { pack, at: start };
        let id_len = u32::from_le_bytes(rest.array());
        rest.at += FIXED - 4;
        rest.take(id_len as usize)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        now >= self.expires && now >= self.expires.saturating_add(self.then_done)
    }

    /// When it changes by itself for the next time.
    pub(super) fn changes_at(&self, now: Duration) -> Duration {
        if now < self.expires {
            self.expires
        } else {
            self.expires.saturating_add(self.then_done)
        }
    }

    /// Returns how many of its bytes are still needed. A record that is done by now needs no
    /// payload.
    pub(super) fn used(mut self, now: Duration) -> usize {
        let start = self.start;
        let expires = self.expires;
        let (_, payload) = self.rest_of_slot();
        let end = self.rest.at;
        end - start
            - payload
                .filter(|_| now >= expires)
                .map_or(0, |payload| payload.len())
    }

    /// Reads the whole record. `pack` is what it was read from; its payload is a slice of the pack,
    /// not a copy.
    pub(super) fn slot(mut self, pack: &Bytes) -> Slot {
        let (mut record, payload) = self.rest_of_slot();
        if let (Record::Committed { outcome, .. }, Some(payload)) = (&mut record, payload) {
            outcome.payload = pack.slice(payload);
        }
        Slot {
            record,
            expires: self.expires,
            then_done: self.then_done,
        }
    }

    /// Reads the record without its payload, and where the payload is.
    fn rest_of_slot(&mut self) -> (Record, Option<std::ops::Range<usize>>) {
        let rest = &mut self.rest;
        let attempt = rest.number();
        let fingerprint =
            (self.tag & HAS_FINGERPRINT != 0).then(|| Fingerprint::from_bytes(rest.array()));
        let record = match self.tag & STATE {
            ISSUED => Record::Issued { grace: rest.time() },
            IN_FLIGHT => Record::InFlight(rest.in_flight(attempt, fingerprint)),
            RELEASED => Record::Released {
                attempt,
                questions: rest.number(),
                run: rest.run(),
            },
            DONE => Record::Done {
                attempt,
                fingerprint,
            },
            state => {
                let codec = CodecId::parse(rest.bytes()).unwrap_or(CodecId::JSON);
                let metadata = if self.tag & HAS_METADATA == 0 {
                    None
                } else {
                    rest.metadata()
                };
                let len = rest.bytes().len();
                let outcome = Encoded {
                    is_error: state == COMMITTED_ERROR,
                    codec,
                    payload: Bytes::new(),
                    metadata,
                };
                return (
                    Record::Committed {
                        attempt,
                        fingerprint,
                        outcome,
                    },
                    Some(rest.at - len..rest.at),
                );
            }
        };
        (record, None)
    }
}

/// Nothing was taken over.
const ALONE: u8 = 0;
/// A record that has a fingerprint.
const OVER_WITH_FINGERPRINT: u8 = 1;
/// One that has none.
const OVER_WITHOUT: u8 = 2;

/// Writes the fields of a record in flight, except for attempt and fingerprint.
fn write_in_flight(held: &InFlight, out: &mut Vec<u8>) {
    out.extend_from_slice(&held.owner.to_bytes());
    out.push(match held.origin {
        Origin::Nothing => 0,
        Origin::Issued => 1,
        Origin::Released => 2,
        Origin::Abandoned => 3,
    });
    write_time(held.lease, out);
    write_time(held.hold, out);
    write_number(held.questions, out);
    let metadata = held.metadata.as_deref().map(Metadata::to_text);
    write_bytes(metadata.as_deref().unwrap_or_default().as_bytes(), out);
    write_run(held.run, out);
    let Some(over) = &held.took_over else {
        return out.push(ALONE);
    };
    out.push(if over.fingerprint.is_some() {
        OVER_WITH_FINGERPRINT
    } else {
        OVER_WITHOUT
    });
    write_number(over.attempt, out);
    if let Some(fingerprint) = over.fingerprint {
        out.extend_from_slice(fingerprint.as_bytes());
    }
    write_in_flight(over, out);
}

fn write_run(run: Option<Owner>, out: &mut Vec<u8>) {
    let run = run.map(Owner::to_bytes);
    write_bytes(run.as_ref().map_or(&[], |run| run), out);
}

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    loop {
        let low = number.to_le_bytes()[0];
        number >>= 7;
        if number == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

fn write_time(time: Duration, out: &mut Vec<u8>) {
    write_number(time.as_secs(), out);
    write_number(time.subsec_nanos().into(), out);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads what was written above.
struct Reader<'a> {
    pack: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> u8 {
        let byte = self.pack[self.at];
        self.at += 1;
        byte
    }

    fn number(&mut self) -> u64 {
        let mut number = 0;
        let mut shift = 0;
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    }

    fn time(&mut self) -> Duration {
        let seconds = self.number();
        Duration::new(seconds, u32::try_from(self.number()).unwrap_or_default())
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::try_from(self.number()).unwrap_or_default();
        self.take(len)
    }

    fn metadata(&mut self) -> Option<Arc<Metadata>> {
        let text = std::str::from_utf8(self.bytes()).ok()?;
        Metadata::parse(text).map(Arc::new)
    }

    fn run(&mut self) -> Option<Owner> {
        self.bytes().try_into().ok().map(Owner::from_bytes)
    }

    fn in_flight(&mut self, attempt: u64, fingerprint: Option<Fingerprint>) -> InFlight {
        InFlight {
            owner: Owner::from_bytes(self.array()),
            attempt,
            origin: match self.byte() {
                0 => Origin::Nothing,
                1 => Origin::Issued,
                2 => Origin::Released,
                _ => Origin::Abandoned,
            },
            lease: self.time(),
            hold: self.time(),
            fingerprint,
            questions: self.number(),
            metadata: self.metadata(),
            run: self.run(),
            took_over: match self.byte() {
                ALONE => None,
                kind => {
                    let attempt = self.number();
                    let print = (kind == OVER_WITH_FINGERPRINT)
                        .then(|| Fingerprint::from_bytes(self.array()));
                    Some(Box::new(self.in_flight(attempt, print)))
                }
            },
        }
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        self.at += len;
        &self.pack[self.at - len..self.at]
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap_or([0; N])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let fingerprint = Some(Fingerprint::of("x").unwrap());
        let held = |origin, fingerprint| {
            let lease = Duration::MAX;
            let hold = Duration::MAX;
            let owner = Owner::generate();
            let attempt = u64::MAX;
            let metadata = Metadata::parse(
                "t00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01,nUmVjZWlwdA",
            )
            .map(Arc::new);
            InFlight {
                owner,
                attempt,
                origin,
                lease,
                hold,
                fingerprint,
                questions: u64::MAX,
                took_over: None,
                metadata,
                run: Some(Owner::NOBODY),
            }
        };
        let in_flight = |origin, fingerprint| Record::InFlight(held(origin, fingerprint));
        let longest =
            (0..MOST_TAKEN_OVER).fold(held(Origin::Nothing, fingerprint), |over, _| InFlight {
                took_over: Some(Box::new(over)),
                ..held(Origin::Abandoned, fingerprint)
            });
        let committed = |is_error, codec: &[u8], payload: &'static [u8]| {
            let codec = CodecId::parse(codec).unwrap();
            let payload = Bytes::from_static(payload);
            let audit = crate::record::Audit::new("jane", "ticket 7", Duration::from_secs(1))
                .filter(|_| is_error);
            let metadata = audit.map(|audit| {
                Arc::new(Metadata {
                    audit: Some(audit),
                    ..Metadata::default()
                })
            });
            Record::Committed {
                attempt: 300,
                fingerprint,
                outcome: Encoded {
                    is_error,
                    codec,
                    payload,
                    metadata,
                },
            }
        };
        vec![
            Record::Issued {
                grace: Duration::ZERO,
            },
            Record::Issued {
                grace: Duration::MAX,
            },
            in_flight(Origin::Nothing, fingerprint),
            in_flight(Origin::Issued, None),
            in_flight(Origin::Released, None),
            in_flight(Origin::Abandoned, None),
            Record::InFlight(longest),
            Record::InFlight(InFlight {
                took_over: Some(Box::new(
                    held(Origin::Issued, None)
                        .with_metadata(None)
                        .with_run(None),
                )),
                ..held(Origin::Abandoned, fingerprint)
                    .with_metadata(None)
                    .with_run(None)
            }),
            Record::Released {
                attempt: 1,
                questions: 1,
                run: None,
            },
            Record::Released {
                attempt: 1,
                questions: u64::MAX,
                run: Some(Owner::generate()),
            },
            committed(false, b"j", b""),
            committed(true, b"abcdefgh", &[7; 300]),
            Record::Done {
                attempt: 128,
                fingerprint,
            },
            Record::Done {
                attempt: 127,
                fingerprint: None,
            },
        ]
    }

    #[test]
    fn every_state_reads_back_as_it_was_written() {
        let times = [
            Duration::ZERO,
            Duration::new(86_400, 999_999_999),
            Duration::MAX,
        ];
        let slots: Vec<Slot> = records()
            .into_iter()
            .flat_map(|record| {
                let slot = move |expires, then_done| Slot {
                    record: record.clone(),
                    expires,
                    then_done,
                };
                times.into_iter().flat_map(move |one| {
                    let slot = slot.clone();
                    times.into_iter().map(move |other| slot(one, other))
                })
            })
            .collect();
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        for (number, slot) in slots.iter().enumerate() {
            places.push(bytes.len());
            slot.write(format!("op:{number}").as_bytes(), &mut bytes);
        }
        places.push(bytes.len());
        let pack = Bytes::from(bytes);
        for (number, slot) in slots.iter().enumerate() {
            let packed = || Packed::at(&pack, places[number]);
            assert_eq!(packed().slot(&pack), *slot);
            assert_eq!(packed().id, format!("op:{number}").as_bytes());
            assert_eq!(Packed::id_at(&pack, places[number]), packed().id);
            let written = places[number + 1] - places[number];
            let payload = match &slot.record {
                Record::Committed { outcome, .. } => outcome.payload.len(),
                _ => 0,
            };
            assert!(written <= packed().id.len() + payload + MOST_OVERHEAD);
            let before = slot.expires.saturating_sub(Duration::from_nanos(1));
            assert_eq!(
                packed().used(before),
                if before < slot.expires {
                    written
                } else {
                    written - payload
                }
            );
            assert_eq!(packed().used(slot.expires), written - payload);
        }
    }
}
