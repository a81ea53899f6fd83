//! Calls in a transaction: the record is written with the caller's rows.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;

use crate::adapter::engine::{Handling, Policy};
use crate::api::operation::{Errors, Operation};
use crate::bounds::Action;
use crate::layers::transactions::bodies::{
    AnyThread, AnyThreadOnce, OneThread, OneThreadOnce, RunsAgain, TransactionBody,
};
use crate::layers::transactions::call::{InTransaction, sources};
use crate::layers::transactions::driver::{Transaction, Transactions};
use crate::{Error, ErrorAction, Outcome, Storable, Store};

/// The policy for errors in a transaction, or `()` for none. A policy is `Send` and `Sync`, also
/// for a body that is not.
pub trait InTransactionPolicy<E>: sealed::IntoPolicy<E> {}

mod sealed {
    use super::{ErrorAction, Policy};

    pub trait IntoPolicy<E> {
        fn into_policy(self) -> Policy<impl Fn(&E) -> ErrorAction + Send + Sync, E>;
    }
}
use sealed::IntoPolicy;

impl<E> IntoPolicy<E> for () {
    fn into_policy(self) -> Policy<impl Fn(&E) -> ErrorAction + Send + Sync, E> {
        Policy::unlisted()
    }
}

impl<E> InTransactionPolicy<E> for () {}

impl<P: Fn(&E) -> A + Send + Sync, E, A: Action> IntoPolicy<E> for Errors<P, E, A> {
    fn into_policy(self) -> Policy<impl Fn(&E) -> ErrorAction + Send + Sync, E> {
        Errors::into_policy(self)
    }
}

impl<P: Fn(&E) -> A + Send + Sync, E, A: Action> InTransactionPolicy<E> for Errors<P, E, A> {}

