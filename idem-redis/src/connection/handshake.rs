//! The handshake: the first commands on a new session.

use std::sync::Arc;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, Value};

use crate::connection::command::evalsha;
use crate::connection::error::{failed, refused, unconnected, unexpected};
use crate::connection::server_info::{self, ServerInfo};

/// The store's part of the handshake. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handshake {
    /// Loaded into the server, so that the first call does not pay for it.
    pub(crate) scripts: &'static [&'static str],
    /// Returns the names of the commands that the user may not use on the sample.
    pub(crate) rights: &'static Script,
    /// A key of the store, on which the user's rights are checked.
    pub(crate) sample: Arc<str>,
}

/// Loads the scripts, and refuses a server that would carry out a claim and then not its commit.
///
/// Returns whether the server has `SET .. IFEQ`. Each session asks, because the server behind an
/// address can change.
pub(crate) async fn handshake(
    connection: &mut MultiplexedConnection,
    server: &str,
    handshake: &Handshake,
    is_node: bool,
) -> Result<bool, StoreError> {
    let Handshake {
        scripts,
        rights,
        sample,
    } = handshake;
    let mut commands = redis::pipe();
    for code in *scripts {
        commands.cmd("SCRIPT").arg("LOAD").arg(code);
    }
    commands.ignore_errors();
    commands
        .add_command(evalsha(rights, &[], &[sample.as_bytes()]))
        .cmd("INFO")
        .arg("server");
    let answers: Vec<RedisResult<Value>> = commands
        .query_async(connection)
        .await
        .map_err(|error| unconnected(server, error))?;
    let [loaded @ .., missing, info] = answers.as_slice() else {
        return Err(unexpected(server, &Value::Nil));
    };
    // Checked first: a Sentinel and an old server refuse the scripts too, with errors that say
    // less.
    let info = info
        .as_ref()
        .ok()
        .and_then(server_info::text)
        .map(ServerInfo::read)
        .unwrap_or_default();
    info.check(server, is_node)?;
    for answer in loaded {
        check_allowed(server, "SCRIPT LOAD", "+script|load", answer)?;
    }
    check_allowed(server, "EVALSHA", "+evalsha", missing)?;
    if let Ok(missing) = missing {
        check_rights(server, sample, missing)?;
    }
    Ok(info.has_ifeq())
}

/// Refuses a server that does not let this user send a command. Failures that pass, such as a
/// server that is loading, are left to the calls.
fn check_allowed(
    server: &str,
    command: &str,
    right: &str,
    answer: &RedisResult<Value>,
) -> Result<(), StoreError> {
    let Err(error) = answer else { return Ok(()) };
    let error = failed(server, error.clone());
    if error.kind() != StoreErrorKind::Refused {
        return Ok(());
    }
    Err(refused(format!(
        "{error}; idem needs {command}: without it a body would run and its outcome could not be \
         recorded. Give the user the right to it (ACL SETUSER .. {right}), and see that the server \
         does not rename or disable it (rename-command)"
    ))
    .with_source(error))
}

/// Refuses a server whose answer to the script `rights` names commands.
pub(crate) fn check_rights(server: &str, sample: &str, missing: &Value) -> Result<(), StoreError> {
    let Value::Array(missing) = missing else {
        return Err(unexpected(server, missing));
    };
    let names = missing.iter().filter_map(|name| match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok(),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let rights = names
        .iter()
        .map(|name| name.to_ascii_lowercase())
        .collect::<Vec<_>>()
        .join(" +");
    let prefix = sample.strip_suffix("{}").unwrap_or(sample);
    Err(refused(format!(
        "Redis ({server}): NOPERM: this user may not use {} on the keys `{prefix}*`, so a body \
         could run and its outcome not be recorded. Give the user the right to them (ACL SETUSER \
         .. ~{prefix}* +{rights}), and see that the server does not rename or disable them \
         (rename-command)",
        names.join(", ")
    )))
}
