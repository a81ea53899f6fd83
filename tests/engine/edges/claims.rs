//! Claims: what is sent again, what is undone, what comes too late, and when a waiter asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use idem::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, Release, Removed, Renewal,
};
use idem::{
    Begin, Error, Idempotency, InFlight, Lease, MemoryStore, Operation, RecordInfo, RecordState,
    Store, StoreError,
};
use idem_testkit::{Fault, Step};
use tokio::time::Instant;

use super::{Res, SHORT, faulty};
use crate::support::{Failure, LEASE, LONG};

async fn owning(operation: Operation<'_>) -> Lease {
    let Begin::Execute(lease) = operation.begin().await.unwrap() else {
        panic!("nobody else was there")
    };
    lease
}

/// The first message may still arrive, and would claim the key for a call that has ended.
#[tokio::test(start_paused = true)]
async fn p10_a_claim_that_was_sent_twice_is_undone_unless_it_owns_the_key() {
    let store = MemoryStore::new();
    let (here, faults) = faulty(&store);
    let there = Idempotency::new(store);
    faults.next(Step::Claim, Fault::LoseRequest);
    here.operation("op")
        .key("owns")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    here.shutdown(LONG).await.unwrap();
    assert_eq!(
        (faults.calls(Step::Claim), faults.calls(Step::Release)),
        (2, 0)
    );

    let owner = owning(there.operation("op").key("k")).await;
    faults.next(Step::Claim, Fault::LoseRequest);
    let rejecting = here.operation("op").key("k").in_flight(InFlight::Reject);
    let rejected = rejecting.run(async || Res::Ok(1)).await;
    assert!(
        matches!(rejected, Err(Error::InFlight { .. })),
        "{rejected:?}"
    );
    here.shutdown(LONG).await.unwrap();
    assert_eq!(
        (faults.calls(Step::Claim), faults.calls(Step::Release)),
        (4, 1)
    );
    owner.commit(&2_u32).await.unwrap();
}

/// The count of attempts must outlast the lease of the claim, which may arrive until then.
#[tokio::test(start_paused = true)]
async fn p10_a_claim_that_was_undone_leaves_the_released_record_for_remember_and_ten_leases() {
    for (remember, kept) in [(SHORT, LEASE * 10), (LEASE * 100, LEASE * 100)] {
        let (idempotency, faults) = faulty(&MemoryStore::new());
        let call = || {
            let call = idempotency.operation("op").key("k").lease(LEASE);
            call.ttl(SHORT).remember(remember)
        };
        call()
            .run(async || Err::<u32, _>(Failure::Declined))
            .await
            .unwrap_err();
        for _ in 0..2 {
            faults.next(Step::Claim, Fault::LoseReply);
        }
        call().run(async || Res::Ok(1)).await.unwrap_err();
        idempotency.shutdown(LONG).await.unwrap();
        let found = call().inspect().await.unwrap().unwrap();
        assert_eq!((found.state, found.attempt), (RecordState::Released, 1));
        assert!(found.expires_in + LEASE > kept, "{:?}", found.expires_in);
    }
}

