//! Redis and Valkey.

use std::time::Duration;

use idem_redis::{RedisStore, Survey};

use super::{Report, clock};
use crate::failure::Failure;

/// The pause between two readings of the clock.
const BETWEEN: Duration = Duration::from_secs(1);
/// The output buffer, in bytes, that a waiter's connection needs at least. Messages are a few bytes
/// long, and may come in a burst.
const LEAST_BUFFER: u64 = 1024 * 1024;

pub(super) async fn examine(store: &RedisStore, report: &mut Report) -> Result<(), Failure> {
    // `connect` has already refused a server that is too old, not a master or of another kind, and
    // a user without the necessary rights.
    report.fine(
        "the server can be used: new enough, a master, and this user may use every command \
            that a promise needs",
    );
    let asked = clock::now();
    let first = store.survey().await?;
    let first: Vec<_> = first
        .into_iter()
        .map(|survey| {
            (
                survey.time.map(|time| clock::Reading::new(asked, time)),
                survey,
            )
        })
        .collect();
    for (_, survey) in &first {
        examine_one(survey, report);
    }
    tokio::time::sleep(BETWEEN).await;
    let asked = clock::now();
    for survey in store.survey().await? {
        let before = first
            .iter()
            .find(|(_, other)| other.server == survey.server);
        match (before, survey.time) {
            (Some((Some(before), _)), Some(time)) => {
                clock::judge(
                    &survey.server,
                    before,
                    &clock::Reading::new(asked, time),
                    report,
                );
            }
            _ => report.found(
                format!(
                    "{}: this user may not ask for the clock, so a lease that looks expired \
                    because the clock was set is taken over",
                    survey.server
                ),
                "give the user the right to it: ACL SETUSER .. +time",
            ),
        }
    }
    Ok(())
}

fn examine_one(survey: &Survey, report: &mut Report) {
    let server = &survey.server;
    if survey.info.is_empty() {
        report.found(
            format!(
                "{server}: this user may not ask for INFO, so neither eviction nor persistence \
                can be judged"
            ),
            "run the doctor as a user with the right to it (ACL SETUSER .. +info)",
        );
        return;
    }
    let info = |name: &str| {
        survey
            .info
            .get(name)
            .map(String::as_str)
            .unwrap_or_default()
    };
    let version = if info("valkey_version").is_empty() {
        info("redis_version")
    } else {
        info("valkey_version")
    };
    report.note(format!("{server}: version {version}"));
    eviction(survey, report);
    persistence(survey, report);
    replicas(survey, report);
    let hard = survey
        .config
        .get("client-output-buffer-limit")
        .and_then(|text| pubsub_limit(text));
    match hard {
        Some(limit) if limit > 0 && limit < LEAST_BUFFER => report.found(
            format!(
                "{server}: a subscriber is cut off when {limit} bytes wait for it, so a burst \
                of commits disconnects waiters, again and again"
            ),
            "CONFIG SET client-output-buffer-limit 'pubsub 32mb 8mb 60'",
        ),
        Some(_) => report.fine(format!(
            "{server}: the buffers of subscribers are large enough"
        )),
        None => {}
    }
    for command in &survey.missing_rights {
        let (what, right) = match command.as_str() {
            "PUBLISH" | "SUBSCRIBE" => (
                "waiters are not woken by a commit, and ask again and again",
                "+publish +subscribe +unsubscribe, and &prefix:* for the channels",
            ),
            "SCAN" | "GETRANGE" => ("this program cannot list records", "+scan +getrange"),
            // Another check reports this.
            _ => continue,
        };
        report.note(format!(
            "{server}: this user may not use {command}: {what}; the right is {right}"
        ));
    }
}

