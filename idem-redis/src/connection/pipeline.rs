//! Sends many steps of one kind in few round trips, such as renewals and issues.

use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use idem_core::StoreError;
use redis::{Cmd, Script, Value};
use tokio::time::{sleep, timeout};

use crate::connection::error::{failed, unexpected};
use crate::connection::step_connection::{
    StepConnection, are_apart, is_elsewhere, is_unknown_script,
};
use crate::connection::step_runner::StepRunner;

/// The most records in one message: enough to hide the round trip, few enough not to delay other
/// callers.
const BATCH: usize = 500;
/// How many messages to a node may be unanswered at a time.
const MAX_UNANSWERED: usize = 4;
/// How often a step is sent that the server refuses for the moment, and the pause before.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// One of many steps, as a command that can be repeated.
pub(crate) struct KeyedCommand {
    /// The record's key, or one of several keys in one slot.
    pub(crate) key: String,
    /// How many records the command is about.
    pub(crate) weight: usize,
    pub(crate) command: Cmd,
}

/// Sends steps to all nodes at the same time, with a few unanswered messages to each.
///
/// Each message has the limit of one step. After a message without an answer, that node gets no
/// more. `script` is the script that the commands run, if they run one. `read` decodes the answer
/// to a step.
pub(crate) async fn carry_out<T, R>(
    runner: &StepRunner,
    steps: &[KeyedCommand],
    script: Option<&'static Script>,
    read: R,
) -> Vec<Result<T, StoreError>>
where
    R: Fn(usize, &str, Value) -> Result<T, StoreError>,
{
    let answers = steps.iter().map(|_| None).collect();
    let run = BatchRun {
        runner,
        steps,
        script,
        read,
        answers: Mutex::new(answers),
    };
    join_all(
        run.by_node((0..steps.len()).collect())
            .into_iter()
            .map(|node| run.send_to_node(node)),
    )
    .await;
    let BatchRun { answers, .. } = run;
    let answers = answers
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .into_iter()
        .zip(steps);
    // A step without an answer may or may not have been carried out.
    let or_late = |(answer, step): (Option<Result<T, StoreError>>, &KeyedCommand)| {
        answer.unwrap_or_else(|| Err(runner.timed_out(runner.slot(&step.key))))
    };
    answers.map(or_late).collect()
}

struct BatchRun<'a, T, R> {
    runner: &'a StepRunner,
    steps: &'a [KeyedCommand],
    script: Option<&'static Script>,
    read: R,
    answers: Mutex<Vec<Option<Result<T, StoreError>>>>,
}

impl<T, R> BatchRun<'_, T, R>
where
    R: Fn(usize, &str, Value) -> Result<T, StoreError>,
{
    fn by_node(&self, steps: Vec<usize>) -> Vec<Vec<usize>> {
        let mut nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for index in steps {
            nodes
                .entry(self.runner.node(self.slot(index)))
                .or_default()
                .push(index);
        }
        nodes.into_values().collect()
    }

    async fn send_to_node(&self, steps: Vec<usize>) {
        let is_silent = AtomicBool::new(false);
        let mut messages = Vec::new();
        let mut message = Vec::new();
        let mut weight = 0;
        for index in steps {
            weight += self.steps[index].weight;
            message.push(index);
            if weight >= BATCH {
                messages.push(std::mem::take(&mut message));
                weight = 0;
            }
        }
        messages.push(message);
        let sending = messages.into_iter().map(|message| async {
            if is_silent.load(Ordering::Relaxed) {
                return;
            }
            let sent = timeout(self.runner.limit, self.send(message)).await;
            if !matches!(sent, Ok(true)) {
                is_silent.store(true, Ordering::Relaxed);
            }
        });
        stream::iter(sending)
            .buffer_unordered(MAX_UNANSWERED)
            .for_each(|()| ready(()))
            .await;
    }

    /// Sends a message, and repeats the steps that were refused for the moment. Returns whether the
    /// nodes answered.
    async fn send(&self, mut left: Vec<usize>) -> bool {
        for round in 0..ROUNDS {
            if left.is_empty() {
                return true;
            }
            if round > 0 {
                sleep(PAUSE * round).await;
            }
            let nodes = self.by_node(left).into_iter().map(|node| async move {
                let sent = self.send_batch(&node).await;
                (node, sent)
            });
            left = Vec::new();
            for (node, sent) in join_all(nodes).await {
                match sent {
                    Ok(refused) => left.extend(refused),
                    Err(error) => {
                        self.runner.note_error(&error);
                        for index in node {
                            self.answer(index, Err(error.clone()));
                        }
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Sends a message once. Returns the steps that must be sent again.
    async fn send_batch(&self, batch: &[usize]) -> Result<Vec<usize>, StoreError> {
        let Some(&first) = batch.first() else {
            return Ok(Vec::new());
        };
        let mut connection = self.runner.connection(self.slot(first)).await?;
        let commands = batch
            .iter()
            .map(|&index| self.steps[index].command.clone())
            .collect();
        let answers = connection
            .send_all(commands)
            .await
            .map_err(|error| failed(connection.server(), error))?;
        if answers.len() != batch.len() {
            return Err(unexpected(connection.server(), &Value::Nil));
        }
        let mut again = Vec::new();
        let mut elsewhere = Vec::new();
        let mut without_script = Vec::new();
        for (&index, answer) in batch.iter().zip(answers) {
            if let Err(error) = &answer {
                if is_unknown_script(error) {
                    without_script.push(index);
                    again.push(index);
                } else if is_elsewhere(error) {
                    elsewhere.push(index);
                } else if StepConnection::is_passing(error)
                    && !(self.steps[index].weight > 1 && are_apart(error))
                {
                    connection.note_redirect(error);
                    again.push(index);
                }
            }
            let answer = answer.map_err(|error| failed(connection.server(), error));
            self.answer(
                index,
                answer.and_then(|answer| (self.read)(index, connection.server(), answer)),
            );
        }
        // The server forgets scripts when they are flushed, perhaps while a message is carried out.
        if !without_script.is_empty()
            && let Some(script) = self.script
            && let Err(error) = connection.load(script).await
        {
            self.runner.note_error(&error);
            for index in without_script {
                self.answer(index, Err(error.clone()));
            }
        }
        // While a slot moves, the node redirects each step by itself.
        join_all(elsewhere.into_iter().map(|index| self.send_alone(index))).await;
        Ok(again)
    }

    async fn send_alone(&self, index: usize) {
        let sending = async {
            let command = &self.steps[index].command;
            let mut connection = self.runner.connection(self.slot(index)).await?;
            let answer = match (connection.try_send(command).await, self.script) {
                (Err(error), Some(script)) if is_unknown_script(&error) => {
                    connection.load(script).await?;
                    connection.try_send(command).await
                }
                (answer, _) => answer,
            };
            (self.read)(
                index,
                connection.server(),
                answer.map_err(|error| failed(connection.server(), error))?,
            )
        };
        let answer = sending.await;
        self.answer(
            index,
            answer.inspect_err(|error| self.runner.note_error(error)),
        );
    }

    fn slot(&self, index: usize) -> u16 {
        self.runner.slot(&self.steps[index].key)
    }

    fn answer(&self, index: usize, answer: Result<T, StoreError>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(answer);
    }
}
