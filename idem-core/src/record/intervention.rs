//! The decisions of an operator about one record, and the record afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::{Audit, Encoded, Metadata, Record, RecordId, RecordState};
use crate::base::duration::{self, MAX_LENGTH};

/// How long the outcome of a released record is kept, if nobody says so.
const SETTLED_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// An operator's decision about a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Intervention {
    /// Which record.
    pub id: RecordId,
    /// The new state.
    pub wish: Wish,
    /// Also if the record is in flight and alive: a body runs, and goes on until its owner notices.
    pub force: bool,
    /// Only while it is at this attempt: the one that the operator looked at.
    pub attempt: Option<u64>,
    /// Only while it is in this state, as the operator saw it. In flight and abandoned count as one
    /// state here (`force` tells them apart). So do committed and done, and issued and expired.
    pub state: Option<RecordState>,
    /// The operator, and the reason. A settled outcome keeps both.
    pub by: Option<(Arc<str>, Arc<str>)>,
}

/// The state that an operator wants for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// Record this outcome.
    Settle {
        /// The outcome for every duplicate.
        outcome: Encoded,
        /// How long it is kept from now. `None`: for the `hold` of the record that is settled,
        /// which is at least the operation's `ttl` and `remember`. A released record has none: its
        /// outcome is then kept for 30 days, or as long as the record would have stayed.
        ttl: Option<Duration>,
    },
    /// Record another outcome in place of one that was settled by hand.
    Replace {
        /// The outcome that the operator looked at, as the store described it.
        seen: Encoded,
        /// The outcome for every later duplicate.
        outcome: Encoded,
    },
    /// Give the key up, so that the next call runs the body as the next attempt. The attempt is
    /// kept for the record's `hold`, at least ten leases.
    Release,
    /// Remove the record, so that the next call runs the body as the first attempt.
    Forget,
}

impl Intervention {
    /// Settles a record with an outcome: an abandoned one, or with
    /// [`only_state(Released)`](Self::only_state) a released one, such as one whose attempts are
    /// exhausted although the work was done after all. A released record has no fingerprint, so
    /// calls with any arguments then get this outcome.
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::store::AdminStore;
    /// use idem::store::admin::{Intervened, Intervention};
    /// use idem::store::record::{Encoded, RecordId};
    /// use idem::{CodecId, Key, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem::StoreError> {
    /// let id = RecordId::new("orders.create", &Key::encode("o-1").unwrap()).unwrap();
    /// let receipt = Encoded::new(CodecId::JSON, r#"{"number":7}"#.into());
    /// let settled = MemoryStore::new().intervene(&Intervention::settle(id, receipt)).await?;
    /// assert_eq!(settled, Intervened::Nothing); // this key has no record
    /// # Ok(())
    /// # }
    /// ```
    pub fn settle(id: RecordId, outcome: Encoded) -> Self {
        Self {
            wish: Wish::Settle { outcome, ttl: None },
            ..Self::forget(id)
        }
    }

    /// Replaces an outcome that was settled by hand, if it still is the one that was
    /// [described](crate::RecordInfo::outcome). Callers that have decoded the other one keep it.
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::store::admin::{Intervened, Intervention};
    /// use idem::store::record::{Encoded, RecordId};
    /// use idem::store::{AdminStore, Store};
    /// use idem::{CodecId, Idempotency, Key, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let idempotency = Idempotency::new(store.clone());
    /// let order = || idempotency.operation("orders.create").key("o-1");
    /// order().audit("jane", "ticket 7").settle(&71_u32).await?; // 17 was meant
    ///
    /// let id = RecordId::new("orders.create", &Key::encode("o-1").unwrap()).unwrap();
    /// let seen = store
    ///     .inspect(&id)
    ///     .await?
    ///     .and_then(|info| info.outcome)
    ///     .expect("it was settled");
    /// let corrected = Encoded::new(CodecId::JSON, "17".into());
    /// let replace =
    ///     Intervention::replace(id, seen, corrected).by("jane", "ticket 7: a mistyped number");
    /// assert!(matches!(store.intervene(&replace).await?, Intervened::Done { .. }));
    /// assert_eq!(order().run(async || Ok::<_, idem::Error>(0_u32)).await?.into_inner(), 17);
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace(id: RecordId, seen: Encoded, outcome: Encoded) -> Self {
        Self {
            wish: Wish::Replace { seen, outcome },
            ..Self::forget(id)
        }
    }

