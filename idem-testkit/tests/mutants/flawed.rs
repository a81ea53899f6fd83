//! `MemoryStore` with one flaw.
#![allow(clippy::similar_names, clippy::match_same_arms, reason = "tests")]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Origin, Owner, Ownership, RecordId, RecordInfo, RecordState,
    Release, ReleaseTo, Removed, Renewal,
};
use idem_core::{CodecId, Key, MemoryStore, Store, StoreError};
use tokio::sync::Notify;

use crate::flaw::Flaw;

/// Between a check and what is done upon it.
const MOMENT: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct FlawedStore {
    inner: MemoryStore,
    flaw: Option<Flaw>,
    /// The claims of each record that became its owner's, in their order.
    owned: Arc<Mutex<HashMap<RecordId, Vec<Claim>>>>,
    /// Records whose owner said twice that no answer came.
    asked_twice: Arc<Mutex<HashSet<RecordId>>>,
    /// Told of each commit and release.
    ended: Arc<Notify>,
}

impl FlawedStore {
    pub(crate) fn new(inner: MemoryStore, flaw: Option<Flaw>) -> Self {
        Self { inner, flaw, owned: Arc::default(), asked_twice: Arc::default(), ended: Arc::default() }
    }

    pub(crate) fn another_handle(&self) -> Self {
        if self.has(Flaw::HandlesAreApart) { Self::new(MemoryStore::new(), self.flaw) } else { self.clone() }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The id that this store takes an id for.
    fn id(&self, id: &RecordId) -> RecordId {
        let other = |operation: &str, key: &str| RecordId::new(operation, &Key::encode(key).unwrap()).unwrap();
        match self.flaw {
            Some(Flaw::ClaimIgnoresTheOperation) => other("any", id.key()),
            Some(Flaw::KeysAreOfOneCase) => other(id.operation(), &id.key().to_lowercase()),
            Some(Flaw::KeysAreCut) => other(id.operation(), &id.key().chars().take(200).collect::<String>()),
            _ => id.clone(),
        }
    }

    fn last_claim(&self, id: &RecordId) -> Option<Claim> {
        self.owned.lock().unwrap().get(id)?.last().cloned()
    }

    /// The claim before the last one, and whether an owner claimed before that.
    fn claim_before(&self, id: &RecordId, owner: Owner) -> (Option<Claim>, bool) {
        let owned = self.owned.lock().unwrap();
        let claims = owned.get(id).map(Vec::as_slice).unwrap_or_default();
        let [earlier @ .., before, _] = claims else { return (None, false) };
        (Some(before.clone()), earlier.iter().any(|claim| claim.owner == owner))
    }

    /// A claim by any owner.
    fn any_claim(id: &RecordId) -> Claim {
        let (owner, minute) = (Owner::generate(), Duration::from_secs(60));
        Claim::new(id.clone(), owner, minute, minute).with_take_over(false)
    }

    /// The owner that counts here: the caller, or with this flaw any owner.
    fn owner(&self, id: &RecordId, caller: Owner, unchecked: Flaw) -> Owner {
        self.last_claim(id).filter(|_| self.has(unchecked)).map_or(caller, |claim| claim.owner)
    }

    async fn state(&self, id: &RecordId) -> Option<RecordState> {
        self.inner.inspect(id).await.unwrap().map(|info| info.state)
    }

    async fn is_abandoned(&self, id: &RecordId) -> bool {
        self.state(id).await == Some(RecordState::Abandoned)
    }

    /// Takes the record away, whatever it is.
    async fn wipe(&self, id: &RecordId) {
        if let Some(claim) = self.last_claim(id) {
            let release = Release::new(id.clone(), claim.owner, ReleaseTo::Abandoned);
            let _ = self.inner.release(&release).await;
        }
        let _ = self.inner.remove(id).await;
    }

    async fn renew_for_owner(&self, id: &RecordId) {
        if let Some(Claim { owner, hold, .. }) = self.last_claim(id) {
            self.inner.renew(&[Renewal::new(id.clone(), owner, hold)]).await;
        }
    }

    /// Flaws about keys that are issued; `None` where there is none, and the claim goes on.
    #[allow(clippy::match_same_arms)] // Each flaw by itself.
    async fn flawed_claim_of_issued(&self, claim: &mut Claim) -> Result<Option<Claimed>, StoreError> {
        let id = claim.id.clone();
        let info = self.inner.inspect(&id).await?;
        let state = info.as_ref().map(|info| info.state);
        let must = claim.must_be_issued;
        let own = self.last_claim(&id).is_some_and(|last| last.owner == claim.owner);
        match (self.flaw, state) {
            (Some(Flaw::AbandonedThatMustBeIssuedIsTakenOver), _) if must => claim.take_over = true,
            (Some(Flaw::ClaimOfExpiredIsRefusedToAll), Some(RecordState::Expired)) => claim.must_be_issued = true,
            (Some(Flaw::ClaimOfExpiredRemovesIt), Some(RecordState::Expired)) if must => {
                self.inner.remove(&id).await?;
                return Ok(Some(Claimed::IssueExpired));
            }
            (Some(Flaw::ClaimOfIssuedChecksThenWrites), Some(RecordState::Issued)) => {
                tokio::time::sleep(MOMENT).await;
                self.wipe(&id).await;
                let issue = Issue::new(id, claim.hold);
                self.inner.issue(&[issue]).await;
            }
            (Some(Flaw::ClaimOfIssuedDropsTheFingerprint), Some(RecordState::Issued)) => claim.fingerprint = None,
            (Some(Flaw::ClaimOfIssuedIgnoresMaxAttempts), Some(RecordState::Issued)) if must => {
                claim.max_attempts = None;
            }
            (Some(Flaw::ClaimOfIssuedIsFromNothing), Some(RecordState::Issued)) => {
                self.inner.remove(&id).await?;
                claim.must_be_issued = false;
            }
            (Some(Flaw::ClaimOfIssuedKeepsItsExpiry), Some(RecordState::Issued)) => {
                claim.hold = info.map_or(claim.hold, |info| info.expires_in);
            }
            (Some(Flaw::ClaimOfNothingThatMustBeIssuedIsOwned), None)
            | (Some(Flaw::ExpiredIssueIsOwned), Some(RecordState::Expired)) => claim.must_be_issued = false,
            (Some(Flaw::ClaimOfNothingThatMustBeIssuedWrites), None) if must => {
                self.inner.claim(&claim.clone().with_must_be_issued(false)).await?;
                return Ok(Some(Claimed::NotIssued));
            }
            (Some(Flaw::ClaimThatMustBeIssuedForgetsTheOutcome), Some(RecordState::Committed)) if must => {
                return Ok(Some(Claimed::Done { attempt: 1 }));
            }
            (Some(Flaw::ClaimThatMustBeIssuedIgnoresFingerprint), _) if must => claim.fingerprint = None,
            (Some(Flaw::ClaimThatMustBeIssuedNeverTakesOver), _) if must => claim.take_over = false,
            (Some(Flaw::ClaimThatMustBeIssuedTakesTheLivingOver), Some(RecordState::InFlight)) if must && !own => {
                if let Some(owner) = self.last_claim(&id).map(|last| last.owner) {
                    self.inner.release(&Release::new(id, owner, ReleaseTo::Abandoned)).await?;
                }
            }
            (Some(Flaw::DoneThatMustBeIssuedIsNotIssued), Some(RecordState::Done))
            | (Some(Flaw::ReleasedThatMustBeIssuedIsNotIssued), Some(RecordState::Released))
            | (Some(Flaw::ExpiredIssueIsNotIssued), Some(RecordState::Expired))
                if must =>
            {
                return Ok(Some(Claimed::NotIssued));
            }
            (Some(Flaw::ReleasedThatMustBeIssuedIsNeverExhausted), Some(RecordState::Released)) if must => {
                claim.max_attempts = None;
            }
            _ => {}
        }
        Ok(None)
    }

    #[allow(clippy::match_same_arms)] // Likewise.
    async fn flawed_issue(&self, mut issue: Issue) -> Result<Issued, StoreError> {
        let id = issue.id.clone();
        let info = self.inner.inspect(&id).await?;
        let state = info.map(|info| info.state);
        let asks_again = async || self.inner.issue(std::slice::from_ref(&issue)).await.remove(0);
        let was_given_out = matches!(state, Some(RecordState::Issued | RecordState::Expired));
        let years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        match (self.flaw, state) {
            (Some(Flaw::IssueDoesNothing), None) => return Ok(Issued::Issued),
            (Some(Flaw::IssueCutsMilliseconds), Some(_)) => {
                issue.grace = Duration::from_millis(u64::try_from(issue.grace.as_millis()).unwrap());
            }
            (Some(Flaw::IssueCutsYears), _) => issue.ttl = issue.ttl.min(years),
            (Some(Flaw::IssueForgetsItsGrace), _) => issue.grace = Duration::ZERO,
            (Some(Flaw::IssueIgnoresTheGraceThatIsThere), Some(RecordState::Issued)) => return Ok(Issued::Issued),
            (Some(Flaw::IssueKeepsItsGraceTwice), _) => issue.grace *= 2,
            (Some(Flaw::IssueLastsForItsGraceToo), _) => issue.ttl += issue.grace,
            (Some(Flaw::IssueWithoutAGraceHasOne), _) if issue.grace.is_zero() => issue.grace = Duration::from_secs(60),
            (Some(Flaw::IssueOfReleasedIsIssued), Some(RecordState::Released))
            | (Some(Flaw::IssueOverwrites), Some(_)) => self.wipe(&id).await,
            (Some(Flaw::IssueRevivesWhatHasExpired), Some(RecordState::Expired))
            | (Some(Flaw::IssueSentAgainExtends), Some(RecordState::Issued)) => {
                let is_known = asks_again().await? == Issued::Issued;
                if is_known {
                    self.inner.remove(&id).await?;
                }
            }
            (Some(Flaw::IssueSentAgainIsTaken), Some(_)) if was_given_out => return Ok(Issued::Taken),
            _ => {}
        }
        self.inner.issue(&[issue]).await.remove(0)
    }

    async fn flawed_claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.id.clone();
        let state = self.state(&id).await;
        let own = self.last_claim(&id).is_some_and(|last| last.owner == claim.owner);
        if let Some(answer) = self.flawed_claim_of_issued(&mut claim).await? {
            return Ok(answer);
        }
        match self.flaw {
            Some(Flaw::ClaimChecksThenWrites) if !own && matches!(state, None | Some(RecordState::Abandoned)) => {
                tokio::time::sleep(MOMENT).await;
                if self.state(&id).await == Some(RecordState::InFlight) {
                    self.wipe(&id).await;
                    self.inner.claim(&claim).await?;
                    let (attempt, from) = if state.is_none() { (1, Origin::Nothing) } else { (2, Origin::Abandoned) };
                    return Ok(Claimed::Owned { attempt, from });
                }
            }
            Some(Flaw::ClaimForgetsItself) if own && state == Some(RecordState::InFlight) => {
                return Ok(Claimed::InFlight { attempt: 1, lease_left: claim.lease });
            }
            Some(Flaw::ClaimIgnoresFingerprint) => claim.fingerprint = None,
            Some(Flaw::ClaimIgnoresMaxAttempts) => claim.max_attempts = None,
            Some(Flaw::ClaimIgnoresTakeOver) => claim.take_over = true,
            Some(Flaw::QuestionIsCountedAfterARelease) if state == Some(RecordState::Released) => {
                let attempts = self.inner.inspect(&id).await?.map_or(0, |info| info.attempt);
                if claim.max_attempts.is_some_and(|max| attempts >= max) {
                    return Ok(Claimed::Exhausted { attempts });
                }
            }
            Some(Flaw::QuestionSentAgainIsNotCounted) if self.asked_twice.lock().unwrap().contains(&id) => {
                claim.max_attempts = claim.max_attempts.map(|max| max + 1);
            }
            Some(Flaw::SilentAreNeverTakenOver) => claim.take_over_after = None,
            Some(Flaw::SilentAreTakenOverAtOnce) => {
                claim.take_over_after = claim.take_over_after.map(|_| Duration::ZERO);
            }
            Some(Flaw::SilentIgnoresMaxAttempts) if claim.take_over_after.is_some() => claim.max_attempts = None,
            Some(Flaw::SilentThoughAliveIsTakenOver) if claim.take_over_after.is_some() && !own => {
                if let Some(owner) = self.last_claim(&id).map(|last| last.owner) {
                    self.inner.release(&Release::new(id, owner, ReleaseTo::Abandoned)).await?;
                }
            }
            Some(Flaw::ClaimMismatchesAfterConflict) if state == Some(RecordState::InFlight) => {
                claim.fingerprint = None;
            }
            Some(Flaw::ClaimOfReleasedStartsAtOne) if state == Some(RecordState::Released) => self.wipe(&id).await,
            Some(Flaw::ClaimSentAgainIsANewAttempt) if own && state == Some(RecordState::InFlight) => {
                let release = Release::new(id, claim.owner, ReleaseTo::Abandoned);
                self.inner.release(&release).await?;
                let again = claim.with_owner(Owner::generate());
                return self.inner.claim(&again).await;
            }
            Some(Flaw::ClaimSentAgainRenews) if own => self.renew_for_owner(&id).await,
            Some(Flaw::HoldIsTooLong) => claim.hold *= 10,
            Some(Flaw::LeaseRunsOutEarly) => claim.lease -= claim.lease / 10,
            Some(Flaw::LeaseRunsOutLate) => claim.lease += claim.lease / 10,
            Some(Flaw::TakeOverNever) if state == Some(RecordState::Abandoned) && !own => {
                return Ok(Claimed::InFlight { attempt: 1, lease_left: claim.lease });
            }
            Some(Flaw::TakeOverForgetsItsFingerprint) if state == Some(RecordState::Abandoned) => {
                claim.fingerprint = None;
            }
            _ => {}
        }
        let mut answer = self.inner.claim(&claim).await?;
        match (&mut answer, self.flaw) {
            (Claimed::InFlight { lease_left, .. }, Some(Flaw::ClaimSaysTheWholeLeaseIsLeft)) => {
                *lease_left = claim.lease;
            }
            (Claimed::Owned { from, .. }, Some(Flaw::ClaimForgetsWhatItFound)) if own => *from = Origin::Nothing,
            (Claimed::Owned { from, .. }, Some(Flaw::ClaimOfIssuedSentAgainIsFromNothing))
                if own && *from == Origin::Issued =>
            {
                *from = Origin::Nothing;
            }
            (Claimed::Owned { attempt, from: Origin::Abandoned }, Some(Flaw::TakeOverKeepsTheAttempt)) => *attempt -= 1,
            _ => {}
        }
        Ok(answer)
    }

