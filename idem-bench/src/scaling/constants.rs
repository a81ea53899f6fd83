//! The constants that were measured, and what follows from them by formula.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::report::Kind;

/// The bytes that the server takes from a connection at a time (`PROTO_IOBUF_LEN`).
pub(super) const READ: f64 = 16_384.0;
/// The header of a committed record with a fingerprint, its check and all spaces; 21 bytes less
/// without a fingerprint.
pub(super) const HEADER: usize = 38;
const FINGERPRINT: usize = 21;
/// The mark of a record whose outcome is kept aside, without a fingerprint.
const MARK: usize = 8;

/// The figures measured on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Constants {
    pub(super) machine: Machine,
    pub(super) version: String,
    pub(super) key_bytes: usize,
    pub(super) payload_bytes: usize,
    /// Processor time of the server's one thread.
    pub(super) server: Work,
    /// Processor time of the calling process, on all its threads.
    pub(super) client: Work,
    /// The server's cost of one more kilobyte of outcome, for a first execution and for a replay.
    pub(super) server_kilobyte: [f64; 2],
    /// The same at the caller.
    pub(super) client_kilobyte: [f64; 2],
    /// Of a `PING`, one way, without the processor time of both sides: waking up, and the way.
    pub(super) delay: f64,
    /// Bytes that a call has the server receive and send.
    pub(super) first_bytes: [f64; 2],
    pub(super) replay_bytes: [f64; 2],
    pub(super) points: Vec<Point>,
    /// Only of our own server.
    pub(super) own: Option<Own>,
}

/// Microseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Work {
    /// Of a first execution: both commands.
    pub(super) first: f64,
    pub(super) replay: f64,
    /// On top, of each message that carries commands of any number of calls.
    pub(super) message: f64,
    /// The greatest error of these three against a point, as a share of the point.
    pub(super) error: f64,
}

/// The figures for a number of connections, each with a number of calling tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) kind: Kind,
    pub(super) connections: usize,
    pub(super) tasks: usize,
    pub(super) payload: usize,
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) server: f64,
    pub(super) client: f64,
    /// Messages a call, as the server counts what it reads.
    pub(super) messages: f64,
    /// Of the commands alone, without what surrounds them (`usec` of `INFO commandstats`).
    pub(super) commands: f64,
}

