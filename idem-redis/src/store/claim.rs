//! The claim: one `SET .. NX GET PX` if the key is free or has an outcome, else also a
//! compare-and-set.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{Claim, Claimed, InFlight, OnClaim, Origin, Ownership, RanOut, Record};
use idem_core::wire::{self, Parsed};
use idem_core::{Fingerprint, StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use crate::connection::command::{evalsha, millis};
use crate::connection::error::{failed, unexpected};
use crate::connection::fast_path::{FastPath, is_refused};
use crate::connection::step_connection::StepConnection;
use crate::store::keys::Keys;
use crate::store::script::{ISSUED, Swap, TAKEOVER, TOUCH, ownership, swap};
use crate::store::unreadable::unreadable;

/// How often a record may change while it is claimed. Each change is the progress of another
/// caller, so only a fault reaches this limit.
const ROUNDS: usize = 16;

/// The result of the first command of a claim.
enum FirstReply {
    Over(Claimed),
    /// The key has this record.
    Found(Bytes),
}

/// Carries out a claim by one command, if the key is free or has an outcome. Otherwise returns the
/// record that the command found; `None` if the server refused the command.
pub(crate) fn claim_on_fast_path<'a>(
    fast_path: FastPath,
    key: &str,
    claim: &'a Claim,
) -> impl Future<Output = Result<Result<Claimed, StoreError>, Option<Bytes>>> + use<'a> {
    let first = first(key, claim);
    async move {
        let text = match fast_path.send(first).await {
            Ok(answer) => match begun(claim, fast_path.server(), answer) {
                Ok(FirstReply::Over(answer)) => return Ok(Ok(answer)),
                Ok(FirstReply::Found(text)) => text,
                Err(error) => return Ok(Err(error)),
            },
            Err(error) if is_refused(&error) => return Err(None),
            Err(error) => return Ok(Err(failed(fast_path.server(), error))),
        };
        match wire::decode(&text) {
            Ok(Parsed::Record(record @ Record::Committed { .. })) => {
                if let OnClaim::Answer(answer) = record.on_claim(claim) {
                    return Ok(Ok(answer));
                }
            }
            Ok(_) => {}
            Err(error) => return Ok(Err(unreadable(error))),
        }
        Err(Some(text))
    }
}

/// The result of one round of a claim.
enum Round {
    /// The claim is decided, and nothing was written now.
    Answered(Claimed),
    /// The claim is decided, and its record was written.
    Written(Claimed),
    /// The key has no record any more.
    Gone,
    /// The key has this record now.
    Changed(Bytes),
}

/// Carries out a claim, beginning with the record that its first command found, if that was sent.
pub(crate) async fn claim(
    connection: &mut StepConnection,
    keys: &Keys,
    claim: &Claim,
    found: Option<Bytes>,
) -> Result<Claimed, StoreError> {
    let key = keys.record(&claim.id);
    let mut reply = match found {
        Some(text) => FirstReply::Found(text),
        None => begin(connection, &key, claim).await?,
    };
    for _ in 0..ROUNDS {
        let text = match reply {
            FirstReply::Found(text) => text,
            FirstReply::Over(answer) => {
                if let Claimed::Owned { .. } = answer {
                    connection.acknowledged().await?;
                }
                return Ok(answer);
            }
        };
        reply = match claim_over(connection, keys, claim, text).await? {
            Round::Answered(answer) => return Ok(answer),
            Round::Written(answer) => {
                connection.acknowledged().await?;
                return Ok(answer);
            }
            Round::Gone => begin(connection, &key, claim).await?,
            Round::Changed(text) => FirstReply::Found(text),
        };
    }
    Err(StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "the record changed {ROUNDS} times while it was claimed; the same claim may be made \
             again"
        ),
    ))
}

