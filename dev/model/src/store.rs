//! The store: each step as `MemoryStore` carries it out, by the functions of `idem_core::record`,
//! and what the onlooker makes of it.

use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, InFlight, OnClaim, OnStep, Origin, Ownership, RanOut, Record, RecordId,
    Release, ReleaseTo, Renewal,
};

use crate::bounds::Bounds;
use crate::caller::{Ended, Id, Reply, Request};
use crate::mutant::Mutant;
use crate::promise::{Onlooker, Promise};
use crate::slot::{Entry, Over, Slot, TakenOver, encoded, fingerprint, whose};
use crate::ticks::{duration, ticks};

/// The one key that all callers want.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) id: RecordId,
    pub(crate) bounds: Bounds,
    pub(crate) mutant: Option<Mutant>,
}

impl Store {
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Carries out a request.
    pub(crate) fn carry_out(
        &self,
        slot: &mut Option<Slot>,
        seen: &mut Onlooker,
        by: Id,
        request: Request,
    ) -> Reply {
        let before = *slot;
        let reply = match request {
            Request::Claim { print } => self.claim(slot, by, print),
            Request::Undo => self.undo(slot, by),
            Request::Commit { attempt, print } => self.commit(slot, by, attempt, print),
            Request::Release { abandon, after, .. } => {
                self.release(slot, by, self.to(abandon, after))
            }
            Request::Renew { .. } => self.renew(slot, by),
        };
        if let Request::Claim { print } = request {
            self.watch_claim(before, *slot, seen, (by, print), reply);
        } else {
            self.watch_step(before, *slot, seen, by, request, reply);
        }
        self.watch_run(before, *slot, seen, by, request, reply);
        if slot.is_none() {
            seen.asked = 0;
        }
        reply
    }

    /// The result of a claim of this key by an uninvolved caller.
    pub(crate) fn probe(&self, slot: Option<Slot>) -> Reply {
        self.claim(&mut slot.clone(), Id::STRANGER, 0)
    }

    fn claim(&self, slot: &mut Option<Slot>, by: Id, print: u8) -> Reply {
        let mut claim = self.claim_of(by, print);
        if self.is(Mutant::FingerprintNotCompared) {
            claim.fingerprint = None;
        }
        let on_claim = match slot.map(|found| found.entry.record()) {
            None => claim.on_nothing(),
            Some(Record::InFlight(held))
                if self.is(Mutant::NotRecognised) && held.owner == claim.owner =>
            {
                return Reply::InFlight;
            }
            Some(record) => record.on_claim(&claim),
        };
        let next = match on_claim {
            OnClaim::IfLeaseRanOut { .. }
                if slot.is_some_and(Slot::is_alive) && !self.is(Mutant::TakesOverAlive) =>
            {
                return Reply::InFlight;
            }
            OnClaim::IfLeaseRanOut { .. } if self.is(Mutant::ReplaysUncommitted) => {
                return Reply::Committed(slot.and_then(Slot::owner).unwrap_or(Id::NOBODY));
            }
            OnClaim::IfIssueLives { grace, .. }
                if slot.is_none_or(|found| duration(found.left) <= grace) =>
            {
                return Reply::NotIssued;
            }
            OnClaim::IfLeaseRanOut { attempt, .. }
                if self.is(Mutant::TakesOverAlthoughRejected) =>
            {
                claim.in_flight(attempt + 1, Origin::Abandoned)
            }
            OnClaim::Answer(answer) => return reply(&answer),
            OnClaim::IfLeaseRanOut {
                attempt,
                then: RanOut::Take(_),
            } if self.is(Mutant::AttemptNotCounted) => claim.in_flight(attempt, Origin::Abandoned),
            OnClaim::IfLeaseRanOut {
                then: RanOut::IfSilentFor { then, .. },
                ..
            } if self.is(Mutant::TakesOverBeforeItsTime) => then,
            OnClaim::IfLeaseRanOut { then, .. } => {
                match then.at_age(slot.map_or(Duration::ZERO, age)) {
                    Ok(next) => next,
                    Err(answer) => return reply(&answer),
                }
            }
            OnClaim::Take(next) | OnClaim::IfIssueLives { then: next, .. } => next,
        };
        let mut next = next.with_fingerprint(fingerprint(print));
        match (self.mutant, next.origin) {
            (Some(Mutant::ClaimForgetsTheRun), Origin::Released) => next.run = None,
            (Some(Mutant::TakeOverBeginsARun), Origin::Abandoned) => next.run = Some(next.owner),
            (Some(Mutant::TakeOverShortensTheHold), Origin::Abandoned) => next.hold = claim.hold,
            _ => {}
        }
        let next = in_flight(&next);
        *slot = Some(next);
        Reply::Owned(attempt_of(next.entry))
    }

