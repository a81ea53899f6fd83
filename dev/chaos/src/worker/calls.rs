//! One call, in one of the modes in which applications make them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use idem_core::policy::InFlight;
use idem_core::{Begin, Error, ErrorAction, Idempotency, Lease, Outcome, Retry};

use crate::history::{Answer, Event, Journal, Receipt};
use crate::keys;
use crate::worker::body::{Body, BodyExit, Failure, ON_PURPOSE, Script, Whose};
use crate::worker::stamp::stamped;
use crate::worker::witness::CALL;

/// The operation of all calls.
const OPERATION: &str = "chaos";
/// For how long a key is called again that must come to its end.
const TRYING: Duration = Duration::from_secs(10);

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunMode {
    Run,
    Detached,
    ByHand,
    /// By hand, and the commit comes late, whether or not the lease is held.
    Late,
}

/// The state that all calls of a process share.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) idempotency: Idempotency,
    pub(crate) journal: Journal,
    pub(crate) lease: Duration,
    /// Of calls and bodies.
    pub(crate) next: Arc<AtomicU64>,
}

/// The random plan of a call.
pub(crate) struct Plan {
    mode: RunMode,
    wait: Duration,
    rejects: bool,
    /// When its caller loses patience.
    dropped: Option<Duration>,
    /// For each try.
    scripts: Vec<Script>,
    late: Duration,
    /// When all is healed.
    last: bool,
}

impl Plan {
    fn throw(dice: &mut Rng, lease: Duration) -> Self {
        let mode = match dice.u8(..100) {
            0..50 => RunMode::Run,
            50..70 => RunMode::Detached,
            70..90 => RunMode::ByHand,
            _ => RunMode::Late,
        };
        // Long enough for a take-over, more often than not.
        let wait = if dice.u8(..100) < 70 {
            lease * 3 + Duration::from_secs(2)
        } else {
            lease
        };
        let dropped = (dice.u8(..100) < 12).then(|| lease.mul_f64(dice.f64() * 2.0));
        let scripts = std::iter::repeat_with(|| Script::throw(dice))
            .take(4)
            .collect();
        let late = lease.mul_f64(dice.f64() * 2.0);
        Self {
            mode,
            wait,
            rejects: dice.u8(..100) < 5,
            dropped,
            scripts,
            late,
            last: false,
        }
    }

    /// The plan of the last calls of a run: all succeed if they can.
    fn plain(lease: Duration) -> Self {
        let script = Script {
            steps: Vec::new(),
            pauses: 1,
            pause: Duration::from_millis(5),
            end: BodyExit::Value,
        };
        let wait = lease * 4 + Duration::from_secs(4);
        let mode = RunMode::Run;
        let late = Duration::ZERO;
        Self {
            mode,
            wait,
            rejects: false,
            dropped: None,
            scripts: vec![script],
            late,
            last: true,
        }
    }
}

impl Caller {
    /// Makes a call as the dice have it, and writes down what it was answered.
    pub(crate) async fn call(&self, key: &str, dice: &mut Rng) {
        self.make(key, Plan::throw(dice, self.lease)).await;
    }

    /// The plan of a call that a message asks for.
    pub(crate) fn plan_of_message(&self, dice: &mut Rng) -> Plan {
        let mut plan = Plan {
            mode: RunMode::Run,
            dropped: None,
            ..Plan::throw(dice, self.lease)
        };
        // No longer than the consumer lets a handler wait.
        plan.wait = plan.wait.min(Duration::from_secs(1));
        for script in &mut plan.scripts {
            script.without_panics();
        }
        plan
    }

    /// Makes the call of a message, in the present task: there its consumer sees what is recorded.
    pub(crate) async fn handle(&self, key: &str, plan: Plan) -> Answer {
        let call = self.number();
        let wait = if plan.rejects {
            0
        } else {
            u64::try_from(plan.wait.as_millis()).unwrap_or(u64::MAX)
        };
        self.journal.write(Event::Call {
            call,
            key: key.into(),
            mode: "message".into(),
            wait,
        });
        let answer = CALL.scope(call, self.answer(call, key, plan)).await;
        self.journal.write(Event::Answer {
            call,
            answer: answer.clone(),
        });
        answer
    }

    /// Calls until the key has an outcome, as it must where nothing is wrong. Again for some time,
    /// since a machine that is too busy can lose a lease.
    pub(crate) async fn finish(&self, key: &str) {
        let begun = Instant::now();
        while !self.make(key, Plan::plain(self.lease)).await && begun.elapsed() < TRYING {
            tokio::time::sleep(self.lease).await;
        }
    }

    /// Says whether there is an outcome.
    async fn make(&self, key: &str, plan: Plan) -> bool {
        let call = self.number();
        let mode = if plan.last {
            "last".to_owned()
        } else {
            format!("{:?}", plan.mode).to_lowercase()
        };
        let wait = if plan.rejects {
            0
        } else {
            u64::try_from(plan.wait.as_millis()).unwrap_or(u64::MAX)
        };
        self.journal.write(Event::Call {
            call,
            key: key.into(),
            mode,
            wait,
        });
        let dropped = plan.dropped;
        let this = self.clone();
        let key = key.to_owned();
        // In a task of its own, which catches the panics of bodies.
        let task = tokio::spawn(CALL.scope(call, async move {
            let answering = this.answer(call, &key, plan);
            match dropped {
                Some(patience) => tokio::time::timeout(patience, answering).await.ok(),
                None => Some(answering.await),
            }
        }));
        let answer = match task.await {
            Ok(answer) => answer,
            Err(ended) => Some(match ended.try_into_panic() {
                Ok(panic) => panicked(&*panic),
                Err(_) => Answer::Unexpected {
                    text: "its task was stopped".into(),
                },
            }),
        };
        let has_outcome = matches!(answer, Some(Answer::Value { .. } | Answer::Kept { .. }));
        self.journal.write(match answer {
            Some(answer) => Event::Answer { call, answer },
            None => Event::Dropped { call },
        });
        has_outcome
    }

