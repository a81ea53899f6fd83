//! Flaws of claims, and of issues.

use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Issue, Issued, Origin, Owner, RecordState, Release, ReleaseTo,
};
use idem_core::{Store as _, StoreError};

use super::{FlawedStore, MOMENT};
use crate::flaw::Flaw;

impl FlawedStore {
    #[expect(clippy::too_many_lines, reason = "an arm for each flaw")]
    pub(super) async fn flawed_claim(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.id.clone();
        let state = self.state(&id).await;
        let own = self
            .last_claim(&id)
            .is_some_and(|last| last.owner == claim.owner);
        if let Some(answer) = self.flawed_claim_of_issued(&mut claim).await? {
            return Ok(answer);
        }
        match self.flaw {
            Some(Flaw::ClaimChecksThenWrites)
                if !own && matches!(state, None | Some(RecordState::Abandoned)) =>
            {
                tokio::time::sleep(MOMENT).await;
                if self.state(&id).await == Some(RecordState::InFlight) {
                    self.wipe(&id).await;
                    self.inner.claim(&claim).await?;
                    let (attempt, from) = if state.is_none() {
                        (1, Origin::Nothing)
                    } else {
                        (2, Origin::Abandoned)
                    };
                    return Ok(Claimed::Owned { attempt, from });
                }
            }
            Some(Flaw::ClaimForgetsItself) if own && state == Some(RecordState::InFlight) => {
                return Ok(Claimed::InFlight {
                    attempt: 1,
                    lease_left: claim.lease,
                });
            }
            Some(Flaw::ClaimIgnoresFingerprint) => claim.fingerprint = None,
            Some(Flaw::ClaimIgnoresMaxAttempts) => claim.max_attempts = None,
            Some(Flaw::ClaimIgnoresTakeOver) => claim.take_over = true,
            Some(Flaw::QuestionIsCountedAfterARelease) if state == Some(RecordState::Released) => {
                let attempts = self
                    .inner
                    .inspect(&id)
                    .await?
                    .map_or(0, |info| info.attempt);
                if claim.max_attempts.is_some_and(|max| attempts >= max) {
                    return Ok(Claimed::Exhausted { attempts });
                }
            }
            Some(Flaw::QuestionSentAgainIsNotCounted)
                if self.asked_twice.lock().unwrap().contains(&id) =>
            {
                claim.max_attempts = claim.max_attempts.map(|max| max + 1);
            }
            Some(Flaw::SilentAreNeverTakenOver) => claim.take_over_after = None,
            Some(Flaw::SilentAreTakenOverAtOnce) => {
                claim.take_over_after = claim.take_over_after.map(|_| Duration::ZERO);
            }
            Some(Flaw::SilentIgnoresMaxAttempts) if claim.take_over_after.is_some() => {
                claim.max_attempts = None;
            }
            Some(Flaw::SilentThoughAliveIsTakenOver) if claim.take_over_after.is_some() && !own => {
                if let Some(owner) = self.last_claim(&id).map(|last| last.owner) {
                    self.inner
                        .release(&Release::new(id, owner, ReleaseTo::Abandoned))
                        .await?;
                }
            }
            Some(Flaw::ClaimMismatchesAfterConflict) if state == Some(RecordState::InFlight) => {
                claim.fingerprint = None;
            }
            Some(Flaw::ClaimOfReleasedStartsAtOne) if state == Some(RecordState::Released) => {
                self.wipe(&id).await;
            }
            Some(Flaw::ClaimSentAgainIsANewAttempt)
                if own && state == Some(RecordState::InFlight) =>
            {
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
                return Ok(Claimed::InFlight {
                    attempt: 1,
                    lease_left: claim.lease,
                });
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
            (Claimed::Owned { from, .. }, Some(Flaw::ClaimForgetsWhatItFound)) if own => {
                *from = Origin::Nothing;
            }
            (Claimed::Owned { from, .. }, Some(Flaw::ClaimOfIssuedSentAgainIsFromNothing))
                if own && *from == Origin::Issued =>
            {
                *from = Origin::Nothing;
            }
            (
                Claimed::Owned {
                    attempt,
                    from: Origin::Abandoned,
                },
                Some(Flaw::TakeOverKeepsTheAttempt),
            ) => *attempt -= 1,
            _ => {}
        }
        Ok(answer)
    }

    /// Flaws about keys that are issued; `None` where there is none, and the claim goes on.
    #[allow(clippy::match_same_arms)] // Each flaw by itself.
    pub(super) async fn flawed_claim_of_issued(
        &self,
        claim: &mut Claim,
    ) -> Result<Option<Claimed>, StoreError> {
        let id = claim.id.clone();
        let info = self.inner.inspect(&id).await?;
        let state = info.as_ref().map(|info| info.state);
        let must = claim.must_be_issued;
        let own = self
            .last_claim(&id)
            .is_some_and(|last| last.owner == claim.owner);
        match (self.flaw, state) {
            (Some(Flaw::AbandonedThatMustBeIssuedIsTakenOver), _) if must => claim.take_over = true,
            (Some(Flaw::ClaimOfExpiredIsRefusedToAll), Some(RecordState::Expired)) => {
                claim.must_be_issued = true;
            }
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
            (Some(Flaw::ClaimOfIssuedDropsTheFingerprint), Some(RecordState::Issued)) => {
                claim.fingerprint = None;
            }
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
            | (Some(Flaw::ExpiredIssueIsOwned), Some(RecordState::Expired)) => {
                claim.must_be_issued = false;
            }
            (Some(Flaw::ClaimOfNothingThatMustBeIssuedWrites), None) if must => {
                self.inner
                    .claim(&claim.clone().with_must_be_issued(false))
                    .await?;
                return Ok(Some(Claimed::NotIssued));
            }
            (Some(Flaw::ClaimThatMustBeIssuedForgetsTheOutcome), Some(RecordState::Committed))
                if must =>
            {
                return Ok(Some(Claimed::Done { attempt: 1 }));
            }
            (Some(Flaw::ClaimThatMustBeIssuedIgnoresFingerprint), _) if must => {
                claim.fingerprint = None;
            }
            (Some(Flaw::ClaimThatMustBeIssuedNeverTakesOver), _) if must => claim.take_over = false,
            (Some(Flaw::ClaimThatMustBeIssuedTakesTheLivingOver), Some(RecordState::InFlight))
                if must && !own =>
            {
                if let Some(owner) = self.last_claim(&id).map(|last| last.owner) {
                    self.inner
                        .release(&Release::new(id, owner, ReleaseTo::Abandoned))
                        .await?;
                }
            }
            (Some(Flaw::DoneThatMustBeIssuedIsNotIssued), Some(RecordState::Done))
            | (Some(Flaw::ReleasedThatMustBeIssuedIsNotIssued), Some(RecordState::Released))
            | (Some(Flaw::ExpiredIssueIsNotIssued), Some(RecordState::Expired))
                if must =>
            {
                return Ok(Some(Claimed::NotIssued));
            }
            (Some(Flaw::ReleasedThatMustBeIssuedIsNeverExhausted), Some(RecordState::Released))
                if must =>
            {
                claim.max_attempts = None;
            }
            _ => {}
        }
        Ok(None)
    }

    #[allow(clippy::match_same_arms)] // Likewise.
    pub(super) async fn flawed_issue(&self, mut issue: Issue) -> Result<Issued, StoreError> {
        let id = issue.id.clone();
        let info = self.inner.inspect(&id).await?;
        let state = info.map(|info| info.state);
        let asks_again = async || {
            self.inner
                .issue(std::slice::from_ref(&issue))
                .await
                .remove(0)
        };
        let was_given_out = matches!(state, Some(RecordState::Issued | RecordState::Expired));
        let years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        match (self.flaw, state) {
            (Some(Flaw::IssueDoesNothing), None) => return Ok(Issued::Issued),
            (Some(Flaw::IssueCutsMilliseconds), Some(_)) => {
                issue.grace = Duration::from_secs(issue.grace.as_secs());
            }
            (Some(Flaw::IssueCutsYears), _) => issue.ttl = issue.ttl.min(years),
            (Some(Flaw::IssueForgetsItsGrace), _) => issue.grace = Duration::ZERO,
            (Some(Flaw::IssueIgnoresTheGraceThatIsThere), Some(RecordState::Issued)) => {
                return Ok(Issued::Issued);
            }
            (Some(Flaw::IssueKeepsItsGraceTwice), _) => issue.grace *= 2,
            (Some(Flaw::IssueLastsForItsGraceToo), _) => issue.ttl += issue.grace,
            (Some(Flaw::IssueWithoutAGraceHasOne), _) if issue.grace.is_zero() => {
                issue.grace = Duration::from_secs(60);
            }
            (Some(Flaw::IssueOfReleasedIsIssued), Some(RecordState::Released))
            | (Some(Flaw::IssueOverwrites), Some(_)) => self.wipe(&id).await,
            (Some(Flaw::IssueRevivesWhatHasExpired), Some(RecordState::Expired))
            | (Some(Flaw::IssueSentAgainExtends), Some(RecordState::Issued)) => {
                let is_known = asks_again().await? == Issued::Issued;
                if is_known {
                    self.inner.remove(&id).await?;
                }
            }
            (Some(Flaw::IssueSentAgainIsTaken), Some(_)) if was_given_out => {
                return Ok(Issued::Taken);
            }
            _ => {}
        }
        self.inner.issue(&[issue]).await.remove(0)
    }
}
