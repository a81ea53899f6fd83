//! The life of the record: what a claim, a commit, a release, a renewal, a removal and the passing
//! of time do in each state.
//!
//! The transitions are pure functions. So each store takes the same decisions, in whatever language
//! its atomic step is written, and `idem-model` explores the code that runs. A store answers only
//! two questions: which record is at the key, and has its lease expired by the store's own clock.

use std::time::Duration;

use super::{
    Claim, Claimed, Commit, InFlight, Issue, Issued, MOST_TAKEN_OVER, Origin, Owner, Ownership,
    Record, Release, ReleaseTo, Removed, Renewal,
};
use crate::encoding::fingerprint::Fingerprint;

/// The effect of a claim on the record that it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnClaim {
    /// Nothing is written.
    Answer(Claimed),
    /// This is written in place of the record that was found, if that is still there.
    Take(InFlight),
    /// It depends on the lease, which only the store's clock can tell.
    IfLeaseRanOut {
        /// The record's attempt, for [`Claimed::InFlight`] where the lease is alive.
        attempt: u64,
        /// The effect if it has expired.
        then: RanOut,
    },
    /// It depends on how long the record has left, which only the store's clock can tell: up to
    /// `grace`, it is [`Claimed::IssueExpired`]; else `then` is written in its place.
    IfIssueLives {
        /// See [`Record::Issued`].
        grace: Duration,
        /// The record that is written.
        then: InFlight,
    },
}

/// The effect of a claim on a record whose lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RanOut {
    /// Nothing is written.
    Answer(Claimed),
    /// This is written in place of the record that was found.
    Take(InFlight),
    /// It depends on the time since the claim or last renewal, by the store's clock. From `age` on,
    /// `then` is written. Before that, nothing is, and the answer is [`Claimed::Abandoned`].
    IfSilentFor {
        /// [`Claim::take_over_after`].
        age: Duration,
        /// The record that is written.
        then: InFlight,
    },
}

impl RanOut {
    /// Returns the record that replaces one whose owner was silent for `age`, or the answer.
    ///
    /// # Errors
    ///
    /// The answer, where nothing is written.
    pub fn at_age(self, age: Duration) -> Result<InFlight, Claimed> {
        match self {
            Self::Answer(answer) => Err(answer),
            Self::IfSilentFor { age: least, then } if age < least => Err(Claimed::Abandoned {
                attempt: then.attempt.saturating_sub(1),
            }),
            Self::Take(then) | Self::IfSilentFor { then, .. } => Ok(then),
        }
    }
}

/// The effect of an owner's step (a commit, a release or a renewal) on the record that it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnStep {
    /// Nothing is written.
    Answer(Ownership),
    /// This is written in place of the record that was found. The answer is [`Ownership::Held`].
    Put {
        /// The record that is written.
        record: Record,
        /// Its expiry, from now; `None`: that of the record that was found.
        expires_in: Option<Duration>,
        /// For a committed one: how long after that it stays as done.
        then_done: Duration,
    },
    /// The record is removed. The answer is [`Ownership::Held`].
    Remove,
}

/// Returns how long an owner continues without a confirmed renewal, by its own clock: nine tenths
/// of the lease. It counts from before the claim (or the last confirmed renewal) was sent.
///
/// The store counts the whole lease, from when it carried the step out, which is later. So, as long
/// as the two clocks run at the same rate within 10 %, the body is stopped before the store lets
/// anybody else claim.
pub fn owner_stops_after(lease: Duration) -> Duration {
    lease / 10 * 9
}

/// How long the [steps](crate::step) of a call are kept at least, and the records of runs that have
/// some.
pub const STEPS_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// How long after the claim (or the last confirmed renewal) was sent a renewal is due: a third of
/// the lease.
pub fn renewal_due_after(lease: Duration) -> Duration {
    lease / 3
}

impl Claim {
    /// Returns the effect without a record.
    pub fn on_nothing(&self) -> OnClaim {
        if self.must_be_issued {
            OnClaim::Answer(Claimed::NotIssued)
        } else {
            OnClaim::Take(self.in_flight(1, Origin::Nothing))
        }
    }
}