    fn commit(&self, slot: &mut Option<Slot>, by: Id, attempt: u8, print: u8) -> Reply {
        let Some(found) = *slot else {
            return Reply::Lost;
        };
        let mut commit = Commit::new(
            self.id.clone(),
            by.owner(),
            attempt.into(),
            Some(encoded(by)),
            duration(self.bounds.ttl),
        )
        .with_fingerprint(fingerprint(print))
        .with_remember(duration(self.bounds.remember));
        if let Some(owner) = found
            .owner()
            .filter(|_| self.is(Mutant::CommitWithoutOwner))
        {
            commit.owner = owner.owner();
        }
        let mut on_commit = found.entry.record().on_commit(&commit);
        if matches!(found.entry, Entry::Committed { .. }) && self.is(Mutant::CommitOverCommit) {
            on_commit = OnStep::Put {
                record: commit.record(),
                expires_in: None,
                then_done: Duration::ZERO,
            };
        }
        if let OnStep::Put { expires_in, .. } = &mut on_commit
            && self.is(Mutant::CommitKeepsExpiry)
        {
            *expires_in = None;
        }
        step(slot, found, on_commit)
    }

    fn release(&self, slot: &mut Option<Slot>, by: Id, to: ReleaseTo) -> Reply {
        let Some(found) = *slot else {
            return Reply::Lost;
        };
        let mut release = Release::new(self.id.clone(), by.owner(), to).with_run(self.bounds.steps);
        if let Some(owner) = found
            .owner()
            .filter(|_| self.is(Mutant::ReleaseWithoutOwner))
        {
            release.owner = owner.owner();
        }
        let reply = step(slot, found, found.entry.record().on_release(&release));
        let forgets = match to {
            ReleaseTo::Undone { .. } => self.is(Mutant::UndoForgetsTheRun),
            _ => self.is(Mutant::ReleaseForgetsTheRun),
        };
        if let Some(Slot {
            entry: Entry::Released { run, .. },
            ..
        }) = slot
            && reply == Reply::Held
            && forgets
        {
            *run = None;
        }
        reply
    }

    fn undo(&self, slot: &mut Option<Slot>, by: Id) -> Reply {
        let keep = duration(self.bounds.keep);
        let from_abandoned = matches!(
            slot,
            Some(Slot {
                entry: Entry::InFlight {
                    origin: Origin::Abandoned,
                    ..
                },
                ..
            })
        );
        let to = match self.mutant {
            Some(Mutant::UndoCounts) => ReleaseTo::Released { keep },
            Some(Mutant::UndoReleasesAbandoned) if from_abandoned => ReleaseTo::Released { keep },
            _ => ReleaseTo::Undone { keep },
        };
        let reply = self.release(slot, by, to);
        if reply == Reply::Held && self.is(Mutant::UndoForgets) {
            *slot = None;
        }
        if let Some(Slot {
            entry:
                Entry::InFlight {
                    owner,
                    print,
                    questions,
                    over,
                    ..
                },
            ..
        }) = slot
            && reply == Reply::Held
        {
            match self.mutant {
                Some(Mutant::UndoForgetsTheOwner) => *owner = Id::NOBODY,
                Some(Mutant::UndoForgetsTheFingerprint) => *print = 0,
                Some(Mutant::UndoForgetsTheQuestions) => *questions = 0,
                Some(Mutant::UndoForgetsWhatWasTakenOver) => *over = Over::default(),
                _ => {}
            }
        }
        reply
    }

    fn renew(&self, slot: &mut Option<Slot>, by: Id) -> Reply {
        let Some(found) = *slot else {
            return Reply::Lost;
        };
        let mut renewal = Renewal::new(self.id.clone(), by.owner(), duration(self.bounds.hold));
        if let Some(owner) = found
            .owner()
            .filter(|_| self.is(Mutant::RenewalWithoutOwner))
        {
            renewal.owner = owner.owner();
        }
        let reply = step(slot, found, found.entry.record().on_renew(&renewal));
        if self.is(Mutant::RenewalNotCarriedOut) {
            *slot = Some(found);
        }
        if let Some(Slot {
            entry: Entry::InFlight { hold, .. },
            left,
            ..
        }) = slot
            && reply == Reply::Held
            && self.is(Mutant::RenewalShortensTheHold)
        {
            (*hold, *left) = (self.bounds.hold, self.bounds.hold);
        }
        reply
    }

    fn to(&self, abandon: bool, after: Ended) -> ReleaseTo {
        if after == Ended::Unanswered && !self.is(Mutant::QuestionCounts) {
            ReleaseTo::Unanswered
        } else if abandon && !self.is(Mutant::AbandonReleases) {
            ReleaseTo::Abandoned
        } else {
            ReleaseTo::Released {
                keep: duration(self.bounds.keep),
            }
        }
    }