/// The figures that only our own server gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Own {
    /// Bytes of a record by length of its outcome, as `used_memory` grew.
    pub(super) records: Vec<(usize, f64)>,
    /// Bytes of a mark and an outcome of 402 bytes aside.
    pub(super) aside: f64,
    /// The spacing of the allocator's small sizes that fits the records.
    pub(super) quantum: usize,
    pub(super) connection: f64,
    pub(super) renewal: Renewal,
    pub(super) waiting: Waiting,
    /// What is set, and what was measured of first executions so.
    pub(super) durable: Vec<(String, Vec<Point>)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Renewal {
    pub(super) server: f64,
    pub(super) client: f64,
    /// Renewals of a lease in its length.
    pub(super) per_lease: f64,
    pub(super) bytes: [f64; 2],
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Waiting {
    /// Of a call that waited for an owner in another process and got its outcome.
    pub(super) server: f64,
    pub(super) client: f64,
    /// Of the server's memory, while it waits.
    pub(super) bytes: f64,
}

impl Work {
    /// Processor time of a call that shares its messages with others: `messages` of them for one
    /// call.
    pub(super) fn of(&self, kind: Kind, messages: f64) -> f64 {
        self.message.mul_add(messages, if kind == Kind::First { self.first } else { self.replay })
    }

    /// Two unknowns for each kind, one of them shared, by least squares of the relative errors.
    pub(super) fn fit(points: &[Point], time: impl Fn(&Point) -> f64) -> Self {
        let weight = |point: &Point| time(point).powi(-2);
        let means = Kind::ALL.map(|kind| {
            let (mut sum, mut x, mut y) = (0.0, 0.0, 0.0);
            for point in points.iter().filter(|point| point.kind == kind) {
                let weight = weight(point);
                sum += weight;
                x += weight * point.messages;
                y += weight * time(point);
            }
            (x / sum, y / sum)
        });
        let (mut over, mut under) = (0.0, 0.0);
        for point in points {
            let (x, y) = means[point.kind as usize];
            over += weight(point) * (point.messages - x) * (time(point) - y);
            under += weight(point) * (point.messages - x).powi(2);
        }
        let message = over / under;
        let [first, replay] = means.map(|(x, y)| message.mul_add(-x, y));
        let mut work = Self { first, replay, message, error: 0.0 };
        let errors = points.iter().map(|point| (work.of(point.kind, point.messages) / time(point) - 1.0).abs());
        work.error = errors.fold(0.0, f64::max);
        work
    }
}

impl Constants {
    /// The least messages a call can come to: all commands arrive in full reads.
    pub(super) fn least_messages(&self, kind: Kind) -> f64 {
        self.bytes(kind)[0] / READ
    }

    pub(super) fn bytes(&self, kind: Kind) -> [f64; 2] {
        if kind == Kind::First { self.first_bytes } else { self.replay_bytes }
    }

    /// Calls a second that one primary's thread can do at the most, where each message carries the
    /// commands of so many calls.
    pub(super) fn most(&self, kind: Kind, together: f64) -> f64 {
        1e6 / self.server.of(kind, self.messages(kind, together))
    }

    /// The same of one processor of callers.
    pub(super) fn most_of_processor(&self, kind: Kind, together: f64) -> f64 {
        1e6 / self.client.of(kind, self.messages(kind, together))
    }

    fn messages(&self, kind: Kind, together: f64) -> f64 {
        let commands = if kind == Kind::First { 2.0 } else { 1.0 };
        (commands / together).max(self.least_messages(kind))
    }
}

/// The size that the allocator gives for so many bytes: multiples of the quantum at first, then
/// four in each power of two.
fn class(bytes: usize, quantum: usize) -> usize {
    let power = bytes.saturating_sub(1).checked_ilog2().unwrap_or(0);
    let spacing = (1_usize << power.saturating_sub(2)).max(quantum);
    bytes.next_multiple_of(spacing)
}

/// A string of the server's own: its header, and a zero at its end.
fn string(length: usize) -> usize {
    let header = match length {
        0..32 => 1,
        32..256 => 3,
        256..65_536 => 5,
        _ => 9,
    };
    header + length + 1
}

/// Bytes of one key with an expiry, in Redis 7.0, without the two tables' buckets.
fn entry(key: usize, value: usize, quantum: usize) -> usize {
    let class = |bytes| class(bytes, quantum);
    let value = if value <= 44 { class(16 + 3 + value + 1) } else { class(16) + class(string(value)) };
    // Its place among the keys, and among those that expire.
    class(string(key)) + value + 2 * class(24)
}

/// Bytes of the buckets of one key: 8 in each of two tables that are full, twice as much after they
/// have grown.
const BUCKETS: usize = 16;

/// Bytes of a committed record: `key` with prefix and name.
pub(super) fn record(key: usize, payload: usize, fingerprint: bool, quantum: usize) -> usize {
    let header = if fingerprint { HEADER } else { HEADER - FINGERPRINT };
    entry(key, header + payload, quantum) + BUCKETS
}

/// Bytes of a mark for `remember`, and of the outcome beside it.
pub(super) fn aside(key: usize, prefix: usize, payload: usize, fingerprint: bool, quantum: usize) -> [usize; 2] {
    let mark = if fingerprint { MARK + FINGERPRINT } else { MARK };
    [entry(key, mark, quantum) + BUCKETS, record(prefix + 3 + key, payload, fingerprint, quantum)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_allocator() {
        for (bytes, of_8, of_16) in
            [(17, 24, 32), (24, 24, 32), (47, 48, 48), (65, 80, 80), (129, 160, 160), (600, 640, 640)]
        {
            assert_eq!((class(bytes, 8), class(bytes, 16)), (of_8, of_16), "{bytes}");
        }
    }

    #[test]
    fn a_fit_finds_what_the_points_were_made_of() {
        let point = |kind, messages: f64| Point {
            kind,
            connections: 1,
            tasks: 1,
            payload: 0,
            rate: 0.0,
            p50: 0.0,
            p99: 0.0,
            server: if kind == Kind::First { 10.0 } else { 3.0 } + 5.0 * messages,
            client: 1.0,
            messages,
            commands: 0.0,
        };
        let points = [(Kind::First, 2.0), (Kind::First, 0.1), (Kind::Replay, 1.0), (Kind::Replay, 0.05)];
        let fit = Work::fit(&points.map(|(kind, messages)| point(kind, messages)), |point| point.server);
        for (found, made_of) in [(fit.first, 10.0), (fit.replay, 3.0), (fit.message, 5.0), (fit.error, 0.0)] {
            assert!((found - made_of).abs() < 1e-9, "{fit:?}");
        }
    }
}
