//! Claims whose result is unknown. The store may have carried each of them out, or may do so later,
//! and no caller will run the body. So they are undone in the background.
//!
//! One task of each tokio runtime undoes all of them, because there are many while a store is
//! unavailable. The task looks for each claim until its lease would have expired, with growing
//! pauses, because the claim may still be on its way. Claims that the store has answered make room
//! for those that it has not.

use std::collections::BTreeMap;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::clock;
use crate::base::race::{self, first};
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::error::StoreError;
use crate::lease::keeper::{Known, LeaseKeepers};
use crate::observe::{Event, Observer};
use crate::record::{Owner, Ownership, RecordId, Release, ReleaseTo};
use crate::runtime::background::Counted;
use crate::store::AnyStore;

pub(crate) const NOT_RELEASED: Event = Event::warn("not_released");

/// The pauses before a claim is looked for again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(600));
/// How many claims are undone at the same time.
const AT_ONCE: usize = 256;
/// How many bytes the claims may take in all.
const MAX_BYTES: usize = 64 << 20;
/// The size of a claim without its id.
const BYTES: usize = 200;
/// How often the task moves to another tokio runtime when the one that it is on ends.
const MOVES: u8 = 8;

/// The claims of a runtime that are to be undone.
pub(crate) struct Undoing {
    store: AnyStore,
    observer: Observer,
    known: Arc<Known>,
    claims: Mutex<Claims>,
    /// Signals that a claim is due earlier than planned.
    wake: Notify,
}

#[derive(Default)]
struct Claims {
    /// By the time when they are due: those that the store has not answered, then those that it did
    /// not find, which may still be on their way.
    due: [BTreeMap<(Instant, u64), UnansweredClaim>; 2],
    added: u64,
    bytes: usize,
    /// The tokio runtimes that have a task. A tokio runtime that is not driven delays only the
    /// claims that its task has taken.
    tasks: Vec<Id>,
}

pub(crate) struct UnansweredClaim {
    id: RecordId,
    owner: Owner,
    /// How long the record that the claim replaced is kept.
    keep: Duration,
    /// When its lease would have expired.
    until: Instant,
    pauses: Backoff,
    /// `None` once the store has said whether it was carried out.
    counted: Option<Counted>,
}

impl UnansweredClaim {
    /// Notes a claim whose lease begins now.
    pub(crate) fn new(
        id: RecordId,
        owner: Owner,
        keep: Duration,
        until: Instant,
        counted: Option<Counted>,
    ) -> Self {
        Self {
            id,
            owner,
            keep,
            until,
            pauses: PAUSES,
            counted,
        }
    }

    fn bytes(&self) -> usize {
        BYTES + self.id.as_str().len()
    }
}

impl Claims {
    /// Adds a claim. If there is not enough room, returns the claim that is left out.
    fn add(&mut self, claim: UnansweredClaim, due: Instant) -> Option<UnansweredClaim> {
        self.bytes += claim.bytes();
        self.added += 1;
        let is_answered = usize::from(claim.counted.is_none());
        self.due[is_answered].insert((due, self.added), claim);
        if self.bytes <= MAX_BYTES {
            return None;
        }
        // The claims that were looked for most often are the least likely to arrive.
        let (_, left_out) = self.due.iter_mut().rev().find_map(BTreeMap::pop_last)?;
        self.bytes -= left_out.bytes();
        Some(left_out)
    }

    /// Takes a claim that is due, or returns when the next one is.
    fn take(&mut self, now: Instant) -> Result<UnansweredClaim, Option<Instant>> {
        for claims in &mut self.due {
            if let Some(entry) = claims.first_entry().filter(|entry| entry.key().0 <= now) {
                let claim = entry.remove();
                self.bytes -= claim.bytes();
                return Ok(claim);
            }
        }
        let first = self.due.iter().filter_map(BTreeMap::first_key_value);
        Err(first.map(|((due, _), _)| *due).min())
    }

    fn is_empty(&self) -> bool {
        self.due.iter().all(BTreeMap::is_empty)
    }
}

