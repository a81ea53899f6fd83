//! Many steps of one kind in few round trips: renewals, issues.

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

use crate::client::error::{failed, unexpected};
use crate::client::lane::{Lane, are_apart, is_elsewhere, is_unknown_script};
use crate::client::server::Server;

/// The most records in one message: enough to hide the way, few enough not to keep others waiting.
const BATCH: usize = 500;
/// How many messages to a node are sent before the first of them is answered.
const AHEAD: usize = 4;
/// How often a step is sent that the server does not carry out for the moment, and the pause
/// before.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// One of many steps. It may be sent again.
pub(crate) struct KeyedCommand {
    /// Of the record, or of one of several in one slot.
    pub(crate) key: String,
    /// On how many records it is.
    pub(crate) weight: usize,
    pub(crate) command: Cmd,
}

/// Carries steps out, those of each node at the same time, a few messages ahead of the answers.
/// Each message has the limit of one step; after one without an answer, the rest for that node is
/// not sent any more.
///
/// `script` is what their commands run, if they run one; `read` says what the answer to a step
/// means.
pub(crate) async fn carry_out<T, R>(
    server: &Server,
    steps: &[KeyedCommand],
    script: Option<&'static Script>,
    read: R,
) -> Vec<Result<T, StoreError>>
where
    R: Fn(usize, &str, Value) -> Result<T, StoreError>,
{
    let answers = steps.iter().map(|_| None).collect();
    let all = All { server, steps, script, read, answers: Mutex::new(answers) };
    join_all(all.by_node((0..steps.len()).collect()).into_iter().map(|node| all.send_to_node(node))).await;
    let All { answers, .. } = all;
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().zip(steps);
    // Earlier answers stay; the other steps may or may not have been carried out.
    let or_late = |(answer, step): (Option<Result<T, StoreError>>, &KeyedCommand)| {
        answer.unwrap_or_else(|| Err(server.timed_out(server.slot(&step.key))))
    };
    answers.map(or_late).collect()
}

struct All<'a, T, R> {
    server: &'a Server,
    steps: &'a [KeyedCommand],
    script: Option<&'static Script>,
    read: R,
    answers: Mutex<Vec<Option<Result<T, StoreError>>>>,
}

impl<T, R> All<'_, T, R>
where
    R: Fn(usize, &str, Value) -> Result<T, StoreError>,
{
    fn by_node(&self, steps: Vec<usize>) -> Vec<Vec<usize>> {
        let mut nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for index in steps {
            nodes.entry(self.server.node(self.slot(index))).or_default().push(index);
        }
        nodes.into_values().collect()
    }

    async fn send_to_node(&self, steps: Vec<usize>) {
        let is_silent = AtomicBool::new(false);
        let mut messages = Vec::new();
        let (mut message, mut weight) = (Vec::new(), 0);
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
            let sent = timeout(self.server.limit, self.send(message)).await;
            if !matches!(sent, Ok(true)) {
                is_silent.store(true, Ordering::Relaxed);
            }
        });
        stream::iter(sending).buffer_unordered(AHEAD).for_each(|()| ready(())).await;
    }

    /// Sends a message, and again what may be sent again. Says whether the nodes answered.
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
                        self.server.noticed(&error);
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

    async fn send_batch(&self, batch: &[usize]) -> Result<Vec<usize>, StoreError> {
        let Some(&first) = batch.first() else { return Ok(Vec::new()) };
        let mut lane = self.server.lane(self.slot(first)).await?;
        let commands = batch.iter().map(|&index| self.steps[index].command.clone()).collect();
        let answers = lane.send_all(commands).await.map_err(|error| failed(lane.server(), error))?;
        if answers.len() != batch.len() {
            return Err(unexpected(lane.server(), &Value::Nil));
        }
        let (mut again, mut elsewhere) = (Vec::new(), Vec::new());
        let mut forgotten = Vec::new();
        for (&index, answer) in batch.iter().zip(answers) {
            if let Err(error) = &answer {
                if is_unknown_script(error) {
                    forgotten.push(index);
                    again.push(index);
                } else if is_elsewhere(error) {
                    elsewhere.push(index);
                } else if Lane::is_passing(error) && !(self.steps[index].weight > 1 && are_apart(error)) {
                    lane.learn(error);
                    again.push(index);
                }
            }
            let answer = answer.map_err(|error| failed(lane.server(), error));
            self.answer(index, answer.and_then(|answer| (self.read)(index, lane.server(), answer)));
        }
        // Perhaps in the middle.
        if !forgotten.is_empty()
            && let Some(script) = self.script
            && let Err(error) = lane.load(script).await
        {
            self.server.noticed(&error);
            for index in forgotten {
                self.answer(index, Err(error.clone()));
            }
        }
        // While a slot is moving, each step goes by itself, and the node redirects each.
        join_all(elsewhere.into_iter().map(|index| self.send_alone(index))).await;
        Ok(again)
    }

    async fn send_alone(&self, index: usize) {
        let sending = async {
            let command = &self.steps[index].command;
            let mut lane = self.server.lane(self.slot(index)).await?;
            let answer = match (lane.try_send(command).await, self.script) {
                (Err(error), Some(script)) if is_unknown_script(&error) => {
                    lane.load(script).await?;
                    lane.try_send(command).await
                }
                (answer, _) => answer,
            };
            (self.read)(index, lane.server(), answer.map_err(|error| failed(lane.server(), error))?)
        };
        let answer = sending.await;
        self.answer(index, answer.inspect_err(|error| self.server.noticed(error)));
    }

    fn slot(&self, index: usize) -> u16 {
        self.server.slot(&self.steps[index].key)
    }

    fn answer(&self, index: usize, answer: Result<T, StoreError>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(answer);
    }
}