    fn claim_of(&self, by: Id, print: u8) -> Claim {
        Claim::new(
            self.id.clone(),
            by.owner(),
            duration(self.bounds.lease),
            duration(self.bounds.hold),
        )
        .with_fingerprint(fingerprint(print))
        .with_take_over(self.bounds.take_over)
        .with_take_over_after(self.bounds.rejected_for.map(duration))
        .with_max_attempts(self.bounds.max_attempts.map(u64::from))
        .with_must_be_issued(self.bounds.issued && !self.is(Mutant::ClaimsWhatWasNotIssued))
    }

    fn watch_claim(
        &self,
        before: Option<Slot>,
        after: Option<Slot>,
        seen: &mut Onlooker,
        (by, print): (Id, u8),
        reply: Reply,
    ) {
        let has = before.map_or(0, |slot| slot.entry.print());
        let own = before.and_then(Slot::owner) == Some(by);
        let mismatches = !own && has > 0 && print > 0 && has != print;
        seen.expects(Promise::P7, mismatches == (reply == Reply::Mismatch));
        if let (Some(max), Reply::Exhausted) = (self.bounds.max_attempts, reply) {
            seen.expects(
                Promise::P5,
                before.is_some_and(|slot| seen.counted(attempt_of(slot.entry)) >= max),
            );
        }
        if before.and_then(Slot::owner) == Some(by) {
            seen.expects(
                Promise::P10,
                matches!(reply, Reply::Owned(_)) && after == before,
            );
        } else if let Reply::Owned(_) = reply {
            let abandoned = before.filter(|slot| slot.owner().is_some());
            let in_time = |slot: Slot| {
                self.bounds
                    .rejected_for
                    .is_some_and(|time| age(slot) >= duration(time))
            };
            seen.expects(
                Promise::P5,
                self.bounds.take_over || abandoned.is_none_or(in_time),
            );
            let found = before
                .map(|slot| attempt_of(slot.entry))
                .unwrap_or_default();
            seen.expects(
                Promise::P5,
                self.bounds
                    .max_attempts
                    .is_none_or(|max| seen.counted(found) < max),
            );
            seen.expects(
                Promise::P10,
                undone(after) == before.map(|slot| at_rest(slot.entry)),
            );
        } else {
            seen.expects(Promise::P2, after == before);
        }
        // Another payload gets the mismatch, and no outcome.
        if let Some(outcome) = seen.must_replay().filter(|_| !mismatches) {
            seen.expects(Promise::P2, reply == Reply::Committed(outcome));
        } else {
            seen.expects(Promise::P2, !matches!(reply, Reply::Committed(_)));
        }
    }

    fn watch_step(
        &self,
        before: Option<Slot>,
        after: Option<Slot>,
        seen: &mut Onlooker,
        by: Id,
        request: Request,
        reply: Reply,
    ) {
        let owner = before.and_then(Slot::owner);
        if owner != Some(by) {
            let recorded = match before.map(|slot| slot.entry) {
                Some(Entry::Committed { outcome, .. }) => outcome == by,
                Some(Entry::Done { .. }) => true,
                _ => false,
            };
            let again = matches!(request, Request::Commit { .. }) && recorded;
            seen.expects(
                Promise::P3,
                after == before && (reply == Reply::Lost || again),
            );
        }
        if reply != Reply::Held {
            // The last owner's commit is accepted, however late. So it must not be sent under
            // another id than its claim.
            let own = owner
                .and_then(Id::of)
                .zip(by.of())
                .is_some_and(|(one, two)| one.0 == two.0 && one.1 < two.1);
            seen.expects(
                Promise::P9,
                !matches!(request, Request::Commit { .. }) || !own,
            );
            return;
        }
        match request {
            Request::Commit { .. } => seen.sees_recorded(by, self.bounds.ttl, self.bounds.remember),
            Request::Release {
                abandon,
                after: ended,
                ..
            } => {
                seen.expects(Promise::P8, ended != Ended::Cut);
                seen.expects(Promise::P9, ended != Ended::Value);
                if ended == Ended::Unanswered {
                    seen.asked |= 1_u16 << before.map_or(0, |slot| attempt_of(slot.entry)).min(15);
                }
                let given_up = matches!(
                    after,
                    Some(Slot {
                        entry: Entry::InFlight { lease: 0, .. },
                        ..
                    })
                );
                seen.expects(Promise::P6, given_up == abandon);
            }
            Request::Undo => {
                seen.expects(Promise::P10, after.map(|slot| slot.entry) == undone(before));
            }
            Request::Claim { .. } | Request::Renew { .. } => {}
        }
    }

