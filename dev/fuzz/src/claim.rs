//! The effect of a claim on a record that was read, against the table in the documentation of
//! `Store::claim`.

use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{
    Claim, Claimed, InFlight, OnClaim, OnStep, Origin, Owner, RanOut, Record, RecordId, Release,
    ReleaseTo, Renewal, STEPS_KEPT,
};
use idem_core::wire::{self, Parsed};
use idem_core::{Key, RecordInfo, RecordState};

use crate::{Input, record};

/// A claim and a record: read from a text, or made up.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let from_text = input.flag();
    let claim = claim(&mut input);
    let record = if from_text {
        let Ok(Parsed::Record(record)) = wire::decode(&Bytes::copy_from_slice(input.rest())) else {
            return;
        };
        record
    } else {
        record::made_up(&mut input)
    };

    let answer = record.on_claim(&claim);
    assert_eq!(
        answer,
        by_the_table(&record, &claim),
        "{claim:?} on {record:?}"
    );
    if let OnClaim::Take(next)
    | OnClaim::IfLeaseRanOut {
        then: RanOut::Take(next),
        ..
    } = &answer
    {
        taken(next, &claim);
    }
    if let Record::InFlight(held) = &record {
        given_up(held, &claim);
        named(held, &claim);
        renewed(held, &claim);
    }
    for left in [0, 1, claim.lease.as_millis(), claim.hold.as_millis()] {
        described(
            &record,
            Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX)),
        );
    }
}

fn claim(input: &mut Input<'_>) -> Claim {
    let id = Key::encode("k")
        .and_then(|key| RecordId::new("fuzz", &key))
        .expect("a valid name and key");
    Claim::new(id, record::owner(input), input.length(), input.length())
        .with_fingerprint(record::fingerprint(input))
        .with_take_over(input.flag())
        .with_take_over_after(input.flag().then(|| input.length()))
        .with_max_attempts(if input.flag() {
            Some(input.number())
        } else {
            None
        })
        .with_must_be_issued(input.flag())
}

/// The rows of the table, from the top.
fn by_the_table(record: &Record, claim: &Claim) -> OnClaim {
    let attempts = record.attempt();
    let asked = match record {
        Record::InFlight(InFlight { questions, .. }) | Record::Released { questions, .. } => {
            *questions
        }
        _ => 0,
    };
    let counted = attempts.saturating_sub(asked);
    let exhausted = claim
        .max_attempts
        .is_some_and(|max| counted.saturating_add(1) > max || max == counted);
    let next = |origin| {
        claim
            .in_flight(attempts.saturating_add(1), origin)
            .with_questions(asked)
    };
    let another = match (record.fingerprint(), claim.fingerprint) {
        (Some(one), Some(two)) => one != two,
        _ => false,
    };
    match record {
        Record::Issued { .. } | Record::Released { .. } if exhausted => {
            OnClaim::Answer(Claimed::Exhausted { attempts: counted })
        }
        Record::Issued { grace } if claim.must_be_issued => OnClaim::IfIssueLives {
            grace: *grace,
            then: next(Origin::Issued),
        },
        Record::Issued { .. } => OnClaim::Take(next(Origin::Issued)),
        Record::Released { run: None, .. } => OnClaim::Take(next(Origin::Released)),
        // The steps of the run are there, so its record is too.
        Record::Released { run, .. } => {
            let next = next(Origin::Released);
            let hold = next.hold.max(STEPS_KEPT);
            OnClaim::Take(next.with_run(*run).with_hold(hold))
        }
        Record::InFlight(held) if held.owner == claim.owner => OnClaim::Answer(Claimed::Owned {
            attempt: attempts,
            from: held.origin,
        }),
        Record::InFlight(_) | Record::Committed { .. } | Record::Done { .. } if another => {
            OnClaim::Answer(Claimed::Mismatch)
        }
        Record::InFlight(held) => {
            let next = claim.taking_over(held);
            assert_eq!(
                (next.attempt, next.questions, next.run()),
                (attempts.saturating_add(1), asked, held.run())
            );
            assert!(next.hold >= held.hold && next.hold >= claim.hold);
            let then = match (claim.take_over, claim.take_over_after, exhausted) {
                (false, Some(age), false) => RanOut::IfSilentFor { age, then: next },
                (false, ..) => RanOut::Answer(Claimed::Abandoned { attempt: attempts }),
                (true, _, true) => RanOut::Answer(Claimed::Exhausted { attempts: counted }),
                (true, _, false) => RanOut::Take(next),
            };
            OnClaim::IfLeaseRanOut {
                attempt: attempts,
                then,
            }
        }
        Record::Committed { outcome, .. } => OnClaim::Answer(Claimed::Committed {
            attempt: attempts,
            outcome: outcome.clone(),
        }),
        Record::Done { .. } => OnClaim::Answer(Claimed::Done { attempt: attempts }),
    }
}