impl Undoing {
    pub(crate) fn new(store: AnyStore, observer: Observer, keepers: &LeaseKeepers) -> Self {
        let claims = Mutex::default();
        let wake = Notify::new();
        Self {
            store,
            observer,
            known: keepers.known().clone(),
            claims,
            wake,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a claim, and starts a task for it if this tokio runtime has none.
    pub(crate) fn add(
        self: &Arc<Self>,
        claim: UnansweredClaim,
        due: Instant,
        keepers: &LeaseKeepers,
    ) {
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.known.another(None));
        let mut claims = self.lock();
        let left_out = claims.add(claim, due);
        let new = handle.filter(|handle| !claims.tasks.contains(&handle.id()));
        claims.tasks.extend(new.as_ref().map(Handle::id));
        let is_in_care = !claims.tasks.is_empty();
        drop(claims);
        self.leaves_out(left_out);
        match new {
            Some(handle) => {
                keepers.learn(&handle);
                self.run_on(&handle, 0);
            }
            None if is_in_care => self.wake.notify_waiters(),
            None => self.stops(None, 0),
        }
    }

    fn run_on(self: &Arc<Self>, handle: &Handle, moves: u8) {
        handle.spawn(drive(Driver {
            undoing: self.clone(),
            on: handle.id(),
            moves,
            is_done: false,
        }));
    }

    /// Moves the claims to another tokio runtime, because the task has ended with its own, or there
    /// was none.
    fn stops(self: &Arc<Self>, on: Option<Id>, moves: u8) {
        let another = self.known.another(on).filter(|_| moves < MOVES);
        let mut claims = self.lock();
        claims.tasks.retain(|task| Some(*task) != on);
        if claims.is_empty() {
            return;
        }
        if let Some(handle) = another.filter(|handle| !claims.tasks.contains(&handle.id())) {
            claims.tasks.push(handle.id());
            drop(claims);
            return self.run_on(&handle, moves + 1);
        }
        if !claims.tasks.is_empty() {
            drop(claims);
            return self.wake.notify_waiters();
        }
        let [left, _] = std::mem::take(&mut claims.due);
        claims.bytes = 0;
        drop(claims);
        for claim in left.values() {
            self.gives_up(
                claim,
                &"its tokio runtime was shut down first, and there is no other to undo it on",
            );
        }
    }

    fn leaves_out(&self, claim: Option<UnansweredClaim>) {
        if let Some(claim) = claim.filter(|claim| claim.counted.is_some()) {
            self.gives_up(
                &claim,
                &"too many others are being undone (64 MiB of them, about 300,000)",
            );
        }
    }

    fn gives_up(&self, claim: &UnansweredClaim, why: &dyn std::fmt::Display) {
        self.observer.report(NOT_RELEASED, &claim.id, 0, Some(why));
    }

    /// Removes the task of a tokio runtime from the list if nothing is left to do.
    fn is_done(&self, on: Id) -> bool {
        let mut claims = self.lock();
        let is_done = claims.is_empty();
        claims.tasks.retain(|task| !is_done || *task != on);
        is_done
    }

    /// Tries once to undo a claim.
    async fn undo(&self, claim: &mut UnansweredClaim) -> After {
        let to = ReleaseTo::Undone { keep: claim.keep };
        let release = Release::new(claim.id.clone(), claim.owner, to);
        let release = self.store.release(release);
        // A store that panics has not answered.
        let answer = AssertUnwindSafe(release)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Err(StoreError::panicked()));
        match &answer {
            Ok(Ownership::Held) => {
                self.observer
                    .decided(Event::info("given_back"), &claim.id, 0);
                return After::Over;
            }
            Ok(Ownership::Lost) => claim.counted = None,
            Err(_) => {}
        }
        let now = clock::now();
        let left = claim.until.saturating_duration_since(now);
        if left.is_zero() {
            if let Err(error) = answer {
                self.gives_up(claim, &error);
            }
            return After::Over;
        }
        // The store did not find the claim, which may still be on its way. The pause doubles each
        // time, so only a few looks fit into a lease.
        let pause = claim.pauses.next_pause().min(left);
        After::Again(clock::after(now, pause))
    }
}

enum After {
    Over,
    Again(Instant),
}

/// A claim that is being undone. If that is cut off, the claim goes back to the list.
struct UnderWay {
    undoing: Arc<Undoing>,
    claim: Option<UnansweredClaim>,
    again: Instant,
}

impl UnderWay {
    async fn run(mut self) {
        let Some(claim) = &mut self.claim else { return };
        match self.undoing.undo(claim).await {
            After::Over => self.claim = None,
            After::Again(at) => self.again = at,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        let left_out = self.undoing.lock().add(claim, self.again);
        self.undoing.leaves_out(left_out);
    }
}

/// The task. If its tokio runtime ends, it continues on another one.
struct Driver {
    undoing: Arc<Undoing>,
    on: Id,
    moves: u8,
    is_done: bool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.is_done {
            self.undoing.stops(Some(self.on), self.moves);
        }
    }
}

async fn drive(mut driver: Driver) {
    let undoing = driver.undoing.clone();
    // Dropped before the driver, so that its claims are back in the list when the driver moves on.
    let mut under_way = FuturesUnordered::new();
    loop {
        // Subscribes before it looks, so that a claim added right after the look still wakes it.
        let added = undoing.wake.notified();
        let now = clock::now();
        let mut next = None;
        while under_way.len() < AT_ONCE {
            match undoing.lock().take(now) {
                Ok(claim) => {
                    let mut pauses = claim.pauses;
                    let again = clock::after(now, pauses.next_pause());
                    let one = UnderWay {
                        undoing: undoing.clone(),
                        claim: Some(claim),
                        again,
                    };
                    // A panic ends one try. It may come from the application's subscriber to
                    // events.
                    under_way.push(AssertUnwindSafe(one.run()).catch_unwind());
                }
                Err(at) => {
                    next = at;
                    break;
                }
            }
        }
        if under_way.is_empty() && undoing.is_done(driver.on) {
            driver.is_done = true;
            return;
        }
        let tried = async {
            if under_way.next().await.is_none() {
                pending::<()>().await;
            }
        };
        first(tried, first(added, race::until(next))).await;
    }
}

