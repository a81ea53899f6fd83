//! The scripts, each an atomic step of the store, and their answers.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use idem_core::StoreError;
use idem_core::record::Ownership;
use idem_core::wire;
use redis::{Script, Value};

use crate::connection::error::unexpected;
use crate::connection::handshake::Handshake;
use crate::store::keys::Keys;
use crate::store::unreadable::{no_expiry, unreadable};

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Script::new(include_str!(concat!("lua/", $file, ".lua"))))
    };
}

/// The text of a script that replaces a record that was read. Its flags must come first.
macro_rules! swapping {
    ($flags:literal, $file:literal) => {
        concat!(
            $flags,
            include_str!("lua/swap.lua"),
            include_str!(concat!("lua/", $file, ".lua"))
        )
    };
}

const TAKEOVER_TEXT: &str = swapping!("", "takeover");

pub(crate) static COMMIT: LazyLock<Script> = script!("commit");
pub(crate) static RELEASE: LazyLock<Script> = script!("release");
pub(crate) static RENEW: LazyLock<Script> = script!("renew");
pub(crate) static TAKEOVER: LazyLock<Script> = LazyLock::new(|| Script::new(TAKEOVER_TEXT));
pub(crate) static ISSUED: LazyLock<Script> = script!("issued");
pub(crate) static WATCH: LazyLock<Script> = script!("watch");
pub(crate) static TOUCH: LazyLock<Script> = script!("touch");
pub(crate) static INSPECT: LazyLock<Script> = script!("inspect");
pub(crate) static REMOVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(swapping!("#!lua flags=allow-oom\n", "remove")));
pub(crate) static PEEK: LazyLock<Script> = script!("peek");
pub(crate) static INTERVENE: LazyLock<Script> =
    LazyLock::new(|| Script::new(swapping!("#!lua flags=allow-oom\n", "intervene")));
pub(crate) static REPLACE: LazyLock<Script> =
    LazyLock::new(|| Script::new(swapping!("#!lua flags=allow-oom\n", "replace")));
pub(crate) static OPTIONAL_RIGHTS: LazyLock<Script> = script!("optional_rights");
pub(crate) static RIGHTS: LazyLock<Script> = script!("rights");

/// Returns the handshake of the store's own connections.
pub(crate) fn handshake(keys: &Keys) -> Handshake {
    Handshake {
        scripts: &LOADED,
        rights: &RIGHTS,
        sample: keys.sample().into(),
    }
}

/// The scripts that any execution or duplicate may need. The handshake loads them, so that the
/// first call does not pay for it.
const LOADED: [&str; 7] = [
    include_str!("lua/rights.lua"),
    include_str!("lua/commit.lua"),
    include_str!("lua/release.lua"),
    include_str!("lua/renew.lua"),
    TAKEOVER_TEXT,
    include_str!("lua/watch.lua"),
    include_str!("lua/issued.lua"),
];

/// Reads the answer to an owner's step: `commit`, `release`, `renew` and `touch`.
pub(crate) fn ownership(server: &str, answer: Value) -> Result<Ownership, StoreError> {
    match answer {
        Value::Int(1) => Ok(Ownership::Held),
        Value::Int(0) => Ok(Ownership::Lost),
        // Another owner's record means that this one is lost. Other data is an error.
        Value::BulkString(found) => wire::decode(&found.into())
            .map(|_| Ownership::Lost)
            .map_err(unreadable),
        other => Err(unexpected(server, &other)),
    }
}

/// The answer of a compare-and-set: `takeover`, `remove`, `intervene` and `replace`.
pub(crate) enum Swap {
    /// The key has no record.
    Gone,
    /// Another record than the one that was read.
    Changed(Bytes),
    /// Nothing was written, because the lease is alive for this long.
    Alive(Duration),
    /// The condition holds, and there was nothing to write.
    Free,
    /// It was written, or removed.
    Done,
    /// The lease has run out by the server's clock, which may have been set: so long remains by our
    /// own.
    Unsure(Duration),
}

pub(crate) fn swap(server: &str, answer: &Value) -> Result<Swap, StoreError> {
    let Value::Array(fields) = answer else {
        return Err(unexpected(server, answer));
    };
    match fields.as_slice() {
        [Value::Int(0)] => Ok(Swap::Gone),
        [Value::Int(1), Value::BulkString(found)] => {
            Ok(Swap::Changed(Bytes::copy_from_slice(found)))
        }
        [Value::Int(2)] => Err(no_expiry()),
        [Value::Int(3), Value::Int(left)] => Ok(Swap::Alive(from_millis(*left))),
        [Value::Int(4)] => Ok(Swap::Free),
        [Value::Int(5)] => Ok(Swap::Done),
        [Value::Int(6), Value::Int(left)] => Ok(Swap::Unsure(from_millis(*left))),
        _ => Err(unexpected(server, answer)),
    }
}

/// Reads the answer of `watch`: the time left of the lease, `None` if there is nothing to wait for.
pub(crate) fn watched(server: &str, answer: Value) -> Result<Option<Duration>, StoreError> {
    match answer {
        Value::Int(0) => Ok(None),
        Value::Int(-1) => Err(no_expiry()),
        Value::Int(left) => Ok(Some(from_millis(left))),
        Value::BulkString(found) => wire::decode(&found.into())
            .map(|_| None)
            .map_err(unreadable),
        other => Err(unexpected(server, &other)),
    }
}

/// A value at a key, and how long it lives.
pub(crate) struct StoredValue {
    pub(crate) value: Bytes,
    /// `None`: without limit, because the expiry was removed.
    pub(crate) left: Option<Duration>,
}

/// A record, and the outcome that is kept aside for it.
pub(crate) struct FoundRecord {
    pub(crate) record: StoredValue,
    pub(crate) outcome: Option<StoredValue>,
}

/// Reads the answer of `inspect`, and one record in that of `peek`.
pub(crate) fn inspected(server: &str, answer: &Value) -> Result<Option<FoundRecord>, StoreError> {
    let found = |value: &[u8], left: i64| StoredValue {
        value: Bytes::copy_from_slice(value),
        left: (left >= 0).then(|| from_millis(left)),
    };
    let Value::Array(fields) = answer else {
        return Err(unexpected(server, answer));
    };
    match fields.as_slice() {
        [] => Ok(None),
        [Value::BulkString(record), Value::Int(left)] => Ok(Some(FoundRecord {
            record: found(record, *left),
            outcome: None,
        })),
        [
            Value::BulkString(record),
            Value::Int(left),
            Value::BulkString(outcome),
            Value::Int(outcome_left),
        ] => Ok(Some(FoundRecord {
            record: found(record, *left),
            outcome: Some(found(outcome, *outcome_left)),
        })),
        _ => Err(unexpected(server, answer)),
    }
}

fn from_millis(length: i64) -> Duration {
    Duration::from_millis(u64::try_from(length).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_no_script_gives_are_errors() {
        for answer in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![Value::Int(9)]),
            Value::Int(7),
        ] {
            assert!(ownership("x", answer.clone()).is_err());
            assert!(swap("x", &answer).is_err());
            assert!(inspected("x", &answer).is_err());
        }
        assert!(watched("x", Value::Nil).is_err());
    }
}
