//! The steps of a store. Each is one statement, or a read and then one statement that applies only
//! if nothing has changed since. No transaction stays open between two messages, so a caller that
//! stops between them blocks no row.

use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::record::{
    Claim, Claimed, Commit, InFlight, Issue, Issued, OnClaim, OnStep, Origin, Ownership, RanOut,
    Record, RecordId, RecordInfo, Release, Removed, Renewal,
};
use tokio::time::sleep;

use super::super::dialect::{Conn, Dialect, Guard, LeaseRenewal, RENEWALS};
use super::super::executor::clock::{DatabaseClock, Lapsed};
use super::super::executor::duplicates::{Duplicates, Expected};
use super::super::executor::errors::{StepError, contended, locked};
use super::super::executor::{Executor, Resend};
use crate::row::{Columns, FoundRow, Row, millis};

/// How often a row may change under a step.
pub(crate) const ROUNDS: usize = 16;
/// How many tokens are issued in one step.
const ISSUES: usize = 200;
/// The pauses between attempts to renew leases whose rows are locked. Usually another caller's step
/// holds the lock until it is committed, which takes tens of milliseconds on a slow disk or a busy
/// server. The answers for the other leases wait too, so the sum is far below a short lease.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
];

pub(crate) async fn claim<D: Dialect>(
    executor: &Arc<Executor<D>>,
    claim: &Claim,
) -> Result<Claimed, StoreError> {
    let claim = Arc::new(claim.clone());
    let clock = executor.clock.clone();
    let duplicates = executor.duplicates.clone();
    let mut expected = duplicates.expected(&claim.id);
    // A duplicate writes nothing, so it need not wait for steps that do.
    if executor.reads_first(expected) {
        let looking = claim.clone();
        let answer = executor.read_step(move |dialect, on| {
            let claim = looking.clone();
            Box::pin(async move { answer_on(dialect, on, &claim).await })
        });
        if let Some(claimed) = answer.await? {
            duplicates.note(&claim.id, true);
            return Ok(claimed);
        }
        expected = Expected::Unknown;
    }
    executor
        .step(Resend::Harmless, move |dialect, on| {
            let claim = claim.clone();
            let clock = clock.clone();
            let duplicates = duplicates.clone();
            Box::pin(async move {
                if let Some(claimed) = claim_as_expected(dialect, on, &claim, expected).await? {
                    duplicates.note(&claim.id, expected == Expected::Record);
                    return Ok(claimed);
                }
                claim_on(dialect, on, &clock, &duplicates, &claim).await
            })
        })
        .await
}

/// Returns the answer to a claim that finds what is expected, or `None` if it does not. Then it has
/// written nothing.
async fn claim_as_expected<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
    expected: Expected,
) -> Result<Option<Claimed>, StepError> {
    match (expected, claim.on_nothing()) {
        (Expected::Record, _) => answer_on(dialect, on, claim).await,
        (Expected::Nothing, OnClaim::Take(first)) => {
            let is_written = dialect
                .insert_new(on, &claim.id, &in_flight(&first))
                .await?;
            Ok(is_written.then_some(Claimed::Owned {
                attempt: first.attempt,
                from: first.origin,
            }))
        }
        _ => Ok(None),
    }
}

/// Returns the answer to a claim that writes nothing, or `None` if this one may write.
async fn answer_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
) -> Result<Option<Claimed>, StepError> {
    let Some(row) = dialect.read(on, &claim.id).await? else {
        return Ok(None);
    };
    let FoundRow {
        record,
        left,
        revision,
        ..
    } = row.read()?;
    Ok(match claim_step(claim, record.as_ref(), left, revision) {
        ClaimStep::Answer(claimed) => Some(claimed),
        ClaimStep::Put(..) | ClaimStep::IfLapsed(..) => None,
    })
}

async fn claim_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    duplicates: &Duplicates,
    claim: &Claim,
) -> Result<Claimed, StepError> {
    for _ in 0..ROUNDS {
        let found = match claim.on_nothing() {
            OnClaim::Take(first) => {
                let first = in_flight(&first);
                match dialect.insert(on, &claim.id, &first).await? {
                    Some(row) => {
                        duplicates.note(&claim.id, row.revision != first.revision);
                        Some(row)
                    }
                    // Removed in between, or written by a transaction that this one does not see.
                    None => continue,
                }
            }
            _ => dialect.read(on, &claim.id).await?,
        };
        let Some(row) = found else {
            return answer(claim.on_nothing());
        };
        let (next, guard) = match decide(dialect, on, clock, claim, row).await? {
            Ok(over) => over,
            Err(claimed) => return Ok(claimed),
        };
        if dialect.put(on, &claim.id, guard, &in_flight(&next)).await? {
            return Ok(Claimed::Owned {
                attempt: next.attempt,
                from: next.origin,
            });
        }
    }
    Err(contended(ROUNDS).into())
}