/// # In the caller's transaction
impl<'a, P> Operation<'a, (), P> {
    /// Runs the body in the caller's transaction, or returns the recorded outcome of an earlier
    /// call. The record is a row of that transaction, so rows and record are committed together, or
    /// neither is.
    ///
    /// The caller commits, whatever this returns. The commit records a kept error; any other error
    /// has left nothing in the transaction. A concurrent call with the same key waits for the end
    /// of the transaction, for at most [`wait`](Self::wait).
    ///
    /// `lease` and `store_failure` have no effect. `abandoned`, `hold` and `max_attempts` matter
    /// only if the key already has a record of a call with a lease. An error whose action is
    /// `Retry` or `Abandon` is released.
    ///
    /// # Errors
    ///
    /// The body's error, a kept error of an earlier call, or an [`Error`] converted into the body's
    /// error type. [`Error::Store`] that [`is_retryable`](Error::is_retryable): roll back, and run
    /// the whole transaction again, as [`transaction`](Self::transaction) does.
    /// [`Error::Config`]: the runtime has another store than the transaction's database.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, nothing of the call is left in the transaction, which usually stays usable. Dropped
    /// at the wrong moment, PostgreSQL refuses the transaction's `COMMIT`, and MySQL may keep a
    /// lock until the connection closes: see the pitfalls in the guide on transactions. After a
    /// panic of the body the transaction is usable.
    pub fn run_in<X, S, T, E, F, Via>(
        self,
        tx: &mut X,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>> + Send
    where
        X: Transaction<S>,
        S: Store,
        P: InTransactionPolicy<E> + Send,
        F: AsyncFnOnce(&mut X) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut X, Result<T, E>>
            + Send,
        T: Storable<Via> + Send,
        E: From<Error> + Send,
    {
        let prepared = self.draft.prepare();
        let handling = Handling::new::<Via>(self.policy.into_policy());
        let call = InTransaction::new(prepared, handling);
        async move { call.run_in(tx, AnyThreadOnce(Some(body))).await }
    }

    /// Like [`run_in`](Self::run_in), for a body that holds values that are not `Send`. Its future
    /// stays on one thread, as in a `LocalSet` or a handler of actix-web.
    ///
    /// # Errors
    ///
    /// Like [`run_in`](Self::run_in).
    ///
    /// # Cancellation safety
    ///
    /// Like [`run_in`](Self::run_in).
    pub fn run_in_local<X, S, T, E, F, Via>(
        self,
        tx: &mut X,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        X: Transaction<S>,
        S: Store,
        P: InTransactionPolicy<E>,
        F: AsyncFnOnce(&mut X) -> Result<T, E>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let prepared = self.draft.prepare();
        let handling = Handling::new::<Via>(self.policy.into_policy());
        let call = InTransaction::new(prepared, handling);
        async move { call.run_in(tx, OneThreadOnce(Some(body))).await }
    }

    /// Begins a transaction, runs the body in it and commits; or returns the recorded outcome of an
    /// earlier call.
    ///
    /// After a serialization failure, a deadlock or a busy database, the whole transaction runs
    /// again, up to 20 times with growing pauses. Such a conflict is recognised at the statements
    /// of `idem`, at `COMMIT`, and in the body's error through
    /// [`Error::source`](std::error::Error::source). [`rerun_when`](Self::rerun_when) replaces that
    /// rule for the body's errors.
    ///
    /// The body is an async closure that is `Clone` and whose future is `Send`: the call can be
    /// spawned, and awaited in a handler. What the closure borrows is shared by all runs; what it
    /// owns (`async move`) is cloned for each run, so that each begins with the same values.
    /// [`transaction_local`](Self::transaction_local) takes all other bodies.
    ///
    /// # Errors
    ///
    /// Like [`run_in`](Self::run_in). A `COMMIT` that the database refuses, for a deferred
    /// constraint, is [`Error::Store`], and nothing is recorded. If the connection is lost during
    /// `COMMIT`, rows and record either both exist or neither does. The next call finds out.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, the transaction is rolled back. Dropped during `COMMIT`, it is committed or not.
    pub fn transaction<B, S, T, E, F, Via>(
        self,
        begins: &B,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>> + Send
    where
        B: Transactions<S>,
        S: Store,
        P: InTransactionPolicy<E> + Send,
        F: AsyncFnOnce(&mut B::Transaction) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut B::Transaction, Result<T, E>>
            + RunsAgain
            + Send,
        T: Storable<Via> + Send,
        E: From<Error> + Send + std::error::Error + 'static,
    {
        self.rerun_when(|error: &E| sources(Some(error), B::is_conflict))
            .transaction(begins, body)
    }

    /// Like [`transaction`](Self::transaction), for a body that holds values that are not `Send`,
    /// or that changes what it captures. Its future stays on one thread, as in a `LocalSet` or a
    /// handler of actix-web.
    ///
    /// # Errors
    ///
    /// Like [`transaction`](Self::transaction).
    ///
    /// # Cancellation safety
    ///
    /// Like [`transaction`](Self::transaction).
    pub fn transaction_local<B, S, T, E, F, Via>(
        self,
        begins: &B,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        B: Transactions<S>,
        S: Store,
        P: InTransactionPolicy<E>,
        F: AsyncFnMut(&mut B::Transaction) -> Result<T, E>,
        T: Storable<Via>,
        E: From<Error> + std::error::Error + 'static,
    {
        self.rerun_when(|error: &E| sources(Some(error), B::is_conflict))
            .transaction_local(begins, body)
    }

    /// Sets after which errors of the body the whole [transaction](Self::transaction) runs again,
    /// instead of looking at the error's sources. It is not asked about an error that the policy
    /// keeps: that one is recorded. Use it for error types that hide the driver's error, or do not
    /// implement [`std::error::Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[derive(Debug)] enum OrderError { Busy, Idempotency(Error) }
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let call = idempotency
    ///     .operation("orders.create")
    ///     .key("o-1")
    ///     .rerun_when(|error: &OrderError| matches!(error, OrderError::Busy));
    /// ```
    pub fn rerun_when<E, W: Fn(&E) -> bool>(self, when: W) -> RerunWhen<'a, P, E, W> {
        RerunWhen {
            operation: self,
            when,
            error: PhantomData,
        }
    }
}

/// A call in a transaction that may run again. From [`Operation::rerun_when`].
#[must_use = "nothing happens until it is run"]
pub struct RerunWhen<'a, P, E, W> {
    operation: Operation<'a, (), P>,
    when: W,
    error: PhantomData<fn(&E)>,
}

impl<P, E, W: Fn(&E) -> bool> RerunWhen<'_, P, E, W> {
    /// Like [`Operation::transaction`].
    ///
    /// # Errors
    ///
    /// Like [`Operation::transaction`].
    ///
    /// # Cancellation safety
    ///
    /// Like [`Operation::transaction`].
    pub fn transaction<B, S, T, F, Via>(
        self,
        begins: &B,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>> + Send
    where
        B: Transactions<S>,
        S: Store,
        P: InTransactionPolicy<E> + Send,
        F: AsyncFnOnce(&mut B::Transaction) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut B::Transaction, Result<T, E>>
            + RunsAgain
            + Send,
        T: Storable<Via> + Send,
        E: From<Error> + Send,
        W: Send,
    {
        let Self {
            operation: Operation { draft, policy, .. },
            when,
            ..
        } = self;
        let prepared = draft.prepare();
        let handling = Handling::new::<Via>(policy.into_policy());
        let call = InTransaction::new(prepared, handling);
        async move { call.run(begins, AnyThread(body), when).await }
    }

    /// Like [`Operation::transaction_local`].
    ///
    /// # Errors
    ///
    /// Like [`Operation::transaction`].
    ///
    /// # Cancellation safety
    ///
    /// Like [`Operation::transaction`].
    pub fn transaction_local<B, S, T, F, Via>(
        self,
        begins: &B,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        B: Transactions<S>,
        S: Store,
        P: InTransactionPolicy<E>,
        F: AsyncFnMut(&mut B::Transaction) -> Result<T, E>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let Self {
            operation: Operation { draft, policy, .. },
            when,
            ..
        } = self;
        let prepared = draft.prepare();
        let handling = Handling::new::<Via>(policy.into_policy());
        let call = InTransaction::new(prepared, handling);
        async move { call.run(begins, OneThread(body), when).await }
    }
}

impl<P, E, W> fmt::Debug for RerunWhen<'_, P, E, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RerunWhen")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
