//! The steps of a store. Each is one statement, or a read and then one statement that applies only
//! if nothing has changed since. No transaction stays open between two messages, so a caller that
//! is stopped there blocks no row.

use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::record::{
    Claim, Claimed, Commit, InFlight, Issue, Issued, OnClaim, OnStep, Origin, Ownership, RanOut, Record, RecordId,
    RecordInfo, Release, Removed, Renewal,
};
use tokio::time::sleep;

use super::clock::{DatabaseClock, Lapsed};
use super::core::Core;
use super::dialect::{Conn, Dialect, Guard, Kept};
use super::fault::{Stopped, contended, locked};
use crate::columns::{Columns, FoundRow, Row, millis};

/// How often a row may change under a step.
pub(crate) const ROUNDS: usize = 16;
/// How many tokens are issued in one step.
const ISSUES: usize = 200;
/// How many leases are renewed in one step.
pub(crate) const RENEWALS: usize = 200;
/// The pauses between tries to renew leases whose rows are locked, most often by another caller's
/// step, until that is committed: on a slow disk or a busy server, tens of milliseconds. Together
/// well below a short lease, because the answers for the other leases of the step wait too.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
];

pub(crate) async fn claim<D: Dialect>(core: &Arc<Core<D>>, claim: &Claim) -> Result<Claimed, StoreError> {
    let (claim, clock) = (Arc::new(claim.clone()), core.clock.clone());
    // A duplicate writes nothing, and so does not wait behind those that do.
    if core.looks_first() {
        let looking = claim.clone();
        let answer = core.look(move |dialect, on| {
            let claim = looking.clone();
            Box::pin(async move { answer_on(dialect, on, &claim).await })
        });
        if let Some(claimed) = answer.await? {
            return Ok(claimed);
        }
    }
    core.step(true, move |dialect, on| {
        let (claim, clock) = (claim.clone(), clock.clone());
        Box::pin(async move { claim_on(dialect, on, &clock, &claim).await })
    })
    .await
}

/// The answer to a claim that has nothing to write.
async fn answer_on<D: Dialect>(dialect: &D, on: &mut Conn<D>, claim: &Claim) -> Result<Option<Claimed>, Stopped> {
    let Some(row) = dialect.read(on, &claim.id).await? else { return Ok(None) };
    let FoundRow { record, left, revision, .. } = row.found()?;
    Ok(match next(claim, record.as_ref(), left, revision) {
        Next::Answer(claimed) => Some(claimed),
        Next::Put(..) | Next::IfLapsed(..) => None,
    })
}

async fn claim_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    claim: &Claim,
) -> Result<Claimed, Stopped> {
    for _ in 0..ROUNDS {
        let found = match claim.on_nothing() {
            OnClaim::Take(first) => match dialect.insert(on, &claim.id, &in_flight(&first)).await? {
                Some(row) => Some(row),
                // Removed in between, or written by a transaction that this one does not see.
                None => continue,
            },
            _ => dialect.read(on, &claim.id).await?,
        };
        let Some(row) = found else { return answer(claim.on_nothing()) };
        let FoundRow { record, left, revision, .. } = row.found()?;
        let (next, guard) = match next(claim, record.as_ref(), left, revision) {
            Next::Answer(claimed) => return Ok(claimed),
            Next::Put(next, guard) => (next, guard),
            Next::IfLapsed(lapsed, then) => match (clock.doubt(dialect, on, lapsed).await?, then) {
                (Some(doubt), _) => return Ok(lapsed.answer(doubt)),
                (None, Ok(over)) => over,
                (None, Err(claimed)) => return Ok(claimed),
            },
        };
        if dialect.put(on, &claim.id, guard, &in_flight(&next)).await? {
            return Ok(Claimed::Owned { attempt: next.attempt, from: next.origin });
        }
    }
    Err(contended(ROUNDS).into())
}