fn eviction(survey: &Survey, report: &mut Report) {
    let server = &survey.server;
    let number = |name: &str| {
        survey
            .info
            .get(name)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or_default()
    };
    match survey.info.get("maxmemory_policy").map(String::as_str) {
        Some("noeviction") => report.fine(format!("{server}: keys are not evicted")),
        Some(policy) => report.found(
            format!(
                "{server}: evicts keys when its memory is full (maxmemory-policy {policy}): an \
                evicted record lets a body run twice"
            ),
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; or give idem a \
             Redis of its own",
        ),
        None => {}
    }
    let used = number("used_memory");
    let most = number("maxmemory");
    if most > 0 && used > most / 10 * 9 {
        report.found(
            format!(
                "{server}: {} % of maxmemory are used; when it is full, new claims are refused and \
                 calls fail",
                used.saturating_mul(100) / most
            ),
            "raise maxmemory, or shorten `ttl` and `remember`",
        );
    }
}

fn persistence(survey: &Survey, report: &mut Report) {
    let server = &survey.server;
    let info = |name: &str| {
        survey
            .info
            .get(name)
            .map(String::as_str)
            .unwrap_or_default()
    };
    let config = |name: &str| survey.config.get(name).map(String::as_str);
    match (info("aof_enabled"), config("appendfsync"), config("save")) {
        ("1", Some("no"), _) => report.found(
            format!(
                "{server}: the append-only file is written to the disk whenever the system \
                likes (appendfsync no): a power failure forgets records"
            ),
            "CONFIG SET appendfsync everysec, or always",
        ),
        ("1", Some("everysec"), _) => report.note(format!(
            "{server}: a crash of the machine forgets the last second or two (appendfsync \
             everysec); `always` forgets nothing, and is slower"
        )),
        ("1", ..) => report.fine(format!("{server}: records are in the append-only file")),
        (_, _, Some("")) => report.found(
            format!(
                "{server}: nothing is kept on the disk: a restart forgets every record, and \
                bodies run twice"
            ),
            "CONFIG SET appendonly yes, and the same in redis.conf; where replicas are the safety, \
             let the master not restart by itself",
        ),
        _ => report.found(
            format!(
                "{server}: there are snapshots only, if any: a restart forgets what was \
                written since the last one"
            ),
            "CONFIG SET appendonly yes, and the same in redis.conf",
        ),
    }
    for (field, what) in [
        ("aof_last_write_status", "append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ] {
        if info(field) == "err" {
            report.found(
                format!("{server}: the last write of the {what} failed"),
                "look at the server's log, and at the space on its disk",
            );
        }
    }
}

fn replicas(survey: &Survey, report: &mut Report) {
    let server = &survey.server;
    let count = survey
        .info
        .get("connected_slaves")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or_default();
    let least = survey
        .config
        .get("min-replicas-to-write")
        .and_then(|text| text.parse::<u64>().ok());
    match (count, least) {
        (0, Some(1..)) => report.found(
            format!(
                "{server}: has no replica, and min-replicas-to-write asks for one: every claim \
                is refused"
            ),
            "start its replicas, or set min-replicas-to-write 0",
        ),
        (0, _) => report.note(format!(
            "{server}: has no replica; while it is down, calls fail \
            closed"
        )),
        (_, Some(0)) => report.found(
            format!(
                "{server}: a master that is cut off from its {count} replicas goes on to \
                accept claims, which a fail-over forgets"
            ),
            "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10; and \
             `RedisStore::builder().replicas(n, timeout)`, so that a claim starts a body only when \
             replicas have it",
        ),
        _ => report.note(format!(
            "{server}: has {count} replicas. Replication is asynchronous: \
             `RedisStore::builder().replicas(n, timeout)` has each claim and commit wait for n of \
             them"
        )),
    }
}

/// The hard limit of subscribers, in bytes; 0 for none.
fn pubsub_limit(setting: &str) -> Option<u64> {
    let mut words = setting
        .split_whitespace()
        .skip_while(|word| *word != "pubsub");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_subscribers_is_found_among_those_of_others() {
        let text = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        assert_eq!(pubsub_limit(text), Some(33_554_432));
        assert_eq!(pubsub_limit("normal 0 0 0"), None);
    }
}
