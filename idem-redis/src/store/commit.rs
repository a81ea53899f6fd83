//! Commits: the outcome over the record in flight.

use idem_core::record::{Commit, Ownership, Record};
use idem_core::{StoreError, wire};
use redis::{Cmd, Value};

use crate::client::command::{evalsha, millis};
use crate::client::error::{failed, unexpected};
use crate::client::lane::Lane;
use crate::client::quick::{Quick, is_refused};
use crate::client::server::Server;
use crate::store::claim::lengths_as_sent;
use crate::store::keys::Keys;
use crate::store::script::{COMMIT, ownership};

pub(crate) async fn commit(server: &Server, keys: &Keys, commit: &Commit) -> Result<Ownership, StoreError> {
    let key = &keys.record(&commit.id);
    let written = &Written::new(keys, commit);
    let quick = async |quick: Quick| {
        let compared = if quick.compares() { written.compared(key, commit) } else { None };
        let is_compared = compared.is_some();
        match quick.send(compared.unwrap_or_else(|| written.command(key))).await {
            Ok(Value::Okay) if is_compared => Ok(Ok(Ownership::Held)),
            // Marked by a waiter, recorded before, another's, gone: the script knows.
            Ok(Value::Nil) if is_compared => Err(()),
            Ok(answer) if is_compared => Ok(Err(unexpected(quick.server(), &answer))),
            // Recorded in one piece perhaps, while its slot was on its way: the whole step
            // knows.
            Ok(Value::BulkString(_)) if written.aside.is_some() => Err(()),
            Ok(answer) => Ok(ownership(quick.server(), answer)),
            Err(error) if is_refused(&error) => {
                if is_compared {
                    quick.refused_to_compare(&error);
                }
                Err(())
            }
            Err(error) => Ok(Err(failed(quick.server(), error))),
        }
    };
    let whole = |mut lane, _| async move { record_outcome(&mut lane, key, written).await };
    server.step_quickly(key, quick, whole).await
}

/// The data that a commit writes.
struct Written {
    /// The record as it was claimed, where that is known, else the owner's prefix.
    claimed: Vec<u8>,
    record: Vec<u8>,
    /// How long that stays, in ms.
    stays: String,
    /// Set if the outcome expires before its record and so has its own key: that record, the
    /// outcome's key, and how long the record stays.
    aside: Option<(Vec<u8>, String, String)>,
}

impl Written {
    fn new(keys: &Keys, commit: &Commit) -> Self {
        let (ttl, remember) = (millis(commit.ttl), millis(commit.remember.max(commit.ttl)));
        let (claimed, record) = (claimed(commit), wire::encode(&commit.record()));
        let (stays, aside) = if commit.outcome.is_none() {
            (remember, None)
        } else if remember > ttl {
            // The outcome's memory is freed in time, and the mark that there was one stays.
            let mark = wire::encode_aside(commit.attempt, commit.fingerprint);
            (ttl, Some((mark, keys.aside(&commit.id), remember.to_string())))
        } else {
            (ttl, None)
        };
        Self { claimed, record, stays: stays.to_string(), aside }
    }

    /// The plain command that writes it over the record as it was claimed, where that is known and
    /// one key is all there is to write.
    fn compared(&self, key: &str, commit: &Commit) -> Option<Cmd> {
        let Self { claimed, record, stays, aside: None } = self else { return None };
        commit.in_flight()?;
        let mut set = Cmd::with_capacity(7, 64 + key.len() + record.len() + claimed.len());
        set.arg("SET").arg(key).arg(record).arg("IFEQ").arg(claimed).arg("PX").arg(stays);
        Some(set)
    }

    /// The script that writes it, in one step.
    fn command(&self, key: &str) -> Cmd {
        let Self { claimed, record, stays, aside } = self;
        let stays = stays.as_bytes();
        match aside {
            None => evalsha(&COMMIT, &[key], &[claimed, record, stays]),
            Some((mark, aside, remember)) => {
                evalsha(&COMMIT, &[key, aside], &[claimed, mark, remember.as_bytes(), record, stays])
            }
        }
    }
}

/// The record that a commit writes over, as far as it is known.
fn claimed(commit: &Commit) -> Vec<u8> {
    let Some(found) = commit.in_flight() else { return wire::owner_prefix(commit.owner).into_bytes() };
    let (lease, hold) = lengths_as_sent(found.lease, found.hold);
    wire::encode(&Record::InFlight(found.with_lease(lease).with_hold(hold)))
}

async fn record_outcome(lane: &mut Lane, key: &str, written: &Written) -> Result<Ownership, StoreError> {
    let Written { claimed, record, stays, aside } = written;
    let stays = stays.as_bytes();
    let answer = match aside {
        None => lane.script(&COMMIT, &[key], &[claimed, record, stays]).await?,
        Some((mark, aside, remember)) => {
            let args = [claimed, mark, remember.as_bytes(), record, stays];
            match lane.script_on_all(&COMMIT, &[key, aside], &args).await? {
                // While its slot was on its way.
                Some(Value::BulkString(found)) if found == *record => Value::Int(1),
                Some(answer) => answer,
                None => record_whole(lane, key, aside, args).await?,
            }
        }
    };
    let outcome = ownership(lane.server(), answer)?;
    if outcome == Ownership::Held {
        lane.acknowledged().await?;
    }
    Ok(outcome)
}

/// Records an outcome while the slot of its two keys moves to another node. The record holds the
/// outcome, as in one step, and is kept for as long as the fact is remembered.
async fn record_whole(lane: &mut Lane, key: &str, aside: &str, args: [&[u8]; 5]) -> Result<Value, StoreError> {
    let [claimed, mark, remember, record, _] = args;
    match lane.script(&COMMIT, &[key], &[claimed, record, remember]).await? {
        // Recorded before the slot began to move; or the mark is another's, who had the same
        // attempt in another life of the key.
        Value::BulkString(found) if found == mark => match lane.send(redis::cmd("GET").arg(aside)).await? {
            Value::BulkString(kept) if kept != record => Ok(Value::Int(0)),
            _ => Ok(Value::Int(1)),
        },
        answer => Ok(answer),
    }
}
