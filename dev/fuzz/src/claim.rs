//! The effect of a claim on a record that was read, against the table in the documentation of
//! `Store::claim`.

use bytes::Bytes;
use idem_core::record::{
    Claim, Claimed, InFlight, OnClaim, Origin, RanOut, Record, RecordId, ReleaseTo,
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
    }
    for left in [0, 1, claim.lease.as_millis(), claim.hold.as_millis()] {
        described(
            &record,
            std::time::Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX)),
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
        Record::Released { .. } => OnClaim::Take(next(Origin::Released)),
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
                (next.attempt, next.questions),
                (attempts.saturating_add(1), asked)
            );
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
    let left_behind = |to| held.released(to).map(|(record, _)| record);
    let released = Record::Released {
        attempt: held.attempt,
        questions: held.questions,
    };
    assert_eq!(left_behind(ReleaseTo::Released { keep }), Some(released));
    let Some(Record::InFlight(abandoned)) = left_behind(ReleaseTo::Abandoned) else {
        panic!("it is abandoned")
    };
    assert_eq!(abandoned.lease_left(held.hold), None, "abandoned at once");
    assert_eq!(
        (abandoned.owner, abandoned.attempt),
        (held.owner, held.attempt)
    );

    // A claim that took this one over and is undone leaves it as it was, without a lease.
    let restored = claim.taking_over(held).released(ReleaseTo::Undone { keep });
    let Some((Record::InFlight(restored), Some(expires_in))) = restored else {
        panic!("it is restored")
    };
    assert_eq!(
        (restored.owner, restored.fingerprint, expires_in),
        (held.owner, held.fingerprint, held.hold)
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
    } else {
        let nobodys =
            held.origin == Origin::Abandoned && claim.owner == idem_core::record::Owner::NOBODY;
        assert!(
            held.origin == Origin::Nothing || nobodys,
            "{held:?} cannot be claimed again"
        );
    }
}

/// Checks that the description agrees with the record.
fn described(record: &Record, left: std::time::Duration) {
    let info = RecordInfo::new(record, left);
    assert_eq!(
        (info.attempt, info.fingerprint),
        (record.attempt(), record.fingerprint())
    );
    let grace = match record {
        Record::Issued { grace } if left > *grace => *grace,
        _ => std::time::Duration::ZERO,
    };
    assert_eq!(Some(info.expires_in), left.checked_sub(grace));
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