impl Record {
    /// Returns the effect of a claim on this record. (Without a record, see [`Claim::on_nothing`].)
    pub fn on_claim(&self, claim: &Claim) -> OnClaim {
        match self {
            Self::Issued { grace } => match Self::exhausted(claim, 0, 0) {
                Some(exhausted) => OnClaim::Answer(exhausted),
                None if claim.must_be_issued => OnClaim::IfIssueLives {
                    grace: *grace,
                    then: claim.in_flight(1, Origin::Issued),
                },
                None => OnClaim::Take(claim.in_flight(1, Origin::Issued)),
            },
            Self::Released {
                attempt,
                questions,
                run,
            } => {
                if let Some(exhausted) = Self::exhausted(claim, *attempt, *questions) {
                    return OnClaim::Answer(exhausted);
                }
                let next = claim.in_flight(attempt.saturating_add(1), Origin::Released);
                OnClaim::Take(InFlight {
                    hold: run.map_or(next.hold, |_| next.hold.max(STEPS_KEPT)),
                    questions: *questions,
                    run: *run,
                    ..next
                })
            }
            Self::InFlight(held) if held.owner == claim.owner => OnClaim::Answer(Claimed::Owned {
                attempt: held.attempt,
                from: held.origin,
            }),
            _ if self.mismatches(claim.fingerprint) => OnClaim::Answer(Claimed::Mismatch),
            Self::InFlight(held) => OnClaim::IfLeaseRanOut {
                attempt: held.attempt,
                then: match (
                    claim.take_over,
                    claim.take_over_after,
                    Self::exhausted(claim, held.attempt, held.questions),
                ) {
                    (true, _, Some(exhausted)) => RanOut::Answer(exhausted),
                    (true, _, None) => RanOut::Take(claim.taking_over(held)),
                    (false, Some(age), None) => RanOut::IfSilentFor {
                        age,
                        then: claim.taking_over(held),
                    },
                    (false, ..) => RanOut::Answer(Claimed::Abandoned {
                        attempt: held.attempt,
                    }),
                },
            },
            Self::Committed {
                attempt, outcome, ..
            } => OnClaim::Answer(Claimed::Committed {
                attempt: *attempt,
                outcome: outcome.clone(),
            }),
            Self::Done { attempt, .. } => OnClaim::Answer(Claimed::Done { attempt: *attempt }),
        }
    }

    /// Returns the result of an issue that found this record. (Without a record, [`Issue::record`]
    /// is written.)
    ///
    /// Whole milliseconds are compared, because a store may keep no more than that.
    pub fn on_issue(&self, issue: &Issue) -> Issued {
        match self {
            Self::Issued { grace } if grace.as_millis() == issue.grace.as_millis() => {
                Issued::Issued
            }
            _ => Issued::Taken,
        }
    }

    /// Returns the effect of a commit on this record. (Without a record, it is
    /// [`Ownership::Lost`].)
    ///
    /// The owner decides, not its lease: the last claimant may record its outcome, however late.
    pub fn on_commit(&self, commit: &Commit) -> OnStep {
        let record = commit.record();
        match self {
            Self::InFlight(held) if held.owner == commit.owner => {
                let (expires_in, then_done) = match record {
                    Self::Committed { .. } => {
                        (commit.ttl, commit.remember.saturating_sub(commit.ttl))
                    }
                    _ => (commit.remember.max(commit.ttl), Duration::ZERO),
                };
                OnStep::Put {
                    record,
                    expires_in: Some(expires_in),
                    then_done,
                }
            }
            found if *found == record => OnStep::Answer(Ownership::Held),
            // Recorded before, and the outcome has expired since.
            Self::Done {
                attempt,
                fingerprint,
            } if (*attempt, *fingerprint) == (commit.attempt, commit.fingerprint) => {
                OnStep::Answer(Ownership::Held)
            }
            _ => OnStep::Answer(Ownership::Lost),
        }
    }

