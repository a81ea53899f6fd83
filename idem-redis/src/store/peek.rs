//! Reading many records at a time, as far as listings and counts need them.

use idem_core::record::RecordId;
use idem_core::wire::HEAD;
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::connection::command::evalsha;
use crate::connection::error::unexpected;
use crate::connection::pipeline::{self, KeyedCommand};
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::look::look;
use crate::store::script::{FoundRecord, PEEK, inspected};

/// The most records that one script reads outside a cluster, in a fraction of a millisecond.
const MAX_READ_BATCH: usize = 100;
/// The third character of a record whose outcome is kept aside.
const ASIDE: u8 = b'o';

/// What is read, by the third characters of records.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The records that are wanted; empty for all.
    pub(crate) letters: &'static str,
    /// Those of which no more is wanted than this character.
    pub(crate) plain: &'static str,
}

/// The value at the key of a record.
pub(crate) enum Peeked {
    /// No record, or none that is wanted.
    Nothing,
    /// One of which no more is wanted than its third character.
    Letter(u8),
    Found(FoundRecord),
}

/// Reads records. Returns one answer for each id.
pub(crate) async fn peek_all(
    runner: &StepRunner,
    keys: &Keys,
    ids: &[RecordId],
    wanted: Wanted,
) -> Result<Vec<Peeked>, StoreError> {
    let all: Vec<&RecordId> = ids.iter().collect();
    let record_alone = |id: &RecordId| vec![keys.record(id)];
    let mut answers = peek(runner, keys, &all, wanted, record_alone).await?;
    // Few records have an outcome at another key. Only they are read again, with both keys.
    let is_aside = |index: &usize| matches!(answers[*index], Peeked::Letter(ASIDE));
    let places: Vec<usize> = (0..ids.len()).filter(is_aside).collect();
    let aside: Vec<&RecordId> = places.iter().map(|index| &ids[*index]).collect();
    let both = |id: &RecordId| vec![keys.record(id), keys.aside(id)];
    let again = peek(runner, keys, &aside, wanted, both).await?;
    for (index, answer) in places.into_iter().zip(again) {
        answers[index] = answer;
    }
    Ok(answers)
}

/// Reads records by these keys of each.
async fn peek(
    runner: &StepRunner,
    keys: &Keys,
    ids: &[&RecordId],
    wanted: Wanted,
    keys_of: impl Fn(&RecordId) -> Vec<String>,
) -> Result<Vec<Peeked>, StoreError> {
    let most = if runner.is_cluster() {
        1
    } else {
        MAX_READ_BATCH
    };
    let chunks: Vec<&[&RecordId]> = ids.chunks(most).collect();
    let head = HEAD.to_string();
    let command = |ids: &&[&RecordId]| {
        let names: Vec<String> = ids.iter().flat_map(|id| keys_of(id)).collect();
        let each = (names.len() / ids.len()).to_string();
        let args = [&*each, &head, wanted.letters, wanted.plain].map(str::as_bytes);
        let key = names.first().cloned().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        KeyedCommand {
            command: evalsha(&PEEK, &names, &args),
            key,
            // More than one key, so that the answer "these are at two nodes" is final.
            weight: names.len(),
        }
    };
    let steps: Vec<KeyedCommand> = chunks.iter().map(command).collect();
    let read = |index: usize, server: &str, answer| peeked(server, &answer, chunks[index].len());
    let answers = pipeline::carry_out(runner, &steps, Some(&PEEK), read).await;
    let mut all = Vec::with_capacity(ids.len());
    for (ids, answer) in chunks.iter().zip(answers) {
        match answer {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                for id in *ids {
                    all.push(look_at_one(runner, keys, id).await?);
                }
            }
            answer => all.extend(answer?),
        }
    }
    Ok(all)
}

/// Reads the answer of `peek` about so many records.
fn peeked(server: &str, answer: &Value, records: usize) -> Result<Vec<Peeked>, StoreError> {
    let Value::Array(fields) = answer else {
        return Err(unexpected(server, answer));
    };
    let Some((Value::BulkString(marks), read)) = fields.split_first() else {
        return Err(unexpected(server, answer));
    };
    let mut read = read.iter();
    let peeked = |mark: &u8| match mark {
        b'-' => Ok(Peeked::Nothing),
        b'.' => {
            let found = read.next().map(|found| inspected(server, found));
            match found.transpose()?.flatten() {
                Some(found) => Ok(Peeked::Found(found)),
                None => Err(unexpected(server, answer)),
            }
        }
        letter => Ok(Peeked::Letter(*letter)),
    };
    let peeked: Vec<Peeked> = marks.iter().map(peeked).collect::<Result<_, _>>()?;
    if peeked.len() != records {
        return Err(unexpected(server, answer));
    }
    Ok(peeked)
}

/// Reads a record whose slot is moving to another node.
async fn look_at_one(
    runner: &StepRunner,
    keys: &Keys,
    id: &RecordId,
) -> Result<Peeked, StoreError> {
    let key = &keys.record(id);
    let aside = &keys.aside(id);
    let found = runner
        .step(key, |mut connection| async move {
            look(&mut connection, key, aside).await
        })
        .await?;
    Ok(found.map_or(Peeked::Nothing, Peeked::Found))
}
