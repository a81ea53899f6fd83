//! Changes of a record by hand, by its owner without a body.

use std::sync::Arc;

use crate::base::clock;
use crate::call::judge::{GiveUp, StepLeft};
use crate::call::owned::Owned;
use crate::error::Error;
use crate::record::{Audit, By, Encoded};
use crate::runtime::Runtime;
use crate::task::request::Request;

impl Owned {
    /// Claims a key for a caller that owns it or fails: it gets no outcome, and does nothing without
    /// the store.
    pub(crate) async fn claim(runtime: &Arc<Runtime>, request: &Request) -> Result<Self, Error> {
        match runtime.claim_or_wait(request, clock::now()).await {
            Ok(owned) => Ok(Self::new(runtime, request, owned)),
            Err(why) => Err(runtime.reject(request, why)),
        }
    }

    /// Releases the key by hand, without a body.
    pub(crate) async fn give_back(mut self, by: Option<Box<By>>) -> Result<(), Error> {
        (self.is_by_hand, self.audit) = (true, by);
        self.pend(StepLeft::GiveUp(GiveUp::Release));
        self.settle_by_hand().await
    }

    /// Records an outcome by hand, without a body. If it failed to encode, the record stays
    /// abandoned.
    pub(crate) async fn record_by_hand(
        mut self,
        outcome: Result<Encoded, Error>,
        by: Option<Box<By>>,
    ) -> Result<(), Error> {
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.pend(StepLeft::GiveUp(GiveUp::Unanswered));
                self.settle().await;
                return Err(error);
            }
        };
        let ttl = self.call.guarded().request.settings.ttl();
        let audit = by.as_ref().and_then(|by| Audit::new(&by.who, &by.why, ttl));
        if let Some(audit) = audit {
            outcome.describe(|metadata| metadata.audit = Some(audit));
        }
        (self.is_by_hand, self.audit) = (true, by);
        self.pend(StepLeft::Commit {
            outcome: Some(outcome),
            kept_for: None,
        });
        self.settle_by_hand().await
    }
}