    /// Follows the run. It begins with a claim where none goes on. It ends with its record, with
    /// an outcome (see [`Onlooker::sees_recorded`]), or if its first attempt is undone or releases
    /// the key without steps.
    fn watch_run(
        &self,
        before: Option<Slot>,
        after: Option<Slot>,
        seen: &mut Onlooker,
        by: Id,
        request: Request,
        reply: Reply,
    ) {
        let is_first = before.is_some_and(|slot| seen.run == Some((by, attempt_of(slot.entry))));
        match (request, reply) {
            (Request::Claim { .. }, Reply::Owned(attempt)) => {
                seen.run.get_or_insert((by, attempt));
            }
            (Request::Undo, Reply::Held) if is_first => seen.run = None,
            (Request::Release { .. }, Reply::Held) if is_first && !self.bounds.steps => {
                seen.run = seen.run.filter(|_| after.and_then(Slot::owner).is_some());
            }
            _ => {}
        }
        if after.is_none() {
            seen.run = None;
        }
        seen.expects(
            Promise::Run,
            after.and_then(|slot| slot.entry.run()) == seen.run.map(|(first, _)| first),
        );
        // The record of a run that goes on is kept at least as long as before.
        if matches!(request, Request::Claim { .. } | Request::Renew { .. })
            && let Some((before, after)) = before.zip(after)
            && before.owner().is_some()
            && after.owner().is_some()
        {
            seen.expects(
                Promise::Run,
                hold_of(after) >= hold_of(before) && after.left >= before.left,
            );
        }
    }
}

fn in_flight(held: &InFlight) -> Slot {
    Slot {
        entry: Entry::from(&Record::InFlight(held.clone())),
        left: ticks(held.hold),
        then_done: 0,
    }
}

/// The value that must be at the key when the claim that wrote this record is undone, according to
/// the record.
fn undone(written: Option<Slot>) -> Option<Entry> {
    let Some(Slot {
        entry:
            Entry::InFlight {
                attempt,
                origin,
                questions,
                run,
                over,
                ..
            },
        ..
    }) = written
    else {
        return None;
    };
    let attempt = attempt.saturating_sub(1);
    match (origin, over) {
        (Origin::Issued, _) => Some(Entry::Issued),
        (Origin::Released, _) => Some(Entry::Released {
            attempt,
            questions,
            run,
        }),
        (Origin::Abandoned, [Some(found), rest @ ..]) => {
            let TakenOver {
                owner,
                origin,
                hold,
                print,
                questions,
                run,
            } = found;
            let mut over = Over::default();
            over.iter_mut()
                .zip(rest)
                .for_each(|(place, of)| *place = of);
            Some(Entry::InFlight {
                owner,
                attempt,
                origin,
                lease: 0,
                hold,
                print,
                questions,
                run,
                over,
            })
        }
        _ => None,
    }
}

/// A record that a claim found, without its lease, which has run out.
fn at_rest(found: Entry) -> Entry {
    match found {
        Entry::InFlight {
            owner,
            attempt,
            origin,
            hold,
            print,
            questions,
            run,
            over,
            ..
        } => Entry::InFlight {
            owner,
            attempt,
            origin,
            lease: 0,
            hold,
            print,
            questions,
            run,
            over,
        },
        other => other,
    }
}

/// The expiry with which a record in flight was written.
fn hold_of(slot: Slot) -> u8 {
    match slot.entry {
        Entry::InFlight { hold, .. } => hold,
        _ => 0,
    }
}

/// How long nothing was heard of the owner.
fn age(slot: Slot) -> Duration {
    slot.entry.record().lease_age(duration(slot.left))
}

/// Writes what an owner's step makes of the record.
fn step(slot: &mut Option<Slot>, found: Slot, on_step: OnStep) -> Reply {
    *slot = match on_step {
        OnStep::Answer(Ownership::Held) => return Reply::Held,
        OnStep::Answer(Ownership::Lost) => return Reply::Lost,
        OnStep::Put {
            record,
            expires_in,
            then_done,
        } => {
            let left = expires_in.map_or(found.left, ticks);
            Some(Slot {
                entry: Entry::from(&record),
                left,
                then_done: ticks(then_done),
            })
        }
        OnStep::Remove => None,
    };
    Reply::Held
}

fn reply(answer: &Claimed) -> Reply {
    match answer {
        Claimed::Owned { attempt, .. } => Reply::Owned(u8::try_from(*attempt).unwrap_or(u8::MAX)),
        Claimed::InFlight { .. } => Reply::InFlight,
        Claimed::Committed { outcome, .. } => Reply::Committed(whose(outcome)),
        Claimed::Done { .. } => Reply::Done,
        Claimed::Abandoned { .. } => Reply::Abandoned,
        Claimed::Mismatch => Reply::Mismatch,
        Claimed::Exhausted { .. } => Reply::Exhausted,
        Claimed::NotIssued | Claimed::IssueExpired => Reply::NotIssued,
    }
}

fn attempt_of(entry: Entry) -> u8 {
    u8::try_from(entry.record().attempt()).unwrap_or(u8::MAX)
}