/// The task without a tokio runtime that runs it, for the explorer of schedules.
#[cfg(all(test, shuttle))]
mod explored {
    use shuttle::future::block_on;
    use shuttle::thread;

    use super::*;
    use crate::explored::{explore, id};
    use crate::record::{Claim, Claimed, Commit, Issue, Issued, RecordInfo, Removed, Renewal};
    use crate::runtime::background::Background;
    use crate::store::Store;

    const LONG: Duration = Duration::from_secs(3600);

    /// A store that undoes the claim of `first` once it has undone another one.
    struct InTurn {
        first: RecordId,
        undone: Notify,
        is_undone: Mutex<bool>,
    }

    impl Store for InTurn {
        async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
            if release.id != self.first {
                *self.is_undone.lock().unwrap() = true;
                self.undone.notify_waiters();
                return Ok(Ownership::Held);
            }
            loop {
                let undone = self.undone.notified();
                if *self.is_undone.lock().unwrap() {
                    return Ok(Ownership::Held);
                }
                undone.await;
            }
        }
        async fn claim(&self, _: &Claim) -> Result<Claimed, StoreError> {
            unreachable!()
        }
        async fn issue(&self, _: &[Issue]) -> Vec<Result<Issued, StoreError>> {
            unreachable!()
        }
        async fn commit(&self, _: &Commit) -> Result<Ownership, StoreError> {
            unreachable!()
        }
        async fn renew(&self, _: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
            unreachable!()
        }
        async fn wait(&self, _: &RecordId, _: u64, _: Duration) -> Result<(), StoreError> {
            unreachable!()
        }
        async fn inspect(&self, _: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
            unreachable!()
        }
        async fn remove(&self, _: &RecordId) -> Result<Removed, StoreError> {
            unreachable!()
        }
    }

    #[test]
    fn a_claim_that_is_added_while_another_is_being_undone_is_undone_as_well() {
        explore(|| {
            let store = InTurn {
                first: id("first"),
                undone: Notify::new(),
                is_undone: Mutex::default(),
            };
            let store = store.into_handle().0;
            let keepers = LeaseKeepers::new(store.clone(), Observer::default());
            let undoing = Arc::new(Undoing::new(store, Observer::default(), &keepers));
            let background = Arc::new(Background::default());
            let now = clock::now();
            let claim = |key: &str| {
                let until = clock::after(now, LONG);
                UnansweredClaim::new(id(key), Owner::generate(), LONG, until, background.undo())
            };
            let on = Handle::current().id();
            undoing.lock().tasks.push(on);
            undoing.add(claim("first"), now, &keepers);
            let task = thread::spawn({
                let undoing = undoing.clone();
                let driver = Driver {
                    undoing,
                    on,
                    moves: 0,
                    is_done: false,
                };
                move || block_on(drive(driver))
            });
            undoing.add(claim("other"), now, &keepers);
            task.join().unwrap();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::key::Key;
    use crate::runtime::background::Background;

    fn claim(key: u32, background: &Arc<Background>) -> UnansweredClaim {
        let id = RecordId::new("undone", &Key::encode(&key).unwrap()).unwrap();
        let owner = Owner::generate();
        let keep = Duration::from_secs(1);
        let counted = background.undo();
        UnansweredClaim {
            id,
            owner,
            keep,
            until: clock::after(clock::now(), keep),
            pauses: PAUSES,
            counted,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_claims_that_the_store_has_not_answered_for_the_one_that_is_due_last_makes_room() {
        let background = Arc::default();
        let now = clock::now();
        let first = claim(1, &background);
        let last = claim(2, &background);
        let first_id = first.id.clone();
        let last_id = last.id.clone();
        // Room for one.
        let mut claims = Claims {
            bytes: MAX_BYTES - first.bytes(),
            ..Claims::default()
        };
        assert!(claims.add(last, now + Duration::from_secs(1)).is_none());
        assert_eq!(
            claims.add(first, now).map(|left_out| left_out.id),
            Some(last_id)
        );
        assert_eq!(claims.take(now).map(|claim| claim.id).ok(), Some(first_id));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_that_the_store_has_answered_for_make_room_for_the_others() {
        let background = Arc::default();
        let mut claims = Claims::default();
        let now = clock::now();
        let mut many = 0;
        loop {
            many += 1;
            let mut claim = claim(many, &background);
            if many % 2 == 0 {
                claim.counted = None;
            }
            if let Some(left_out) = claims.add(claim, now) {
                assert!(left_out.counted.is_none());
                break;
            }
        }
        assert!(many > 250_000, "{many}");
        for key in 0..many / 4 {
            assert!(
                claims
                    .add(claim(many + key, &background), now)
                    .is_some_and(|left_out| left_out.counted.is_none())
            );
        }
        assert!(claims.bytes <= MAX_BYTES && claims.due[0].len() > claims.due[1].len());
        while let Ok(claim) = claims.take(now) {
            drop(claim);
        }
        assert_eq!((claims.bytes, claims.due[1].len()), (0, 0));
    }
}
