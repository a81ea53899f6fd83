//! Observe mode in a transaction: the body runs, and then the record is claimed and committed.
//!
//! A claim before the body would lock the record's row while the body runs, and the transactions of
//! other calls would wait for it. After the body, one savepoint contains everything of `idem`: a
//! failure is rolled back to it, and the body's rows stay.

use std::fmt::Display;
use std::mem;

use crate::call::open_transaction::{OpenTransaction, TransactionClaim, TransactionStart};
use crate::call::ownership::Ownership;
use crate::call::ownership::in_transaction::{commit_of, decision_on, run_in};
use crate::call::plan::{RecordPlan, TryEnd, Verdict};
use crate::call::recorded::Recorded;
use crate::call::transaction_body::Body;
use crate::error::Error;
use crate::observe::{Decision, catch_user_panic};
use crate::record::Owner;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::runtime::rejected::Rejected;
use crate::store::{Store, Transaction};
use crate::task::current::Call;

/// A body in a transaction that runs whatever the record says.
pub(crate) struct ObservedInTransaction<'a, X: Transaction<S>, S: Store, B, D> {
    pub(crate) open: OpenTransaction<'a, X, S>,
    pub(crate) store: &'a S,
    pub(crate) body: &'a mut B,
    pub(crate) call: Call,
    /// Decodes an outcome that a guarded call would have replayed, to report one that fails to
    /// decode.
    pub(crate) decode: D,
    /// The claim, once the body has ended.
    pub(crate) claimed: Option<ClaimAfterBody>,
    pub(crate) plan: RecordPlan,
    /// The body's error would be recorded.
    pub(crate) is_error_kept: bool,
}

/// The claim of a record after the body.
pub(crate) enum ClaimAfterBody {
    Owned {
        attempt: u64,
        owner: Owner,
    },
    /// Another call owns the record, which was reported.
    Other,
    Failed(Error),
}

impl<R, X, S, B, D> Ownership<R> for ObservedInTransaction<'_, X, S, B, D>
where
    X: Transaction<S>,
    S: Store,
    B: Body<X, R>,
    D: Fn(&Recorded),
{
    fn call(&self) -> Option<&Call> {
        Some(&self.call)
    }

    fn writer(&self) -> Option<OutcomeWriter<'_>> {
        match self.claimed {
            Some(ClaimAfterBody::Owned { attempt, .. }) => Some(self.open.writer(attempt)),
            _ => None,
        }
    }

    fn report(&self, decision: Decision, why: Option<&dyn Display>) {
        let attempt = match self.claimed {
            Some(ClaimAfterBody::Owned { attempt, .. }) => attempt,
            _ => 0,
        };
        self.open.report(decision, attempt, why);
    }

    async fn run_body(&mut self) -> TryEnd<R> {
        run_in(&mut self.open, &self.call, self.body).await
    }

    fn can_replace_retry(&self) -> bool {
        false
    }

    async fn claim_after_body(&mut self, verdict: Verdict) {
        self.is_error_kept = matches!(verdict, Verdict::KeepError { .. });
        // The caller decides about the body's rows, except that the rows of a kept error are rolled
        // back.
        let prepared = if self.is_error_kept && self.open.depth > 0 {
            self.open.roll_back_body().await
        } else {
            self.open.release_all().await
        };
        self.claimed = Some(match prepared {
            Ok(()) => self.claim().await,
            Err(error) => ClaimAfterBody::Failed(error),
        });
    }

    fn plan(&mut self, plan: RecordPlan) {
        if let RecordPlan::GiveUp(_) = plan {
            self.is_error_kept = false;
        }
        self.plan = plan;
    }

    fn is_error_kept(&self) -> bool {
        self.is_error_kept
    }

    async fn carry_out(&mut self) -> Result<(), Error> {
        let plan = mem::replace(&mut self.plan, RecordPlan::Nothing);
        let result = match (self.claimed.take(), plan) {
            (
                Some(ClaimAfterBody::Owned { attempt, owner }),
                RecordPlan::Commit { outcome, kept_for },
            ) => {
                let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
                let commit = commit_of(self.open.request, owner, attempt, outcome, kept_for);
                let committed = self.open.commit(self.store, &commit).await;
                let decision = match &committed {
                    Ok(()) => decision_on(is_error),
                    Err(_) => Decision::NotRecorded,
                };
                self.open.report(decision, attempt, None);
                committed
            }
            (Some(ClaimAfterBody::Owned { attempt, .. }), _) => {
                self.open.roll_back().await;
                self.open.report(Decision::Released, attempt, None);
                Ok(())
            }
            (Some(ClaimAfterBody::Failed(error)), _) => Err(error),
            (Some(ClaimAfterBody::Other) | None, _) => Ok(()),
        };
        // If the transaction is lost, its caller must not believe that it was committed. Any other
        // failure of `idem` changes nothing in observe mode.
        if !self.open.is_rollback_forced {
            return Ok(());
        }
        match result {
            Err(error @ Error::Store { .. }) => Err(error),
            _ => Err(self.open.lost()),
        }
    }
}

impl<X: Transaction<S>, S: Store, B, D: Fn(&Recorded)> ObservedInTransaction<'_, X, S, B, D> {
    /// Claims the key without a wait.
    async fn claim(&mut self) -> ClaimAfterBody {
        let runtime = self.open.runtime;
        let request = self.open.request;
        match self
            .open
            .claim(self.store, TransactionStart::OF_CALLER)
            .await
        {
            Ok(TransactionClaim::Owner(claimed)) => ClaimAfterBody::Owned {
                attempt: claimed.attempt,
                owner: claimed.owner,
            },
            Ok(TransactionClaim::Met(lease, _)) => {
                ClaimAfterBody::Failed(runtime.reject(request, Rejected::InFlight(lease)))
            }
            Ok(TransactionClaim::Replay(recorded)) => {
                catch_user_panic(|| (self.decode)(&recorded));
                ClaimAfterBody::Other
            }
            Err(error) => {
                let would = match error {
                    Error::Store { .. } => Some(Decision::StoreFailed),
                    Error::Codec { .. } => Some(Decision::Unreadable),
                    // It was reported already.
                    _ => None,
                };
                if let Some(would) = would {
                    runtime.reporter(request).decided(would, &request.id, 0);
                }
                ClaimAfterBody::Failed(error)
            }
        }
    }
}
