//! An adapter for tokio-postgres: records of a `PostgresStore`, in transactions of another driver.
//!
//! It writes the table of the store, whose columns the guide on stores describes. What a claim or a
//! commit makes of a record is decided by `Record::on_claim` and `Record::on_commit`.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use idem_core::store::record::{
    Claim, Claimed, Commit, Encoded, InFlight, OnClaim, OnStep, Origin, Owner, Ownership, Record,
    RecordId,
};
use idem_core::store::wire::{self, Parsed};
use idem_core::store::{Began, Opened, OwnRow, RowOwner, Transaction, Transactions, Wish};
use idem_core::{CodecId, Fingerprint, RecordInfo, StoreError, StoreErrorKind};
use idem_sqlx::PostgresStore;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Config, GenericClient, NoTls, Row};

/// A transaction: a `Client` after `BEGIN`, or a `tokio_postgres::Transaction`.
pub(super) struct Tx<C> {
    pub(super) client: C,
    depth: u32,
}

impl<C: GenericClient + Send + Sync> Tx<C> {
    pub(super) fn new(client: C) -> Self {
        Self { client, depth: 0 }
    }

    async fn run(&self, statements: &str) -> Result<(), StoreError> {
        self.client.batch_execute(statements).await.map_err(failed)
    }

    /// Writes over the row that was read, if it is still that one.
    async fn put(&self, claim: &Claim, then: &InFlight, revision: i64) -> Result<bool, StoreError> {
        let update = "UPDATE idem_records SET state = 'in_flight', attempt = $3, owner = $4, \
            origin = $5, \
             leased_at = statement_timestamp(), lease_until = statement_timestamp() + $6::bigint * \
             interval '1 ms', \
             expires_at = statement_timestamp() + $7::bigint * interval '1 ms', valid_until = \
             NULL, fingerprint = $8, \
             is_error = false, codec = NULL, outcome = NULL, took_over = $11, \
             revision = $9, waited = false \
             WHERE operation = $1 AND key = $2 AND revision = $10";
        let operation = claim.id.operation();
        let key = claim.id.key();
        let fingerprint = then.fingerprint.map(|fingerprint| fingerprint.to_string());
        // A claim in a transaction is not undone but rolled back, so of what it took over only the
        // run is kept.
        let run = (then.run() != then.owner).then(|| format!("r{}", then.run()));
        let rows = self
            .client
            .execute(
                update,
                &[
                    &operation,
                    &key,
                    &number(then.attempt),
                    &&then.owner.to_bytes()[..],
                    &origin(then.origin),
                    &millis(then.lease),
                    &millis(then.hold),
                    &fingerprint,
                    &fastrand::i64(..),
                    &revision,
                    &run,
                ],
            )
            .await
            .map_err(failed)?;
        Ok(rows > 0)
    }

    /// Inserts the row where there is none.
    async fn insert(&self, claim: &Claim, first: &InFlight) -> Result<bool, tokio_postgres::Error> {
        let insert = "INSERT INTO idem_records (operation, key, state, attempt, owner, origin, \
            leased_at, lease_until, expires_at, fingerprint, revision) \
             VALUES ($1, $2, 'in_flight', $3, $4, $5, statement_timestamp(), statement_timestamp() \
             + $6::bigint * interval '1 ms', \
             statement_timestamp() + $7::bigint * interval '1 ms', $8, $9) ON CONFLICT DO NOTHING";
        let operation = claim.id.operation();
        let key = claim.id.key();
        let fingerprint = first.fingerprint.map(|fingerprint| fingerprint.to_string());
        let rows = self
            .client
            .execute(
                insert,
                &[
                    &operation,
                    &key,
                    &number(first.attempt),
                    &&first.owner.to_bytes()[..],
                    &origin(first.origin),
                    &millis(first.lease),
                    &millis(first.hold),
                    &fingerprint,
                    &fastrand::i64(..),
                ],
            )
            .await?;
        Ok(rows > 0)
    }

