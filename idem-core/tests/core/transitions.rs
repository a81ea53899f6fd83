//! The run of a record, through each of its transitions, and how long a record with one is kept.

use std::time::Duration;

use idem_core::record::{
    Claim, InFlight, MOST_TAKEN_OVER, OnClaim, OnStep, Origin, Owner, RanOut, Record, RecordId,
    Release, ReleaseTo, Renewal, STEPS_KEPT,
};
use idem_core::store::admin::{Intervention, OnIntervention};
use idem_core::{Key, RecordInfo};

const LEASE: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_secs(60);
const KEEP: Duration = Duration::from_secs(45);

fn id() -> RecordId {
    RecordId::new("orders", &Key::encode("k").unwrap()).unwrap()
}

fn claim() -> Claim {
    Claim::new(id(), Owner::generate(), LEASE, HOLD)
}

fn first() -> InFlight {
    let OnClaim::Take(first) = claim().on_nothing() else {
        panic!("nothing is free")
    };
    first
}

/// The record of a claim that took this one over.
fn taken_over(held: &InFlight) -> InFlight {
    match Record::InFlight(held.clone()).on_claim(&claim()) {
        OnClaim::IfLeaseRanOut {
            then: RanOut::Take(next),
            ..
        } => next,
        other => panic!("{other:?}"),
    }
}

/// The record of a claim of a released key.
fn claimed(released: &Record, claim: &Claim) -> InFlight {
    match released.on_claim(claim) {
        OnClaim::Take(next) => next,
        other => panic!("{other:?}"),
    }
}

fn release(held: &InFlight, to: ReleaseTo) -> Release {
    Release::new(id(), held.owner, to)
}

/// What the owner's release leaves, and for how long.
fn left(held: &InFlight, release: &Release) -> (Record, Option<Duration>) {
    match Record::InFlight(held.clone()).on_release(release) {
        OnStep::Put {
            record, expires_in, ..
        } => (record, expires_in),
        other => panic!("{other:?}"),
    }
}

fn undone(held: &InFlight) -> InFlight {
    match left(held, &release(held, ReleaseTo::Undone { keep: KEEP })).0 {
        Record::InFlight(found) => found,
        other => panic!("{other:?}"),
    }
}

fn released(held: &InFlight, names_run: bool) -> (Record, Option<Duration>) {
    let to = ReleaseTo::Released { keep: KEEP };
    left(held, &release(held, to).with_run(names_run))
}

/// The run that the record says goes on.
fn named(record: &Record) -> Option<Owner> {
    match record {
        Record::Released { run, .. } => *run,
        other => panic!("{other:?}"),
    }
}

/// This record and those that it remembers.
fn remembered(held: &InFlight) -> Vec<&InFlight> {
    std::iter::successors(Some(held), |held| held.took_over.as_deref()).collect()
}

#[test]
fn the_run_of_a_chain_of_take_overs_is_its_first_owner_however_long_it_is() {
    let first = first();
    assert_eq!((first.run(), first.run), (first.owner, None));
    let mut last = first.clone();
    for attempt in 2..=9 {
        last = taken_over(&last);
        assert_eq!((last.attempt, last.run()), (attempt, first.owner));
        let before = usize::try_from(attempt).unwrap() - 1;
        let all = remembered(&last);
        assert_eq!(all.len() - 1, before.min(MOST_TAKEN_OVER));
        // It names the run only where it does not remember the first attempt, and once.
        let named: Vec<_> = all.iter().filter_map(|held| held.run).collect();
        let expected: &[Owner] = if before > MOST_TAKEN_OVER {
            &[first.owner]
        } else {
            &[]
        };
        assert_eq!(named, expected, "attempt {attempt}");
    }
}

