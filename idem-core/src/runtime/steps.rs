//! The steps that the calls of a process have had, and removing their records.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::base::clock;
use crate::error::StoreError;
use crate::observe::Decision;
use crate::record::{RecordId, RecordState, Removed};
use crate::runtime::Runtime;

/// How many operations with steps are remembered.
const MAX_OPERATIONS: usize = 10_000;
/// The pauses before records that could not be removed are tried again.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// The pauses before each look whether the caller of a transaction has committed it.
const LOOKS: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];
/// How long after its commit the steps of a call are removed at the latest. Before the end of its
/// retention no body of the key runs, whose steps would have the same records.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The steps by the operation of their call, as this process has run them.
#[derive(Default)]
pub(crate) struct KnownSteps(Mutex<HashMap<Box<str>, HashSet<KnownStep>>>);

/// A step of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct KnownStep {
    /// The operation of its records.
    pub(crate) operation: Arc<str>,
    /// Its name has further parts, so that one call has several records of it.
    pub(crate) has_parts: bool,
}

impl KnownSteps {
    pub(crate) fn learn(&self, call: &RecordId, step: &RecordId, has_parts: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.get(call.operation()).is_some_and(|steps| {
            steps
                .iter()
                .any(|known| *known.operation == *step.operation() && known.has_parts == has_parts)
        });
        if is_known || known.len() >= MAX_OPERATIONS {
            return;
        }
        known
            .entry(call.operation().into())
            .or_default()
            .insert(KnownStep {
                operation: step.operation().into(),
                has_parts,
            });
    }

    /// The steps of an operation, and those inside of them.
    pub(crate) fn of(&self, operation: &str) -> HashSet<KnownStep> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = HashSet::new();
        let mut left = vec![Arc::<str>::from(operation)];
        while let Some(operation) = left.pop() {
            for step in known.get(&*operation).into_iter().flatten() {
                if all.insert(step.clone()) {
                    left.push(step.operation.clone());
                }
            }
        }
        all
    }
}

/// The steps of a call whose outcome was recorded.
pub(crate) struct StepsToRemove {
    pub(crate) call: RecordId,
    pub(crate) attempt: u64,
    pub(crate) steps: Vec<RecordId>,
    /// How long the outcome is kept.
    pub(crate) ttl: Duration,
    /// Whether a look has to show first that the outcome was recorded.
    pub(crate) is_unsure: bool,
}

impl Runtime {
    /// Removes the records of steps that are of no use any more, in the background. What cannot be
    /// removed expires.
    pub(crate) fn remove_steps(self: &Arc<Self>, removal: StepsToRemove) {
        if removal.steps.is_empty() {
            return;
        }
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.keepers.known().another(None));
        let (Some(handle), Some(counted)) = (handle, self.background.removal()) else {
            return self.report_left(
                &removal,
                removal.steps.len(),
                &"too much is done in the background already, or there is no tokio runtime",
            );
        };
        let runtime = self.clone();
        let until = clock::after(clock::now(), MAX_AGE.min(removal.ttl / 2));
        handle.spawn(async move {
            let _counted = counted;
            runtime.remove_until(removal, until).await;
        });
    }

    async fn remove_until(&self, removal: StepsToRemove, until: Instant) {
        if removal.is_unsure && !self.becomes_recorded(&removal.call, until).await {
            let why = "the transaction of the call was not seen committed, so that a next attempt \
                may need them";
            return self.report_left(&removal, removal.steps.len(), &why);
        }
        let mut left = removal.steps.clone();
        let mut why = None;
        for pause in [Some(PAUSES[0]), Some(PAUSES[1]), None] {
            let mut failed = Vec::new();
            for step in left {
                if clock::now() >= until {
                    failed.push(step);
                    continue;
                }
                match self.remove_step(&step).await {
                    Ok(Removed::Removed | Removed::Nothing) => {}
                    // Its commit is on its way.
                    Ok(Removed::InFlight { .. }) => failed.push(step),
                    Err(error) => {
                        why = Some(error);
                        failed.push(step);
                    }
                }
            }
            left = failed;
            match pause {
                Some(pause) if !left.is_empty() => tokio::time::sleep(pause).await,
                _ => break,
            }
        }
        if left.is_empty() {
            let count = removal.steps.len();
            self.observer.decided_because(
                Decision::StepsRemoved,
                &removal.call,
                removal.attempt,
                &count,
            );
            return;
        }
        match why {
            Some(error) => self.report_left(&removal, left.len(), &error),
            None => self.report_left(&removal, left.len(), &"they are in flight"),
        }
    }

    /// Removes the record of a step, unless it is in flight.
    pub(crate) async fn remove_step(&self, step: &RecordId) -> Result<Removed, StoreError> {
        let _removing = self.cache.as_ref().map(|cache| cache.removing(step));
        self.store.remove(step).await
    }

    /// Looks a few times whether the outcome of a call is recorded. An error that is kept does not
    /// count: after it, the body may run again, and needs its steps.
    async fn becomes_recorded(&self, call: &RecordId, until: Instant) -> bool {
        for pause in LOOKS {
            tokio::time::sleep(pause).await;
            if clock::now() >= until {
                return false;
            }
            if let Ok(Some(found)) = self.store.inspect(call).await {
                let is_over = matches!(found.state, RecordState::Committed | RecordState::Done);
                if is_over && !found.is_error {
                    return true;
                }
            }
        }
        false
    }

    fn report_left(&self, removal: &StepsToRemove, count: usize, why: &dyn std::fmt::Display) {
        self.observer.decided_because(
            Decision::StepsLeft,
            &removal.call,
            removal.attempt,
            &format_args!("{count} records of steps are left to expire: {why}"),
        );
    }
}
