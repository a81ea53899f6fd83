//! `MemoryStore` with one flaw.
#![allow(clippy::similar_names, clippy::match_same_arms, reason = "tests")]

mod claim;
mod commit;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Origin, Owner, Ownership, RecordId, RecordInfo,
    RecordState, Release, ReleaseTo, Removed, Renewal,
};
use idem_core::{Key, MemoryStore, Store, StoreError};
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
    /// How much sooner records expire than those of the store inside.
    sooner: Arc<Mutex<HashMap<RecordId, Duration>>>,
    /// Told of each commit and release.
    ended: Arc<Notify>,
}

impl FlawedStore {
    pub(crate) fn new(inner: MemoryStore, flaw: Option<Flaw>) -> Self {
        Self {
            inner,
            flaw,
            owned: Arc::default(),
            asked_twice: Arc::default(),
            sooner: Arc::default(),
            ended: Arc::default(),
        }
    }

    pub(crate) fn another_handle(&self) -> Self {
        if self.has(Flaw::HandlesAreApart) {
            Self::new(MemoryStore::new(), self.flaw)
        } else {
            self.clone()
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The id that this store takes an id for.
    fn id(&self, id: &RecordId) -> RecordId {
        let other = |operation: &str, key: &str| {
            RecordId::new(operation, &Key::encode(key).unwrap()).unwrap()
        };
        match self.flaw {
            Some(Flaw::ClaimIgnoresTheOperation) => other("any", id.key()),
            Some(Flaw::KeysAreOfOneCase) => other(id.operation(), &id.key().to_lowercase()),
            Some(Flaw::KeysAreCut) => other(
                id.operation(),
                &id.key().chars().take(200).collect::<String>(),
            ),
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
        let [earlier @ .., before, _] = claims else {
            return (None, false);
        };
        (
            Some(before.clone()),
            earlier.iter().any(|claim| claim.owner == owner),
        )
    }

    /// A claim by any owner.
    fn any_claim(id: &RecordId) -> Claim {
        let owner = Owner::generate();
        let minute = Duration::from_secs(60);
        Claim::new(id.clone(), owner, minute, minute).with_take_over(false)
    }

    /// The owner that counts here: the caller, or with this flaw any owner.
    fn owner(&self, id: &RecordId, caller: Owner, unchecked: Flaw) -> Owner {
        self.last_claim(id)
            .filter(|_| self.has(unchecked))
            .map_or(caller, |claim| claim.owner)
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
            self.inner
                .renew(&[Renewal::new(id.clone(), owner, hold)])
                .await;
        }
    }

    /// Waits by looking again and again, and misses a state that comes while it waits.
    async fn wait_but_miss(&self, id: &RecordId, attempt: u64, missed: RecordState) {
        let waited_for =
            |info: &RecordInfo| info.state == RecordState::InFlight && info.attempt == attempt;
        while self
            .inner
            .inspect(id)
            .await
            .unwrap()
            .is_some_and(|info| waited_for(&info))
        {
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
            self.sooner.lock().unwrap().remove(&claim.id);
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
            let stops = answers
                .iter()
                .any(|answer| matches!(answer, Ok(Issued::Taken)));
            answers.push(match self.flaw {
                Some(Flaw::IssueDoesTheFirstHundred) if number >= 100 => Ok(Issued::Issued),
                Some(Flaw::IssueStopsAtTheFirstThatIsTaken) if stops => Ok(Issued::Taken),
                _ => self.flawed_issue(issue).await,
            });
        }
        match self.flaw {
            Some(Flaw::IssueAnswersInAnotherOrder) => answers.reverse(),
            Some(Flaw::IssueAnswersOnceToAnEmptyBatch) if answers.is_empty() => {
                answers.push(Ok(Issued::Taken));
            }
            _ => {}
        }
        answers
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let answer = self
            .flawed_commit(commit.clone().with_id(self.id(&commit.id)))
            .await;
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
            (Some(Flaw::ReleaseAlwaysNamesTheRun), _) => release.names_run = true,
            (Some(Flaw::ReleaseForgetsTheRun), _) => release.names_run = false,
            (Some(Flaw::ReleaseToAbandonedDoesNothing), ReleaseTo::Abandoned) => {
                return Ok(Ownership::Held);
            }
            (Some(Flaw::ReleaseToUndoneIsAbandoned), to @ ReleaseTo::Undone { .. }) => {
                *to = ReleaseTo::Abandoned;
            }
            (Some(Flaw::ReleaseToUndoneIsReleased), to @ &mut ReleaseTo::Undone { keep }) => {
                *to = ReleaseTo::Released { keep };
            }
            (Some(Flaw::QuestionIsCounted), to @ ReleaseTo::Unanswered) => {
                *to = ReleaseTo::Abandoned;
            }
            (Some(Flaw::QuestionIsReleased), to @ ReleaseTo::Unanswered) => {
                *to = ReleaseTo::Released {
                    keep: Duration::from_secs(60),
                }
            }
            (Some(Flaw::QuestionSentAgainIsNotCounted), ReleaseTo::Unanswered) if abandoned => {
                self.asked_twice.lock().unwrap().insert(release.id.clone());
            }
            (Some(Flaw::ReleaseToAbandonedIsReleased), to @ ReleaseTo::Abandoned) => {
                *to = ReleaseTo::Released {
                    keep: Duration::from_secs(60),
                }
            }
            _ => {}
        }
        if self.has(Flaw::ReleaseOfIssuedByAnybody)
            && self.state(&release.id).await == Some(RecordState::Issued)
        {
            self.inner
                .claim(&Self::any_claim(&release.id).with_owner(release.owner))
                .await?;
        }
        let undone = matches!(release.to, ReleaseTo::Undone { .. });
        let was_issued = undone && {
            let own = self
                .last_claim(&release.id)
                .filter(|claim| claim.owner == release.owner);
            let again = Self::any_claim(&release.id)
                .with_owner(release.owner)
                .with_must_be_issued(true)
                .with_take_over(false);
            let is_there =
                own.is_some() && self.state(&release.id).await == Some(RecordState::InFlight);
            is_there
                && matches!(
                    self.inner.claim(&again).await?,
                    Claimed::Owned {
                        from: Origin::Issued,
                        ..
                    }
                )
        };
        if was_issued
            && let ReleaseTo::Undone { keep } = release.to
            && self.has(Flaw::UndoneIssueIsReleased)
        {
            release.to = ReleaseTo::Released { keep };
        }
        let left = self
            .inner
            .inspect(&release.id)
            .await
            .unwrap()
            .map(|info| info.expires_in);
        let answer = self.inner.release(&release).await;
        if let (Some(before), Some(hold)) = (self.claim_before(&release.id, release.owner).0, left)
            && undone
            && self.has(Flaw::UndoKeepsTheExpiry)
        {
            self.inner
                .renew(&[Renewal::new(release.id.clone(), before.owner, hold)])
                .await;
        }
        if self.has(Flaw::ReleaseToUndoneRemoves) && undone && matches!(answer, Ok(Ownership::Held))
        {
            self.wipe(&release.id).await;
        }
        if self.has(Flaw::UndoneIssueIsGone) && was_issued {
            self.inner.remove(&release.id).await?;
        }
        if self.has(Flaw::ReleaseForgetsTheAttempt)
            && self.state(&release.id).await == Some(RecordState::Released)
        {
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
            let left = self.inspect(&renewal.id).await.unwrap();
            let left = left.map(|info| info.expires_in);
            let first = self.last_claim(&renewal.id);
            match self.flaw {
                Some(Flaw::RenewDoesTheFirstHundred) if number >= 100 => {
                    answers.push(Ok(Ownership::Held));
                }
                Some(Flaw::RenewDoesNothing)
                    if first.is_some_and(|first| first.owner == renewal.owner) =>
                {
                    answers.push(Ok(Ownership::Held));
                }
                Some(Flaw::RenewOfIssuedByAnybody)
                    if self.state(&renewal.id).await == Some(RecordState::Issued) =>
                {
                    answers.push(Ok(Ownership::Held));
                }
                Some(Flaw::RenewOfTheLivingOnly) if abandoned => answers.push(Ok(Ownership::Lost)),
                flaw => {
                    let id = renewal.id.clone();
                    let expires_in = match flaw {
                        Some(Flaw::RenewKeepsTheExpiry) => left,
                        Some(Flaw::RenewShortensTheExpiry) => Some(renewal.hold),
                        _ => None,
                    };
                    answers.extend(self.inner.renew(&[renewal]).await);
                    let inside = self.inner.inspect(&id).await.unwrap();
                    let held = matches!(answers.last(), Some(Ok(Ownership::Held)));
                    if let (Some(wanted), Some(inside)) = (expires_in.filter(|_| held), inside) {
                        let sooner = inside.expires_in.saturating_sub(wanted);
                        self.sooner.lock().unwrap().insert(id, sooner);
                    }
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
        let waits = info
            .as_ref()
            .is_some_and(|info| info.state == RecordState::InFlight && info.attempt == attempt);
        match self.flaw {
            Some(Flaw::WaitNeverEnds) => std::future::pending().await,
            Some(Flaw::WaitTakesItsWholeLimit) => tokio::time::sleep(limit).await,
            Some(Flaw::WaitIgnoresTheAttempt) => {
                return self
                    .inner
                    .wait(id, info.map_or(attempt, |info| info.attempt), limit)
                    .await;
            }
            Some(Flaw::WaitIgnoresTheLease)
                if info
                    .as_ref()
                    .is_some_and(|info| info.state == RecordState::Abandoned) =>
            {
                tokio::time::sleep(limit).await;
            }
            Some(Flaw::WaitForIssuedTakesItsLimit)
                if info
                    .as_ref()
                    .is_some_and(|info| info.state == RecordState::Issued) =>
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
            Some(
                Flaw::WaitMissesCommits
                | Flaw::WaitMissesReleases
                | Flaw::WaitMissesReleasesToAbandoned,
            ) => {
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
                    self.inner
                        .release(&Release::new(id.clone(), claim.owner, to))
                        .await?;
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
        let last = self.last_claim(&self.id(id));
        if let Some(info) = &mut info
            && let Some(sooner) = self.sooner.lock().unwrap().get(&self.id(id))
        {
            info.expires_in = info.expires_in.saturating_sub(*sooner);
        }
        match (&mut info, self.flaw) {
            (Some(info), Some(Flaw::RunIsForgottenAfterFourTakeOvers)) if info.attempt > 4 => {
                info.run = last.map(|claim| claim.owner);
            }
            (Some(info), Some(Flaw::RunIsKeptForTheHoldAlone))
                if info.state == RecordState::InFlight =>
            {
                let hold = last.map_or(Duration::ZERO, |claim| claim.hold);
                info.expires_in = info.expires_in.min(hold);
            }
            (Some(info), Some(Flaw::RunIsThatOfTheOwner))
                if info.state == RecordState::InFlight =>
            {
                info.run = last.map(|claim| claim.owner);
            }
            (Some(info), Some(Flaw::UndoForgetsTheFingerprint))
                if info.state == RecordState::Abandoned =>
            {
                info.fingerprint = last.and_then(|claim| claim.fingerprint);
            }
            (Some(info), Some(Flaw::InspectForgetsTheOutcome)) => info.outcome = None,
            (Some(info), Some(Flaw::InspectForgetsThatItIsAnError)) => {
                info.outcome = info
                    .outcome
                    .take()
                    .map(|outcome| outcome.with_is_error(false));
            }
            (Some(info), Some(Flaw::InspectSaysIssuedWhenExpired))
                if info.state == RecordState::Expired =>
            {
                info.state = RecordState::Issued;
            }
            (Some(info), Some(Flaw::InspectSaysTheGraceIsLeft))
                if info.state == RecordState::Issued =>
            {
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
            Some(Flaw::RemoveLeavesIssued) if self.state(id).await == Some(RecordState::Issued) => {
                Ok(Removed::Removed)
            }
            Some(Flaw::RemoveLeavesReleased)
                if self.state(id).await == Some(RecordState::Released) =>
            {
                Ok(Removed::Removed)
            }
            _ => self.inner.remove(id).await,
        }
    }
}