    /// Returns the effect of a release on this record. (Without a record, it is
    /// [`Ownership::Lost`].)
    pub fn on_release(&self, release: &Release) -> OnStep {
        match self {
            Self::InFlight(held) if held.owner == release.owner => match held.released(release) {
                Some((record, expires_in)) => OnStep::Put {
                    record,
                    expires_in,
                    then_done: Duration::ZERO,
                },
                None => OnStep::Remove,
            },
            _ => OnStep::Answer(Ownership::Lost),
        }
    }

    /// Returns the effect of a renewal on this record. (Without a record, it is
    /// [`Ownership::Lost`].)
    pub fn on_renew(&self, renewal: &Renewal) -> OnStep {
        match self {
            Self::InFlight(held) if held.owner == renewal.owner => {
                let longest = renewal.hold.max(held.hold);
                let record = Self::InFlight(InFlight {
                    hold: longest,
                    ..held.clone()
                });
                OnStep::Put {
                    record,
                    expires_in: Some(longest),
                    then_done: Duration::ZERO,
                }
            }
            _ => OnStep::Answer(Ownership::Lost),
        }
    }

    /// Returns the result of a removal of this record, which expires in `left` by the store's
    /// clock. (Without a record, it is [`Removed::Nothing`].)
    pub fn on_remove(&self, left: Duration) -> Removed {
        match self.lease_left(left) {
            Some(lease_left) => Removed::InFlight { lease_left },
            None => Removed::Removed,
        }
    }

    /// Returns the rest of this record after its expiry: of an outcome, that there was one,
    /// for as long as that is remembered.
    pub fn expired(&self) -> Option<Self> {
        match *self {
            Self::Committed {
                attempt,
                fingerprint,
                ..
            } => Some(Self::Done {
                attempt,
                fingerprint,
            }),
            _ => None,
        }
    }

    /// How much of the lease is left, when the record expires in `left` by the store's clock;
    /// `None` where it has run out, or there is none.
    pub fn lease_left(&self, left: Duration) -> Option<Duration> {
        match self {
            Self::InFlight(held) => held.lease_left(left),
            _ => None,
        }
    }

    /// The time since the claim or the last renewal, when the record expires in `left` by the
    /// store's clock. Zero for a record that is neither in flight nor abandoned.
    pub fn lease_age(&self, left: Duration) -> Duration {
        match self {
            Self::InFlight(held) => held.lease_age(left),
            _ => Duration::ZERO,
        }
    }

    /// The last attempt, 0 if there was none.
    pub fn attempt(&self) -> u64 {
        match self {
            Self::Issued { .. } => 0,
            Self::InFlight(InFlight { attempt, .. })
            | Self::Released { attempt, .. }
            | Self::Committed { attempt, .. }
            | Self::Done { attempt, .. } => *attempt,
        }
    }

    /// Returns the fingerprint, if this record has one.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        match self {
            Self::InFlight(InFlight { fingerprint, .. })
            | Self::Committed { fingerprint, .. }
            | Self::Done { fingerprint, .. } => *fingerprint,
            Self::Issued { .. } | Self::Released { .. } => None,
        }
    }

    fn mismatches(&self, other: Option<Fingerprint>) -> bool {
        matches!((self.fingerprint(), other), (Some(one), Some(two)) if one != two)
    }

    /// Returns the answer to a claim if the key has had its most attempts. Those that only asked do
    /// not count.
    fn exhausted(claim: &Claim, attempts: u64, questions: u64) -> Option<Claimed> {
        let attempts = attempts.saturating_sub(questions);
        claim
            .max_attempts
            .is_some_and(|max| attempts >= max)
            .then_some(Claimed::Exhausted { attempts })
    }
}