    async fn answer(&self, call: u64, key: &str, plan: Plan) -> Answer {
        let mut operation = self
            .idempotency
            .operation(OPERATION)
            .key(key)
            .wait(plan.wait);
        if keys::is_short_lived(key) {
            operation = operation.ttl(keys::SHORT);
        }
        if plan.rejects {
            operation = operation.in_flight(InFlight::Reject);
        }
        let mut scripts = plan.scripts.into_iter();
        let this = self.clone();
        let of = key.to_owned();
        let mut body = move |attempt| {
            let receipt = Receipt {
                call,
                body: this.number(),
            };
            let whose = Whose {
                journal: this.journal.clone(),
                key: of.clone(),
                receipt,
                attempt,
                next: Arc::clone(&this.next),
            };
            // The policy allows fewer tries than there are scripts; a call that must succeed has
            // one.
            let last = Script {
                steps: Vec::new(),
                pauses: 1,
                pause: Duration::from_millis(5),
                end: BodyExit::Value,
            };
            let mut script = scripts.next().unwrap_or(last);
            if attempt.is_some() {
                // Without `run` there is no body that a step could belong to.
                script.steps.clear();
            }
            Body::new(whose, script)
        };
        match plan.mode {
            RunMode::Run => returned(operation.errors(action).run(move || body(None)).await),
            RunMode::Detached => returned(
                operation
                    .errors(action)
                    .run_detached(move || body(None))
                    .await,
            ),
            RunMode::ByHand | RunMode::Late => {
                let begun = match operation.begin().await {
                    Ok(Begin::Execute(lease)) => lease,
                    Ok(Begin::Replay(recorded)) if recorded.is_error() => {
                        return returned(Err(kept(&recorded)));
                    }
                    Ok(Begin::Replay(recorded)) => {
                        let value = recorded.decode::<Receipt>();
                        return value.map_or_else(|error| failed(&error), replayed);
                    }
                    Err(error) => return failed(&error),
                };
                let late = (plan.mode == RunMode::Late).then_some(plan.late);
                let body = body(Some(begun.attempt()));
                by_hand(&begun, body, late).await
            }
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The work of a lease that is held by hand, stopped when the lease is lost.
async fn by_hand(lease: &Lease, body: Body, late: Option<Duration>) -> Answer {
    let worked = stamped(async {
        tokio::select! {
            biased;
            () = lease.lost() => None,
            returned = body => Some(returned),
        }
    });
    let Some(returned) = worked.await else {
        return Answer::Error {
            name: "LeaseLost".into(),
        };
    };
    if let Some(late) = late {
        tokio::time::sleep(late).await;
    }
    let recorded = match &returned {
        Ok(receipt) => lease.commit(receipt).await,
        Err(error @ Failure::Kept(_)) => lease.commit_error(error, None).await,
        // Dropped, it is abandoned.
        Err(Failure::Unknown) => Ok(()),
        Err(_) => lease.release().await,
    };
    match (returned, recorded) {
        (Ok(receipt), Ok(())) => Answer::Value {
            receipt,
            replayed: false,
        },
        (Err(error), Ok(())) => returned_error(error),
        (_, Err(error)) => failed(&error),
    }
}

fn kept(recorded: &idem_core::Recorded) -> Failure {
    recorded.decode_error().unwrap_or_else(Failure::Idem)
}

fn action(failure: &Failure) -> ErrorAction {
    match failure {
        Failure::Kept(_) => ErrorAction::Keep,
        Failure::Again => ErrorAction::Retry(Retry::new(2).backoff(Duration::from_millis(20))),
        Failure::Released | Failure::Idem(_) => ErrorAction::Release,
        Failure::Unknown => ErrorAction::Abandon,
    }
}

fn returned(result: Result<Outcome<Receipt>, Failure>) -> Answer {
    match result {
        Ok(outcome) => Answer::Value {
            receipt: *outcome.get(),
            replayed: outcome.is_replayed(),
        },
        Err(error) => returned_error(error),
    }
}

fn returned_error(error: Failure) -> Answer {
    match error {
        Failure::Kept(receipt) => Answer::Kept { receipt },
        Failure::Again | Failure::Released | Failure::Unknown => Answer::Failed,
        Failure::Idem(error) => failed(&error),
    }
}

fn replayed(receipt: Receipt) -> Answer {
    Answer::Value {
        receipt,
        replayed: true,
    }
}

fn failed(error: &Error) -> Answer {
    // The name of the variant stands first in what `Debug` writes.
    let debug = format!("{error:?}");
    let name = debug
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default();
    Answer::Error { name: name.into() }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Answer {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    match text {
        Some(text) if text == ON_PURPOSE => Answer::Panicked,
        text => Answer::Unexpected {
            text: format!("a panic: {}", text.unwrap_or("of another kind")),
        },
    }
}
