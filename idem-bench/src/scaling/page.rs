//! The tables of what was measured, and of what follows by formula.

use std::fmt::Write as _;

use super::constants::{Constants, Own, aside, record};
use super::measure::PREFIX;
use crate::report::Kind;

/// A number with its thousands set apart.
pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes, in what a person speaks of.
pub(super) fn bytes(bytes: f64) -> String {
    let gib = bytes / f64::from(1 << 30);
    if gib >= 1.0 { format!("{gib:.0} GiB") } else { format!("{:.0} MiB", gib * 1024.0) }
}

/// The tables, by the names of their marks.
pub(super) fn tables(constants: &Constants) -> Vec<(&'static str, String)> {
    let mut tables =
        vec![("constants", of_constants(constants)), ("points", points(constants)), ("bounds", bounds(constants))];
    if let Some(own) = &constants.own {
        tables.push(("memory", memory(constants, own)));
        tables.push(("durable", durable(own)));
    }
    tables
}

fn of_constants(constants: &Constants) -> String {
    let Constants { machine, version, server, client, .. } = constants;
    let mut text = format!(
        "{version}; {} cores of {}, {}; load {} when it began. Outcomes of {} bytes, keys of {}.\n\n",
        machine.cores, machine.processor, machine.kernel, machine.load, constants.payload_bytes, constants.key_bytes
    );
    text.push_str("| constant | | server | caller |\n| --- | --- | ---: | ---: |\n");
    let mut row = |name: &str, what: &str, server: String, client: String| {
        let _ = writeln!(text, "| {name} | {what} | {server} | {client} |");
    };
    let us = |time: f64| format!("{time:.1} µs");
    row("`F`", "a first execution: claim and commit", us(server.first), us(client.first));
    row("`R`", "a replay: a claim that finds an outcome", us(server.replay), us(client.replay));
    row("`m`", "each message, on top", us(server.message), us(client.message));
    row(
        "",
        "largest error of the formula at a fitted point",
        format!("{:.0} %", server.error * 100.0),
        format!("{:.0} %", client.error * 100.0),
    );
    let [server_more, client_more] = [constants.server_kilobyte, constants.client_kilobyte];
    row("`k`", "1,000 bytes more of outcome, first execution", us(server_more[0]), us(client_more[0]));
    row("", "the same, replay", us(server_more[1]), us(client_more[1]));
    let both = |bytes: [f64; 2]| format!("{:.0} in, {:.0} out", bytes[0], bytes[1]);
    row("`B`", "bytes of a first execution", both(constants.first_bytes), String::new());
    row("", "bytes of a replay", both(constants.replay_bytes), String::new());
    row("`d`", "one way, with wake-ups, without processor time", us(constants.delay), String::new());
    if let Some(own) = &constants.own {
        row("`N`", "a renewal", us(own.renewal.server), us(own.renewal.client));
        row("", "renewals in the length of one lease", format!("{:.2}", own.renewal.per_lease), String::new());
        row("", "bytes of a renewal", both(own.renewal.bytes), String::new());
        row(
            "`W`",
            "a call that waited for another process, with the owner's commit",
            us(own.waiting.server),
            us(own.waiting.client),
        );
        row("", "memory while it waits", format!("{:.0} bytes", own.waiting.bytes), String::new());
        row("", "memory of a connection", format!("{:.0} bytes", own.connection), String::new());
    }
    text
}

fn points(constants: &Constants) -> String {
    let mut text = String::from(
        "| | connections × tasks | messages a call | server µs a call | by formula | of which commands | caller µs a call | by formula |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for point in constants.points.iter().filter(|point| point.payload + 2 == constants.payload_bytes) {
        let _ = writeln!(
            text,
            "| {} | {} × {} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            name(point.kind),
            point.connections,
            point.tasks,
            point.messages,
            point.server,
            constants.server.of(point.kind, point.messages),
            point.commands,
            point.client,
            constants.client.of(point.kind, point.messages),
        );
    }
    text
}

fn bounds(constants: &Constants) -> String {
    let mut text = String::from(
        "| commands in a message | first executions a second, a primary | replays a second, a primary | first executions, a caller's processor | replays, a caller's processor | processors of callers a primary |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (label, together) in [("1", 1.0), ("4", 4.0), ("16", 16.0), ("full reads", f64::INFINITY)] {
        let [first, replay] = Kind::ALL.map(|kind| constants.most(kind, together));
        let [of_first, of_replay] = Kind::ALL.map(|kind| constants.most_of_processor(kind, together));
        let _ = writeln!(
            text,
            "| {label} | {} | {} | {} | {} | {:.1} |",
            round(first),
            round(replay),
            round(of_first),
            round(of_replay),
            first / of_first
        );
    }
    text
}

fn memory(constants: &Constants, own: &Own) -> String {
    let key = PREFIX + constants.key_bytes;
    let mut text = format!(
        "| a record with a key of {key} bytes in all | measured | by formula | spacing 8 | spacing 16 |\n| --- | ---: | ---: | ---: | ---: |\n"
    );
    for (payload, measured) in &own.records {
        let of = |quantum| record(key, *payload, false, quantum);
        let _ = writeln!(
            text,
            "| outcome of {payload} bytes | {measured:.0} | {} | {} | {} |",
            of(own.quantum),
            of(8),
            of(16)
        );
    }
    let of = |quantum| aside(key, 4, 402, false, quantum).iter().sum::<usize>();
    let _ = writeln!(
        text,
        "| outcome of 402 bytes, `remember` longer than `ttl`: mark and outcome | {:.0} | {} | {} | {} |",
        own.aside,
        of(own.quantum),
        of(8),
        of(16)
    );
    let mark = |quantum| aside(key, 4, 402, false, quantum)[0];
    let _ = writeln!(
        text,
        "| of which the mark, which stays for `remember` | | {} | {} | {} |",
        mark(own.quantum),
        mark(8),
        mark(16)
    );
    text
}

fn durable(own: &Own) -> String {
    let mut text = String::from(
        "| | tasks | first executions a second | p50 | p99 | server µs a call |\n| --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (name, points) in &own.durable {
        for point in points {
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {:.1} |",
                point.tasks,
                round(point.rate),
                time(point.p50),
                time(point.p99),
                point.server
            );
        }
    }
    text
}

/// To three figures.
pub(super) fn round(number: f64) -> String {
    let unit = 10_f64.powf((number.log10().floor() - 2.0).max(0.0));
    thousands((number / unit).round() * unit)
}

/// From microseconds.
pub(super) fn time(time: f64) -> String {
    if time >= 1000.0 { format!("{:.1} ms", time / 1000.0) } else { format!("{time:.0} µs") }
}

pub(super) fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::First => "first execution",
        Kind::Replay => "replay",
    }
}