/// The result of a claim on a row.
pub(crate) enum Next {
    /// Nothing is written.
    Answer(Claimed),
    /// This is written over it, if it is still so.
    Put(InFlight, Guard),
    /// The lease ran out by the database's clock. If it did by the store's own clock too, this is
    /// written over it, or answered.
    IfLapsed(Lapsed, Result<(InFlight, Guard), Claimed>),
}

/// Decides what a claim does with a row's record, which has this time left.
pub(crate) fn next(claim: &Claim, record: Option<&Record>, left: Duration, revision: i64) -> Next {
    match record.map_or_else(|| claim.on_nothing(), |record| record.on_claim(claim)) {
        OnClaim::Answer(claimed) => Next::Answer(claimed),
        OnClaim::Take(next) => Next::Put(next, Guard::Revision(revision)),
        OnClaim::IfLeaseRanOut { attempt, then } => {
            if let Some(lease_left) = record.and_then(|record| record.lease_left(left)) {
                return Next::Answer(Claimed::InFlight { attempt, lease_left });
            }
            let age = record.map_or(Duration::ZERO, |record| record.lease_age(left));
            let lapsed = record.and_then(|record| Lapsed::of(record, left));
            let lapsed = lapsed.map(|lapsed| match &then {
                RanOut::IfSilentFor { age: least, .. } if *least <= age => lapsed.silent_for(*least),
                _ => lapsed,
            });
            match (lapsed, then.at_age(age)) {
                (Some(lapsed), then) => Next::IfLapsed(lapsed, then.map(|next| (next, Guard::RanOut(revision)))),
                (None, Ok(next)) => Next::Put(next, Guard::RanOut(revision)),
                (None, Err(claimed)) => Next::Answer(claimed),
            }
        }
        OnClaim::IfIssueLives { grace, .. } if left <= grace => Next::Answer(Claimed::IssueExpired),
        OnClaim::IfIssueLives { then, .. } => Next::Put(then, Guard::Revision(revision)),
    }
}

fn answer(decided: OnClaim) -> Result<Claimed, Stopped> {
    match decided {
        OnClaim::Answer(claimed) => Ok(claimed),
        _ => Err(contended(ROUNDS).into()),
    }
}

pub(crate) fn in_flight(held: &InFlight) -> Columns {
    Columns::new(&Record::InFlight(held.clone()), Some(held.hold), Duration::ZERO)
}

pub(crate) async fn issue<D: Dialect>(core: &Arc<Core<D>>, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
    let mut answers = Vec::with_capacity(issues.len());
    for batch in issues.chunks(ISSUES) {
        let kept: Arc<[Issue]> = batch.iter().map(as_kept).collect();
        let step = core.step(true, move |dialect, on| {
            let kept = kept.clone();
            Box::pin(async move { issue_all_on(dialect, on, &kept).await })
        });
        match step.await {
            Ok(each) => answers.extend(each),
            Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

/// With lengths as a row can hold them.
fn as_kept(issue: &Issue) -> Issue {
    let kept = |length| Duration::from_millis(millis(length).unsigned_abs());
    Issue::new(issue.id.clone(), kept(issue.ttl)).with_grace(kept(issue.grace))
}

async fn issue_all_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    issues: &[Issue],
) -> Result<Vec<Result<Issued, StoreError>>, Stopped> {
    let columns = |issue: &Issue| Columns::new(&issue.record(), Some(issue.expires_in()), Duration::ZERO);
    let rows: Vec<_> = issues.iter().map(|issue| (issue.id.clone(), columns(issue))).collect();
    let written = dialect.insert_all(on, &rows).await?;
    let mut answers = Vec::with_capacity(issues.len());
    for (issue, (_, columns)) in issues.iter().zip(&rows) {
        if written.contains(&columns.revision) {
            answers.push(Ok(Issued::Issued));
            continue;
        }
        answers.push(match issue_on(dialect, on, issue, columns).await {
            Ok(answer) => Ok(answer),
            // Of this one alone.
            Err(Stopped::Store(error)) => Err(error),
            Err(error) => return Err(error),
        });
    }
    Ok(answers)
}

async fn issue_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    issue: &Issue,
    columns: &Columns,
) -> Result<Issued, Stopped> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect.insert(on, &issue.id, columns).await? else { continue };
        if row.revision == columns.revision {
            return Ok(Issued::Issued);
        }
        let FoundRow { record, revision, .. } = row.found()?;
        match record {
            Some(record) => return Ok(record.on_issue(issue)),
            None if dialect.put(on, &issue.id, Guard::Revision(revision), columns).await? => return Ok(Issued::Issued),
            None => {}
        }
    }
    Err(contended(ROUNDS).into())
}

