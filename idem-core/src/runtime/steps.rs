//! Removing the steps of a call whose outcome is recorded.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::observe::Event;
use crate::record::{RecordId, Removed};
use crate::runtime::Runtime;

pub(crate) const STEPS_LEFT: Event = Event::info("steps_left");

impl Runtime {
    /// Removes the records of steps of a run that has ended, in the background, each once. Nobody
    /// looks at them any more: what is left expires.
    pub(crate) fn remove_steps(
        self: &Arc<Self>,
        call: &RecordId,
        attempt: u64,
        steps: Vec<RecordId>,
    ) {
        if steps.is_empty() {
            return;
        }
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.keepers.known().another(None));
        let (Some(handle), Some(counted)) = (handle, self.background.removal()) else {
            let why = "too much is done in the background already, or there is no tokio runtime";
            return self.report_left(call, attempt, steps.len(), &why);
        };
        let runtime = self.clone();
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
                Some(error) => runtime.report_left(&call, attempt, left, &error),
                None => runtime.report_left(&call, attempt, left, &"they are in flight"),
            }
        });
    }

    fn report_left(
        &self,
        call: &RecordId,
        attempt: u64,
        count: usize,
        why: &dyn std::fmt::Display,
    ) {
        self.observer.report(
            STEPS_LEFT,
            call,
            attempt,
            Some(&format_args!(
                "{count} records of steps are left to expire: {why}"
            )),
        );
    }
}
