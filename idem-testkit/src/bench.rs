//! The tools of one trial: handles, its own ids, records in every state, and time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Origin, Owner, RecordId, RecordInfo,
    RecordState, Release, ReleaseTo, Renewal,
};
use idem_core::{CodecId, Fingerprint, Key, KeyPart};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::check::{Failure, Verdict, between, broken, same};
use crate::handle::{Handle, MOMENT, soon};
use crate::subject::{DynSubject, Time};

/// A length that never runs out by itself during a trial.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The lengths that a trial lets run out, where time is moved by hand.
const MOVED_UNIT: Duration = Duration::from_secs(10);
/// The same in real time: as short as can be, while a quick machine is done with what must happen
/// before it is over.
const REAL_UNIT: Duration = Duration::from_millis(200);
/// The allowed error of a store that keeps lengths in whole milliseconds, on a real clock.
const REAL_SLACK: Duration = Duration::from_millis(25);
const MOVED_SLACK: Duration = Duration::from_millis(2);

/// The tools of one trial.
pub(crate) struct Bench {
    /// A handle on the store.
    pub(crate) store: Handle,
    subject: Box<dyn DynSubject>,
    time: Time,
    /// How far the trial has moved the store's clock.
    moved: Mutex<Duration>,
    started: Instant,
    /// How many times longer than usual the trial's lengths are, since the trial was held up
    /// before.
    scale: u32,
    operation: String,
    keys: AtomicU64,
}

/// A moment, as exactly as it is known from outside of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    earliest: Duration,
    latest: Duration,
}

/// A record that was brought into a state.
pub(crate) struct Given {
    pub(crate) id: RecordId,
    /// The claim by whose owner it was.
    pub(crate) claim: Claim,
    /// The commit that brought it there, or would.
    pub(crate) commit: Commit,
}

/// A record as it was seen at a moment.
pub(crate) struct Seen {
    pub(crate) at: Moment,
    pub(crate) info: Option<RecordInfo>,
}

impl Bench {
    pub(crate) async fn new(
        subject: Box<dyn DynSubject>,
        time: Time,
        scale: u32,
    ) -> Result<Self, Failure> {
        let store = subject.handle().await?;
        // Unlike those of any other trial, so that trials share a server.
        let operation = format!("trial.{:032x}", fastrand::u128(..));
        let moved = Mutex::default();
        let keys = AtomicU64::new(0);
        Ok(Self {
            store,
            subject,
            time,
            moved,
            started: now(),
            scale,
            operation,
            keys,
        })
    }

    /// Another handle on the same data, as another process has.
    pub(crate) async fn second(&self) -> Result<Handle, Failure> {
        self.subject.handle().await
    }

    /// Puts a value that is not a record at an id.
    pub(crate) async fn plant(&self, id: &RecordId, value: &[u8]) -> Verdict {
        if self.subject.plant(id, value).await? {
            return Ok(());
        }
        Err(Failure::skipped("the subject plants no foreign values"))
    }