impl InFlight {
    /// Returns the run that it belongs to: the owner of the first attempt since the key had no
    /// record, or an outcome.
    ///
    /// A run goes on through take-overs, releases and claims that were undone. The
    /// [steps](crate::step) of a call belong to its run.
    pub fn run(&self) -> Owner {
        match (self.run, self.origin, &self.took_over) {
            (Some(run), ..) => run,
            (None, Origin::Abandoned, Some(before)) => before.run(),
            _ => self.owner,
        }
    }

    /// The record that a release leaves in this one's place, `None` for none, and how long it
    /// stays; `None`: as long as this one would have.
    pub fn released(&self, release: &Release) -> Option<(Record, Option<Duration>)> {
        let to = release.to;
        let abandoned = Self {
            lease: Duration::ZERO,
            ..self.clone()
        };
        let before = self.attempt.saturating_sub(1);
        let goes_on = release.names_run || self.origin == Origin::Abandoned || self.run.is_some();
        let run = goes_on.then(|| self.run());
        let released = |attempt, run: Option<Owner>, keep: Duration| {
            Some((
                Record::Released {
                    attempt,
                    questions: self.questions,
                    run,
                },
                Some(run.map_or(keep, |_| keep.max(self.hold))),
            ))
        };
        match (to, self.origin, &self.took_over) {
            (ReleaseTo::Released { keep }, ..) => released(self.attempt, run, keep),
            (ReleaseTo::Abandoned, ..) => Some((Record::InFlight(abandoned), None)),
            (ReleaseTo::Unanswered, ..) => {
                let unanswered = Self {
                    questions: self.questions_with_this(),
                    ..abandoned
                };
                Some((Record::InFlight(unanswered), None))
            }
            (ReleaseTo::Undone { .. }, Origin::Nothing, _) => None,
            (ReleaseTo::Undone { .. }, Origin::Issued, _) => Some((
                Record::Issued {
                    grace: Duration::ZERO,
                },
                None,
            )),
            // It stays as it was found.
            (ReleaseTo::Undone { keep }, Origin::Released, _) => released(before, self.run, keep),
            (ReleaseTo::Undone { .. }, Origin::Abandoned, Some(found)) => {
                let found = Self {
                    lease: Duration::ZERO,
                    ..(**found).clone()
                };
                // The expiry begins again, so the record stays at least as long as without the
                // claim.
                let expires_in = Some(found.hold);
                Some((Record::InFlight(found), expires_in))
            }
            (ReleaseTo::Undone { .. }, Origin::Abandoned, None) => {
                // An earlier version wrote the record, or it keeps no more of those that were taken
                // over.
                let nobodys = Self {
                    owner: Owner::NOBODY,
                    attempt: before,
                    ..abandoned
                };
                Some((Record::InFlight(nobodys), None))
            }
        }
    }

    /// How many attempts only asked, if this one did. The same release may be sent again, and must
    /// not count again. So it adds to the count before this attempt, which the record that was
    /// taken over has.
    fn questions_with_this(&self) -> u64 {
        match &self.took_over {
            Some(found) => found.questions.saturating_add(1),
            None => self
                .questions
                .saturating_add(u64::from(!self.lease.is_zero())),
        }
    }

    /// This record as the next claim remembers it.
    pub(super) fn as_taken_over(&self) -> Self {
        let mut found = Self {
            lease: Duration::ZERO,
            ..self.clone()
        };
        let mut last = &mut found;
        for _ in 1..MOST_TAKEN_OVER {
            match &mut last.took_over {
                Some(before) => last = before,
                None => return found,
            }
        }
        if last.took_over.is_some() {
            last.run = Some(last.run());
            last.took_over = None;
        }
        found
    }

    /// How old the lease is, when the record expires in `left` by the store's clock.
    pub fn lease_age(&self, left: Duration) -> Duration {
        self.hold.saturating_sub(left)
    }

    /// How much of the lease is left, when the record expires in `left` by the store's clock;
    /// `None` when it has run out.
    pub fn lease_left(&self, left: Duration) -> Option<Duration> {
        self.lease
            .checked_sub(self.lease_age(left))
            .filter(|left| !left.is_zero())
    }
}