    async fn read(&self, operation: &str, key: &str) -> Result<Option<Row>, StoreError> {
        let select = "SELECT state, attempt, owner, origin, \
             (extract(epoch FROM lease_until - leased_at) * 1000)::bigint, (extract(epoch FROM \
             expires_at - leased_at) * 1000)::bigint, \
             ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint, \
             (extract(epoch FROM expires_at - valid_until) * 1000)::bigint, fingerprint, is_error, \
             codec, outcome, questions, revision, took_over \
             FROM idem_records WHERE operation = $1 AND key = $2";
        self.client
            .query_opt(select, &[&operation, &key])
            .await
            .map_err(failed)
    }

    async fn claimed(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        for _ in 0..16 {
            if let OnClaim::Take(first) = claim.on_nothing() {
                match self.insert(claim, &first).await {
                    Ok(true) => {
                        return Ok(Claimed::Owned {
                            attempt: first.attempt,
                            from: first.origin,
                        });
                    }
                    Ok(false) => {}
                    Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                        return Ok(Claimed::InFlight {
                            attempt: 0,
                            lease_left: Duration::from_secs(1),
                        });
                    }
                    Err(error) => return Err(failed(error)),
                }
            }
            let Some(row) = self.read(claim.id.operation(), claim.id.key()).await? else {
                match claim.on_nothing() {
                    OnClaim::Answer(claimed) => return Ok(claimed),
                    _ => continue,
                }
            };
            let (record, left) = found(&row)?;
            let then = match record
                .as_ref()
                .map_or_else(|| claim.on_nothing(), |record| record.on_claim(claim))
            {
                OnClaim::Answer(claimed) => return Ok(claimed),
                OnClaim::IfLeaseRanOut { attempt, then } => {
                    if let Some(lease_left) =
                        record.as_ref().and_then(|record| record.lease_left(left))
                    {
                        return Ok(Claimed::InFlight {
                            attempt,
                            lease_left,
                        });
                    }
                    match then
                        .at_age(record.map_or(Duration::ZERO, |record| record.lease_age(left)))
                    {
                        Ok(then) => then,
                        Err(claimed) => return Ok(claimed),
                    }
                }
                OnClaim::IfIssueLives { grace, .. } if left <= grace => {
                    return Ok(Claimed::IssueExpired);
                }
                OnClaim::Take(then) | OnClaim::IfIssueLives { then, .. } => then,
            };
            let attempt = then.attempt;
            let from = then.origin;
            if self.put(claim, &then, row.get(13)).await? {
                return Ok(Claimed::Owned { attempt, from });
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the row changes all the time; call again",
        ))
    }
}

impl<C: GenericClient + Send + Sync> Transaction<PostgresStore> for Tx<C> {
    async fn savepoint(&mut self) -> Result<(), StoreError> {
        self.run(&format!("SAVEPOINT idem_{}", self.depth)).await?;
        self.depth += 1;
        Ok(())
    }

