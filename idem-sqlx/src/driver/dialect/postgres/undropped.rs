//! A savepoint of sqlx that may be cut off.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A savepoint that is being set. Its future is not dropped before it has ended: sqlx would roll
/// back the transaction around the savepoint then, and take what follows for statements without a
/// transaction. So a call that is cut off here leaks its future, some hundred bytes. All that the
/// connection needs to know of the statement is in the connection.
pub(super) struct Undropped<F> {
    /// `None`: it has ended.
    setting: Option<Pin<Box<F>>>,
}

impl<F> Undropped<F> {
    pub(super) fn new(setting: F) -> Self {
        Self {
            setting: Some(Box::pin(setting)),
        }
    }
}

impl<F: Future<Output = Result<(), E>>, E> Future for Undropped<F> {
    type Output = Result<(), E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(setting) = &mut self.setting else {
            return Poll::Pending;
        };
        let set = ready!(setting.as_mut().poll(context));
        self.setting = None;
        Poll::Ready(set)
    }
}

impl<F> Drop for Undropped<F> {
    fn drop(&mut self) {
        mem::forget(self.setting.take());
    }
}