/// A claim whose reply was lost is sent again and recognised, from the text that it wrote.
fn taken(next: &InFlight, claim: &Claim) {
    let text = wire::encode(&Record::InFlight(next.clone()));
    let Ok(Parsed::Record(record)) = wire::decode(&text.into()) else {
        panic!("{next:?} cannot be read")
    };
    assert_eq!(
        record,
        Record::InFlight(next.clone()),
        "a claim with lengths of whole milliseconds is kept exactly"
    );
    let owned = Claimed::Owned {
        attempt: next.attempt,
        from: next.origin,
    };
    assert_eq!(record.on_claim(claim), OnClaim::Answer(owned));
}

/// Checks the record after its owner releases the key.
fn given_up(held: &InFlight, claim: &Claim) {
    let keep = claim.hold;
    let release = |to| Release::new(claim.id.clone(), held.owner, to);
    let left_behind = |to| held.released(&release(to)).map(|(record, _)| record);
    let Some(Record::InFlight(abandoned)) = left_behind(ReleaseTo::Abandoned) else {
        panic!("it is abandoned")
    };
    assert_eq!(abandoned.lease_left(held.hold), None, "abandoned at once");
    assert_eq!(
        (abandoned.owner, abandoned.attempt, abandoned.run()),
        (held.owner, held.attempt, held.run())
    );

    // A claim that took this one over and is undone leaves it as it was, without a lease.
    let undone = release(ReleaseTo::Undone { keep }).with_run(true);
    let restored = claim.taking_over(held).released(&undone);
    let Some((Record::InFlight(restored), Some(expires_in))) = restored else {
        panic!("it is restored")
    };
    assert_eq!(
        (
            restored.owner,
            restored.fingerprint,
            restored.run(),
            expires_in
        ),
        (held.owner, held.fingerprint, held.run(), held.hold)
    );
    assert_eq!(
        (restored.attempt, restored.questions),
        (held.attempt, held.questions)
    );

    // Whoever claims after a claim that was undone gets the attempt that was undone.
    let claim = claim
        .clone()
        .with_take_over(true)
        .with_max_attempts(None)
        .with_fingerprint(None)
        .with_must_be_issued(false);
    let again = left_behind(ReleaseTo::Undone { keep }).map(|record| record.on_claim(&claim));
    if held.took_over.is_some() {
        return;
    }
    if let Some(
        OnClaim::Take(next)
        | OnClaim::IfLeaseRanOut {
            then: RanOut::Take(next),
            ..
        },
    ) = again
    {
        let first = held.origin == Origin::Issued || held.attempt == 0;
        assert_eq!(next.attempt, if first { 1 } else { held.attempt });
        assert_eq!(next.origin, held.origin);
        // As it was found: with its run, if it had one.
        if held.origin == Origin::Released {
            assert_eq!(next.run, held.run);
        }
    } else {
        let nobodys = held.origin == Origin::Abandoned && claim.owner == Owner::NOBODY;
        assert!(
            held.origin == Origin::Nothing || nobodys,
            "{held:?} cannot be claimed again"
        );
    }
}

/// Checks the run of what its owner releases, and how long that stays.
fn named(held: &InFlight, claim: &Claim) {
    let keep = claim.hold;
    for names_run in [false, true] {
        let release = Release::new(claim.id.clone(), held.owner, ReleaseTo::Released { keep });
        let is_first = held.origin != Origin::Abandoned && held.run.is_none();
        let run = (names_run || !is_first).then(|| held.run());
        let released = Record::Released {
            attempt: held.attempt,
            questions: held.questions,
            run,
        };
        let stays = if run.is_some() {
            keep.max(held.hold)
        } else {
            keep
        };
        assert_eq!(
            held.released(&release.with_run(names_run)),
            Some((released, Some(stays)))
        );
    }
}

/// A renewal changes nothing but the hold, and never makes it shorter.
fn renewed(held: &InFlight, claim: &Claim) {
    let renewal = Renewal::new(claim.id.clone(), held.owner, claim.hold);
    let hold = held.hold.max(claim.hold);
    let renewed = OnStep::Put {
        record: Record::InFlight(held.clone().with_hold(hold)),
        expires_in: Some(hold),
        then_done: Duration::ZERO,
    };
    assert_eq!(Record::InFlight(held.clone()).on_renew(&renewal), renewed);
}

/// Checks that the description agrees with the record.
fn described(record: &Record, left: Duration) {
    let info = RecordInfo::new(record, left);
    assert_eq!(
        (info.attempt, info.fingerprint),
        (record.attempt(), record.fingerprint())
    );
    let grace = match record {
        Record::Issued { grace } if left > *grace => *grace,
        _ => Duration::ZERO,
    };
    assert_eq!(Some(info.expires_in), left.checked_sub(grace));
    let run = match record {
        Record::InFlight(held) => Some(held.run()),
        Record::Released { run, .. } => *run,
        _ => None,
    };
    assert_eq!(info.run, run);
    let Record::InFlight(held) = record else {
        assert_eq!((info.lease_age, info.lease_left), (None, None));
        return;
    };
    let age = held.lease_age(left);
    assert!(age <= held.hold);
    assert_eq!(info.lease_age, Some(age));
    assert_eq!(
        info.state == RecordState::InFlight,
        age < held.lease,
        "alive is younger than its length"
    );
    if let Some(lease_left) = info.lease_left {
        assert_eq!(age + lease_left, held.lease);
        assert!(!lease_left.is_zero());
    }
}