    async fn release(&mut self) -> Result<(), StoreError> {
        self.run(&format!("RELEASE SAVEPOINT idem_{}", self.depth - 1))
            .await?;
        self.depth -= 1;
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<(), StoreError> {
        if self.depth == 0 {
            return self.run("ROLLBACK").await;
        }
        let name = format!("idem_{}", self.depth - 1);
        self.run(&format!(
            "ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
        ))
        .await?;
        self.depth -= 1;
        Ok(())
    }

    fn roll_back_later(&mut self) {
        self.depth -= 1;
        let name = format!("idem_{}", self.depth);
        let statements = format!("ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}");
        // tokio-postgres queues a request when its future is polled first, and sends all requests
        // in their order: whatever comes later comes after this.
        let _ = pin!(self.client.batch_execute(&statements))
            .poll(&mut Context::from_waker(Waker::noop()));
    }

    async fn force_rollback(&mut self) -> Result<(), StoreError> {
        self.depth = 0;
        self.run("ROLLBACK; BEGIN").await?;
        // An aborted transaction takes no statement, and its COMMIT is a ROLLBACK.
        let _ = self
            .run("DO $$ BEGIN RAISE EXCEPTION 'this transaction must not be committed'; END $$")
            .await;
        Ok(())
    }

    async fn claim(
        &mut self,
        _: &PostgresStore,
        claim: &Claim,
        wait: Duration,
    ) -> Result<Began<OwnRow>, StoreError> {
        // Zero would be no limit, and less than asked for would end the wait before the caller's
        // does. After an error, the roll-back restores it.
        let limit = format!(
            "{}ms",
            wait.as_micros().div_ceil(1000).clamp(1, 2_000_000_000)
        );
        let select = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', $1, true)";
        let before: String = self
            .client
            .query_one(select, &[&limit])
            .await
            .map_err(failed)?
            .get(0);
        let claimed = self.claimed(claim).await?;
        if !matches!(claimed, Claimed::InFlight { .. }) {
            let select = "SELECT set_config('lock_timeout', $1, true)";
            self.client
                .query_one(select, &[&before])
                .await
                .map_err(failed)?;
        }
        Ok(claimed.into())
    }

    async fn inspect(
        &mut self,
        _: &PostgresStore,
        id: &RecordId,
    ) -> Result<Option<RecordInfo>, StoreError> {
        let Some(row) = self.read(id.operation(), id.key()).await? else {
            return Ok(None);
        };
        let (record, left) = found(&row)?;
        Ok(record.map(|record| RecordInfo::new(&record, left)))
    }

    async fn commit(
        &mut self,
        _: &PostgresStore,
        commit: &Commit,
        _: RowOwner,
    ) -> Result<Ownership, StoreError> {
        let held = InFlight::new(
            commit.owner,
            commit.attempt,
            Origin::Nothing,
            Duration::ZERO,
            Duration::ZERO,
        );
        let held = Record::InFlight(held.with_fingerprint(commit.fingerprint));
        let OnStep::Put {
            record,
            expires_in,
            then_done,
        } = held.on_commit(commit)
        else {
            return Ok(Ownership::Lost);
        };
        let (state, outcome) = match &record {
            Record::Committed { outcome, .. } => ("committed", Some(outcome)),
            _ => ("done", None),
        };
        let update = "UPDATE idem_records SET state = $3, owner = NULL, origin = NULL, leased_at = \
            NULL, lease_until = NULL, \
             expires_at = statement_timestamp() + ($4::bigint + $5::bigint) * interval '1 ms', \
             valid_until = CASE WHEN $5::bigint > 0 THEN statement_timestamp() + $4::bigint * \
             interval '1 ms' END, \
             is_error = $6, codec = $7, outcome = $8, took_over = NULL, revision = $9 \
             WHERE operation = $1 AND key = $2 AND owner = $10 AND state = 'in_flight' RETURNING \
             waited";
        let operation = commit.id.operation();
        let key = commit.id.key();
        let written = self
            .client
            .query_opt(
                update,
                &[
                    &operation,
                    &key,
                    &state,
                    &millis(expires_in.unwrap_or_default()).max(1),
                    &millis(then_done),
                    &outcome.is_some_and(|outcome| outcome.is_error),
                    &outcome.map(|outcome| outcome.codec.as_str().to_owned()),
                    &outcome.map(|outcome| &outcome.payload[..]),
                    &fastrand::i64(..),
                    &&commit.owner.to_bytes()[..],
                ],
            )
            .await
            .map_err(failed)?;
        let Some(row) = written else {
            return Ok(Ownership::Lost);
        };
        if row.get(0) {
            let notify = "SELECT pg_notify('idem.idem_records', $1)";
            self.client
                .query_one(notify, &[&commit.id.as_str()])
                .await
                .map_err(failed)?;
        }
        Ok(Ownership::Held)
    }
}

/// Begins transactions, each on a connection of its own.
pub(super) struct Connecting(pub(super) Config);

impl Transactions<PostgresStore> for Connecting {
    type Transaction = Tx<Client>;

