//! The servers' descriptions of themselves, for programs that check them.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_core::StoreError;
use redis::Value;

use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::script::OPTIONAL_RIGHTS;

/// The settings that a survey asks for.
const SETTINGS: [&str; 6] = [
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "client-output-buffer-limit",
    "timeout",
    "cluster-require-full-coverage",
];

/// The facts about one server: see [`RedisStore::survey`](crate::RedisStore::survey).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Survey {
    /// Which server, without user and password.
    pub server: String,
    /// The fields of `INFO`, by name. Empty if this user may not ask.
    pub info: BTreeMap<String, String>,
    /// Some settings of `CONFIG GET`, by name. Empty if this user may not ask, as with most
    /// services that others run.
    pub config: BTreeMap<String, String>,
    /// Commands that this user may not use, and that no promise needs: `INFO`, and those that wake
    /// waiters, look at the server's clock, or list records.
    pub missing_rights: Vec<String>,
    /// The server's clock, since 1970. `None` if this user may not ask.
    pub time: Option<Duration>,
}

/// Asks each master.
pub(crate) async fn survey(runner: &StepRunner, keys: &Keys) -> Result<Vec<Survey>, StoreError> {
    let mut all = Vec::new();
    for slot in runner.slots() {
        let sample = keys.sample();
        all.push(
            runner
                .step_at(slot, |connection| async move {
                    survey_at(connection, &sample).await
                })
                .await?,
        );
    }
    Ok(all)
}

async fn survey_at(mut connection: StepConnection, sample: &str) -> Result<Survey, StoreError> {
    let mut survey = Survey {
        server: connection.server().to_owned(),
        ..Survey::default()
    };
    // ServerInfo without the right to ask stay unknown.
    if let Some(Value::BulkString(text)) = asked(&mut connection, &redis::cmd("INFO")).await? {
        survey.info = fields(&String::from_utf8_lossy(&text));
    } else if let Some(Value::VerbatimString { text, .. }) =
        asked(&mut connection, &redis::cmd("INFO")).await?
    {
        survey.info = fields(&text);
    }
    for setting in SETTINGS {
        let answer = asked(
            &mut connection,
            redis::cmd("CONFIG").arg("GET").arg(setting),
        )
        .await?;
        if let Some(value) = answer.as_ref().and_then(setting_of) {
            survey.config.insert(setting.to_owned(), value);
        }
    }
    if let Some(Value::Array(parts)) = asked(&mut connection, &redis::cmd("TIME")).await? {
        let part = |index: usize| {
            parts
                .get(index)
                .and_then(text)
                .and_then(|text| text.parse::<u64>().ok())
        };
        survey.time = part(0).zip(part(1)).map(|(seconds, micros)| {
            Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
        });
    }
    if let Value::Array(missing) = connection
        .script(&OPTIONAL_RIGHTS, &[], &[sample.as_bytes()])
        .await?
    {
        survey.missing_rights = missing.iter().filter_map(text).collect();
    }
    Ok(survey)
}

/// Returns the answer to a command; `None` if the server refuses it.
async fn asked(
    connection: &mut StepConnection,
    command: &redis::Cmd,
) -> Result<Option<Value>, StoreError> {
    match connection.send(command).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == idem_core::StoreErrorKind::Refused => Ok(None),
        Err(error) => Err(error),
    }
}

fn fields(info: &str) -> BTreeMap<String, String> {
    let field = |line: &str| {
        line.split_once(':')
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
    };
    info.lines().filter_map(field).collect()
}

/// The value of the one setting that was asked for.
fn setting_of(answer: &Value) -> Option<String> {
    match answer {
        Value::Array(pair) => text(pair.get(1)?),
        Value::Map(pairs) => text(&pairs.first()?.1),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}