    async fn flawed_commit(&self, mut commit: Commit) -> Result<Ownership, StoreError> {
        let id = commit.id.clone();
        let state = self.state(&id).await;
        let payload = |outcome: &Encoded| outcome.payload.clone();
        match (self.flaw, &mut commit.outcome) {
            (Some(Flaw::CommitByTheLivingOnly), _) if state == Some(RecordState::Abandoned) => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitBelievesTheOwner), _) if state == Some(RecordState::InFlight) => {
                let as_claimed = self.last_claim(&id).map(|claim| claim.as_claimed(Origin::Nothing));
                if commit.as_claimed.is_some_and(|said| Some(said) != as_claimed) {
                    return Ok(Ownership::Lost);
                }
            }
            (Some(Flaw::CommitOfAnEarlierLifeIsHeld), _) => {
                // As if the owners of a removed record were still known.
                let attempt = self.inner.inspect(&id).await?.map(|info| info.attempt);
                let (before, _) = self.claim_before(&id, commit.owner);
                if attempt == Some(commit.attempt) && before.is_some_and(|claim| claim.owner == commit.owner) {
                    commit.owner = self.last_claim(&id).map_or(commit.owner, |claim| claim.owner);
                }
            }
            (Some(Flaw::CommitOfIssuedByAnybody), _) if state == Some(RecordState::Issued) => {
                let (owner, hold) = (commit.owner, commit.ttl);
                self.inner.claim(&Self::any_claim(&id).with_id(id.clone()).with_owner(owner).with_hold(hold)).await?;
            }
            (Some(Flaw::UndoForgetsTheOwner), _)
                if self.last_claim(&id).is_some_and(|last| last.owner != commit.owner) =>
            {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::UndoForgetsTheOwnerBeforeTheLast), _) if self.claim_before(&id, commit.owner).1 => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitOfNothingIsHeld), _) if state.is_none() => return Ok(Ownership::Held),
            (Some(Flaw::CommitSentAgainAfterTheTtlIsLost), Some(_)) if state == Some(RecordState::Done) => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitSentAgainIsLost), _) if state == Some(RecordState::Committed) => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitSentAgainExtendsTheTtl), _) if state == Some(RecordState::Committed) => {
                if self.inner.commit(&commit).await? == Ownership::Lost {
                    return Ok(Ownership::Lost);
                }
                self.wipe(&id).await;
                let claim = self.last_claim(&id).unwrap();
                commit.owner = claim.owner;
                self.inner.claim(&claim).await?;
            }
            (Some(Flaw::CommitChecksThenWrites), _) => {
                let current = self.last_claim(&id).is_some_and(|claim| claim.owner == commit.owner);
                tokio::time::sleep(MOMENT).await;
                if let Some(claim) = self.last_claim(&id).filter(|_| current) {
                    commit.owner = claim.owner;
                }
            }
            (Some(Flaw::CommitForgetsTheOutcomeAndSaysHeld), outcome) => *outcome = None,
            (Some(Flaw::CommitCutsLargeOutcomes), Some(outcome)) => outcome.payload.truncate(1 << 16),
            (Some(Flaw::CommitForgetsTheCodec), Some(outcome)) => outcome.codec = CodecId::JSON,
            (Some(Flaw::CommitForgetsTheMetadata), Some(outcome)) => outcome.metadata = None,
            (Some(Flaw::CommitForgetsThatItIsAnError), Some(outcome)) => outcome.is_error = false,
            (Some(Flaw::CommitMakesTextOfTheOutcome), Some(outcome)) => {
                outcome.payload = String::from_utf8_lossy(&payload(outcome)).into_owned().into();
            }
            (Some(Flaw::CommitTakesNullForNoOutcome), outcome) => {
                let null = outcome.as_ref().is_some_and(|outcome| matches!(&*outcome.payload, b"" | b"null"));
                *outcome = outcome.take().filter(|_| !null);
            }
            (Some(Flaw::CommitKeepsTheOutcomeTooLong), _) => commit.ttl = commit.remember,
            (Some(Flaw::CommitRemembersForTheTtlOnly), _) => commit.remember = commit.ttl,
            _ => {}
        }
        commit.owner = self.owner(&id, commit.owner, Flaw::CommitByAnybody);
        self.inner.commit(&commit).await
    }

    /// Waits by looking again and again, and misses a state that comes while it waits.
    async fn wait_but_miss(&self, id: &RecordId, attempt: u64, missed: RecordState) {
        let waited_for = |info: &RecordInfo| info.state == RecordState::InFlight && info.attempt == attempt;
        while self.inner.inspect(id).await.unwrap().is_some_and(|info| waited_for(&info)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if self.state(id).await == Some(missed) {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Store for FlawedStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let claim = claim.clone().with_id(self.id(&claim.id));
        let answer = self.flawed_claim(claim.clone()).await?;
        if matches!(answer, Claimed::Owned { .. }) {
            let mut owned = self.owned.lock().unwrap();
            let claims = owned.entry(claim.id.clone()).or_default();
            claims.retain(|other| other.owner != claim.owner);
            claims.push(claim);
        }
        Ok(answer)
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let mut answers = Vec::new();
        for (number, issue) in issues.iter().enumerate() {
            let issue = issue.clone().with_id(self.id(&issue.id));
            let stops = answers.iter().any(|answer| matches!(answer, Ok(Issued::Taken)));
            answers.push(match self.flaw {
                Some(Flaw::IssueDoesTheFirstHundred) if number >= 100 => Ok(Issued::Issued),
                Some(Flaw::IssueStopsAtTheFirstThatIsTaken) if stops => Ok(Issued::Taken),
                _ => self.flawed_issue(issue).await,
            });
        }
        match self.flaw {
            Some(Flaw::IssueAnswersInAnotherOrder) => answers.reverse(),
            Some(Flaw::IssueAnswersOnceToAnEmptyBatch) if answers.is_empty() => answers.push(Ok(Issued::Taken)),
            _ => {}
        }
        answers
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let answer = self.flawed_commit(commit.clone().with_id(self.id(&commit.id))).await;
        if self.has(Flaw::WaitWakesOne) {
            self.ended.notify_one();
        } else {
            self.ended.notify_waiters();
        }
        answer
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        let mut release = release.clone().with_id(self.id(&release.id));
        release.owner = self.owner(&release.id, release.owner, Flaw::ReleaseByAnybody);
        let abandoned = self.is_abandoned(&release.id).await;
        match (self.flaw, &mut release.to) {
            (Some(Flaw::ReleaseByTheLivingOnly), _) if abandoned => return Ok(Ownership::Lost),
            (Some(Flaw::ReleaseKeepsTooLong), ReleaseTo::Released { keep }) => *keep *= 2,
            (Some(Flaw::ReleaseToAbandonedDoesNothing), ReleaseTo::Abandoned) => return Ok(Ownership::Held),
            (Some(Flaw::ReleaseToUndoneIsAbandoned), to @ ReleaseTo::Undone { .. }) => *to = ReleaseTo::Abandoned,
            (Some(Flaw::ReleaseToUndoneIsReleased), to @ &mut ReleaseTo::Undone { keep }) => {
                *to = ReleaseTo::Released { keep };
            }
            (Some(Flaw::QuestionIsCounted), to @ ReleaseTo::Unanswered) => *to = ReleaseTo::Abandoned,
            (Some(Flaw::QuestionIsReleased), to @ ReleaseTo::Unanswered) => {
                *to = ReleaseTo::Released { keep: Duration::from_secs(60) }
            }
            (Some(Flaw::QuestionSentAgainIsNotCounted), ReleaseTo::Unanswered) if abandoned => {
                self.asked_twice.lock().unwrap().insert(release.id.clone());
            }
            (Some(Flaw::ReleaseToAbandonedIsReleased), to @ ReleaseTo::Abandoned) => {
                *to = ReleaseTo::Released { keep: Duration::from_secs(60) }
            }
            _ => {}
        }
        if self.has(Flaw::ReleaseOfIssuedByAnybody) && self.state(&release.id).await == Some(RecordState::Issued) {
            self.inner.claim(&Self::any_claim(&release.id).with_owner(release.owner)).await?;
        }
        let undone = matches!(release.to, ReleaseTo::Undone { .. });
        let was_issued = undone && {
            let own = self.last_claim(&release.id).filter(|claim| claim.owner == release.owner);
            let again =
                Self::any_claim(&release.id).with_owner(release.owner).with_must_be_issued(true).with_take_over(false);
            let is_there = own.is_some() && self.state(&release.id).await == Some(RecordState::InFlight);
            is_there && matches!(self.inner.claim(&again).await?, Claimed::Owned { from: Origin::Issued, .. })
        };
        if was_issued
            && let ReleaseTo::Undone { keep } = release.to
            && self.has(Flaw::UndoneIssueIsReleased)
        {
            release.to = ReleaseTo::Released { keep };
        }
        let left = self.inner.inspect(&release.id).await.unwrap().map(|info| info.expires_in);
        let answer = self.inner.release(&release).await;
        if let (Some(before), Some(hold)) = (self.claim_before(&release.id, release.owner).0, left)
            && undone
            && self.has(Flaw::UndoKeepsTheExpiry)
        {
            self.inner.renew(&[Renewal::new(release.id.clone(), before.owner, hold)]).await;
        }
        if self.has(Flaw::ReleaseToUndoneRemoves) && undone && matches!(answer, Ok(Ownership::Held)) {
            self.wipe(&release.id).await;
        }
        if self.has(Flaw::UndoneIssueIsGone) && was_issued {
            self.inner.remove(&release.id).await?;
        }
        if self.has(Flaw::ReleaseForgetsTheAttempt) && self.state(&release.id).await == Some(RecordState::Released) {
            self.wipe(&release.id).await;
        }
        self.ended.notify_waiters();
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let mut answers = Vec::new();
        for (number, renewal) in renewals.iter().enumerate() {
            let mut renewal = renewal.clone().with_id(self.id(&renewal.id));
            renewal.owner = self.owner(&renewal.id, renewal.owner, Flaw::RenewByAnybody);
            let abandoned = self.is_abandoned(&renewal.id).await;
            let left = self.inner.inspect(&renewal.id).await.unwrap().map(|info| info.expires_in);
            let first = self.last_claim(&renewal.id);
            match self.flaw {
                Some(Flaw::RenewDoesTheFirstHundred) if number >= 100 => answers.push(Ok(Ownership::Held)),
                Some(Flaw::RenewDoesNothing) if first.is_some_and(|first| first.owner == renewal.owner) => {
                    answers.push(Ok(Ownership::Held));
                }
                Some(Flaw::RenewOfIssuedByAnybody) if self.state(&renewal.id).await == Some(RecordState::Issued) => {
                    answers.push(Ok(Ownership::Held));
                }
                Some(Flaw::RenewOfTheLivingOnly) if abandoned => answers.push(Ok(Ownership::Lost)),
                flaw => {
                    if flaw == Some(Flaw::RenewKeepsTheExpiry) {
                        renewal.hold = left.unwrap_or(renewal.hold);
                    }
                    answers.extend(self.inner.renew(&[renewal]).await);
                }
            }
        }
        match self.flaw {
            Some(Flaw::RenewAnswersInAnotherOrder) => answers.reverse(),
            Some(Flaw::RenewSaysHeldToStrangers) => answers.fill(Ok(Ownership::Held)),
            _ => {}
        }
        answers
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        let id = &self.id(id);
        let info = self.inner.inspect(id).await?;
        let waits = info.as_ref().is_some_and(|info| info.state == RecordState::InFlight && info.attempt == attempt);
        match self.flaw {
            Some(Flaw::WaitNeverEnds) => std::future::pending().await,
            Some(Flaw::WaitTakesItsWholeLimit) => tokio::time::sleep(limit).await,
            Some(Flaw::WaitIgnoresTheAttempt) => {
                return self.inner.wait(id, info.map_or(attempt, |info| info.attempt), limit).await;
            }
            Some(Flaw::WaitIgnoresTheLease)
                if info.as_ref().is_some_and(|info| info.state == RecordState::Abandoned) =>
            {
                tokio::time::sleep(limit).await;
            }
            Some(Flaw::WaitForIssuedTakesItsLimit)
                if info.as_ref().is_some_and(|info| info.state == RecordState::Issued) =>
            {
                tokio::time::sleep(limit).await;
            }
            // Looks, and asks to be woken only then.
            Some(Flaw::WaitLosesWakeUps | Flaw::WaitWakesOne) if waits => {
                if self.has(Flaw::WaitLosesWakeUps) {
                    tokio::time::sleep(MOMENT).await;
                }
                let _ = tokio::time::timeout(limit, self.ended.notified()).await;
            }
            Some(Flaw::WaitMissesCommits | Flaw::WaitMissesReleases | Flaw::WaitMissesReleasesToAbandoned) => {
                let missed = match self.flaw {
                    Some(Flaw::WaitMissesCommits) => RecordState::Committed,
                    Some(Flaw::WaitMissesReleases) => RecordState::Released,
                    _ => RecordState::Abandoned,
                };
                let _ = tokio::time::timeout(limit, self.wait_but_miss(id, attempt, missed)).await;
            }
            Some(Flaw::WaitGivenUpReleases) => {
                self.inner.wait(id, attempt, limit).await?;
                if let Some(claim) = self.last_claim(id).filter(|_| waits) {
                    let to = ReleaseTo::Abandoned;
                    self.inner.release(&Release::new(id.clone(), claim.owner, to)).await?;
                }
            }
            Some(Flaw::WaitRenews) if waits => {
                self.renew_for_owner(id).await;
                return self.inner.wait(id, attempt, limit).await;
            }
            _ => return self.inner.wait(id, attempt, limit).await,
        }
        Ok(())
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let mut info = self.inner.inspect(&self.id(id)).await?;
        if let Some(info) = &mut info
            && self.has(Flaw::InspectSaysInFlightWhenAbandoned)
            && info.state == RecordState::Abandoned
        {
            info.state = RecordState::InFlight;
        }
        match (&mut info, self.flaw) {
            (Some(info), Some(Flaw::UndoForgetsTheFingerprint)) if info.state == RecordState::Abandoned => {
                info.fingerprint = self.last_claim(&self.id(id)).and_then(|claim| claim.fingerprint);
            }
            (Some(info), Some(Flaw::InspectForgetsTheOutcome)) => info.outcome = None,
            (Some(info), Some(Flaw::InspectForgetsThatItIsAnError)) => {
                info.outcome = info.outcome.take().map(|outcome| outcome.with_is_error(false));
            }
            (Some(info), Some(Flaw::InspectSaysIssuedWhenExpired)) if info.state == RecordState::Expired => {
                info.state = RecordState::Issued;
            }
            (Some(info), Some(Flaw::InspectSaysTheGraceIsLeft)) if info.state == RecordState::Issued => {
                info.expires_in *= 2;
            }
            _ => {}
        }
        Ok(info)
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        let id = &self.id(id);
        match self.flaw {
            Some(Flaw::RemoveForcesInFlight) if self.state(id).await.is_some() => {
                self.wipe(id).await;
                Ok(Removed::Removed)
            }
            Some(Flaw::RemoveLeavesIssued) if self.state(id).await == Some(RecordState::Issued) => Ok(Removed::Removed),
            Some(Flaw::RemoveLeavesReleased) if self.state(id).await == Some(RecordState::Released) => {
                Ok(Removed::Removed)
            }
            _ => self.inner.remove(id).await,
        }
    }
}