pub(crate) async fn commit<D: Dialect>(core: &Arc<Core<D>>, commit: &Commit) -> Result<Ownership, StoreError> {
    let id = commit.id.clone();
    let commit = Arc::new(commit.clone());
    let held = core
        .step(true, move |dialect, on| {
            let commit = commit.clone();
            Box::pin(async move { commit_on(dialect, on, &commit).await })
        })
        .await?;
    if held == Ownership::Held {
        core.waiters.wake(id.as_str());
    }
    Ok(held)
}

pub(crate) async fn commit_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    commit: &Commit,
) -> Result<Ownership, Stopped> {
    for _ in 0..ROUNDS {
        if let OnStep::Put { record, expires_in, then_done } = claimed(commit).on_commit(commit) {
            let columns = Columns::new(&record, expires_in, then_done);
            if dialect.put(on, &commit.id, Guard::Owner(commit.owner), &columns).await? {
                return Ok(Ownership::Held);
            }
        }
        // Recorded before, another's, gone.
        let Some(row) = dialect.read(on, &commit.id).await? else { return Ok(Ownership::Lost) };
        let Some(record) = row.found()?.record else { return Ok(Ownership::Lost) };
        if let OnStep::Answer(ownership) = record.on_commit(commit) {
            return Ok(ownership);
        }
    }
    Err(contended(ROUNDS).into())
}

/// A record in flight by the owner of a commit. Of what it says, a commit looks at the owner alone.
fn claimed(commit: &Commit) -> Record {
    let Commit { owner, attempt, fingerprint, .. } = *commit;
    let (lease, hold) = (Duration::ZERO, Duration::ZERO);
    let origin = Origin::Nothing;
    Record::InFlight(InFlight::new(owner, attempt, origin, lease, hold).with_fingerprint(fingerprint))
}

pub(crate) async fn release<D: Dialect>(core: &Arc<Core<D>>, release: &Release) -> Result<Ownership, StoreError> {
    let id = release.id.clone();
    let release = release.clone();
    // Sent again after it was carried out, it would be `Lost`.
    let held = core
        .step(false, move |dialect, on| {
            let release = release.clone();
            Box::pin(async move { release_on(dialect, on, &release).await })
        })
        .await?;
    if held == Ownership::Held {
        core.waiters.wake(id.as_str());
    }
    Ok(held)
}

async fn release_on<D: Dialect>(dialect: &D, on: &mut Conn<D>, release: &Release) -> Result<Ownership, Stopped> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect.read(on, &release.id).await.map_err(Stopped::Unsent)? else {
            return Ok(Ownership::Lost);
        };
        let FoundRow { record, revision, .. } = row.found()?;
        let Some(record) = record else { return Ok(Ownership::Lost) };
        let done = match record.on_release(release) {
            OnStep::Answer(ownership) => return Ok(ownership),
            OnStep::Put { record, expires_in, then_done } => {
                let columns = Columns::new(&record, expires_in, then_done);
                dialect.put(on, &release.id, Guard::Revision(revision), &columns).await?
            }
            OnStep::Remove => dialect.remove(on, &release.id, revision).await?,
        };
        if done {
            return Ok(Ownership::Held);
        }
    }
    Err(contended(ROUNDS).into())
}

