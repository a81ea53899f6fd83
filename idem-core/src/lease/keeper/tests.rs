//! Which leases a keeper looks at and renews, when, and how long it is there.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::*;
use crate::MemoryStore;
use crate::encoding::key::Key;
use crate::error::{StoreError, StoreErrorKind};
use crate::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use crate::store::Store;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Renews every lease, and counts the renewals and the steps in which they came. The third number
/// is how many of the next steps fail.
#[derive(Clone, Default)]
struct Renews(Arc<(AtomicUsize, AtomicUsize, AtomicUsize)>);

impl Renews {
    fn keepers(&self) -> LeaseKeepers {
        LeaseKeepers::new(self.clone().into_handle().0, Observer::default())
    }

    fn counts(&self) -> (usize, usize) {
        (
            self.0.0.load(Ordering::SeqCst),
            self.0.1.load(Ordering::SeqCst),
        )
    }
}

fn no<T>() -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Refused, "it only renews"))
}

impl Store for Renews {
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.0.0.fetch_add(renewals.len(), Ordering::SeqCst);
        self.0.1.fetch_add(1, Ordering::SeqCst);
        let fails = self
            .0
            .2
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok();
        renewals
            .iter()
            .map(|_| if fails { no() } else { Ok(Ownership::Held) })
            .collect()
    }
    async fn claim(&self, _: &Claim) -> Result<Claimed, StoreError> {
        no()
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        vec![no(); issues.len()]
    }
    async fn commit(&self, _: &Commit) -> Result<Ownership, StoreError> {
        no()
    }
    async fn release(&self, _: &Release) -> Result<Ownership, StoreError> {
        no()
    }
    async fn wait(&self, _: &RecordId, _: u64, _: Duration) -> Result<(), StoreError> {
        no()
    }
    async fn inspect(&self, _: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        no()
    }
    async fn remove(&self, _: &RecordId) -> Result<Removed, StoreError> {
        no()
    }
}

fn keepers() -> LeaseKeepers {
    LeaseKeepers::new(MemoryStore::new().into_handle().0, Observer::default())
}

fn term(length: Duration) -> Term {
    let id = RecordId::new("kept", &Key::encode("k").unwrap()).unwrap();
    Term::first(id, length)
}

fn visits(keepers: &LeaseKeepers) -> (usize, usize) {
    let keeper = keepers.keeper_of(&Handle::current());
    keeper.state().visits
}

