//! How much of everything a load takes, by formula.

use std::fmt::Write as _;

use super::constants::{Constants, record};
use super::page::{bytes, thousands};
use crate::report::Kind;

/// The load that is planned for.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Plan {
    /// First executions a second, at the busiest
    #[arg(long, default_value_t = 5000.0)]
    rate: f64,
    /// Duplicates for each of them
    #[arg(long, default_value_t = 0.1)]
    duplicates: f64,
    /// Bytes of an encoded outcome
    #[arg(long, default_value_t = 400)]
    outcome: usize,
    /// Bytes of a key, with the prefix and the operation's name
    #[arg(long, default_value_t = 52)]
    key: usize,
    /// Hours for which outcomes are kept
    #[arg(long, default_value_t = 24.0)]
    hours: f64,
    /// Seconds that a body takes
    #[arg(long, default_value_t = 0.3)]
    body: f64,
    /// The share of its processor time that a primary and a caller's processor may be busy with it
    #[arg(long, default_value_t = 0.5)]
    busy: f64,
}

impl Plan {
    /// One line for each thing that can run out.
    pub(super) fn table(&self, constants: &Constants) -> String {
        let Self { rate, duplicates, outcome, key, hours, body, busy } = *self;
        let replays = rate * duplicates;
        let kilobytes = (outcome as f64 - constants.payload_bytes as f64) / 1e3;
        // Nothing is put together: each command is a message of its own, the dearest case.
        let dearest = |first: f64, replay: f64| (rate * first + replays * replay) / 1e6;
        let of = |work: &super::constants::Work, more: [f64; 2], messages: [f64; 2]| {
            let [first, replay] = [Kind::First, Kind::Replay]
                .map(|kind| more[kind as usize].max(0.0).mul_add(kilobytes, work.of(kind, messages[kind as usize])));
            dearest(first, replay)
        };
        let (server, client) = (&constants.server, &constants.client);
        let primary = of(server, constants.server_kilobyte, [2.0, 1.0]);
        let processors = of(client, constants.client_kilobyte, [2.0, 1.0]);
        let quantum = constants.own.as_ref().map_or(16, |own| own.quantum);
        let bytes_each = record(key, outcome, true, quantum) as f64;
        let records = rate * hours * 3600.0;
        let memory = records * bytes_each;
        let more = outcome as f64 - constants.payload_bytes as f64 + (key as f64 - (constants.key_bytes + 11) as f64);
        let [into, out] = [0, 1].map(|way| {
            let (first, replay) = (
                constants.first_bytes[way] + if way == 0 { more } else { 0.0 },
                constants.replay_bytes[way] + if way == 1 { more } else { 0.0 },
            );
            rate.mul_add(first, replays * replay) * 8.0 / 1e6
        });
        let mut text = String::from("| | | |\n| --- | ---: | --- |\n");
        let mut row = |what: &str, much: String, how: String| {
            let _ = writeln!(text, "| {what} | {much} | {how} |");
        };
        row("records", format!("{:.0} million", records / 1e6), format!("{} a second × {hours} h", thousands(rate)));
        row(
            "bytes a record",
            format!("{bytes_each:.0}"),
            format!("key {key}, outcome {outcome}, with a fingerprint; by the formula"),
        );
        row(
            "memory",
            bytes(memory),
            format!(
                "{} with buckets after they have grown, {} to plan with",
                bytes(records * (bytes_each + 16.0)),
                bytes(1.3 * records * (bytes_each + 16.0))
            ),
        );
        row(
            "primaries by processor",
            format!("{:.2}", primary / busy),
            format!(
                "{:.0} % of one thread, every command a message of its own; it may be busy to {:.0} %",
                primary * 100.0,
                busy * 100.0
            ),
        );
        row(
            "callers' processors",
            format!("{:.2}", processors / busy),
            format!("{processors:.2} of a processor's time, the same way; application and body are not in it"),
        );
        row(
            "bodies in flight",
            format!("{:.0}", rate * body),
            format!("{body} s each, so no renewals with a lease of 30 s: the first is due after 10 s"),
        );
        row(
            "network",
            format!("{into:.0} Mbit/s in, {out:.0} Mbit/s out"),
            "bytes of the protocol, without TCP, TLS and replicas (each replica: once more what is written)".to_owned(),
        );
        row(
            "on disk with an append-only file",
            format!("{} an hour", bytes(rate * 3600.0 * (2.0 * key as f64 + outcome as f64 + 300.0))),
            "both writes of a call, before the file is rewritten; an estimate: twice the key, the outcome, 300 bytes"
                .to_owned(),
        );
        text
    }
}
