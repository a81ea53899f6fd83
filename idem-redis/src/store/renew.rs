//! Renewals: many leases in few commands.

use std::collections::BTreeMap;

use idem_core::record::{Ownership, Renewal};
use idem_core::{StoreError, StoreErrorKind, wire};
use redis::{RedisError, Value};

use crate::connection::command::{evalsha, millis};
use crate::connection::error::unexpected;
use crate::connection::pipeline::{self, KeyedCommand};
use crate::connection::step_connection::are_apart;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::script::{RENEW, ownership};

/// The most leases in one command, for which the server blocks less than a millisecond.
const MAX_BATCH: usize = 250;

type Answer = Result<Ownership, StoreError>;

pub(crate) async fn renew(runner: &StepRunner, keys: &Keys, renewals: &[Renewal]) -> Vec<Answer> {
    let all = Renewals {
        runner,
        keys,
        all: renewals,
    };
    let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (index, renewal) in renewals.iter().enumerate() {
        groups
            .entry(runner.group(&keys.record(&renewal.id)))
            .or_default()
            .push(index);
    }
    let groups = groups
        .values()
        .flat_map(|group| group.chunks(MAX_BATCH))
        .map(<[usize]>::to_vec)
        .collect();
    let mut answers: BTreeMap<usize, Answer> = BTreeMap::new();
    let mut apart = Vec::new();
    for (group, said) in all.send(groups).await {
        match said {
            // The slot is moving, so each renewal is sent in a message of its own.
            Err(error) if group.len() > 1 && is_apart(&error) => {
                apart.extend(group.into_iter().map(|index| vec![index]));
            }
            Err(error) => {
                answers.extend(group.into_iter().map(|index| (index, Err(error.clone()))));
            }
            Ok(said) => answers.extend(group.into_iter().zip(said)),
        }
    }
    if !apart.is_empty() {
        for (group, said) in all.send(apart).await {
            answers.extend(
                group
                    .into_iter()
                    .zip(said.unwrap_or_else(|error| vec![Err(error)])),
            );
        }
    }
    answers.into_values().collect()
}

struct Renewals<'a> {
    runner: &'a StepRunner,
    keys: &'a Keys,
    all: &'a [Renewal],
}

impl Renewals<'_> {
    /// Sends one command for each group. A group has an answer for each renewal, or one error.
    async fn send(
        &self,
        groups: Vec<Vec<usize>>,
    ) -> Vec<(Vec<usize>, Result<Vec<Answer>, StoreError>)> {
        let steps: Vec<KeyedCommand> = groups.iter().map(|group| self.step(group)).collect();
        let read =
            |index: usize, server: &str, answer| answers(server, groups[index].len(), answer);
        let said = pipeline::carry_out(self.runner, &steps, Some(&RENEW), read).await;
        groups.into_iter().zip(said).collect()
    }

    fn step(&self, group: &[usize]) -> KeyedCommand {
        let mut records = Vec::new();
        let mut args = Vec::new();
        for renewal in group.iter().map(|&index| &self.all[index]) {
            records.push(self.keys.record(&renewal.id));
            args.push(wire::owner_prefix(renewal.owner));
            args.push(millis(renewal.hold).to_string());
        }
        let keys: Vec<&str> = records.iter().map(String::as_str).collect();
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        let command = evalsha(&RENEW, &keys, &args);
        KeyedCommand {
            command,
            weight: group.len(),
            key: records.into_iter().next().unwrap_or_default(),
        }
    }
}

fn answers(server: &str, count: usize, answer: Value) -> Result<Vec<Answer>, StoreError> {
    match answer {
        Value::Array(answers) if answers.len() == count => Ok(answers
            .into_iter()
            .map(|answer| answer_to_one(server, answer))
            .collect()),
        other => Err(unexpected(server, &other)),
    }
}

fn answer_to_one(server: &str, answer: Value) -> Answer {
    match answer {
        Value::Array(error) => match error.as_slice() {
            [Value::BulkString(error)] => Err(StoreError::new(
                StoreErrorKind::Unreadable,
                format!(
                    "Redis ({server}): {}; the value was not written by idem and was left \
                     untouched; give idem a prefix of its own",
                    String::from_utf8_lossy(error)
                ),
            )),
            _ => Err(unexpected(server, &Value::Nil)),
        },
        answer => ownership(server, answer),
    }
}

fn is_apart(error: &StoreError) -> bool {
    let source =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(are_apart)
}