/// Returns what a claim writes over a row if the row has not changed, or the claim's answer.
pub(crate) async fn decide<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    claim: &Claim,
    row: Row,
) -> Result<Result<(InFlight, Guard), Claimed>, StepError> {
    let FoundRow {
        record,
        left,
        revision,
        ..
    } = row.read()?;
    Ok(match claim_step(claim, record.as_ref(), left, revision) {
        ClaimStep::Answer(claimed) => Err(claimed),
        ClaimStep::Put(next, guard) => Ok((next, guard)),
        ClaimStep::IfLapsed(lapsed, then) => match clock.doubt(dialect, on, lapsed).await? {
            Some(doubt) => Err(lapsed.answer(doubt)),
            None => then,
        },
    })
}

/// The decision of a claim about a row.
pub(crate) enum ClaimStep {
    /// Writes nothing.
    Answer(Claimed),
    /// Overwrites the row if it has not changed.
    Put(InFlight, Guard),
    /// The lease has expired by the database's clock. If it has by the store's own clock too,
    /// overwrites the row or answers.
    IfLapsed(Lapsed, Result<(InFlight, Guard), Claimed>),
}

/// Decides what a claim does with a row's record, which has this time left.
pub(crate) fn claim_step(
    claim: &Claim,
    record: Option<&Record>,
    left: Duration,
    revision: i64,
) -> ClaimStep {
    match record.map_or_else(|| claim.on_nothing(), |record| record.on_claim(claim)) {
        OnClaim::Answer(claimed) => ClaimStep::Answer(claimed),
        OnClaim::Take(next) => ClaimStep::Put(next, Guard::Revision(revision)),
        OnClaim::IfLeaseRanOut { attempt, then } => {
            if let Some(lease_left) = record.and_then(|record| record.lease_left(left)) {
                return ClaimStep::Answer(Claimed::InFlight {
                    attempt,
                    lease_left,
                });
            }
            let age = record.map_or(Duration::ZERO, |record| record.lease_age(left));
            let lapsed = record.and_then(|record| Lapsed::find(record, left));
            let lapsed = lapsed.map(|lapsed| match &then {
                RanOut::IfSilentFor { age: least, .. } if *least <= age => {
                    lapsed.silent_for(*least)
                }
                _ => lapsed,
            });
            match (lapsed, then.at_age(age)) {
                (Some(lapsed), then) => {
                    ClaimStep::IfLapsed(lapsed, then.map(|next| (next, Guard::RanOut(revision))))
                }
                (None, Ok(next)) => ClaimStep::Put(next, Guard::RanOut(revision)),
                (None, Err(claimed)) => ClaimStep::Answer(claimed),
            }
        }
        OnClaim::IfIssueLives { grace, .. } if left <= grace => {
            ClaimStep::Answer(Claimed::IssueExpired)
        }
        OnClaim::IfIssueLives { then, .. } => ClaimStep::Put(then, Guard::Revision(revision)),
    }
}

fn answer(decided: OnClaim) -> Result<Claimed, StepError> {
    match decided {
        OnClaim::Answer(claimed) => Ok(claimed),
        _ => Err(contended(ROUNDS).into()),
    }
}

pub(crate) fn in_flight(held: &InFlight) -> Columns {
    Columns::new(
        &Record::InFlight(held.clone()),
        Some(held.hold),
        Duration::ZERO,
    )
}

