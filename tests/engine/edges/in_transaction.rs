//! Outcomes that a transaction of the body records, over a store in memory whose transaction the
//! test ends when it likes. `idem-sqlx` has the same over databases.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::policy::UnkeptAction;
use idem::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, Release, Removed, Renewal,
};
use idem::store::{Began, OwnRow, RowOwner, Transaction};
use idem::{
    Error, Idempotency, Lookup, MemoryStore, Operation, RecordInfo, Retry, Store, StoreError,
    StoreErrorKind, StoreFailure,
};
use idem_testkit::{Fault, FaultStore, Step};

use super::SHORT;
use crate::support::{Failure, LONG};

type Res<T = u32> = Result<T, Failure>;

/// A store with one transaction at a time. While that is open, its row is locked.
#[derive(Clone)]
struct Rows {
    store: FaultStore<MemoryStore>,
    /// What the transaction has written.
    open: Arc<Mutex<Option<Commit>>>,
}

impl Rows {
    fn new() -> Self {
        let store = FaultStore::new(MemoryStore::new());
        let open = Arc::default();
        Self { store, open }
    }

    /// Commits the transaction.
    async fn commit_open(&self) {
        let written = self.open.lock().unwrap().take();
        let written = written.expect("it has written the outcome");
        let committed = self.store.inner().commit(&written).await;
        assert_eq!(committed.unwrap(), Ownership::Held);
    }

    fn locked(&self) -> Result<(), StoreError> {
        match *self.open.lock().unwrap() {
            Some(_) => Err(StoreError::new(StoreErrorKind::Timeout, "it is locked")),
            None => Ok(()),
        }
    }

    fn calls(&self, step: Step) -> u64 {
        self.store.faults().calls(step)
    }
}

impl Store for Rows {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.store.issue(issues).await
    }
    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.locked()?;
        self.store.commit(commit).await
    }
    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.locked()?;
        self.store.release(release).await
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        match self.locked() {
            Ok(()) => self.store.renew(renewals).await,
            Err(error) => vec![Err(error); renewals.len()],
        }
    }
    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.store.wait(id, attempt, limit).await
    }
    /// Reads what is committed.
    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.store.inspect(id).await
    }
    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.store.remove(id).await
    }
}

/// The transaction.
struct Tx {
    rows: Rows,
    /// It answers a commit that its row is gone.
    has_lost_row: bool,
    can_roll_back: bool,
    /// How often its end was forced.
    forced: u32,
}

impl Tx {
    fn new(rows: &Rows) -> Self {
        Self {
            rows: rows.clone(),
            has_lost_row: false,
            can_roll_back: true,
            forced: 0,
        }
    }

    fn roll_back_all(&self) {
        *self.rows.open.lock().unwrap() = None;
    }
}

