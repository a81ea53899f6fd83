//! A claim whose result is unknown.

use std::sync::Arc;

use crate::base::clock;
use crate::call::request::Request;
use crate::record::Owner;
use crate::runtime::Runtime;
use crate::runtime::undoing::DoubtfulClaim;

/// A claim whose result is unknown. Dropping it undoes the claim, unless a clear answer came.
pub(crate) struct Orphan<'a> {
    runtime: &'a Arc<Runtime>,
    request: &'a Request,
    owner: Owner,
    adopted: bool,
}

impl<'a> Orphan<'a> {
    pub(crate) fn new(runtime: &'a Arc<Runtime>, request: &'a Request, owner: Owner) -> Self {
        Self {
            runtime,
            request,
            owner,
            adopted: false,
        }
    }

    /// Marks the claim as answered, so that it is not undone.
    pub(crate) fn adopt(&mut self) {
        self.adopted = true;
    }
}

impl Drop for Orphan<'_> {
    fn drop(&mut self) {
        if self.adopted {
            return;
        }
        let Self {
            runtime,
            request,
            owner,
            ..
        } = *self;
        let remember = request.settings.remember();
        let lease = request.settings.lease;
        let now = clock::now();
        let keep = remember.max(lease.saturating_mul(10));
        let until = clock::after(now, lease);
        let claim = DoubtfulClaim::new(
            request.id.clone(),
            owner,
            keep,
            until,
            runtime.background.undo(),
        );
        runtime.undoing.add(claim, now, &runtime.keepers);
    }
}