    /// The claim of a wish follows: there is no message that has both.
    async fn begin(
        &self,
        _: Option<&Wish<'_, PostgresStore>>,
    ) -> Result<Began<Opened<Tx<Client>>>, StoreError> {
        let (client, connection) = self.0.connect(NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let transaction = Tx::new(client);
        let row = None;
        Ok(Began::Owner(Opened { transaction, row }))
    }

    async fn commit(transaction: Tx<Client>) -> Result<(), StoreError> {
        transaction.run("COMMIT").await
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        // An error type with `#[error(transparent)]` has the source of the driver's error, and not
        // it.
        let code = match error.downcast_ref::<tokio_postgres::Error>() {
            Some(error) => error.code(),
            None => error.downcast_ref::<DbError>().map(DbError::code),
        };
        has_met_another(code)
    }
}

fn has_met_another(code: Option<&SqlState>) -> bool {
    code.is_some_and(|code| {
        [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
        ]
        .contains(code)
    })
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    let kind = match &error {
        error if has_met_another(error.code()) => StoreErrorKind::Conflict,
        error if error.is_closed() => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Refused,
    };
    StoreError::new(kind, error.to_string()).with_source(error)
}

/// The record that a row is, `None` if it has expired, and how long it is that.
fn found(row: &Row) -> Result<(Option<Record>, Duration), StoreError> {
    let damaged =
        |column: &str| StoreError::new(StoreErrorKind::Unreadable, format!("the column {column}"));
    let length = |millis: i64| {
        u64::try_from(millis)
            .map(Duration::from_millis)
            .unwrap_or_default()
    };
    let left = length(row.get(6));
    if left.is_zero() {
        return Ok((None, left));
    }
    let fingerprint = row
        .get::<_, Option<&str>>(8)
        .and_then(|text| Fingerprint::parse(text.as_bytes()));
    let attempt = u64::try_from(row.get::<_, i64>(1)).map_err(|_| damaged("attempt"))?;
    let questions = u64::try_from(row.get::<_, i64>(12)).map_err(|_| damaged("questions"))?;
    let fade = length(row.get::<_, Option<i64>>(7).unwrap_or_default());
    let record = match row.get(0) {
        "issued" => Record::Issued { grace: fade },
        "in_flight" => {
            let owner = row
                .get::<_, &[u8]>(2)
                .try_into()
                .map_err(|_| damaged("owner"))?;
            let origin = match row.get(3) {
                "nothing" => Origin::Nothing,
                "issued" => Origin::Issued,
                "released" => Origin::Released,
                _ => Origin::Abandoned,
            };
            let held = InFlight::new(
                Owner::from_bytes(owner),
                attempt,
                origin,
                length(row.get(4)),
                length(row.get(5)),
            );
            let details = Details::parse(row.get(14)).ok_or_else(|| damaged("took_over"))?;
            Record::InFlight(
                held.with_fingerprint(fingerprint)
                    .with_questions(questions)
                    .with_run(details.run)
                    .with_took_over(details.took_over),
            )
        }
        "released" => Record::Released {
            attempt,
            questions,
            run: Details::parse(row.get(14))
                .ok_or_else(|| damaged("took_over"))?
                .run,
        },
        "committed" if left > fade => {
            let codec = CodecId::parse(row.get::<_, &str>(10).as_bytes())
                .ok_or_else(|| damaged("codec"))?;
            let outcome =
                Encoded::new(codec, row.get::<_, Vec<u8>>(11).into()).with_is_error(row.get(9));
            return Ok((
                Some(Record::Committed {
                    attempt,
                    fingerprint,
                    outcome,
                }),
                left.saturating_sub(fade),
            ));
        }
        "committed" | "done" => Record::Done {
            attempt,
            fingerprint,
        },
        _ => return Err(damaged("state")),
    };
    Ok((Some(record), left))
}

/// The column `took_over` of a record in flight or released: metadata, `r` and a run, and the
/// record that was taken over, with spaces between.
#[derive(Default)]
struct Details {
    run: Option<Owner>,
    took_over: Option<Box<InFlight>>,
}

impl Details {
    fn parse(text: Option<&str>) -> Option<Self> {
        let mut details = Self::default();
        let mut rest = text.unwrap_or_default();
        while !rest.is_empty() {
            let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some(run) = word.strip_prefix('r') {
                details.run = Some(Owner::parse(run)?);
            } else if word.starts_with('i') {
                let text = rest.as_bytes().to_vec();
                let Parsed::Record(Record::InFlight(held)) = wire::decode(&text.into()).ok()?
                else {
                    return None;
                };
                details.took_over = Some(Box::new(held));
                break;
            }
            rest = behind;
        }
        Some(details)
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Nothing => "nothing",
        Origin::Issued => "issued",
        Origin::Released => "released",
        Origin::Abandoned => "abandoned",
    }
}

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