impl Transaction<Rows> for Tx {
    async fn savepoint(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn release(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn roll_back(&mut self) -> Result<(), StoreError> {
        self.roll_back_all();
        let gone = || StoreError::new(StoreErrorKind::Unavailable, "no such savepoint");
        self.can_roll_back.then_some(()).ok_or_else(gone)
    }
    fn roll_back_later(&mut self) {
        self.roll_back_all();
    }
    async fn force_rollback(&mut self) -> Result<(), StoreError> {
        self.forced += 1;
        self.roll_back_all();
        Ok(())
    }
    async fn claim(
        &mut self,
        store: &Rows,
        claim: &Claim,
        _: Duration,
    ) -> Result<Began<OwnRow>, StoreError> {
        store.store.inner().claim(claim).await.map(Began::from)
    }
    async fn commit(
        &mut self,
        _: &Rows,
        commit: &Commit,
        _: RowOwner,
    ) -> Result<Ownership, StoreError> {
        if self.has_lost_row {
            return Ok(Ownership::Lost);
        }
        *self.rows.open.lock().unwrap() = Some(commit.clone());
        Ok(Ownership::Held)
    }
}

fn call(idempotency: &Idempotency) -> Operation<'static> {
    idempotency.operation("in_transaction").key("k").lease(LONG)
}

async fn commit_in(rows: &Rows, value: u32) {
    let call = idem::current().expect("inside a body");
    call.commit_in(&mut Tx::new(rows), &value).await.unwrap();
}

async fn recorded(idempotency: &Idempotency) -> Option<u32> {
    match call(idempotency).lookup::<u32>().await.unwrap() {
        Lookup::Outcome(value) => Some(value),
        _ => None,
    }
}

fn once(_: &Failure) -> UnkeptAction {
    UnkeptAction::Retry(Retry::new(1).backoff(SHORT))
}

/// A read would find the record in flight: the commit may be under way.
#[tokio::test(start_paused = true)]
async fn p2_a_body_whose_recording_transaction_is_open_is_not_tried_again() {
    let rows = Rows::new();
    let idempotency = Idempotency::new(rows.clone());
    let tries = AtomicU32::new(0);
    let failed = call(&idempotency).errors(once).run(async || {
        commit_in(&rows, tries.fetch_add(1, SeqCst)).await;
        Res::<u32>::Err(Failure::Declined)
    });
    assert!(matches!(failed.await, Err(Failure::Declined)));
    rows.commit_open().await;
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        (tries.into_inner(), recorded(&idempotency).await),
        (1, Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn p2_a_try_whose_recording_transaction_was_rolled_back_says_nothing_of_the_next_one() {
    let rows = Rows::new();
    let idempotency = Idempotency::new(rows.clone());
    let tries = AtomicU32::new(0);
    let ran = call(&idempotency).errors(once).run(async || {
        let number = tries.fetch_add(1, SeqCst);
        if number == 0 {
            commit_in(&rows, number).await;
            Tx::new(&rows).roll_back_all();
            return Err(Failure::Declined);
        }
        Ok(number)
    });
    assert_eq!(ran.await.unwrap().into_inner(), 1);
    assert_eq!(recorded(&idempotency).await, Some(1));
}

/// It cannot look for steps of an earlier attempt either.
#[tokio::test(start_paused = true)]
async fn a_transaction_of_a_driver_that_cannot_inspect_records_the_outcome() {
    let rows = Rows::new();
    let idempotency = Idempotency::new(rows.clone());
    let mut tx = Tx::new(&rows);
    let ran = call(&idempotency).run_in(&mut tx, async |_| Res::Ok(7));
    assert_eq!(ran.await.unwrap().into_inner(), 7);
    rows.commit_open().await;
    assert_eq!(recorded(&idempotency).await, Some(7));
}

/// Whether its transaction was committed, only the body knows. If it was rolled back, the next
/// attempt goes on after the steps.
#[tokio::test(start_paused = true)]
async fn p2_after_the_outcome_was_recorded_in_a_transaction_nothing_is_sent_and_no_step_removed() {
    for commits in [true, false] {
        let rows = Rows::new();
        let idempotency = Idempotency::new(rows.clone());
        let charges = AtomicU32::new(0);
        let charge = async || {
            let charge = async || Res::Ok(charges.fetch_add(1, SeqCst));
            idem::step("charge", charge).await
        };
        let sent = || [Step::Commit, Step::Release, Step::Remove].map(|step| rows.calls(step));
        let mut before = [0; 3];
        let ran = call(&idempotency).run(async || {
            charge().await?;
            commit_in(&rows, 7).await;
            if commits {
                rows.commit_open().await;
            } else {
                Tx::new(&rows).roll_back_all();
            }
            before = sent();
            Res::Ok(7)
        });
        assert_eq!(ran.await.unwrap().into_inner(), 7);
        idempotency.shutdown(LONG).await.unwrap();
        assert_eq!(sent(), before);
        if !commits {
            let again = call(&idempotency).wait(LONG * 2).run(charge).await;
            assert_eq!(again.unwrap().into_inner(), 0, "it is replayed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn beside_a_record_and_in_an_observed_transaction_nothing_is_recorded_by_the_body() {
    let rows = Rows::new();
    let idempotency = Idempotency::new(rows.clone());
    let is_written = || rows.open.lock().unwrap().is_some();

    // The body runs although the store failed.
    rows.store.faults().next(Step::Claim, Fault::Refuse);
    let unguarded = call(&idempotency).store_failure(StoreFailure::Run);
    let ran = unguarded.run(async || {
        commit_in(&rows, 1).await;
        Res::Ok(is_written())
    });
    assert!(!ran.await.unwrap().into_inner());

    // The call claims its key after its body, and records the outcome itself.
    let mut tx = Tx::new(&rows);
    let ran = call(&idempotency).observe().run_in(&mut tx, async |tx| {
        let call = idem::current().expect("inside a body");
        call.commit_in(tx, &2_u32).await?;
        assert!(!is_written());
        Res::Ok(3)
    });
    assert_eq!(ran.await.unwrap().into_inner(), 3);
    rows.commit_open().await;
    assert_eq!(recorded(&idempotency).await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_row_is_lost_ends_its_transaction_and_an_observing_one_only_if_it_must() {
    for (observes, can_roll_back) in [(false, true), (true, true), (true, false)] {
        let rows = Rows::new();
        let idempotency = Idempotency::new(rows.clone());
        let mut tx = Tx {
            has_lost_row: true,
            can_roll_back,
            ..Tx::new(&rows)
        };
        let mut call = call(&idempotency);
        if observes {
            call = call.observe();
        }
        let ran = call.run_in(&mut tx, async |_| Res::Ok(3)).await;
        let changes_nothing = observes && can_roll_back;
        match ran {
            Ok(ran) if changes_nothing => assert_eq!(ran.into_inner(), 3),
            Err(Failure::Idempotency(Error::Store { .. })) if !changes_nothing => {}
            ran => panic!("{ran:?}, observes: {observes}"),
        }
        assert_eq!(tx.forced, u32::from(!changes_nothing));
    }
}
