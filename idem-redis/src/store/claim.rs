//! The claim: one `SET .. NX GET PX` where the key is free or its outcome stands there, a
//! compare-and-set where there is more to decide.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{Claim, Claimed, InFlight, OnClaim, Origin, Ownership, RanOut, Record};
use idem_core::wire::{self, Parsed};
use idem_core::{Fingerprint, StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use crate::client::command::{evalsha, millis};
use crate::client::error::{failed, unexpected};
use crate::client::lane::Lane;
use crate::client::quick::{Quick, is_refused};
use crate::store::keys::Keys;
use crate::store::script::{ISSUED, Swap, TAKEOVER, TOUCH, ownership, swap};
use crate::store::unreadable::unreadable;

/// The number of times that a record may change under a claim. Each change is another caller's
/// progress, so only a fault reaches this limit.
const ROUNDS: usize = 16;

/// The result of the first command of a claim.
enum FirstReply {
    Over(Claimed),
    /// This record is there.
    Found(Bytes),
}

/// Carries a claim out as most claims are: the key is free, or its outcome stands there. Else says
/// what it found, if it knows.
pub(crate) fn claim_quickly<'a>(
    quick: Quick,
    key: &str,
    claim: &'a Claim,
) -> impl Future<Output = Result<Result<Claimed, StoreError>, Option<Bytes>>> + use<'a> {
    let first = first(key, claim);
    async move {
        let text = match quick.send(first).await {
            Ok(answer) => match begun(claim, quick.server(), answer) {
                Ok(FirstReply::Over(answer)) => return Ok(Ok(answer)),
                Ok(FirstReply::Found(text)) => text,
                Err(error) => return Ok(Err(error)),
            },
            Err(error) if is_refused(&error) => return Err(None),
            Err(error) => return Ok(Err(failed(quick.server(), error))),
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

/// Carries a claim out, from what its first command found, if that was sent.
pub(crate) async fn claim(
    lane: &mut Lane,
    keys: &Keys,
    claim: &Claim,
    found: Option<Bytes>,
) -> Result<Claimed, StoreError> {
    let key = keys.record(&claim.id);
    let mut found = match found {
        Some(text) => FirstReply::Found(text),
        None => begin(lane, &key, claim).await?,
    };
    for _ in 0..ROUNDS {
        let text = match found {
            FirstReply::Found(text) => text,
            FirstReply::Over(answer) => {
                if let Claimed::Owned { .. } = answer {
                    lane.acknowledged().await?;
                }
                return Ok(answer);
            }
        };
        let parsed = wire::decode(&text).map_err(unreadable)?;
        let lease = match &parsed {
            Parsed::Record(Record::InFlight(held)) => held.lease,
            _ => Duration::ZERO,
        };
        let decision = match parsed {
            Parsed::Record(record) => record.on_claim(claim),
            Parsed::Aside { attempt, fingerprint } => {
                // Before the outcome is fetched: another payload never gets it.
                match (Record::Done { attempt, fingerprint }).on_claim(claim) {
                    OnClaim::Answer(Claimed::Done { .. }) => {
                        return aside(lane, &keys.aside(&claim.id), attempt, fingerprint).await;
                    }
                    decision => decision,
                }
            }
        };
        let (swapped, answer) = match decision {
            // Sent again: nothing was written now.
            OnClaim::Answer(answer @ Claimed::Owned { .. }) if lane.is_replicated() => {
                match touch(lane, &key, claim).await? {
                    Ownership::Held => (Swap::Done, answer),
                    Ownership::Lost => (Swap::Gone, answer),
                }
            }
            OnClaim::Answer(answer) => return Ok(answer),
            // Given back since it was looked at.
            OnClaim::IfIssueLives { .. } => {
                found = begin(lane, &key, claim).await?;
                continue;
            }
            OnClaim::Take(next) => {
                let owned = owned(&next);
                (take_over(lane, &key, &text, Some(next), LeaseIs::Any).await?, owned)
            }
            OnClaim::IfLeaseRanOut { attempt, then } => {
                let (next, answer, silent_for) = match then {
                    RanOut::Answer(answer) => (None, answer, None),
                    RanOut::Take(next) => {
                        let owned = owned(&next);
                        (Some(next), owned, None)
                    }
                    RanOut::IfSilentFor { age, then } => {
                        let owned = owned(&then);
                        (Some(then), owned, Some(age))
                    }
                };
                match take_over(lane, &key, &text, next, LeaseIs::RanOut { lease, silent_for }).await? {
                    Swap::Free if silent_for.is_some() => return Ok(Claimed::Abandoned { attempt }),
                    // Only whether it was silent for that long is unsure: its lease is over.
                    Swap::Unsure(left)
                        if silent_for.is_some_and(|age| lease.is_zero() || left.saturating_add(lease) <= age) =>
                    {
                        return Ok(Claimed::Abandoned { attempt });
                    }
                    Swap::Alive(lease_left) => return Ok(Claimed::InFlight { attempt, lease_left }),
                    Swap::Unsure(left) => {
                        if let Some(lease_left) = lane.sure_after(left, lease).await? {
                            return Ok(Claimed::InFlight { attempt, lease_left });
                        }
                        found = FirstReply::Found(text);
                        continue;
                    }
                    swapped => (swapped, answer),
                }
            }
        };
        found = match swapped {
            Swap::Done => {
                lane.acknowledged().await?;
                return Ok(answer);
            }
            Swap::Free => return Ok(answer),
            Swap::Gone => begin(lane, &key, claim).await?,
            Swap::Changed(text) => FirstReply::Found(text),
            // Only said where the lease was asked about.
            Swap::Alive(_) | Swap::Unsure(_) => return Err(unexpected(lane.server(), &Value::Nil)),
        };
    }
    Err(StoreError::new(
        StoreErrorKind::Unavailable,
        format!("the record changed {ROUNDS} times while it was claimed; the same claim may be made again"),
    ))
}

fn owned(next: &InFlight) -> Claimed {
    Claimed::Owned { attempt: next.attempt, from: next.origin }
}

/// The command that writes the first attempt, if the key has no record, or if it was issued, as the
/// claim requires. It returns any other record.
fn first(key: &str, claim: &Claim) -> Cmd {
    if only_looks(claim) {
        let mut get = redis::cmd("GET");
        get.arg(key);
        return get;
    }
    let (record, hold) = (first_attempt(claim), millis(claim.hold));
    if claim.must_be_issued {
        return evalsha(&ISSUED, &[key], &[&record, hold.to_string().as_bytes()]);
    }
    let mut set = Cmd::with_capacity(7, 32 + key.len() + record.len());
    set.arg("SET").arg(key).arg(record).arg("NX").arg("GET").arg("PX").arg(hold);
    set
}

/// Whether a key that was issued is left as it is, because not even a first attempt is allowed.
fn only_looks(claim: &Claim) -> bool {
    claim.must_be_issued && claim.max_attempts == Some(0)
}

fn first_attempt(claim: &Claim) -> Vec<u8> {
    wire::encode(&Record::InFlight(claim.in_flight(1, first_origin(claim))))
}

fn first_origin(claim: &Claim) -> Origin {
    if claim.must_be_issued { Origin::Issued } else { Origin::Nothing }
}

/// Reads the answer to the first command.
fn begun(claim: &Claim, server: &str, answer: Value) -> Result<FirstReply, StoreError> {
    let owned = Claimed::Owned { attempt: 1, from: first_origin(claim) };
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
async fn begin(lane: &mut Lane, key: &str, claim: &Claim) -> Result<FirstReply, StoreError> {
    if claim.must_be_issued && !only_looks(claim) {
        let (record, hold) = (first_attempt(claim), millis(claim.hold).to_string());
        let answer = lane.script(&ISSUED, &[key], &[&record, hold.as_bytes()]).await?;
        return begun(claim, lane.server(), answer);
    }
    let answer = match lane.try_send(&first(key, claim)).await {
        Ok(answer) => answer,
        // A server whose memory is full refuses the command before it looks. A new key is refused,
        // but a record that is there is still answered with.
        Err(error) if error.code() == Some("OOM") => match lane.send(redis::cmd("GET").arg(key)).await? {
            Value::Nil => return Err(failed(lane.server(), error)),
            answer => answer,
        },
        Err(error) => return Err(failed(lane.server(), error)),
    };
    begun(claim, lane.server(), answer)
}

/// Writes one's own record again as it is. `WAIT` counts what its own connection has written: where
/// the record was written on another that is lost by now, it would be content at once.
async fn touch(lane: &mut Lane, key: &str, claim: &Claim) -> Result<Ownership, StoreError> {
    let answer = lane.script(&TOUCH, &[key], &[wire::owner_prefix(claim.owner).as_bytes()]).await?;
    ownership(lane.server(), answer)
}

/// The condition on a record's lease for another record to replace it.
enum LeaseIs {
    Any,
    /// Of this length: by the server's clock and by our own.
    RanOut {
        lease: Duration,
        /// It began at least this long ago.
        silent_for: Option<Duration>,
    },
}

/// Writes `next`, if there is one, in place of `found`.
async fn take_over(
    lane: &mut Lane,
    key: &str,
    found: &Bytes,
    next: Option<InFlight>,
    lease: LeaseIs,
) -> Result<Swap, StoreError> {
    let hold = next.as_ref().map_or(0, |next| millis(next.hold)).to_string();
    let next = next.map(|next| wire::encode(&Record::InFlight(next))).unwrap_or_default();
    let (check, renewed_by, silent) = match lease {
        LeaseIs::Any => ("", String::new(), String::new()),
        LeaseIs::RanOut { lease, silent_for } => {
            let silent = silent_for.map(|age| millis(age).to_string());
            ("1", lane.renewed_by(silent_for.unwrap_or(lease).max(lease)), silent.unwrap_or_default())
        }
    };
    let found = wire::without_waited(found);
    let args = [found, &next, hold.as_bytes(), check.as_bytes(), renewed_by.as_bytes(), silent.as_bytes()];
    let answer = lane.script(&TAKEOVER, &[key], &args).await?;
    swap(lane.server(), &answer)
}

/// The outcome that is kept aside for a record; without it, that there was one.
async fn aside(
    lane: &mut Lane,
    key: &str,
    attempt: u64,
    fingerprint: Option<Fingerprint>,
) -> Result<Claimed, StoreError> {
    let answer = lane.send(redis::cmd("GET").arg(key)).await?;
    let Some(outcome) = text(lane, answer)? else { return Ok(Claimed::Done { attempt }) };
    match wire::decode(&outcome).map_err(unreadable)? {
        Parsed::Record(Record::Committed { attempt: of, fingerprint: with, outcome })
            if (of, with) == (attempt, fingerprint) =>
        {
            Ok(Claimed::Committed { attempt, outcome })
        }
        // That of an earlier life of the key.
        _ => Ok(Claimed::Done { attempt }),
    }
}

fn text(lane: &Lane, answer: Value) -> Result<Option<Bytes>, StoreError> {
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(text) => Ok(Some(text.into())),
        other => Err(unexpected(lane.server(), &other)),
    }
}

/// The claim with lengths of time as the record can hold them: what is written and the expiry must
/// be the same number, or the lease's age would be wrong.
pub(crate) fn as_sent(claim: &Claim) -> Cow<'_, Claim> {
    let (lease, hold) = lengths_as_sent(claim.lease, claim.hold);
    if (lease, hold) == (claim.lease, claim.hold) {
        return Cow::Borrowed(claim);
    }
    Cow::Owned(claim.clone().with_lease(lease).with_hold(hold))
}

/// A lease and its hold, likewise.
pub(crate) fn lengths_as_sent(lease: Duration, hold: Duration) -> (Duration, Duration) {
    let sent = |length| Duration::from_millis(millis(length));
    // A lease may be zero, an expiry may not.
    (if lease.as_millis() == 0 { Duration::ZERO } else { sent(lease) }, sent(hold))
}
