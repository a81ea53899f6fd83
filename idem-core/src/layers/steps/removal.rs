//! Removing the steps of a call whose outcome is recorded.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::begun::BegunSteps;
use crate::adapter::engine::{Event, Runtime, STEPS_LEFT};
use crate::record::{RecordId, Removed};

impl BegunSteps {
    /// Removes the records of steps of a run that has ended, in the background, each once. Nobody
    /// looks at them any more: what is left expires.
    pub(super) fn remove_steps(&self, runtime: &Arc<Runtime>, call: &RecordId, attempt: u64) {
        let steps = std::mem::take(&mut self.names().ids);
        if steps.is_empty() {
            return;
        }
        let handle = Handle::try_current()
            .ok()
            .or_else(|| runtime.keepers.known().another(None));
        let (Some(handle), Some(counted)) = (handle, runtime.background.removal()) else {
            let why = "too much is done in the background already, or there is no tokio runtime";
            return report_left(runtime, call, attempt, steps.len(), &why);
        };
        let runtime = runtime.clone();
        let call = call.clone();
        handle.spawn(async move {
            let _counted = counted;
            let mut left = 0;
            let mut why = None;
            for step in &steps {
                match runtime.store.remove(step).await {
                    Ok(Removed::Removed | Removed::Nothing) => {}
                    Ok(Removed::InFlight { .. }) => left += 1,
                    Err(error) => {
                        left += 1;
                        why = Some(error);
                    }
                }
            }
            match why {
                _ if left == 0 => runtime.observer.report(
                    Event::debug("steps_removed"),
                    &call,
                    attempt,
                    Some(&steps.len()),
                ),
                Some(error) => report_left(&runtime, &call, attempt, left, &error),
                None => report_left(&runtime, &call, attempt, left, &"they are in flight"),
            }
        });
    }
}

fn report_left(
    runtime: &Runtime,
    call: &RecordId,
    attempt: u64,
    count: usize,
    why: &dyn std::fmt::Display,
) {
    runtime.observer.report(
        STEPS_LEFT,
        call,
        attempt,
        Some(&format_args!(
            "{count} records of steps are left to expire: {why}"
        )),
    );
}