/// Decides a claim by the record that was found, and writes over that record if it may.
async fn claim_over(
    connection: &mut StepConnection,
    keys: &Keys,
    claim: &Claim,
    text: Bytes,
) -> Result<Round, StoreError> {
    let key = keys.record(&claim.id);
    let parsed = wire::decode(&text).map_err(unreadable)?;
    let lease = match &parsed {
        Parsed::Record(Record::InFlight(held)) => held.lease,
        _ => Duration::ZERO,
    };
    let decision = match parsed {
        Parsed::Record(record) => record.on_claim(claim),
        Parsed::Aside {
            attempt,
            fingerprint,
        } => {
            let done = Record::Done {
                attempt,
                fingerprint,
            };
            // Decided before the outcome is read: a claim with another payload never gets it.
            match done.on_claim(claim) {
                OnClaim::Answer(Claimed::Done { .. }) => {
                    let outcome = keys.aside(&claim.id);
                    let answer = aside(connection, &outcome, attempt, fingerprint).await?;
                    return Ok(Round::Answered(answer));
                }
                decision => decision,
            }
        }
    };
    match decision {
        // This claim was sent before, on a connection whose `WAIT` may be lost.
        OnClaim::Answer(answer @ Claimed::Owned { .. }) if connection.is_replicated() => {
            Ok(match touch(connection, &key, claim).await? {
                Ownership::Held => Round::Written(answer),
                Ownership::Lost => Round::Gone,
            })
        }
        OnClaim::Answer(answer) => Ok(Round::Answered(answer)),
        // The first command checks the issue in the same step, so it is sent again.
        OnClaim::IfIssueLives { .. } => Ok(Round::Gone),
        OnClaim::Take(next) => {
            let answer = owned(&next);
            let swapped = take_over(connection, &key, &text, Some(next), LeaseIs::Any).await?;
            Round::from_swap(swapped, answer)
                .ok_or_else(|| unexpected(connection.server(), &Value::Nil))
        }
        OnClaim::IfLeaseRanOut { attempt, then } => {
            let abandoned = Abandoned {
                attempt,
                lease,
                text,
            };
            take_if_expired(connection, &key, abandoned, then).await
        }
    }
}

impl Round {
    /// Returns `None` for an answer about a lease.
    fn from_swap(swapped: Swap, answer: Claimed) -> Option<Self> {
        match swapped {
            Swap::Done => Some(Self::Written(answer)),
            Swap::Free => Some(Self::Answered(answer)),
            Swap::Gone => Some(Self::Gone),
            Swap::Changed(text) => Some(Self::Changed(text)),
            Swap::Alive(_) | Swap::Unsure(_) => None,
        }
    }
}

/// A record in flight that is abandoned if its lease has expired.
struct Abandoned {
    attempt: u64,
    lease: Duration,
    text: Bytes,
}

/// Does what the claim decided for an expired lease, if the lease has expired.
async fn take_if_expired(
    connection: &mut StepConnection,
    key: &str,
    found: Abandoned,
    then: RanOut,
) -> Result<Round, StoreError> {
    let Abandoned {
        attempt,
        lease,
        text,
    } = found;
    let mut silent_for = None;
    let (next, answer) = match then {
        RanOut::Answer(answer) => (None, answer),
        RanOut::Take(next) => {
            let owned = owned(&next);
            (Some(next), owned)
        }
        RanOut::IfSilentFor { age, then } => {
            silent_for = Some(age);
            let owned = owned(&then);
            (Some(then), owned)
        }
    };
    let condition = LeaseIs::RanOut { lease, silent_for };
    match take_over(connection, key, &text, next, condition).await? {
        Swap::Free if silent_for.is_some() => Ok(Round::Answered(Claimed::Abandoned { attempt })),
        // The lease has expired for sure. Only the longer silence is in doubt.
        Swap::Unsure(left)
            if silent_for
                .is_some_and(|age| lease.is_zero() || left.saturating_add(lease) <= age) =>
        {
            Ok(Round::Answered(Claimed::Abandoned { attempt }))
        }
        Swap::Alive(lease_left) => Ok(Round::Answered(Claimed::InFlight {
            attempt,
            lease_left,
        })),
        Swap::Unsure(left) => Ok(match connection.recheck_lease(left, lease).await? {
            Some(lease_left) => Round::Answered(Claimed::InFlight {
                attempt,
                lease_left,
            }),
            None => Round::Changed(text),
        }),
        swapped => Round::from_swap(swapped, answer)
            .ok_or_else(|| unexpected(connection.server(), &Value::Nil)),
    }
}

