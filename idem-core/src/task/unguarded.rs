//! Unguarded bodies.

use std::future::Future;

use crate::record::RecordId;
use crate::task::current::{self, CALL, Call};
use crate::task::watch::Uncounted;

tokio::task_local! {
    /// The body that is running has no record, and none is around it.
    static NO_RECORD: ();
}

/// Whether a body is running that nothing guards, and that no call is around.
pub(crate) fn is_unguarded() -> bool {
    NO_RECORD.try_with(|()| ()).is_ok()
}

/// Runs an unguarded body, with its key if that is known. The call around it is not its own call,
/// but a call inside that would wait for the outer one is still recognised.
pub(crate) async fn unguarded<F: Future>(id: Option<&RecordId>, body: F) -> F::Output {
    let outer = current::innermost();
    let hidden = id.is_none();
    let Some(id) = id.or(outer.as_ref().map(Call::id)).cloned() else {
        let _uncounted = Uncounted::begin();
        return NO_RECORD.scope((), body).await;
    };
    CALL.scope(Call::unguarded(id, hidden, outer), body).await
}
