//! Another payload never gets this answer: where fingerprints are compared, where not, and that it
//! comes first.

use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{Claimed, Origin, RecordState};

use crate::bench::{claim, commit, print};
use crate::check::{matches_or_broken, same};
use crate::script::Answer::{FindsCommitted, FindsDone, FindsInFlight, Mismatch, Owned};
use crate::script::Line::{Claims, Given, GivenWith, HasPrint, Look, Unchanged};
use crate::script::With::{AtMost, NoTakeOver, Print};
use crate::script::{B, C};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "fingerprint::another_mismatches_in_flight_before_any_conflict",
        &[
            GivenWith("one", &[InFlight]),
            Claims(B.with(&[Print("two")]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::another_mismatches_abandoned_and_does_not_take_over",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(B.with(&[Print("two")]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::another_mismatches_committed_and_gets_no_outcome",
        &[
            GivenWith("one", &[Committed]),
            Claims(B.with(&[Print("two")]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::another_mismatches_done",
        &[
            GivenWith("one", &[Done]),
            Claims(B.with(&[Print("two")]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::another_mismatches_before_attempts_are_exhausted",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(B.with(&[Print("two"), AtMost(1)]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::another_mismatches_where_nothing_is_taken_over",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(B.with(&[Print("two"), NoTakeOver]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::a_mismatch_changes_nothing",
        &[
            GivenWith("one", &[InFlight, Abandoned, Committed, Done]),
            Look,
            Claims(B.with(&[Print("two")]), Mismatch),
            Unchanged,
        ],
    ),
    lines(
        "fingerprint::the_same_matches_in_every_state",
        &[
            GivenWith("one", &[InFlight]),
            Claims(B.with(&[Print("one")]), FindsInFlight(1)),
            GivenWith("one", &[Abandoned]),
            Claims(B.with(&[Print("one")]), Owned(2, Origin::Abandoned)),
            GivenWith("one", &[Committed]),
            Claims(B.with(&[Print("one")]), FindsCommitted(1)),
            GivenWith("one", &[Done]),
            Claims(B.with(&[Print("one")]), FindsDone(1)),
        ],
    ),
    lines(
        "fingerprint::none_on_the_call_matches_in_every_state",
        &[
            GivenWith("one", &[InFlight]),
            Claims(B, FindsInFlight(1)),
            GivenWith("one", &[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GivenWith("one", &[Committed]),
            Claims(B, FindsCommitted(1)),
            GivenWith("one", &[Done]),
            Claims(B, FindsDone(1)),
        ],
    ),
    lines(
        "fingerprint::none_on_the_record_matches_in_every_state",
        &[
            Given(&[InFlight]),
            Claims(B.with(&[Print("two")]), FindsInFlight(1)),
            Given(&[Abandoned]),
            Claims(B.with(&[Print("two")]), Owned(2, Origin::Abandoned)),
            Given(&[Committed]),
            Claims(B.with(&[Print("two")]), FindsCommitted(1)),
            Given(&[Done]),
            Claims(B.with(&[Print("two")]), FindsDone(1)),
        ],
    ),
    lines(
        "fingerprint::a_released_record_has_none",
        &[
            GivenWith("one", &[Released]),
            HasPrint(None),
            Claims(B.with(&[Print("two")]), Owned(2, Origin::Released)),
            Claims(C.with(&[Print("one")]), Mismatch),
        ],
    ),
    lines(
        "fingerprint::a_take_over_brings_its_own",
        &[
            Given(&[Abandoned]),
            Claims(B.with(&[Print("one")]), Owned(2, Origin::Abandoned)),
            Claims(C.with(&[Print("two")]), Mismatch),
        ],
    ),
    code("fingerprint::is_kept_through_commit_and_ttl", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_fingerprint(print("one")?);
            t.own(&first).await?;
            let commit = commit(&first, 1).with_ttl(t.unit());
            let (committed, _) = t.timed(t.store.commit(&commit)).await?;
            let info = t
                .store
                .inspect(&first.id)
                .await?
                .map(|info| (info.state, info.fingerprint));
            let wanted = Some((RecordState::Committed, first.fingerprint));
            t.within(
                t.unit(),
                committed,
                same("the committed record", info, wanted),
            )?;
            t.pass_until(t.unit(), &first.id, Some(RecordState::Done))
                .await?;
            let info = t
                .store
                .inspect(&first.id)
                .await?
                .and_then(|info| info.fingerprint);
            same(
                "the fingerprint of the record that is done",
                info,
                first.fingerprint,
            )?;
            let answer = t
                .store
                .claim(&claim(&first.id).with_fingerprint(print("two")?))
                .await?;
            matches_or_broken!(
                "a claim with another fingerprint",
                answer,
                Claimed::Mismatch
            )
        })
    }),
];