    /// An id that was never used before.
    pub(crate) fn id(&self) -> Result<RecordId, Failure> {
        self.id_of("", &self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// The id of a key under an operation of this trial.
    pub(crate) fn id_of<K: KeyPart + ?Sized>(
        &self,
        operation: &str,
        key: &K,
    ) -> Result<RecordId, Failure> {
        let operation = [&self.operation, operation].concat();
        Key::encode(key)
            .and_then(|key| RecordId::new(&operation, &key))
            .ok_or_else(|| {
                broken(format!(
                    "`{operation}` or its key is not valid: a mistake in the suite"
                ))
            })
    }

    // Time.

    /// A length that the trial lets run out.
    pub(crate) fn unit(&self) -> Duration {
        if self.time.is_real() {
            REAL_UNIT * self.scale
        } else {
            MOVED_UNIT
        }
    }

    pub(crate) fn slack(&self) -> Duration {
        if self.time.is_real() {
            REAL_SLACK
        } else {
            MOVED_SLACK
        }
    }

    /// Lets time pass: a length, and on a real clock a little more, so that what lasts that long is
    /// over.
    pub(crate) async fn pass(&self, length: Duration) {
        if self.time.advance(length) {
            let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
            *moved += length;
        } else {
            tokio::time::sleep(length + REAL_SLACK).await;
        }
    }

    /// Lets nearly all of a length pass, and says what is left of it.
    pub(crate) async fn pass_nearly(&self, length: Duration) -> Duration {
        // A real clock does not stop just before a moment. Half way is before it for sure, or
        // measured not to be.
        let rest = if self.time.is_real() {
            length / 2
        } else {
            Duration::from_millis(1)
        };
        self.pass(length.saturating_sub(rest)).await;
        rest
    }

    /// Lets a length pass after which the record has another state.
    pub(crate) async fn pass_until(
        &self,
        length: Duration,
        id: &RecordId,
        state: Option<RecordState>,
    ) -> Verdict {
        self.pass(length).await;
        let changed = async {
            loop {
                let found = self.state(id).await?;
                // A clock that is moved by hand is never late.
                if found == state || !self.time.is_real() {
                    return same(&format!("the state after {length:?}"), found, state);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon(
            &format!("after {length:?}, the change of the record to {state:?}"),
            changed,
        )
        .await?
    }

    /// Carries out a step, and says when that was.
    pub(crate) async fn timed<T>(
        &self,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(Moment, T), Failure> {
        let earliest = self.now();
        let answer = step.await?;
        Ok((
            Moment {
                earliest,
                latest: self.now(),
            },
            answer,
        ))
    }

    /// That less than a length has passed since a moment, so that a lease of that length is alive.
    /// Otherwise the trial was held up, and is tried again.
    pub(crate) fn still(&self, length: Duration, since: Moment) -> Verdict {
        let longest = self.now().saturating_sub(since.earliest);
        // The error of a real clock counts against the length; a moved clock is exact.
        let slack = if self.time.is_real() {
            REAL_SLACK
        } else {
            Duration::ZERO
        };
        if longest + slack < length {
            Ok(())
        } else {
            Err(Failure::delayed())
        }
    }

    /// A failure, unless the trial took so long that a lease may have run out which never does.
    pub(crate) fn in_time(&self, failure: Failure) -> Failure {
        if self.time.is_real() && self.now() >= LONG {
            return Failure::delayed();
        }
        failure
    }

    /// A verdict that counts only if it was reached within a length since a moment.
    pub(crate) fn within(&self, length: Duration, since: Moment, verdict: Verdict) -> Verdict {
        verdict.or_else(|failure| self.still(length, since).and(Err(failure)))
    }

    /// A verdict on a step after a lease has run out, unless the store finds the lease alive. On a
    /// real clock it may, while it is unsure of its server's clock, and the trial is tried again.
    pub(crate) fn unless_alive(&self, is_alive: bool, verdict: Verdict) -> Verdict {
        if is_alive && self.time.is_real() {
            return Err(Failure::delayed());
        }
        verdict
    }

    /// That a length that was counted down since a moment is what it must be at another.
    pub(crate) fn counted_down(
        &self,
        what: &str,
        found: Duration,
        (length, since): (Duration, Moment),
        at: Moment,
    ) -> Verdict {
        let least = length.saturating_sub(at.latest.saturating_sub(since.earliest) + self.slack());
        let most = length.saturating_sub(at.earliest.saturating_sub(since.latest)) + self.slack();
        between(what, found, least, most)
    }

    /// That a length that was counted up since a moment is what it must be at another.
    pub(crate) fn counted_up(
        &self,
        what: &str,
        found: Duration,
        since: Moment,
        at: Moment,
    ) -> Verdict {
        let least = at.earliest.saturating_sub(since.latest + self.slack());
        let most = at.latest.saturating_sub(since.earliest) + self.slack();
        between(what, found, least, most)
    }

    fn now(&self) -> Duration {
        if self.time.is_real() {
            now().saturating_duration_since(self.started)
        } else {
            *self.moved.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    // Records.

    /// That a record has this state then.
    pub(crate) async fn then(&self, id: &RecordId, state: Option<RecordState>) -> Verdict {
        same("the state then", self.state(id).await?, state)
    }

    /// Claims what must be free.
    pub(crate) async fn own(&self, claim: &Claim) -> Result<u64, Failure> {
        match self.store.claim(claim).await? {
            Claimed::Owned { attempt, .. } => Ok(attempt),
            other => Err(broken(format!(
                "a claim of a free key: wanted Owned, got {other:?}"
            ))),
        }
    }

    /// A record in a state, after one attempt.
    pub(crate) async fn given(&self, state: RecordState) -> Result<Given, Failure> {
        self.given_with(state, None).await
    }

    /// A record in a state, after one attempt with a fingerprint.
    pub(crate) async fn given_with(
        &self,
        state: RecordState,
        print: Option<Fingerprint>,
    ) -> Result<Given, Failure> {
        let id = self.id()?;
        let mut claim = claim(&id).with_fingerprint(print);
        if state == RecordState::Abandoned {
            claim.lease = MOMENT;
        }
        self.own(&claim).await?;
        let mut commit = commit(&claim, 1);
        match state {
            RecordState::Released => {
                let _ = self.store.release(&release(&claim)).await?;
            }
            RecordState::Abandoned => self.pass_until(MOMENT, &id, Some(state)).await?,
            RecordState::Committed => {
                let _ = self.store.commit(&commit).await?;
            }
            RecordState::Done => {
                commit.outcome = None;
                let _ = self.store.commit(&commit).await?;
            }
            _ => {}
        }
        same(
            "the state that the trial begins with",
            self.state(&id).await?,
            Some(state),
        )?;
        Ok(Given { id, claim, commit })
    }

    /// Committed records of the two kinds: one whose outcome is kept for as long as the record, and
    /// one that remembers longer. A store may well keep the outcome of the second in another place.
    pub(crate) async fn both_committed(
        &self,
        print: Option<Fingerprint>,
    ) -> Result<[Given; 2], Failure> {
        let mut one = self.given_with(RecordState::InFlight, print).await?;
        one.commit.remember = one.commit.ttl;
        let _ = self.store.commit(&one.commit).await?;
        same(
            "the state that the trial begins with",
            self.state(&one.id).await?,
            Some(RecordState::Committed),
        )?;
        Ok([one, self.given_with(RecordState::Committed, print).await?])
    }

    /// An issue of a key that nothing is known of, carried out.
    pub(crate) async fn issued(&self) -> Result<Issue, Failure> {
        let issue = issue(&self.id()?);
        same(
            "an issue of nothing",
            self.store.issue(&issue).await?,
            Issued::Issued,
        )?;
        Ok(issue)
    }

    /// The same, whose time is over.
    pub(crate) async fn expired(&self) -> Result<Issue, Failure> {
        let issue = issue(&self.id()?).with_ttl(self.unit());
        let answer = self.store.issue(&issue).await?;
        same("an issue of nothing", answer, Issued::Issued)?;
        self.pass_until(issue.ttl, &issue.id, Some(RecordState::Expired))
            .await?;
        Ok(issue)
    }

    pub(crate) async fn state(&self, id: &RecordId) -> Result<Option<RecordState>, Failure> {
        Ok(self.store.inspect(id).await?.map(|info| info.state))
    }

    pub(crate) async fn look(&self, id: &RecordId) -> Result<Seen, Failure> {
        let (at, info) = self.timed(self.store.inspect(id)).await?;
        Ok(Seen { at, info })
    }

    /// That a record is as it was seen, apart from its ages.
    pub(crate) async fn unchanged(&self, what: &str, id: &RecordId, before: &Seen) -> Verdict {
        let after = self.look(id).await?;
        let (Some(old), Some(new)) = (&before.info, &after.info) else {
            return same(what, after.info.is_some(), before.info.is_some());
        };
        let fixed = |info: &RecordInfo| {
            (
                info.state,
                info.attempt,
                info.fingerprint,
                info.lease_age.is_some(),
            )
        };
        same(what, fixed(new), fixed(old))?;
        self.counted_down(
            &format!("{what}: expires_in"),
            new.expires_in,
            (old.expires_in, before.at),
            after.at,
        )?;
        if let (Some(old), Some(new)) = (old.lease_left, new.lease_left) {
            self.counted_down(
                &format!("{what}: lease_left"),
                new,
                (old, before.at),
                after.at,
            )?;
        }
        Ok(())
    }
}

/// Any claim: a long lease, no fingerprint, takes over.
pub(crate) fn claim(id: &RecordId) -> Claim {
    Claim::new(id.clone(), Owner::generate(), LONG, LONG * 2)
}

/// A claim of a key that must have been issued.
pub(crate) fn claim_issued(id: &RecordId) -> Claim {
    claim(id).with_must_be_issued(true)
}

/// An issue: of lengths that do not run out, nor are those of any claim.
pub(crate) fn issue(id: &RecordId) -> Issue {
    Issue::new(id.clone(), LONG * 5).with_grace(LONG)
}

/// A commit by the owner of a claim.
pub(crate) fn commit(claim: &Claim, attempt: u64) -> Commit {
    let outcome = outcome(format!("\"the outcome of attempt {attempt}\"").as_bytes());
    Commit::new(claim.id.clone(), claim.owner, attempt, Some(outcome), LONG)
        .with_fingerprint(claim.fingerprint)
        .with_remember(LONG * 2)
        // This is nearly always so. If not, a store must find out.
        .with_as_claimed((attempt == 1).then(|| claim.as_claimed(Origin::Nothing)))
}

/// A release by the owner of a claim, to `Released`.
pub(crate) fn release(claim: &Claim) -> Release {
    Release::new(
        claim.id.clone(),
        claim.owner,
        ReleaseTo::Released { keep: LONG },
    )
}

/// A release by the owner of a claim, to `Abandoned`.
pub(crate) fn abandon(claim: &Claim) -> Release {
    release(claim).with_to(ReleaseTo::Abandoned)
}

/// A release by the owner of a claim, to `Unanswered`.
pub(crate) fn unanswered(claim: &Claim) -> Release {
    release(claim).with_to(ReleaseTo::Unanswered)
}

/// A release by the owner of a claim, to `Undone`.
pub(crate) fn undo(claim: &Claim) -> Release {
    release(claim).with_to(ReleaseTo::Undone { keep: LONG })
}

/// A renewal by the owner of a claim.
pub(crate) fn renewal(claim: &Claim) -> Renewal {
    Renewal::new(claim.id.clone(), claim.owner, claim.hold)
}

/// An outcome in JSON.
pub(crate) fn outcome(payload: &[u8]) -> Encoded {
    Encoded::new(CodecId::JSON, bytes::Bytes::copy_from_slice(payload))
}

/// The fingerprint of a text.
pub(crate) fn print(text: &str) -> Result<Option<Fingerprint>, Failure> {
    Fingerprint::of(text)
        .map(Some)
        .map_err(|error| broken(format!("no fingerprint: {error}")))
}

/// A task that ends with the trial, whatever the trial comes to.
pub(crate) struct Task<T>(JoinHandle<Result<T, Failure>>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(future: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Returns when the future was polled for the first time.
    pub(crate) async fn begun(
        future: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Self {
        let (begins, begun) = oneshot::channel();
        let task = Self::spawn(async move {
            let mut future = pin!(future);
            let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            // Whoever began it may be gone.
            let _ = begins.send(());
            match first {
                Poll::Ready(result) => result,
                Poll::Pending => future.await,
            }
        });
        // If the task has panicked, its result says so.
        let _ = begun.await;
        task
    }

    /// Drops the future, and returns when that is done.
    pub(crate) async fn ends_cut_off(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }

    /// Returns its result, which must come soon.
    pub(crate) async fn ends_soon(mut self, what: &str) -> Result<T, Failure> {
        match soon(what, &mut self.0).await? {
            Ok(result) => result,
            Err(error) => Err(broken(format!("{what} panicked: {error}"))),
        }
    }

    /// Returns the results of several.
    pub(crate) async fn all_end_soon(what: &str, tasks: Vec<Self>) -> Result<Vec<T>, Failure> {
        let mut all = Vec::with_capacity(tasks.len());
        for task in tasks {
            all.push(task.ends_soon(what).await?);
        }
        Ok(all)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The real time, by which trials know that they were delayed. It is not under test.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