    /// Releases a record.
    pub fn release(id: RecordId) -> Self {
        Self {
            wish: Wish::Release,
            ..Self::forget(id)
        }
    }

    /// Removes a record.
    pub fn forget(id: RecordId) -> Self {
        Self {
            id,
            wish: Wish::Forget,
            force: false,
            attempt: None,
            state: None,
            by: None,
        }
    }

    /// Sets how long a settled outcome is kept, from now: 1 ms to 100 years. Anything else is taken
    /// for the nearest of the two. Nothing else has such a length.
    #[must_use]
    pub fn keep_for(mut self, length: Duration) -> Self {
        if let Wish::Settle { ttl, .. } = &mut self.wish {
            // A record that is kept for no time is gone, and the next call runs the body.
            *ttl = Some(duration::keep_for(length));
        }
        self
    }

    /// Notes who intervenes, and why. A settled outcome keeps it as its [`Audit`]. For releases and
    /// removals, [`Trail::intervene`](crate::store::trail::Trail::intervene) keeps it in the store.
    ///
    /// `who` has 1 to 128 bytes, `why` up to 512. Anything else is not kept.
    #[must_use]
    pub fn by(mut self, who: &str, why: &str) -> Self {
        self.by = Some((who.into(), why.into()));
        self
    }

    /// An outcome as this operator records it, with the trace of the call that was cut off.
    fn made_by_hand(
        &self,
        outcome: &Encoded,
        call: Option<&Metadata>,
        kept_for: Duration,
    ) -> Encoded {
        let mut outcome = outcome.clone();
        if let Some(trace) = call.and_then(|call| call.trace.clone()) {
            outcome.describe(|metadata| metadata.trace = Some(trace));
        }
        if let Some((who, why)) = &self.by {
            // A value in Redis whose expiry was removed by hand has no end.
            let kept_for = kept_for.min(MAX_LENGTH);
            outcome.describe(|metadata| metadata.audit = Audit::new(who, why, kept_for));
        }
        outcome
    }

    /// Acts also under a body that runs.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Acts only while the record is at this attempt.
    #[must_use]
    pub fn only_attempt(mut self, attempt: u64) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Acts only while the record is in this [state](Self::state).
    #[must_use]
    pub fn only_state(mut self, state: RecordState) -> Self {
        self.state = Some(state);
        self
    }
}

/// The result of an [`Intervention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intervened {
    /// It was carried out.
    Done {
        /// The record's attempt.
        attempt: u64,
    },
    /// The key has no record.
    Nothing,
    /// A body runs. Nothing was changed.
    Alive {
        /// Its attempt.
        attempt: u64,
        /// How long until its lease runs out, unless it is renewed.
        lease_left: Duration,
    },
    /// There is nothing to settle, to replace or to release. Nothing was changed.
    NotAbandoned {
        /// The record's state.
        state: RecordState,
    },
    /// The record is at another attempt than the operator looked at, in another state, or has
    /// another outcome. Nothing was changed.
    Changed {
        /// The attempt that it is at.
        attempt: u64,
    },
}

/// The effect of an intervention on the record that it found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnIntervention {
    /// Nothing is written.
    Answer(Intervened),
    /// This is written in place of the record, if that is still there.
    Put {
        /// The new record.
        record: Record,
        /// Its expiry, from now.
        expires_in: Duration,
        /// Only if the lease has run out by the store's clock, else the answer is
        /// [`Intervened::Alive`].
        if_ran_out: bool,
    },
    /// This is written in place of the record, if that is still there, and all its times stay: its
    /// expiry, and for how long it is done after that.
    Replace {
        /// The new record.
        record: Record,
    },
    /// The record is removed, if it is still there.
    Remove {
        /// Likewise.
        if_ran_out: bool,
    },
}

