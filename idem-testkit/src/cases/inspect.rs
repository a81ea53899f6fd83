//! What is said of a record in each state.

use idem_core::record::{RecordInfo, RecordState};

use crate::bench::{LONG, abandon, claim, commit, print, release};
use crate::check::{Failure, broken, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("inspect::nothing", |t| {
        Box::pin(async move {
            same(
                "a record that was never made",
                t.store.inspect(&t.id()?).await?,
                None,
            )
        })
    }),
    code("inspect::in_flight", |t| {
        Box::pin(async move {
            let claim = claim(&t.id()?)
                .with_fingerprint(print("one")?)
                .with_hold(LONG * 3);
            let (claimed, _) = t.timed(t.own(&claim)).await?;
            t.pass(t.unit() / 2).await;
            let seen = t.look(&claim.id).await?;
            let info = found(seen.info)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::InFlight, 1),
            )?;
            same("the fingerprint", info.fingerprint, claim.fingerprint)?;
            let (Some(age), Some(left)) = (info.lease_age, info.lease_left) else {
                return Err(broken(format!("a record in flight has a lease: {info:?}")));
            };
            t.counted_up("lease_age", age, claimed, seen.at)?;
            t.counted_down("lease_left", left, (LONG, claimed), seen.at)?;
            t.counted_down("expires_in", info.expires_in, (LONG * 3, claimed), seen.at)
        })
    }),
    code("inspect::in_flight_of_a_later_attempt", |t| {
        Box::pin(async move {
            let given = t.given_with(RecordState::Released, print("one")?).await?;
            let second = claim(&given.id).with_fingerprint(print("two")?);
            t.own(&second).await?;
            let info = found(t.store.inspect(&given.id).await?)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::InFlight, 2),
            )?;
            same("the fingerprint", info.fingerprint, second.fingerprint)
        })
    }),
    code("inspect::released", |t| {
        Box::pin(async move {
            let given = t.given_with(RecordState::InFlight, print("one")?).await?;
            let (released, _) = t.timed(t.store.release(&release(&given.claim))).await?;
            t.pass(t.unit() / 2).await;
            let seen = t.look(&given.id).await?;
            let info = found(seen.info)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::Released, 1),
            )?;
            same("the fingerprint", info.fingerprint, None)?;
            same("the lease", (info.lease_age, info.lease_left), (None, None))?;
            t.counted_down("expires_in", info.expires_in, (LONG, released), seen.at)
        })
    }),
    code("inspect::abandoned", |t| {
        Box::pin(async move {
            let claim = claim(&t.id()?)
                .with_fingerprint(print("one")?)
                .with_lease(t.unit())
                .with_hold(LONG * 3);
            let (claimed, _) = t.timed(t.own(&claim)).await?;
            t.pass_until(t.unit(), &claim.id, Some(RecordState::Abandoned))
                .await?;
            let seen = t.look(&claim.id).await?;
            let info = found(seen.info)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::Abandoned, 1),
            )?;
            same("the fingerprint", info.fingerprint, claim.fingerprint)?;
            same("what is left of the lease", info.lease_left, None)?;
            let age = info
                .lease_age
                .ok_or_else(|| broken(format!("an abandoned record has an age: {info:?}")))?;
            t.counted_up("lease_age", age, claimed, seen.at)?;
            t.counted_down("expires_in", info.expires_in, (LONG * 3, claimed), seen.at)
        })
    }),
    code("inspect::given_up", |t| {
        Box::pin(async move {
            let given = t.given_with(RecordState::InFlight, print("one")?).await?;
            t.store.release(&abandon(&given.claim)).await?;
            let info = found(t.store.inspect(&given.id).await?)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::Abandoned, 1),
            )?;
            same("the fingerprint", info.fingerprint, given.claim.fingerprint)?;
            same("what is left of the lease", info.lease_left, None)
        })
    }),
    code("inspect::committed", |t| {
        Box::pin(async move {
            for remember in [LONG, LONG * 2] {
                let given = t.given_with(RecordState::InFlight, print("one")?).await?;
                let (committed, _) = t
                    .timed(t.store.commit(&given.commit.with_remember(remember)))
                    .await?;
                t.pass(t.unit() / 2).await;
                let seen = t.look(&given.id).await?;
                let info = found(seen.info)?;
                same(
                    "the state",
                    (info.state, info.attempt),
                    (RecordState::Committed, 1),
                )?;
                same("the fingerprint", info.fingerprint, given.claim.fingerprint)?;
                same("the lease", (info.lease_age, info.lease_left), (None, None))?;
                t.counted_down("expires_in", info.expires_in, (LONG, committed), seen.at)?;
            }
            Ok(())
        })
    }),
    // With an outcome that is kept as long as the record, and with one that ends before it: a store
    // may keep the two apart.
    code("inspect::committed_gives_the_outcome", |t| {
        Box::pin(async move {
            for (remember, is_error) in [
                (LONG, false),
                (LONG * 2, false),
                (LONG, true),
                (LONG * 2, true),
            ] {
                let given = t.given(RecordState::InFlight).await?;
                let outcome = given
                    .commit
                    .outcome
                    .clone()
                    .map(|outcome| outcome.with_is_error(is_error));
                let commit = given
                    .commit
                    .with_remember(remember)
                    .with_outcome(outcome.clone());
                t.store.commit(&commit).await?;
                let info = found(t.store.inspect(&given.id).await?)?;
                same(
                    "the state",
                    (info.state, info.is_error),
                    (RecordState::Committed, is_error),
                )?;
                same("the outcome", info.outcome, outcome)?;
            }
            Ok(())
        })
    }),
    code("inspect::no_outcome_but_of_a_committed_record", |t| {
        Box::pin(async move {
            for state in [
                RecordState::InFlight,
                RecordState::Released,
                RecordState::Abandoned,
                RecordState::Done,
            ] {
                let given = t.given(state).await?;
                let info = found(t.store.inspect(&given.id).await?)?;
                same(
                    &format!("the outcome of a record that is {state:?}"),
                    (info.is_error, info.outcome),
                    (false, None),
                )?;
            }
            Ok(())
        })
    }),
    code("inspect::done", |t| {
        Box::pin(async move {
            let claim = claim(&t.id()?).with_fingerprint(print("one")?);
            t.own(&claim).await?;
            let commit = commit(&claim, 1).with_ttl(t.unit()).with_remember(LONG * 3);
            let (committed, _) = t.timed(t.store.commit(&commit)).await?;
            t.pass_until(t.unit(), &claim.id, Some(RecordState::Done))
                .await?;
            let seen = t.look(&claim.id).await?;
            let info = found(seen.info)?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::Done, 1),
            )?;
            same("the fingerprint", info.fingerprint, claim.fingerprint)?;
            same("the lease", (info.lease_age, info.lease_left), (None, None))?;
            t.counted_down(
                "expires_in",
                info.expires_in,
                (LONG * 3, committed),
                seen.at,
            )
        })
    }),
    code("inspect::changes_nothing", |t| {
        Box::pin(async move {
            let every = [
                RecordState::InFlight,
                RecordState::Released,
                RecordState::Abandoned,
                RecordState::Committed,
                RecordState::Done,
            ];
            for state in every {
                let given = t.given(state).await?;
                let before = t.look(&given.id).await?;
                t.pass(t.unit() / 8).await;
                t.store.inspect(&given.id).await?;
                t.unchanged(&format!("a record that is {state:?}"), &given.id, &before)
                    .await?;
            }
            Ok(())
        })
    }),
    code("inspect::by_another_handle", |t| {
        Box::pin(async move {
            for given in t.both_committed(print("one")?).await? {
                let info = found(t.second().await?.inspect(&given.id).await?)?;
                let found = (info.state, info.attempt, info.fingerprint);
                same(
                    "the record",
                    found,
                    (RecordState::Committed, 1, given.claim.fingerprint),
                )?;
            }
            Ok(())
        })
    }),
];

fn found(info: Option<RecordInfo>) -> Result<RecordInfo, Failure> {
    info.ok_or_else(|| broken("there is a record, and it was not found"))
}
