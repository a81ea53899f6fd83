//! Turns errors of redis-rs and of the server into store errors.

use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

/// Returns the error of a failed step, with its cause as the source.
pub(crate) fn failed(server: &str, error: RedisError) -> StoreError {
    let (kind, advice) = classify(&error);
    StoreError::new(
        kind,
        format!("Redis ({server}): {}{advice}", message(&error)),
    )
    .with_source(error)
}

/// Returns the error of a failed attempt to connect. No command was sent, so it can be retried
/// unless an operator must fix something.
pub(crate) fn unconnected(server: &str, error: RedisError) -> StoreError {
    let (kind, advice) = match classify(&error) {
        // The server does not know `HELLO`, the first command of each connection. The name is not
        // compared: redis-rs may write it in upper or lower case.
        (kind, _)
            if error
                .detail()
                .is_some_and(|detail| detail.starts_with("unknown command")) =>
        {
            (
                kind,
                "; idem needs RESP3, which Redis 7.0 or newer and Valkey speak: is there a proxy \
                 between that does not?",
            )
        }
        (kind @ StoreErrorKind::Refused, advice) if error.code() != Some("ERR") => (kind, advice),
        _ => (
            StoreErrorKind::Unavailable,
            "; see that the server runs and can be reached from here",
        ),
    };
    StoreError::new(
        kind,
        format!(
            "cannot connect to Redis ({server}): {}{advice}",
            message(&error)
        ),
    )
    .with_source(error)
}

/// Returns the error of an attempt to connect that took too long.
pub(crate) fn unconnected_in_time(server: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "cannot connect to Redis ({server}): no answer within {limit:?}; see that the server \
             runs and can be reached from here"
        ),
    )
}

/// Returns the error of a step that took too long.
pub(crate) fn timed_out(server: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        format!(
            "Redis ({server}): no answer within {limit:?}; it is stopped, overloaded or cut off, \
             or the time limit is too short for it"
        ),
    )
}

/// Returns the error of a step that was sent and took too long. It may have been carried out, even
/// if the connection has failed since.
pub(crate) fn timed_out_since(
    server: &str,
    limit: Duration,
    failure: Option<StoreError>,
) -> StoreError {
    let error = timed_out(server, limit);
    match failure {
        Some(failure) => StoreError::new(error.kind(), format!("{error}; since then: {failure}"))
            .with_source(failure),
        None => error,
    }
}

/// Returns the error for an invalid setting, or for a server that cannot be used.
pub(crate) fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message.into())
}

/// Returns the error for an answer that no server should give. The command may have been carried
/// out.
pub(crate) fn unexpected(server: &str, answer: &Value) -> StoreError {
    let kind = match answer {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_)
        | Value::SimpleString(_)
        | Value::VerbatimString { .. }
        | Value::Okay => "a text",
        Value::Array(_) | Value::Set(_) | Value::Map(_) => "a list",
        _ => "something else",
    };
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "Redis ({server}) answered with {kind} that idem did not ask for; is there a proxy \
             between that does not know all of Redis?"
        ),
    )
}

/// Returns the message of the server or the system, without what redis-rs adds.
fn message(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Returns the kind of failure, and advice.
fn classify(error: &RedisError) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Refused, Timeout, Unavailable};

    match error.kind() {
        ErrorKind::Io if error.is_timeout() => (Timeout, ""),
        ErrorKind::AuthenticationFailed => (Refused, "; correct the user and password in the URL"),
        ErrorKind::InvalidClientConfig => (Refused, ""),
        ErrorKind::RESP3NotSupported => (Refused, "; idem needs Redis 7.0 or newer, or Valkey"),
        ErrorKind::Extension => classify_code(error.code().unwrap_or_default()),
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::NoScript => (Unavailable, ""),
            ServerErrorKind::ReadOnly => (
                Unavailable,
                "; this is a replica: a fail-over is under way, or the address is wrong",
            ),
            ServerErrorKind::NoPerm => (Refused, NEEDED_RIGHTS),
            // With a cluster's URL these are followed. Then this error means that slots keep
            // moving.
            ServerErrorKind::Moved | ServerErrorKind::Ask => (
                Unavailable,
                "; the cluster is being changed, or its node was named by `redis://` in place of \
                 `redis+cluster://`",
            ),
            ServerErrorKind::CrossSlot => (
                Refused,
                "; is there a proxy between that does not know hash tags?",
            ),
            ServerErrorKind::ResponseError => {
                (Refused, "; idem needs Redis 7.0 or newer, or Valkey")
            }
            _ => (Refused, ""),
        },
        _ => (Unavailable, ""),
    }
}

