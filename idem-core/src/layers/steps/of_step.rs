//! The record of a step of a call.

use super::name::id_of_step;
use crate::StepName;
use crate::api::operation::Operation;
use crate::record::Owner;

impl<Q, P> Operation<'_, Q, P> {
    /// Describes the record of a [`step`](crate::step) of this call instead: to
    /// [inspect](Operation::inspect), [settle](Operation::settle), [release](Operation::release) or
    /// [forget](Operation::forget) it by itself.
    ///
    /// A step belongs to the run of its call, which is looked up in the record of the call when this
    /// is used. Without a run, as without a record or with an outcome, that is
    /// [`Error::Config`](crate::Error::Config).
    ///
    /// Call it after [`key`](Self::key), and before other settings, which are then the step's own.
    /// A step that is settled is kept for 30 days, or for `hold` if that is longer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let order = || idempotency.operation("orders.place").key("o-1");
    /// let lost = || async { idem::step("charge", async || Err(Error::in_flight("the reply", "is \
    ///     lost", std::time::Duration::ZERO))).await };
    /// assert!(order().run::<u32, _, _, _, _>(lost).await.is_err());
    ///
    /// // The bank says that the charge of this order was booked.
    /// order().of_step("charge").settle(&7_u32).await?;
    ///
    /// let place = || async { idem::step("charge", async || Ok::<_, Error>(8_u32)).await };
    /// assert_eq!(order().run(place).await?.into_inner(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_step<N: StepName>(mut self, name: N) -> Self {
        let draft = &mut self.draft;
        let Some(outer) = draft.steps.last().or(draft.id.as_ref()) else {
            return self;
        };
        match id_of_step(outer, Owner::NOBODY, &name) {
            Ok(step) => {
                let kept = draft.settings.run_kept();
                draft.settings.set_ttl(kept);
                draft.settings.set_remember(kept);
                draft.admission = None;
                draft.steps.push(step);
            }
            Err(reason) => draft.misconfigured(reason),
        }
        self
    }
}
