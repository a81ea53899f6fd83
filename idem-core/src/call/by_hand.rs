//! An owner without a body: of a lock, or of a record that is changed by hand.

use std::sync::Arc;

use crate::base::clock;
use crate::call::judge::StepLeft;
use crate::call::owned::Owned;
use crate::error::Error;
use crate::record::By;
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

    /// Sets a step that is made by hand, by this operator if one is given.
    pub(crate) fn pend_by_hand(&mut self, step: StepLeft, by: Option<Box<By>>) {
        (self.is_by_hand, self.audit) = (true, by);
        self.pend(step);
    }
}