#[test]
fn undoing_take_overs_one_after_the_other_keeps_the_run() {
    for length in 2..=7 {
        let first = first();
        let mut chain = vec![first.clone()];
        for _ in 1..length {
            chain.push(taken_over(chain.last().unwrap()));
        }
        let mut last = chain.pop().unwrap();
        while last.origin == Origin::Abandoned && last.owner != Owner::NOBODY {
            last = undone(&last);
            assert_eq!(last.run(), first.owner, "of {length}: {last:?}");
            let wanted = chain.pop().unwrap();
            assert_eq!(last.attempt, wanted.attempt);
            // The next claim goes on with it too.
            assert_eq!(taken_over(&last).run(), first.owner);
            assert_eq!(named(&released(&last, true).0), Some(first.owner));
        }
    }
}

#[test]
fn a_release_names_the_run_if_it_is_told_to_or_did_not_begin_it() {
    let first = first();
    assert_eq!(named(&released(&first, false).0), None);
    let (named_by_first, _) = released(&first, true);
    assert_eq!(named(&named_by_first), Some(first.owner));

    let second = taken_over(&first);
    assert_eq!(named(&released(&second, false).0), Some(first.owner));

    let next = claimed(&named_by_first, &claim());
    assert_eq!(
        (next.origin, next.run),
        (Origin::Released, Some(first.owner))
    );
    assert_eq!(named(&released(&next, false).0), Some(first.owner));
    assert_eq!(taken_over(&next).run(), first.owner);

    let another = claimed(&released(&first, false).0, &claim());
    assert_eq!((another.run(), another.run), (another.owner, None));
    assert_eq!(another.attempt, 2);
}

#[test]
fn an_undone_claim_of_a_released_key_gives_the_run_back_as_it_was_found() {
    for names_run in [false, true] {
        let (found, _) = released(&first(), names_run);
        let next = claimed(&found, &claim());
        let undo = release(&next, ReleaseTo::Undone { keep: KEEP }).with_run(true);
        let (again, expires_in) = left(&next, &undo);
        assert_eq!(again, found);
        let kept = if names_run { STEPS_KEPT } else { KEEP };
        assert_eq!(expires_in, Some(kept));
    }
}

#[test]
fn a_record_with_a_run_that_goes_on_is_kept_as_long_as_its_steps() {
    let long = STEPS_KEPT * 2;
    let first = first();
    // At least as long as the record in flight would have stayed; without a run, as it is told.
    assert_eq!(released(&first, false).1, Some(KEEP));
    let (found, expires_in) = released(&first, true);
    assert_eq!(expires_in, Some(HOLD));

    assert_eq!(claimed(&found, &claim()).hold, STEPS_KEPT);
    assert_eq!(claimed(&found, &claim().with_hold(long)).hold, long);
    let unnamed = released(&first, false).0;
    assert_eq!(claimed(&unnamed, &claim()).hold, HOLD);

    let kept = first.with_hold(long);
    assert_eq!(taken_over(&kept).hold, long);
    assert_eq!(claim().with_hold(long).taking_over(&kept).hold, long);
    assert_eq!(taken_over(&kept).lease, LEASE);
}

#[test]
fn a_renewal_never_shortens_the_hold() {
    let held = first();
    for (hold, wanted) in [(HOLD / 2, HOLD), (HOLD, HOLD), (HOLD * 2, HOLD * 2)] {
        let renewal = Renewal::new(id(), held.owner, hold);
        let wanted = OnStep::Put {
            record: Record::InFlight(held.clone().with_hold(wanted)),
            expires_in: Some(wanted),
            then_done: Duration::ZERO,
        };
        assert_eq!(Record::InFlight(held.clone()).on_renew(&renewal), wanted);
    }
}

#[test]
fn an_operators_release_keeps_the_run_and_a_description_says_it() {
    let first = first();
    for held in [first.clone(), taken_over(&first)] {
        let record = Record::InFlight(held);
        assert_eq!(RecordInfo::new(&record, HOLD).run, Some(first.owner));
        match record.on_intervention(&Intervention::release(id()), Duration::ZERO) {
            OnIntervention::Put { record, .. } => {
                assert_eq!(named(&record), Some(first.owner));
                assert_eq!(RecordInfo::new(&record, HOLD).run, Some(first.owner));
            }
            other => panic!("{other:?}"),
        }
    }
    let unnamed = released(&first, false).0;
    assert_eq!(RecordInfo::new(&unnamed, HOLD).run, None);
}
