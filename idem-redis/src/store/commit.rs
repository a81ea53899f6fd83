//! Commits: the outcome over the record in flight.

use idem_core::record::{Commit, Ownership, Record};
use idem_core::{StoreError, wire};
use redis::{Cmd, Value};

use crate::connection::command::{evalsha, millis};
use crate::connection::error::{failed, unexpected};
use crate::connection::fast_path::{FastPath, is_refused};
use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::store::claim::{hold_as_sent, lease_as_sent};
use crate::store::keys::Keys;
use crate::store::script::{COMMIT, ownership};

pub(crate) async fn commit(
    runner: &StepRunner,
    keys: &Keys,
    commit: &Commit,
) -> Result<Ownership, StoreError> {
    let key = &keys.record(&commit.id);
    let written = &CommitWrite::new(keys, commit);
    let fast_path = async |fast_path: FastPath| {
        let command = if fast_path.has_ifeq() {
            written.compare_and_set(key, commit)
        } else {
            None
        };
        let is_compared = command.is_some();
        match fast_path
            .send(command.unwrap_or_else(|| written.script(key)))
            .await
        {
            Ok(Value::Okay) if is_compared => Ok(Ok(Ownership::Held)),
            // A waiter left its mark, or the record was committed before, or it is gone: the script
            // tells these apart.
            Ok(Value::Nil) if is_compared => Err(()),
            Ok(answer) if is_compared => Ok(Err(unexpected(fast_path.server(), &answer))),
            // Perhaps this outcome, recorded at one key while the slot was moving.
            Ok(Value::BulkString(_)) if written.aside.is_some() => Err(()),
            Ok(answer) => Ok(ownership(fast_path.server(), answer)),
            Err(error) if is_refused(&error) => {
                if is_compared {
                    fast_path.note_ifeq_refusal(&error);
                }
                Err(())
            }
            Err(error) => Ok(Err(failed(fast_path.server(), error))),
        }
    };
    let whole =
        |mut connection, _| async move { record_outcome(&mut connection, key, written).await };
    runner.step_with_fast_path(key, fast_path, whole).await
}

/// The data that a commit writes.
struct CommitWrite {
    /// The record as it was claimed, if that is known, else only the owner's prefix.
    claimed: Vec<u8>,
    record: Vec<u8>,
    /// How long the record stays, in ms; if the outcome is kept aside, how long the outcome stays.
    stays: String,
    aside: Option<Aside>,
}

/// An outcome that expires before its record, and so is kept aside at its own key.
struct Aside {
    /// The record, which says that there is an outcome.
    mark: Vec<u8>,
    /// The outcome's key.
    key: String,
    /// How long the mark stays, in ms.
    remember: String,
}

impl CommitWrite {
    fn new(keys: &Keys, commit: &Commit) -> Self {
        let ttl = millis(commit.ttl);
        let remember = millis(commit.remember.max(commit.ttl));
        let has_outcome = commit.outcome.is_some();
        let aside = (has_outcome && remember > ttl).then(|| Aside {
            mark: wire::encode_aside(commit.attempt, commit.fingerprint),
            key: keys.aside(&commit.id),
            remember: remember.to_string(),
        });
        let stays = if has_outcome { ttl } else { remember };
        Self {
            claimed: claimed(commit),
            record: wire::encode(&commit.record()),
            stays: stays.to_string(),
            aside,
        }
    }

    /// Returns the plain command that writes over the record as it was claimed. `None` if that is
    /// not known, or if the outcome is kept aside.
    fn compare_and_set(&self, key: &str, commit: &Commit) -> Option<Cmd> {
        let Self {
            claimed,
            record,
            stays,
            aside: None,
        } = self
        else {
            return None;
        };
        commit.in_flight()?;
        let mut set = Cmd::with_capacity(7, 64 + key.len() + record.len() + claimed.len());
        set.arg("SET")
            .arg(key)
            .arg(record)
            .arg("IFEQ")
            .arg(claimed)
            .arg("PX")
            .arg(stays);
        Some(set)
    }

    /// Returns the script that writes in one step.
    fn script(&self, key: &str) -> Cmd {
        let Self {
            claimed,
            record,
            stays,
            aside,
        } = self;
        let stays = stays.as_bytes();
        match aside {
            None => evalsha(&COMMIT, &[key], &[claimed, record, stays]),
            Some(aside) => evalsha(
                &COMMIT,
                &[key, &aside.key],
                &[
                    claimed,
                    &aside.mark,
                    aside.remember.as_bytes(),
                    record,
                    stays,
                ],
            ),
        }
    }
}

/// Returns the record that a commit writes over, as far as it is known.
fn claimed(commit: &Commit) -> Vec<u8> {
    let Some(found) = commit.in_flight() else {
        return wire::owner_prefix(commit.owner).into_bytes();
    };
    let lease = lease_as_sent(found.lease);
    let hold = hold_as_sent(found.hold);
    wire::encode(&Record::InFlight(found.with_lease(lease).with_hold(hold)))
}

async fn record_outcome(
    connection: &mut StepConnection,
    key: &str,
    written: &CommitWrite,
) -> Result<Ownership, StoreError> {
    let CommitWrite {
        claimed,
        record,
        stays,
        aside,
    } = written;
    let stays = stays.as_bytes();
    let answer = match aside {
        None => {
            connection
                .script(&COMMIT, &[key], &[claimed, record, stays])
                .await?
        }
        Some(aside) => {
            let remember = aside.remember.as_bytes();
            let args: [&[u8]; 5] = [claimed, &aside.mark, remember, record, stays];
            match connection
                .script_on_all(&COMMIT, &[key, &aside.key], &args)
                .await?
            {
                // This outcome, recorded at one key while the slot was moving.
                Some(Value::BulkString(found)) if found == *record => Value::Int(1),
                Some(answer) => answer,
                None => record_at_one_key(connection, key, &aside.key, args).await?,
            }
        }
    };
    let outcome = ownership(connection.server(), answer)?;
    if outcome == Ownership::Held {
        connection.acknowledged().await?;
    }
    Ok(outcome)
}

/// Records an outcome while the slot of its two keys moves to another node. The record holds the
/// outcome, as in one step, and is kept for as long as the fact is remembered.
async fn record_at_one_key(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
    args: [&[u8]; 5],
) -> Result<Value, StoreError> {
    let [claimed, mark, remember, record, _] = args;
    match connection
        .script(&COMMIT, &[key], &[claimed, record, remember])
        .await?
    {
        // The outcome was recorded before the slot began to move. Or the mark belongs to another
        // record of the key with the same attempt.
        Value::BulkString(found) if found == mark => {
            match connection.send(redis::cmd("GET").arg(aside)).await? {
                Value::BulkString(kept) if kept != record => Ok(Value::Int(0)),
                _ => Ok(Value::Int(1)),
            }
        }
        answer => Ok(answer),
    }
}