pub(crate) async fn issue<D: Dialect>(
    executor: &Arc<Executor<D>>,
    issues: &[Issue],
) -> Vec<Result<Issued, StoreError>> {
    let mut answers = Vec::with_capacity(issues.len());
    for batch in issues.chunks(ISSUES) {
        let storable: Arc<[Issue]> = batch.iter().map(storable).collect();
        let step = executor.step(Resend::Harmless, move |dialect, on| {
            let storable = storable.clone();
            Box::pin(async move { issue_all_on(dialect, on, &storable).await })
        });
        match step.await {
            Ok(each) => answers.extend(each),
            Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

/// Returns a copy whose lengths of time a row can hold.
fn storable(issue: &Issue) -> Issue {
    let rounded = |length| Duration::from_millis(millis(length).unsigned_abs());
    Issue::new(issue.id.clone(), rounded(issue.ttl)).with_grace(rounded(issue.grace))
}

async fn issue_all_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    issues: &[Issue],
) -> Result<Vec<Result<Issued, StoreError>>, StepError> {
    let columns =
        |issue: &Issue| Columns::new(&issue.record(), Some(issue.expires_in()), Duration::ZERO);
    let rows: Vec<_> = issues
        .iter()
        .map(|issue| (issue.id.clone(), columns(issue)))
        .collect();
    let written = dialect.insert_all(on, &rows).await?;
    let mut answers = Vec::with_capacity(issues.len());
    for (issue, (_, columns)) in issues.iter().zip(&rows) {
        if written.contains(&columns.revision) {
            answers.push(Ok(Issued::Issued));
            continue;
        }
        answers.push(match issue_on(dialect, on, issue, columns).await {
            Ok(answer) => Ok(answer),
            // Only this issue has failed.
            Err(StepError::Store(error)) => Err(error),
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
) -> Result<Issued, StepError> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect.insert(on, &issue.id, columns).await? else {
            continue;
        };
        if row.revision == columns.revision {
            return Ok(Issued::Issued);
        }
        let FoundRow {
            record, revision, ..
        } = row.read()?;
        match record {
            Some(record) => return Ok(record.on_issue(issue)),
            None if dialect
                .put(on, &issue.id, Guard::Revision(revision), columns)
                .await? =>
            {
                return Ok(Issued::Issued);
            }
            None => {}
        }
    }
    Err(contended(ROUNDS).into())
}

pub(crate) async fn commit<D: Dialect>(
    executor: &Arc<Executor<D>>,
    commit: &Commit,
) -> Result<Ownership, StoreError> {
    let id = commit.id.clone();
    let commit = Arc::new(commit.clone());
    let held = executor
        .step(Resend::Harmless, move |dialect, on| {
            let commit = commit.clone();
            Box::pin(
                async move { commit_on(dialect, on, &commit, Guard::Owner(commit.owner)).await },
            )
        })
        .await?;
    if held == Ownership::Held {
        executor.waiters.wake(id.as_str());
    }
    Ok(held)
}

pub(crate) async fn commit_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    commit: &Commit,
    guard: Guard,
) -> Result<Ownership, StepError> {
    for _ in 0..ROUNDS {
        if let Some(columns) = outcome_columns(commit)
            && dialect.put(on, &commit.id, guard, &columns).await?
        {
            return Ok(Ownership::Held);
        }
        // The record was committed before, belongs to another owner, or is gone.
        let Some(row) = dialect.read(on, &commit.id).await? else {
            return Ok(Ownership::Lost);
        };
        let Some(record) = row.read()?.record else {
            return Ok(Ownership::Lost);
        };
        if let OnStep::Answer(ownership) = record.on_commit(commit) {
            return Ok(ownership);
        }
    }
    Err(contended(ROUNDS).into())
}

/// Returns what a commit writes over the record of its owner.
pub(crate) fn outcome_columns(commit: &Commit) -> Option<Columns> {
    match claimed(commit).on_commit(commit) {
        OnStep::Put {
            record,
            expires_in,
            then_done,
        } => Some(Columns::new(&record, expires_in, then_done)),
        OnStep::Remove | OnStep::Answer(_) => None,
    }
}

/// Returns a record that the owner of a commit holds. A commit compares only its owner.
fn claimed(commit: &Commit) -> Record {
    let Commit {
        owner,
        attempt,
        fingerprint,
        ..
    } = *commit;
    let lease = Duration::ZERO;
    let hold = Duration::ZERO;
    Record::InFlight(
        InFlight::new(owner, attempt, Origin::Nothing, lease, hold).with_fingerprint(fingerprint),
    )
}

pub(crate) async fn release<D: Dialect>(
    executor: &Arc<Executor<D>>,
    release: &Release,
) -> Result<Ownership, StoreError> {
    let id = release.id.clone();
    let release = release.clone();
    // A second time, the answer would be `Lost`.
    let held = executor
        .step(Resend::Never, move |dialect, on| {
            let release = release.clone();
            Box::pin(async move { release_on(dialect, on, &release).await })
        })
        .await?;
    if held == Ownership::Held {
        executor.waiters.wake(id.as_str());
    }
    Ok(held)
}

async fn release_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    release: &Release,
) -> Result<Ownership, StepError> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect
            .read(on, &release.id)
            .await
            .map_err(StepError::Unsent)?
        else {
            return Ok(Ownership::Lost);
        };
        let FoundRow {
            record, revision, ..
        } = row.read()?;
        let Some(record) = record else {
            return Ok(Ownership::Lost);
        };
        let done = match record.on_release(release) {
            OnStep::Answer(ownership) => return Ok(ownership),
            OnStep::Put {
                record,
                expires_in,
                then_done,
            } => {
                let columns = Columns::new(&record, expires_in, then_done);
                dialect
                    .put(on, &release.id, Guard::Revision(revision), &columns)
                    .await?
            }
            OnStep::Remove => dialect.remove(on, &release.id, revision).await?,
        };
        if done {
            return Ok(Ownership::Held);
        }
    }
    Err(contended(ROUNDS).into())
}

