//! Flaws of commits.

use idem_core::record::{Commit, Encoded, Origin, Ownership, RecordState};
use idem_core::{CodecId, Store as _, StoreError};

use super::{FlawedStore, MOMENT};
use crate::flaw::Flaw;

impl FlawedStore {
    #[expect(clippy::too_many_lines, reason = "an arm for each flaw")]
    pub(super) async fn flawed_commit(&self, mut commit: Commit) -> Result<Ownership, StoreError> {
        let id = commit.id.clone();
        let state = self.state(&id).await;
        let payload = |outcome: &Encoded| outcome.payload.clone();
        match (self.flaw, &mut commit.outcome) {
            (Some(Flaw::CommitByTheLivingOnly), _) if state == Some(RecordState::Abandoned) => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitBelievesTheOwner), _) if state == Some(RecordState::InFlight) => {
                let as_claimed = self
                    .last_claim(&id)
                    .map(|claim| claim.as_claimed(Origin::Nothing));
                if commit
                    .as_claimed
                    .is_some_and(|said| Some(said) != as_claimed)
                {
                    return Ok(Ownership::Lost);
                }
            }
            (Some(Flaw::CommitOfAnEarlierLifeIsHeld), _) => {
                // As if the owners of a removed record were still known.
                let attempt = self.inner.inspect(&id).await?.map(|info| info.attempt);
                let (before, _) = self.claim_before(&id, commit.owner);
                if attempt == Some(commit.attempt)
                    && before.is_some_and(|claim| claim.owner == commit.owner)
                {
                    commit.owner = self
                        .last_claim(&id)
                        .map_or(commit.owner, |claim| claim.owner);
                }
            }
            (Some(Flaw::CommitOfIssuedByAnybody), _) if state == Some(RecordState::Issued) => {
                let owner = commit.owner;
                let hold = commit.ttl;
                self.inner
                    .claim(
                        &Self::any_claim(&id)
                            .with_id(id.clone())
                            .with_owner(owner)
                            .with_hold(hold),
                    )
                    .await?;
            }
            (Some(Flaw::UndoForgetsTheOwner), _)
                if self
                    .last_claim(&id)
                    .is_some_and(|last| last.owner != commit.owner) =>
            {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::UndoForgetsTheOwnerBeforeTheLast), _)
                if self.claim_before(&id, commit.owner).1 =>
            {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitOfNothingIsHeld), _) if state.is_none() => {
                return Ok(Ownership::Held);
            }
            (Some(Flaw::CommitSentAgainAfterTheTtlIsLost), Some(_))
                if state == Some(RecordState::Done) =>
            {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitSentAgainIsLost), _) if state == Some(RecordState::Committed) => {
                return Ok(Ownership::Lost);
            }
            (Some(Flaw::CommitSentAgainExtendsTheTtl), _)
                if state == Some(RecordState::Committed) =>
            {
                if self.inner.commit(&commit).await? == Ownership::Lost {
                    return Ok(Ownership::Lost);
                }
                self.wipe(&id).await;
                let claim = self.last_claim(&id).unwrap();
                commit.owner = claim.owner;
                self.inner.claim(&claim).await?;
            }
            (Some(Flaw::CommitChecksThenWrites), _) => {
                let current = self
                    .last_claim(&id)
                    .is_some_and(|claim| claim.owner == commit.owner);
                tokio::time::sleep(MOMENT).await;
                if let Some(claim) = self.last_claim(&id).filter(|_| current) {
                    commit.owner = claim.owner;
                }
            }
            (Some(Flaw::CommitForgetsTheOutcomeAndSaysHeld), outcome) => *outcome = None,
            (Some(Flaw::CommitCutsLargeOutcomes), Some(outcome)) => {
                outcome.payload.truncate(1 << 16);
            }
            (Some(Flaw::CommitForgetsTheCodec), Some(outcome)) => outcome.codec = CodecId::JSON,
            (Some(Flaw::CommitForgetsTheMetadata), Some(outcome)) => outcome.metadata = None,
            (Some(Flaw::CommitForgetsThatItIsAnError), Some(outcome)) => outcome.is_error = false,
            (Some(Flaw::CommitMakesTextOfTheOutcome), Some(outcome)) => {
                outcome.payload = String::from_utf8_lossy(&payload(outcome))
                    .into_owned()
                    .into();
            }
            (Some(Flaw::CommitTakesNullForNoOutcome), outcome) => {
                let null = outcome
                    .as_ref()
                    .is_some_and(|outcome| matches!(&*outcome.payload, b"" | b"null"));
                *outcome = outcome.take().filter(|_| !null);
            }
            (Some(Flaw::CommitKeepsTheOutcomeTooLong), _) => commit.ttl = commit.remember,
            (Some(Flaw::CommitRemembersForTheTtlOnly), _) => commit.remember = commit.ttl,
            _ => {}
        }
        commit.owner = self.owner(&id, commit.owner, Flaw::CommitByAnybody);
        self.inner.commit(&commit).await
    }
}