pub(crate) async fn renew<D: Dialect>(core: &Arc<Core<D>>, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
    let mut answers = Vec::with_capacity(renewals.len());
    for batch in renewals.chunks(RENEWALS) {
        let kept = |renewal: &Renewal| Kept {
            id: renewal.id.clone(),
            owner: renewal.owner,
            hold: millis(renewal.hold).max(1),
        };
        let leases: Arc<[Kept]> = batch.iter().map(kept).collect();
        // An owner's body is stopped if this comes too late.
        let step = core.urgent_step(move |dialect, on| {
            let leases = leases.clone();
            Box::pin(async move { renew_on(dialect, on, &leases).await })
        });
        match step.await {
            Ok(held) => answers.extend(held),
            Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

async fn renew_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    leases: &[Kept],
) -> Result<Vec<Result<Ownership, StoreError>>, Stopped> {
    let mut answers: Vec<_> = leases.iter().map(|_| Err(locked())).collect();
    let mut left: Vec<_> = leases.iter().zip(&mut answers).collect();
    let mut pauses = PAUSES.iter();
    loop {
        let leases: Vec<_> = left.iter().map(|(lease, _)| *lease).collect();
        let renewed = dialect.renew(on, &leases).await?;
        for ((lease, answer), is_renewed) in std::mem::take(&mut left).into_iter().zip(renewed) {
            if is_renewed {
                *answer = Ok(Ownership::Held);
                continue;
            }
            match dialect.read(on, &lease.id).await?.map(Row::found).transpose() {
                Ok(Some(FoundRow { record: Some(Record::InFlight(held)), .. })) if held.owner == lease.owner => {
                    left.push((lease, answer));
                }
                // Another's, gone, or no record at all.
                Ok(_) => *answer = Ok(Ownership::Lost),
                Err(error) => *answer = Err(error),
            }
        }
        match pauses.next() {
            Some(pause) if !left.is_empty() => sleep(*pause).await,
            _ => return Ok(answers),
        }
    }
}

pub(crate) async fn inspect<D: Dialect>(core: &Arc<Core<D>>, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
    let id = id.clone();
    core.step(true, move |dialect, on| {
        let id = id.clone();
        Box::pin(async move {
            let Some(row) = dialect.read(on, &id).await? else { return Ok(None) };
            let FoundRow { record, left, .. } = row.found()?;
            Ok(record.map(|record| RecordInfo::new(&record, left)))
        })
    })
    .await
}

pub(crate) async fn remove<D: Dialect>(core: &Arc<Core<D>>, id: &RecordId) -> Result<Removed, StoreError> {
    let (id, clock) = (id.clone(), core.clock.clone());
    core.step(false, move |dialect, on| {
        let (id, clock) = (id.clone(), clock.clone());
        Box::pin(async move { remove_on(dialect, on, &clock, &id).await })
    })
    .await
}

async fn remove_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    id: &RecordId,
) -> Result<Removed, Stopped> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect.read(on, id).await.map_err(Stopped::Unsent)? else { return Ok(Removed::Nothing) };
        let FoundRow { record, left, revision, .. } = row.found()?;
        let Some(record) = record else { return Ok(Removed::Nothing) };
        if let Some(lapsed) = Lapsed::of(&record, left)
            && let Some(lease_left) = clock.doubt(dialect, on, lapsed).await.map_err(Stopped::Unsent)?
        {
            return Ok(Removed::InFlight { lease_left });
        }
        match record.on_remove(left) {
            Removed::Removed if dialect.remove(on, id, revision).await? => return Ok(Removed::Removed),
            Removed::Removed => {}
            other => return Ok(other),
        }
    }
    Err(contended(ROUNDS).into())
}