impl Record {
    /// Returns the effect of an intervention on this record, which expires in `left` by the store's
    /// clock. (Without a record, it is [`Intervened::Nothing`].)
    ///
    /// A token whose time is over counts as issued here.
    pub fn on_intervention(&self, intervention: &Intervention, left: Duration) -> OnIntervention {
        let attempt = self.attempt();
        let state = self.state_without_time();
        let is_other = |seen| kind(seen) != kind(state);
        if intervention.attempt.is_some_and(|wanted| wanted != attempt)
            || intervention.state.is_some_and(is_other)
        {
            return OnIntervention::Answer(Intervened::Changed { attempt });
        }
        let if_ran_out = !intervention.force;
        match (self, &intervention.wish) {
            (Self::InFlight(_), Wish::Forget) => OnIntervention::Remove { if_ran_out },
            (_, Wish::Forget) => OnIntervention::Remove { if_ran_out: false },
            (Self::InFlight(held), Wish::Release) => {
                let record = Self::Released {
                    attempt,
                    questions: held.questions,
                    run: Some(held.run()),
                };
                let expires_in = held.hold.max(held.lease.saturating_mul(10));
                OnIntervention::Put {
                    record,
                    expires_in,
                    if_ran_out,
                }
            }
            (Self::InFlight(held), Wish::Settle { outcome, ttl }) => {
                let expires_in = ttl.unwrap_or(held.hold);
                // A replay links to the call that was cut off.
                let call = held.metadata.as_deref();
                let outcome = intervention.made_by_hand(outcome, call, expires_in);
                let record = Self::Committed {
                    attempt,
                    fingerprint: held.fingerprint,
                    outcome,
                };
                OnIntervention::Put {
                    record,
                    expires_in,
                    if_ran_out,
                }
            }
            // Callers may claim it: the operator must know that it is not abandoned.
            (Self::Released { .. }, Wish::Settle { outcome, ttl })
                if intervention.state == Some(state) =>
            {
                let expires_in = ttl.unwrap_or_else(|| left.max(SETTLED_KEPT));
                let outcome = intervention.made_by_hand(outcome, None, expires_in);
                let record = Self::Committed {
                    attempt,
                    fingerprint: None,
                    outcome,
                };
                OnIntervention::Put {
                    record,
                    expires_in,
                    if_ran_out: false,
                }
            }
            (
                Self::Committed {
                    fingerprint,
                    outcome: found,
                    ..
                },
                Wish::Replace { seen, outcome },
            ) if found == seen && seen.audit().is_some() => {
                let call = found.metadata.as_deref();
                let mut outcome = intervention.made_by_hand(outcome, call, left);
                if intervention.by.is_none() {
                    outcome.describe(|metadata| metadata.audit = seen.audit().cloned());
                }
                let record = Self::Committed {
                    attempt,
                    fingerprint: *fingerprint,
                    outcome,
                };
                OnIntervention::Replace { record }
            }
            (Self::Committed { .. } | Self::Done { .. }, Wish::Replace { seen, .. })
                if seen.audit().is_some() =>
            {
                OnIntervention::Answer(Intervened::Changed { attempt })
            }
            _ => OnIntervention::Answer(Intervened::NotAbandoned { state }),
        }
    }

    /// Its state, as far as that does not depend on the time.
    fn state_without_time(&self) -> RecordState {
        match self {
            Self::Issued { .. } => RecordState::Issued,
            Self::InFlight(_) => RecordState::InFlight,
            Self::Released { .. } => RecordState::Released,
            Self::Committed { .. } => RecordState::Committed,
            Self::Done { .. } => RecordState::Done,
        }
    }
}

/// The states that time alone distinguishes, as one.
fn kind(state: RecordState) -> RecordState {
    match state {
        RecordState::Abandoned => RecordState::InFlight,
        RecordState::Expired => RecordState::Issued,
        RecordState::Done => RecordState::Committed,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    #[test]
    fn a_settled_outcome_is_kept_for_some_time_and_not_for_ever() {
        let id = RecordId::new("o", &Key::encode("k").unwrap()).unwrap();
        let outcome = Encoded::new(crate::CodecId::JSON, "1".into());
        for (asked, kept) in [
            (Duration::ZERO, Duration::from_millis(1)),
            (Duration::from_micros(1), Duration::from_millis(1)),
            (Duration::from_secs(1), Duration::from_secs(1)),
            (Duration::MAX, MAX_LENGTH),
        ] {
            let Wish::Settle { ttl, .. } = Intervention::settle(id.clone(), outcome.clone())
                .keep_for(asked)
                .wish
            else {
                panic!("another wish")
            };
            assert_eq!(ttl, Some(kept));
        }
    }
}