#[tokio::test(start_paused = true)]
async fn a_look_visits_the_leases_that_are_due_and_no_others() {
    let keepers = keepers();
    let long: Vec<_> = (0..100_000).map(|_| keepers.enrol(term(HOUR))).collect();
    let short = keepers.enrol(term(Duration::from_secs(1)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (leases, looks) = visits(&keepers);
    // The store knows nothing of it, so it is lost at its first renewal.
    assert!(
        short.term.is_lost() && leases <= 2,
        "{leases} leases in {looks} looks"
    );
    drop(long);
}

#[tokio::test(start_paused = true)]
async fn a_short_lease_that_is_over_has_the_keeper_look_no_more_often() {
    let keepers = keepers();
    let long = keepers.enrol(term(HOUR));
    drop(keepers.enrol(term(Duration::from_millis(100))));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = visits(&keepers).1;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let looks = visits(&keepers).1 - before;
    assert!((25..=35).contains(&looks), "{looks} looks in 30 s");
    drop(long);
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_has_ended_is_given_no_lease_whatever_its_id() {
    let keepers = keepers();
    let ended = keepers.keeper_of(&Handle::current());
    ended.ended.store(true, Ordering::Release);
    let lease = keepers.enrol(term(HOUR));
    assert!(ended.state().leases.is_empty());
    // Found before it ended, and asked after that.
    assert!(ended.take(&Arc::new(term(HOUR))).is_none());
    assert!(
        lease
            .entry
            .as_ref()
            .is_some_and(|entry| !Arc::ptr_eq(&entry.keeper, &ended))
    );
    assert!(
        keepers.known.another(None).is_some()
            && keepers
                .known
                .another(Some(Handle::current().id()))
                .is_none()
    );
}

#[test]
fn a_keeper_ends_with_its_tokio_runtime_which_is_no_place_for_work_then() {
    let keepers = keepers();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    keepers.learn(&handle);
    assert!(keepers.known.another(None).is_some());
    drop(runtime);
    assert!(keepers.known.another(None).is_none());
    // A lease that is enrolled there all the same is nobody's to renew, and is not left waiting.
    let lease = keepers.enrol_on(&handle, Arc::new(term(HOUR)));
    assert!(lease.entry.is_none());
}

#[tokio::test(start_paused = true)]
async fn p1_a_lease_is_renewed_in_time_however_short_and_whatever_the_keeper_was_doing() {
    let store = Renews::default();
    let keepers = store.keepers();
    // The keeper is idle, and would look in a second.
    drop(keepers.enrol(term(HOUR)));
    tokio::time::sleep(SECOND * 2 + SECOND / 20).await;
    for length in [SECOND, SECOND / 10, SECOND * 3] {
        let lease = keepers.enrol(term(length));
        let before = store.counts().0;
        tokio::time::sleep(length * 10).await;
        let renewals = store.counts().0 - before;
        assert!(
            !lease.term.is_lost() && (20..=30).contains(&renewals),
            "{length:?}: {renewals} renewals"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_keeper_of_many_leases_pauses_while_it_renews_them_and_loses_none() {
    // A third of a short lease is too short for as many pauses.
    for length in [SECOND * 10, SECOND / 10] {
        let store = Renews::default();
        let keepers = store.keepers();
        let leases: Vec<_> = (0..50_000).map(|_| keepers.enrol(term(length))).collect();
        for before in [0, leases.len()] {
            while store.counts().0 <= before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(
                store.counts().0 < before + leases.len(),
                "{length:?}: it renewed all without a pause"
            );
            while store.counts().0 < before + leases.len() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        tokio::time::sleep(length * 2).await;
        let lost = leases.iter().filter(|lease| lease.term.is_lost()).count();
        assert!(
            lost == 0 && store.counts().0 >= leases.len() * 5,
            "{length:?}: {lost} lost"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_keeper_of_many_leases_loses_none_on_a_runtime_where_each_pause_takes_long() {
    let keepers = Renews::default().keepers();
    let leases: Vec<_> = (0..30_000)
        .map(|_| keepers.enrol(term(SECOND * 3)))
        .collect();
    for _ in 0..60 {
        tokio::time::advance(SECOND / 10).await;
    }
    assert!(leases.iter().all(|lease| !lease.term.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_keeper_knows_the_shortest_lease_for_as_long_as_it_lives() {
    let keepers = Renews::default().keepers();
    let lease = keepers.enrol(term(SECOND));
    let shortest = || keepers.keeper_of(&Handle::current()).state().shortest;
    // It looks at the lease at least every third of a second.
    tokio::time::sleep(LATELY * 4 + SECOND / 2).await;
    assert_eq!(shortest(), SECOND);
    drop(lease);
    tokio::time::sleep(LATELY * 4).await;
    assert_eq!(shortest(), Duration::MAX);
}

#[tokio::test(start_paused = true)]
async fn p1_renewals_that_fail_are_sent_again_until_one_is_confirmed() {
    let store = Renews::default();
    let keepers = store.keepers();
    let lease = keepers.enrol(term(SECOND * 12));
    for _ in 0..10 {
        // Each comes after a twentieth, and a twelfth later at most.
        store.0.2.store(3, Ordering::SeqCst);
        tokio::time::sleep(SECOND * 12).await;
        assert!(!lease.term.is_lost() && store.0.2.load(Ordering::SeqCst) == 0);
    }
}

/// Looks at some leases at each event.
struct Looks {
    leases: [Arc<Term>; 2],
    /// How often the next renewals of all of them were planned, and how often they were not.
    planned: Arc<[AtomicUsize; 2]>,
}

impl Subscriber for Looks {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        let is_due = |lease: &Arc<Term>| lease.renewal_due() <= clock::now();
        let is_late = self.leases.iter().any(is_due);
        self.planned[usize::from(is_late)].fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The application may take its time with an event.
#[tokio::test(start_paused = true)]
async fn p1_all_leases_of_a_batch_are_updated_before_the_application_hears_of_any() {
    // With one subscriber, a thread without any could decide that nobody wants the event.
    static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&ANOTHER);
    let store = Renews::default();
    let keepers = store.keepers();
    let leases = [(); 2].map(|()| keepers.enrol(term(SECOND * 3)));
    let planned = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let looks = Looks {
        leases: leases.each_ref().map(|lease| lease.term.clone()),
        planned: planned.clone(),
    };
    let _looking = tracing::subscriber::set_default(looks);
    store.0.2.store(1, Ordering::SeqCst);
    tokio::time::sleep(SECOND * 2).await;
    let planned = planned.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert_eq!(planned, [2, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_is_not_renewed() {
    let store = Renews::default();
    let keepers = store.keepers();
    let mut stopped = keepers.enrol(term(SECOND));
    stopped.stop();
    drop(keepers.enrol(term(SECOND)));
    tokio::time::sleep(SECOND * 10).await;
    assert!(store.counts() == (0, 0) && stopped.term.is_lost());
    assert!(
        keepers
            .keeper_of(&Handle::current())
            .state()
            .leases
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn leases_that_were_claimed_shortly_after_one_another_are_renewed_by_one_step() {
    let store = Renews::default();
    let keepers = store.keepers();
    let mut leases = Vec::new();
    for _ in 0..100 {
        leases.push(keepers.enrol(term(SECOND * 30)));
        tokio::time::sleep(SECOND / 100).await;
    }
    tokio::time::sleep(SECOND * 12).await;
    let (renewals, steps) = store.counts();
    assert!(
        renewals == 100 && steps <= 3,
        "{renewals} renewals in {steps} steps"
    );
    assert!(leases.iter().all(|lease| !lease.term.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn a_keeper_looks_often_for_a_while_after_a_short_lease_and_rests_a_minute_after_the_last() {
    let keepers = keepers();
    drop(keepers.enrol(term(SECOND / 10)));
    let looks = async |length| {
        let before = visits(&keepers).1;
        tokio::time::sleep(length).await;
        visits(&keepers).1 - before
    };
    tokio::time::sleep(SECOND * 5).await;
    let often = looks(SECOND).await;
    assert!((35..=45).contains(&often), "{often} looks in a second");
    tokio::time::sleep(SECOND * 24).await;
    let seldom = looks(SECOND * 10).await;
    assert!((8..=12).contains(&seldom), "{seldom} looks in ten seconds");
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(looks(HOUR).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_keeper_ends_after_its_idempotency_runtime_and_its_last_lease_and_not_before() {
    let keepers = Renews::default().keepers();
    drop(keepers.enrol(term(SECOND)));
    let keeper = keepers.keeper_of(&Handle::current());
    let has_ended = async || {
        tokio::time::sleep(SECOND * 5).await;
        keeper.has_ended()
    };
    assert!(!has_ended().await, "more leases may come");
    let lease = keepers.enrol(term(SECOND));
    drop(keepers);
    assert!(
        !has_ended().await && !lease.term.is_lost(),
        "its lease was forgotten"
    );
    drop(lease);
    assert!(has_ended().await);
    // At once, where there is none.
    let idle = Renews::default().keepers();
    let keeper = idle.keeper_of(&Handle::current());
    drop(idle);
    tokio::time::sleep(SECOND * 5).await;
    assert!(keeper.has_ended());
}

#[test]
fn keepers_of_ended_tokio_runtimes_are_forgotten_and_no_others() {
    let keepers = keepers();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let runtimes = [runtime(), runtime(), runtime()];
    let ids = || -> Vec<_> {
        keepers
            .known
            .0
            .read()
            .unwrap()
            .iter()
            .map(|(handle, _)| handle.id())
            .collect()
    };
    let [one, two, three] = runtimes.each_ref().map(|runtime| runtime.handle().id());
    let [first, second, third] = runtimes;
    for runtime in [&first, &second] {
        keepers.learn(runtime.handle());
        keepers.learn(runtime.handle());
    }
    assert_eq!(ids(), [one, two]);
    drop(first);
    keepers.learn(third.handle());
    assert_eq!(ids(), [two, three]);
    let another = |than| keepers.known.another(than).map(|handle| handle.id());
    assert_eq!(
        (another(Some(two)), another(Some(three))),
        (Some(three), Some(two))
    );
}