pub(crate) async fn renew<D: Dialect>(
    executor: &Arc<Executor<D>>,
    renewals: &[Renewal],
) -> Vec<Result<Ownership, StoreError>> {
    let mut answers = Vec::with_capacity(renewals.len());
    for batch in renewals.chunks(RENEWALS) {
        let to_lease = |renewal: &Renewal| LeaseRenewal {
            id: renewal.id.clone(),
            owner: renewal.owner,
            hold: millis(renewal.hold).max(1),
        };
        let leases: Arc<[LeaseRenewal]> = batch.iter().map(to_lease).collect();
        // If this comes too late, the owner's body is stopped.
        let step = executor.urgent_step(move |dialect, on| {
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
    leases: &[LeaseRenewal],
) -> Result<Vec<Result<Ownership, StoreError>>, StepError> {
    let mut answers: Vec<_> = leases.iter().map(|_| Err(locked())).collect();
    let mut locked_leases: Vec<_> = leases.iter().zip(&mut answers).collect();
    let mut pauses = PAUSES.iter();
    loop {
        let leases: Vec<_> = locked_leases.iter().map(|(lease, _)| *lease).collect();
        let renewed = dialect.renew(on, &leases).await?;
        for ((lease, answer), is_renewed) in
            std::mem::take(&mut locked_leases).into_iter().zip(renewed)
        {
            if is_renewed {
                *answer = Ok(Ownership::Held);
                continue;
            }
            match dialect
                .read(on, &lease.id)
                .await?
                .map(Row::read)
                .transpose()
            {
                Ok(Some(FoundRow {
                    record: Some(Record::InFlight(held)),
                    ..
                })) if held.owner == lease.owner => {
                    locked_leases.push((lease, answer));
                }
                // It belongs to another owner, or is gone.
                Ok(_) => *answer = Ok(Ownership::Lost),
                Err(error) => *answer = Err(error),
            }
        }
        match pauses.next() {
            Some(pause) if !locked_leases.is_empty() => sleep(*pause).await,
            _ => return Ok(answers),
        }
    }
}

pub(crate) async fn inspect<D: Dialect>(
    executor: &Arc<Executor<D>>,
    id: &RecordId,
) -> Result<Option<RecordInfo>, StoreError> {
    let id = id.clone();
    executor
        .step(Resend::Reads, move |dialect, on| {
            let id = id.clone();
            Box::pin(async move {
                let Some(row) = dialect.read(on, &id).await? else {
                    return Ok(None);
                };
                let FoundRow { record, left, .. } = row.read()?;
                Ok(record.map(|record| RecordInfo::new(&record, left)))
            })
        })
        .await
}

pub(crate) async fn remove<D: Dialect>(
    executor: &Arc<Executor<D>>,
    id: &RecordId,
) -> Result<Removed, StoreError> {
    let id = id.clone();
    let clock = executor.clock.clone();
    executor
        .step(Resend::Never, move |dialect, on| {
            let id = id.clone();
            let clock = clock.clone();
            Box::pin(async move { remove_on(dialect, on, &clock, &id).await })
        })
        .await
}

async fn remove_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    id: &RecordId,
) -> Result<Removed, StepError> {
    for _ in 0..ROUNDS {
        let Some(row) = dialect.read(on, id).await.map_err(StepError::Unsent)? else {
            return Ok(Removed::Nothing);
        };
        let FoundRow {
            record,
            left,
            revision,
            ..
        } = row.read()?;
        let Some(record) = record else {
            return Ok(Removed::Nothing);
        };
        if let Some(lapsed) = Lapsed::find(&record, left)
            && let Some(lease_left) = clock
                .doubt(dialect, on, lapsed)
                .await
                .map_err(StepError::Unsent)?
        {
            return Ok(Removed::InFlight { lease_left });
        }
        match record.on_remove(left) {
            Removed::Removed if dialect.remove(on, id, revision).await? => {
                return Ok(Removed::Removed);
            }
            Removed::Removed => {}
            other => return Ok(other),
        }
    }
    Err(contended(ROUNDS).into())
}
