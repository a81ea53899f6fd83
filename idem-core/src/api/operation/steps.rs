//! The records of the steps of a call.

use std::collections::HashSet;
use std::sync::Arc;

use super::Operation;
use crate::call::request::{CallKind, Request};
use crate::encoding::step_name::StepName;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::record::{RecordId, RecordState, Removed};
use crate::runtime::Runtime;
use crate::store::admin::Listing;

impl<Q, P> Operation<'_, Q, P> {
    /// Describes the record of a [`step`](crate::step) of this call instead: to
    /// [inspect](Operation::inspect), [settle](Operation::settle), [release](Operation::release) or
    /// [forget](Operation::forget) it by itself.
    ///
    /// Call it after [`key`](Self::key), and before other settings, which are then the step's own.
    /// A step that is settled is kept for the longer of `ttl` and `hold` of this description.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore, RecordState};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// // The bank says that the charge of this order was booked.
    /// let order = || idempotency.operation("orders.place").key("o-1");
    /// order().of_step("charge").settle(&7_u32).await?;
    ///
    /// let place = || async { idem::step("charge", async || Ok::<_, Error>(8_u32)).await };
    /// assert_eq!(order().run(place).await?.into_inner(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_step<N: StepName>(mut self, name: N) -> Self {
        let Some(id) = &self.draft.id else {
            return self;
        };
        match id.of_step(&name) {
            Ok(id) => {
                let kept = self
                    .draft
                    .settings
                    .remember()
                    .max(self.draft.settings.hold());
                self.draft.settings.set_ttl(kept);
                self.draft.settings.set_remember(kept);
                self.draft.submission = None;
                self.draft.kind = CallKind::Step;
                self.draft.identify(id);
            }
            Err(reason) => self.draft.misconfigured(reason),
        }
        self
    }
}

/// Removes the record of a call and those of its steps. Returns whether there were any.
///
/// The call comes last: if the process dies in between, forgetting it again does the rest.
pub(super) async fn remove_with_steps(
    runtime: &Arc<Runtime>,
    request: &Request,
) -> Result<bool, Error> {
    let had_steps = forget_steps(runtime, request).await?;
    let _removing = runtime
        .cache
        .as_ref()
        .map(|cache| cache.removing(&request.id));
    match runtime.store.remove(&request.id).await {
        Ok(Removed::Removed) => Ok(true),
        Ok(Removed::Nothing) => Ok(had_steps),
        Ok(Removed::InFlight { lease_left }) => Err(request.in_flight(lease_left)),
        Err(error) => Err(runtime.failed(&request.id, error)),
    }
}

/// Removes the steps of a call, as far as this process knows which its operation has. Returns
/// whether there were any.
async fn forget_steps(runtime: &Arc<Runtime>, request: &Request) -> Result<bool, Error> {
    let known = runtime.known_steps.of(request.id.operation());
    if known.is_empty() {
        return Ok(false);
    }
    let failed = |error| runtime.failed(&request.id, error);
    // Nothing is removed under a running body.
    let found = runtime.store.inspect(&request.id).await.map_err(failed)?;
    if let Some(lease_left) = found.and_then(|info| {
        info.lease_left
            .filter(|_| info.state == RecordState::InFlight)
    }) {
        return Err(request.in_flight(lease_left));
    }
    let mut steps: HashSet<RecordId> = HashSet::new();
    let mut listed = HashSet::new();
    for step in known {
        if step.has_parts {
            listed.insert(step.operation);
        } else {
            steps.insert(RecordId::of_encoded(&step.operation, request.id.key()));
        }
    }
    if !listed.is_empty() {
        let found = list_steps(runtime, &request.id).await.map_err(failed)?;
        steps.extend(
            found
                .into_iter()
                .filter(|id| listed.contains(id.operation())),
        );
    }
    let mut were_any = false;
    for step in steps {
        match runtime.remove_step(&step).await.map_err(failed)? {
            Removed::Removed => were_any = true,
            Removed::Nothing => {}
            Removed::InFlight { lease_left } => return Err(request.in_flight(lease_left)),
        }
    }
    Ok(were_any)
}

async fn list_steps(runtime: &Runtime, call: &RecordId) -> Result<Vec<RecordId>, StoreError> {
    let mut steps = Vec::new();
    let mut listing = Listing::all().steps_of(call.clone()).limit(1000);
    loop {
        let page = runtime.store.list(&listing).await.unwrap_or_else(|| {
            Err(StoreError::new(
                StoreErrorKind::Refused,
                "this store cannot list records, so the steps of a loop are not found; forget \
                 each of them by `of_step(..)`",
            ))
        })?;
        steps.extend(page.records.into_iter().map(|listed| listed.id));
        steps.extend(page.unreadable.into_iter().map(|unreadable| unreadable.id));
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(steps),
        }
    }
}
