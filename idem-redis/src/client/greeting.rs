//! The first words on a new connection.

use std::sync::Arc;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, Value};

use crate::client::command::evalsha;
use crate::client::error::{failed, refused, unconnected, unexpected};
use crate::client::facts::{self, Facts};

/// What is said first on each connection, for the store that uses it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Greeting {
    /// Made known to the server before the first call, which would pay for it.
    pub(crate) scripts: &'static [&'static str],
    /// Gives the names of the commands that the user may not use on the sample.
    pub(crate) rights: &'static Script,
    /// A key of the store's, by which the user's rights are looked at.
    pub(crate) sample: Arc<str>,
}

/// The first words on a new connection: makes the scripts known, and refuses a server that would
/// carry out a claim and then not its commit. Says whether the server has `SET .. IFEQ`: another
/// one may have been asked before, on another connection.
pub(crate) async fn greet(
    connection: &mut MultiplexedConnection,
    server: &str,
    Greeting { scripts, rights, sample }: &Greeting,
    is_node: bool,
) -> Result<bool, StoreError> {
    let mut words = redis::pipe();
    for code in *scripts {
        words.cmd("SCRIPT").arg("LOAD").arg(code);
    }
    words.ignore_errors();
    words.add_command(evalsha(rights, &[], &[sample.as_bytes()])).cmd("INFO").arg("server");
    let answers: Vec<RedisResult<Value>> =
        words.query_async(connection).await.map_err(|error| unconnected(server, error))?;
    let [loaded @ .., missing, info] = answers.as_slice() else { return Err(unexpected(server, &Value::Nil)) };
    // First: a Sentinel has no scripts, and an old server does not know these.
    let facts = info.as_ref().ok().and_then(facts::text).map(Facts::read).unwrap_or_default();
    facts.judge(server, is_node)?;
    for answer in loaded {
        needed(server, "SCRIPT LOAD", "+script|load", answer)?;
    }
    needed(server, "EVALSHA", "+evalsha", missing)?;
    if let Ok(missing) = missing {
        judge_rights(server, sample, missing)?;
    }
    Ok(facts.compares())
}

/// Refuses a server that refuses a command for good. Passing failures (such as loading) are left to
/// the calls.
fn needed(server: &str, command: &str, right: &str, answer: &RedisResult<Value>) -> Result<(), StoreError> {
    let Err(error) = answer else { return Ok(()) };
    let error = failed(server, error.clone());
    if error.kind() != StoreErrorKind::Refused {
        return Ok(());
    }
    Err(refused(format!(
        "{error}; idem needs {command}: without it a body would run and its outcome could not be recorded. Give the user the right to it (ACL SETUSER .. {right}), and see that the server does not rename or disable it (rename-command)"
    ))
    .with_source(error))
}

/// Refuses a server that has named commands which this user may not use on the store's keys.
pub(crate) fn judge_rights(server: &str, sample: &str, missing: &Value) -> Result<(), StoreError> {
    let Value::Array(missing) = missing else { return Err(unexpected(server, missing)) };
    let names = missing.iter().filter_map(|name| match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok(),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let rights = names.iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>().join(" +");
    let prefix = sample.strip_suffix("{}").unwrap_or(sample);
    Err(refused(format!(
        "Redis ({server}): NOPERM: this user may not use {} on the keys `{prefix}*`, so a body could run and its outcome not be recorded. Give the user the right to them (ACL SETUSER .. ~{prefix}* +{rights}), and see that the server does not rename or disable them (rename-command)",
        names.join(", ")
    )))
}
