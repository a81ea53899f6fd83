//! A claim without a clear answer yet.

use std::sync::Arc;

use crate::base::clock;
use crate::record::Owner;
use crate::runtime::Runtime;
use crate::runtime::undoing::UnansweredClaim;
use crate::task::request::Request;

/// A claim without a clear answer yet. If it is dropped before [`needs_no_undo`](Self::needs_no_undo), what
/// may have been claimed is undone.
pub(crate) struct PendingClaim<'a> {
    runtime: &'a Arc<Runtime>,
    request: &'a Request,
    owner: Owner,
    needs_no_undo: bool,
}

impl<'a> PendingClaim<'a> {
    pub(crate) fn new(runtime: &'a Arc<Runtime>, request: &'a Request, owner: Owner) -> Self {
        Self {
            runtime,
            request,
            owner,
            needs_no_undo: false,
        }
    }

    /// Notes an answer after which no message of the claim can arrive and claim the key.
    pub(crate) fn needs_no_undo(&mut self) {
        self.needs_no_undo = true;
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        if self.needs_no_undo {
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
        let claim = UnansweredClaim::new(
            request.id.clone(),
            owner,
            keep,
            until,
            runtime.background.undo(),
        );
        runtime.undoing.add(claim, now, &runtime.keepers);
    }
}