fn owned(next: &InFlight) -> Claimed {
    Claimed::Owned {
        attempt: next.attempt,
        from: next.origin,
    }
}

/// Returns the command that writes the first attempt if the key has no record, or, if the claim
/// requires that, an issued one. The server answers with any other record.
fn first(key: &str, claim: &Claim) -> Cmd {
    if only_looks(claim) {
        let mut get = redis::cmd("GET");
        get.arg(key);
        return get;
    }
    let record = first_attempt(claim);
    let hold = millis(claim.hold);
    if claim.must_be_issued {
        return evalsha(&ISSUED, &[key], &[&record, hold.to_string().as_bytes()]);
    }
    let mut set = Cmd::with_capacity(7, 32 + key.len() + record.len());
    set.arg("SET")
        .arg(key)
        .arg(record)
        .arg("NX")
        .arg("GET")
        .arg("PX")
        .arg(hold);
    set
}

/// Returns whether an issued key is left as it is, because not even a first attempt is allowed.
fn only_looks(claim: &Claim) -> bool {
    claim.must_be_issued && claim.max_attempts == Some(0)
}

fn first_attempt(claim: &Claim) -> Vec<u8> {
    wire::encode(&Record::InFlight(claim.in_flight(1, first_origin(claim))))
}

fn first_origin(claim: &Claim) -> Origin {
    if claim.must_be_issued {
        Origin::Issued
    } else {
        Origin::Nothing
    }
}

/// Reads the answer to the first command.
fn begun(claim: &Claim, server: &str, answer: Value) -> Result<FirstReply, StoreError> {
    let owned = Claimed::Owned {
        attempt: 1,
        from: first_origin(claim),
    };
    match answer {
        Value::BulkString(text) => Ok(FirstReply::Found(text.into())),
        Value::Nil if !claim.must_be_issued => Ok(FirstReply::Over(owned)),
        Value::Nil if only_looks(claim) => Ok(FirstReply::Over(Claimed::NotIssued)),
        Value::Int(1) if claim.must_be_issued => Ok(FirstReply::Over(owned)),
        Value::Int(0) if claim.must_be_issued => Ok(FirstReply::Over(Claimed::NotIssued)),
        Value::Int(-1) if claim.must_be_issued => Ok(FirstReply::Over(Claimed::IssueExpired)),
        other => Err(unexpected(server, &other)),
    }
}

/// Sends the first command.
async fn begin(
    connection: &mut StepConnection,
    key: &str,
    claim: &Claim,
) -> Result<FirstReply, StoreError> {
    if claim.must_be_issued && !only_looks(claim) {
        let record = first_attempt(claim);
        let hold = millis(claim.hold).to_string();
        let answer = connection
            .script(&ISSUED, &[key], &[&record, hold.as_bytes()])
            .await?;
        return begun(claim, connection.server(), answer);
    }
    let answer = match connection.try_send(&first(key, claim)).await {
        Ok(answer) => answer,
        // A server whose memory is full refuses the command without a look at the key. A record
        // that exists must still be found.
        Err(error) if error.code() == Some("OOM") => {
            match connection.send(redis::cmd("GET").arg(key)).await? {
                Value::Nil => return Err(failed(connection.server(), error)),
                answer => answer,
            }
        }
        Err(error) => return Err(failed(connection.server(), error)),
    };
    begun(claim, connection.server(), answer)
}