/// Returns the kind and advice for a code that redis-rs has no name for.
fn classify_code(code: &str) -> (StoreErrorKind, &'static str) {
    match code {
        "OOM" => (
            StoreErrorKind::Full,
            "; give the server more memory (maxmemory), or keep records for a shorter time (`ttl`, \
             `remember`)",
        ),
        "WRONGTYPE" => (
            StoreErrorKind::Unreadable,
            "; the value was not written by idem and was left untouched; give idem a prefix of its \
             own",
        ),
        "NOAUTH" | "WRONGPASS" => (
            StoreErrorKind::Refused,
            "; correct the user and password in the URL",
        ),
        "BUSY" | "MISCONF" | "NOREPLICAS" | "NOGOODSLAVE" | "UNBLOCKED" | "UNKILLABLE" => {
            (StoreErrorKind::Unavailable, "")
        }
        _ => (StoreErrorKind::Refused, ""),
    }
}

const NEEDED_RIGHTS: &str = "; the user needs the keys and channels of the prefix and the commands \
    that the documentation of `idem_redis` lists";

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn answer(line: &str) -> RedisError {
        match parse_redis_value(line.as_bytes()).and_then(Value::extract_error) {
            Err(error) => error,
            Ok(value) => panic!("{value:?} is no error"),
        }
    }

    #[test]
    fn each_answer_of_a_server_has_its_kind() {
        use StoreErrorKind::{Full, Refused, Unavailable, Unreadable};

        for (line, kind) in [
            (
                "-LOADING Redis is loading the dataset in memory\r\n",
                Unavailable,
            ),
            ("-BUSY Redis is busy running a script.\r\n", Unavailable),
            ("-MASTERDOWN Link with MASTER is down\r\n", Unavailable),
            (
                "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
                Unavailable,
            ),
            ("-CLUSTERDOWN The cluster is down\r\n", Unavailable),
            (
                "-READONLY You can't write against a read only replica.\r\n",
                Unavailable,
            ),
            (
                "-MISCONF Redis is configured to save RDB snapshots\r\n",
                Unavailable,
            ),
            (
                "-NOREPLICAS Not enough good replicas to write.\r\n",
                Unavailable,
            ),
            (
                "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
                Full,
            ),
            ("-NOAUTH Authentication required.\r\n", Refused),
            (
                "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
                Refused,
            ),
            (
                "-NOPERM this user has no permissions to run the 'set' command\r\n",
                Refused,
            ),
            ("-MOVED 3999 127.0.0.1:6381\r\n", Unavailable),
            ("-ASK 3999 127.0.0.1:6381\r\n", Unavailable),
            (
                "-UNBLOCKED force unblock from blocking operation, instance state changed\r\n",
                Unavailable,
            ),
            ("-ERR syntax error\r\n", Refused),
            (
                "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
                Unreadable,
            ),
        ] {
            let error = failed("redis://host:1/0", answer(line));
            assert_eq!(error.kind(), kind, "{line}");
            assert!(
                error.to_string().contains(line.get(1..12).unwrap()),
                "{error}"
            );
            assert!(std::error::Error::source(&error).is_some());
        }
    }

    #[test]
    fn lost_connections_leave_open_whether_the_step_was_carried_out() {
        for kind in [
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::TimedOut,
        ] {
            let error = failed(
                "redis://host:1/0",
                RedisError::from(std::io::Error::from(kind)),
            );
            assert!(error.is_unknown() && error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn a_server_that_takes_no_more_clients_may_take_some_later() {
        assert!(unconnected("x", answer("-ERR max number of clients reached\r\n")).is_retryable());
        assert!(!unconnected("x", answer("-WRONGPASS invalid\r\n")).is_retryable());
    }

    #[test]
    fn p10_a_sent_step_is_of_unknown_fate_though_the_reconnection_was_refused() {
        let limit = Duration::from_millis(900);
        for since in [
            None,
            Some(refused("NOAUTH")),
            Some(unconnected_in_time("redis:6379", limit)),
        ] {
            let text = since.as_ref().map(ToString::to_string).unwrap_or_default();
            let error = timed_out_since("redis:6379", limit, since);
            assert!(error.is_unknown(), "{error}");
            assert!(error.to_string().contains(&text), "{error}");
        }
    }
}
