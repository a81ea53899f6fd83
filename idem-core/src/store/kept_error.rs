//! Whether a body in a transaction ended with an error that is kept.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    /// The transaction of the last call that ended in the poll under way, if it kept its error.
    static LAST: Cell<Option<TransactionAddress>> = const { Cell::new(None) };
}

/// Identifies an open transaction by its place in memory, as long as it is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionAddress(usize);

impl TransactionAddress {
    /// Returns the address of a transaction: of the value that its calls are given.
    pub fn of<X>(tx: &X) -> Self {
        Self(std::ptr::from_ref(tx).addr())
    }
}

/// The end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyEnd<R> {
    /// What the body returned.
    pub output: R,
    /// Whether it returned right after a call in the transaction that returned a kept error. Then
    /// that call's rows are rolled back, and its record is in the transaction.
    pub is_error_kept: bool,
}

/// Runs the body of a transaction, and tells whether it ended with a kept error of a call in it.
///
/// A driver uses it where it begins and commits transactions around calls by
/// [`run_in`](crate::Operation::run_in). If the body's error is kept, the commit records it. An
/// error type says nothing of that, and the body may convert the error. So the error counts as kept
/// if the body returns without another wait after the call. If it waits in between, it may have
/// caught the error, and have failed for another reason.
///
/// # Cancellation safety
///
/// As that of the body.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::store::{TransactionAddress, watch_kept_error};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let tx = String::new(); // a driver's transaction
/// let end = watch_kept_error(TransactionAddress::of(&tx), async { Err::<(), _>("no call") }).await;
/// assert!(end.output.is_err() && !end.is_error_kept);
/// # }
/// ```
pub async fn watch_kept_error<F: Future>(
    address: TransactionAddress,
    body: F,
) -> BodyEnd<F::Output> {
    let mut body = pin!(body);
    poll_fn(|context| {
        LAST.set(None);
        body.as_mut().poll(context).map(|output| BodyEnd {
            output,
            is_error_kept: LAST.get() == Some(address),
        })
    })
    .await
}

/// Notes the end of a call in a transaction.
pub(crate) fn note_call_end<X>(tx: &X, is_error_kept: bool) {
    LAST.set(is_error_kept.then(|| TransactionAddress::of(tx)));
}