#[tokio::test(start_paused = true)]
async fn p1_p10_a_claim_that_is_answered_after_nine_tenths_of_its_lease_runs_no_body_and_is_undone()
{
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = || {
        let call = idempotency.operation("op").key("k").lease(LONG);
        call.in_flight(InFlight::Reject)
    };
    faults.next(Step::Claim, Fault::DelayReply(LONG / 10 * 9));
    let late = call().run(async || -> Res { panic!("a body ran") }).await;
    assert!(
        matches!(late, Err(Error::LeaseLost { attempt: 1, .. })),
        "{late:?}"
    );
    idempotency.shutdown(LONG).await.unwrap();
    // Before the end of the lease, and nothing is left of the claim.
    let next = call()
        .run(async || Ok::<_, Error>(idem::current().unwrap().attempt()))
        .await;
    assert_eq!(next.unwrap().into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn p1_the_lease_of_a_waiter_counts_from_before_its_last_claim() {
    for (reply, runs) in [(Duration::ZERO, true), (LEASE / 10 * 9, false)] {
        let store = MemoryStore::new();
        let (here, faults) = faulty(&store);
        let owner = owning(Idempotency::new(store).operation("op").key("k")).await;
        faults.next(Step::Claim, Fault::Pass);
        faults.next(Step::Claim, Fault::DelayReply(reply));
        // It waits for longer than its own lease.
        let releases = async {
            tokio::time::sleep(LEASE * 3).await;
            owner.release().await.unwrap();
        };
        let waits = here.operation("op").key("k").lease(LEASE).wait(LONG);
        let (waited, ()) = tokio::join!(waits.run(async || Res::Ok(1)), releases);
        assert_eq!(waited.is_ok(), runs, "{reply:?}: {waited:?}");
        assert_eq!(faults.calls(Step::Claim), 2);
    }
}

/// Its clock and that of the store may differ a little.
#[tokio::test(start_paused = true)]
async fn p11_a_waiter_asks_again_five_milliseconds_after_the_lease_has_ended() {
    let store = MemoryStore::new();
    let (here, faults) = faulty(&store);
    let began = Instant::now();
    drop(
        owning(
            Idempotency::new(store)
                .operation("op")
                .key("k")
                .lease(LEASE),
        )
        .await,
    );
    let asks = async {
        faults.reached(Step::Claim, 2).await;
        began.elapsed()
    };
    let waits = here.operation("op").key("k").wait(LONG);
    let (waited, asked) = tokio::join!(waits.run(async || Res::Ok(1)), asks);
    waited.unwrap();
    let earliest = LEASE + Duration::from_millis(5);
    assert!(
        (earliest..earliest + Duration::from_millis(10)).contains(&asked),
        "{asked:?}"
    );
    assert_eq!(faults.calls(Step::Claim), 2);
}

#[tokio::test(start_paused = true)]
async fn p11_a_waiter_whose_store_cannot_wait_asks_every_tenth_of_a_second() {
    let store = MemoryStore::new();
    let (here, faults) = faulty(&store);
    faults.always(Step::Wait, Fault::Refuse);
    let _owner = owning(Idempotency::new(store).operation("op").key("k")).await;
    let waits = here.operation("op").key("k").wait(Duration::from_secs(1));
    let waited = waits.run(async || Res::Ok(1)).await;
    assert!(matches!(waited, Err(Error::InFlight { .. })), "{waited:?}");
    let claims = faults.calls(Step::Claim);
    assert!((10..=12).contains(&claims), "{claims} claims");
}

#[tokio::test(start_paused = true)]
async fn p11_a_waiter_whose_store_ends_each_wait_at_once_asks_ever_more_seldom() {
    let store = EndsWaits::default();
    let _owner = owning(Idempotency::new(store.clone()).operation("op").key("k")).await;
    let here = Idempotency::new(store.clone());
    let waits = here.operation("op").key("k").wait(Duration::from_secs(1));
    let waited = waits.run(async || Res::Ok(1)).await;
    assert!(matches!(waited, Err(Error::InFlight { .. })), "{waited:?}");
    // The pauses grow to a tenth of a second, and up to half of each is left out.
    let claims = store.claims.load(SeqCst);
    assert!((10..=30).contains(&claims), "{claims} claims");
}

/// A store that ends each wait for no reason.
#[derive(Clone, Default)]
struct EndsWaits {
    store: MemoryStore,
    claims: Arc<AtomicU32>,
}

impl Store for EndsWaits {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let claims = self.claims.fetch_add(1, SeqCst);
        assert!(claims < 1_000, "it asks again without a pause");
        self.store.claim(claim).await
    }
    async fn wait(&self, _: &RecordId, _: u64, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.store.issue(issues).await
    }
    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.store.commit(commit).await
    }
    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.store.release(release).await
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.store.renew(renewals).await
    }
    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.store.inspect(id).await
    }
    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.store.remove(id).await
    }
}
