//! Renewals: many leases in few round trips.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use idem_core::record::{Ownership, Renewal};
use idem_core::{StoreError, wire};
use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};

use crate::error::{failed, unexpected};
use crate::keys::Keys;
use crate::lane::{Lane, is_elsewhere, is_unknown_script};
use crate::script::{RENEW, evalsha, millis, ownership};
use crate::server::Server;

/// The most commands that are sent at once: enough to hide the way, few enough not to keep others waiting.
const BATCH: usize = 500;
/// How often a renewal is sent that the server does not carry out for the moment, and the pause before.
const ROUNDS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

type Answer = Result<Ownership, StoreError>;

/// Renews, the leases of each node at the same time, within the limit of one step.
pub(crate) async fn renew(server: &Server, keys: &Keys, renewals: &[Renewal]) -> Vec<Answer> {
    let all = All { server, keys, renewals, answers: Mutex::new(vec![None; renewals.len()]) };
    let _ = timeout(server.limit, all.send((0..renewals.len()).collect())).await;
    let All { answers, .. } = all;
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().zip(renewals);
    // What was answered before stays; the rest may or may not have been carried out.
    let or_late = |(answer, renewal): (Option<Answer>, &Renewal)| {
        answer.unwrap_or_else(|| Err(server.timed_out(server.slot(&keys.record(&renewal.id)))))
    };
    answers.map(or_late).collect()
}

struct All<'a> {
    server: &'a Server,
    keys: &'a Keys,
    renewals: &'a [Renewal],
    answers: Mutex<Vec<Option<Answer>>>,
}

impl All<'_> {
    async fn send(&self, mut left: Vec<usize>) {
        for round in 0..ROUNDS {
            if left.is_empty() {
                return;
            }
            sleep(PAUSE * round).await;
            let mut nodes: HashMap<_, Vec<usize>> = HashMap::new();
            for index in left {
                nodes.entry(self.server.node(self.slot(index))).or_default().push(index);
            }
            left = join_all(nodes.into_values().map(|node| self.send_to_node(node))).await.concat();
        }
    }

    /// Gives those that may be sent again.
    async fn send_to_node(&self, renewals: Vec<usize>) -> Vec<usize> {
        let mut again = Vec::new();
        for batch in renewals.chunks(BATCH) {
            match self.send_batch(batch).await {
                Ok(refused) => again.extend(refused),
                Err(error) => {
                    self.server.noticed(&error);
                    for &index in batch {
                        self.answer(index, Err(error.clone()));
                    }
                }
            }
        }
        again
    }

    async fn send_batch(&self, batch: &[usize]) -> Result<Vec<usize>, StoreError> {
        let Some(&first) = batch.first() else { return Ok(Vec::new()) };
        let mut lane = self.server.lane(self.slot(first)).await?;
        let commands = batch.iter().map(|&index| self.command(index)).collect();
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
                } else if Lane::is_passing(error) {
                    lane.learn(error);
                    again.push(index);
                }
            }
            let answer = answer.map_err(|error| failed(lane.server(), error));
            self.answer(index, answer.and_then(|answer| ownership(lane.server(), answer)));
        }
        // Perhaps in the middle.
        if !forgotten.is_empty()
            && let Err(error) = lane.load(&RENEW).await
        {
            self.server.noticed(&error);
            for index in forgotten {
                self.answer(index, Err(error.clone()));
            }
        }
        // While a slot is on its way, for as long as that takes: each by itself, as the node says for each anew.
        join_all(elsewhere.into_iter().map(|index| self.send_alone(index))).await;
        Ok(again)
    }

    async fn send_alone(&self, index: usize) {
        let (key, owner, hold) = self.parts(index);
        let sending = async {
            let mut lane = self.server.lane(self.server.slot(&key)).await?;
            let answer = lane.script(&RENEW, &[&key], &[owner.as_bytes(), hold.as_bytes()]).await?;
            ownership(lane.server(), answer)
        };
        let answer = sending.await;
        self.answer(index, answer.inspect_err(|error| self.server.noticed(error)));
    }

    fn command(&self, index: usize) -> Cmd {
        let (key, owner, hold) = self.parts(index);
        evalsha(&RENEW, &[&key], &[owner.as_bytes(), hold.as_bytes()])
    }

    /// The key, and what the script is given.
    fn parts(&self, index: usize) -> (String, String, String) {
        let renewal = &self.renewals[index];
        (self.keys.record(&renewal.id), wire::owner_prefix(renewal.owner), millis(renewal.hold).to_string())
    }

    fn slot(&self, index: usize) -> u16 {
        self.server.slot(&self.keys.record(&self.renewals[index].id))
    }

    fn answer(&self, index: usize, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(answer);
    }
}