/// Writes the claimant's record again, unchanged. `WAIT` counts only what was written on its own
/// connection. If another connection wrote the record, it would return at once.
async fn touch(
    connection: &mut StepConnection,
    key: &str,
    claim: &Claim,
) -> Result<Ownership, StoreError> {
    let answer = connection
        .script(
            &TOUCH,
            &[key],
            &[wire::owner_prefix(claim.owner).as_bytes()],
        )
        .await?;
    ownership(connection.server(), answer)
}

/// The condition on a record's lease for replacing the record.
enum LeaseIs {
    Any,
    /// A lease of this length has expired, by the server's clock and by our own.
    RanOut {
        lease: Duration,
        /// The last claim or renewal was at least this long ago.
        silent_for: Option<Duration>,
    },
}

/// Writes `next`, if there is one, in place of `found`.
async fn take_over(
    connection: &mut StepConnection,
    key: &str,
    found: &Bytes,
    next: Option<InFlight>,
    lease: LeaseIs,
) -> Result<Swap, StoreError> {
    let hold = next
        .as_ref()
        .map_or(0, |next| millis(next.hold))
        .to_string();
    let next = next
        .map(|next| wire::encode(&Record::InFlight(next)))
        .unwrap_or_default();
    let mut check = "";
    let mut renewed_by = String::new();
    let mut silent = String::new();
    if let LeaseIs::RanOut { lease, silent_for } = lease {
        check = "1";
        renewed_by = connection.renewed_by(silent_for.unwrap_or(lease).max(lease));
        silent = silent_for.map_or_else(String::new, |age| millis(age).to_string());
    }
    let found = wire::without_waited(found);
    let args = [
        found,
        &next,
        hold.as_bytes(),
        check.as_bytes(),
        renewed_by.as_bytes(),
        silent.as_bytes(),
    ];
    let answer = connection.script(&TAKEOVER, &[key], &args).await?;
    swap(connection.server(), &answer)
}

/// Returns the outcome that is kept aside for a record, or that there was one.
async fn aside(
    connection: &mut StepConnection,
    key: &str,
    attempt: u64,
    fingerprint: Option<Fingerprint>,
) -> Result<Claimed, StoreError> {
    let answer = connection.send(redis::cmd("GET").arg(key)).await?;
    let Some(outcome) = text(connection, answer)? else {
        return Ok(Claimed::Done { attempt });
    };
    match wire::decode(&outcome).map_err(unreadable)? {
        Parsed::Record(Record::Committed {
            attempt: of,
            fingerprint: with,
            outcome,
        }) if (of, with) == (attempt, fingerprint) => Ok(Claimed::Committed { attempt, outcome }),
        // It belongs to an earlier record of the key.
        _ => Ok(Claimed::Done { attempt }),
    }
}

fn text(connection: &StepConnection, answer: Value) -> Result<Option<Bytes>, StoreError> {
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(text) => Ok(Some(text.into())),
        other => Err(unexpected(connection.server(), &other)),
    }
}

/// Returns the claim with its lengths of time in whole milliseconds. The record and its expiry must
/// hold the same number, or the age of the lease would be wrong.
pub(crate) fn as_sent(claim: &Claim) -> Cow<'_, Claim> {
    let lease = lease_as_sent(claim.lease);
    let hold = hold_as_sent(claim.hold);
    if lease == claim.lease && hold == claim.hold {
        return Cow::Borrowed(claim);
    }
    Cow::Owned(claim.clone().with_lease(lease).with_hold(hold))
}

/// Returns a lease in whole milliseconds.
pub(crate) fn lease_as_sent(lease: Duration) -> Duration {
    // A lease may be zero, an expiry may not.
    if lease.as_millis() == 0 {
        Duration::ZERO
    } else {
        hold_as_sent(lease)
    }
}

/// Returns a hold in whole milliseconds, at least one.
pub(crate) fn hold_as_sent(hold: Duration) -> Duration {
    Duration::from_millis(millis(hold))
}
