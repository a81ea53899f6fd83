//! Attempts that began no body, because their question stayed without an answer: they grow the
//! attempt, and are not counted.

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, InFlight, Released};
use idem_core::record::{Origin, RecordState};

use crate::bench::{LONG, claim, print, unanswered};
use crate::check::{broken, same};
use crate::script::Answer::{Exhausted, FindsAbandoned, FindsInFlight, Owned};
use crate::script::EIGHTFOLD;
use crate::script::Line::{
    Claims, GetsNoAnswer, Given, GivesUp, Is, Look, Releases, Renews, Unchanged, Undoes,
};
use crate::script::With::{AtMost, Hold, NoTakeOver};
use crate::script::{B, C, D, E, F};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "question::without_an_answer_leaves_an_abandoned_record",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Is(Abandoned),
            Claims(C.with(&[NoTakeOver]), FindsAbandoned(2)),
        ],
    ),
    lines(
        "question::without_an_answer_grows_the_attempt",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            GetsNoAnswer(C, Held),
            Claims(D, Owned(4, Origin::Abandoned)),
            GetsNoAnswer(D, Held),
            Claims(E, Owned(5, Origin::Abandoned)),
        ],
    ),
    code(
        "question::without_an_answer_keeps_attempt_fingerprint_and_expiry",
        |t| {
            Box::pin(async move {
                let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
                let last = claim(&given.id)
                    .with_fingerprint(print("one")?)
                    .with_hold(LONG * 7);
                let (claimed, _) = t.timed(t.own(&last)).await?;
                t.pass(t.unit() / 2).await;
                t.store.release(&unanswered(&last)).await?;
                let seen = t.look(&last.id).await?;
                let info = seen
                    .info
                    .ok_or_else(|| broken("the abandoned record is gone"))?;
                same(
                    "the record then",
                    (info.attempt, info.fingerprint),
                    (2, print("one")?),
                )?;
                t.counted_down("its expiry", info.expires_in, (LONG * 7, claimed), seen.at)
            })
        },
    ),
    lines(
        "question::is_not_counted",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            GetsNoAnswer(C, Held),
            Claims(D, Owned(4, Origin::Abandoned)),
            GetsNoAnswer(D, Held),
            Claims(E.with(&[AtMost(1)]), Exhausted(1)),
            Claims(E.with(&[AtMost(2)]), Owned(5, Origin::Abandoned)),
        ],
    ),
    lines(
        "question::sent_again_is_counted_once",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            GivesUp(C, Held),
            Claims(D.with(&[AtMost(2)]), Exhausted(2)),
        ],
    ),
    lines(
        "question::is_not_counted_after_a_release",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            Releases(C, Held),
            Claims(D.with(&[AtMost(2)]), Exhausted(2)),
            Claims(D.with(&[AtMost(3)]), Owned(4, Origin::Released)),
            Claims(E.with(&[AtMost(9)]), FindsInFlight(4)),
        ],
    ),
    lines(
        "question::is_not_counted_after_a_renewal",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            Renews(C, Held),
            Renews(C.with(&[Hold(EIGHTFOLD)]), Held),
            GivesUp(C, Held),
            Claims(D.with(&[AtMost(2)]), Exhausted(2)),
            Claims(D.with(&[AtMost(3)]), Owned(4, Origin::Abandoned)),
        ],
    ),
    lines(
        "question::is_not_counted_after_a_claim_that_was_undone",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GetsNoAnswer(B, Held),
            Claims(C, Owned(3, Origin::Abandoned)),
            Undoes(C, Held),
            Claims(D.with(&[AtMost(1)]), Exhausted(1)),
            Releases(B, Held),
            Claims(E, Owned(3, Origin::Released)),
            Undoes(E, Held),
            Claims(F.with(&[AtMost(1)]), Exhausted(1)),
        ],
    ),
    lines(
        "question::by_a_stranger_is_lost",
        &[
            Given(&[InFlight, Abandoned, Released, Committed]),
            Look,
            GetsNoAnswer(B, Lost),
            Unchanged,
        ],
    ),
];
