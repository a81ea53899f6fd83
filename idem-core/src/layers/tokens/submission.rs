//! The part of a call with a token that replaces the key, and what is wrong with the token.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::throttle::Throttle;
use super::{AsToken, BOUND, Bound, CHECKED, InvalidToken, Subject};
use crate::adapter::engine::{Admission, Event, NOT_ISSUED, Rejected, clock};
use crate::api::operation::Operation;
use crate::record::RecordId;
use crate::{Error, KeyDigest, KeyPart};

/// # Tokens
impl<Q, P> Operation<'_, Q, P> {
    /// Sets a token instead of a key, and the subject that it was [issued](Self::issue) to, for
    /// this operation.
    ///
    /// The body runs only for the first submission; later ones are duplicates, as with a key. If
    /// the token is unknown, expired, forged or another subject's, the call fails with
    /// [`Error::UnknownToken`]. The error does not say which; the events do. Take the subject from
    /// the server's own knowledge of the caller, never from the form.
    ///
    /// A call with a token never runs without the store: `store_failure` is `reject`, whatever it
    /// is set to. A subject that is `None` or empty is [`Error::MissingSubject`]. The outcome is
    /// [remembered](Self::remember) for at least as long as the token was issued for.
    pub fn token<T, S>(mut self, token: &T, subject: &S) -> Self
    where
        T: AsToken + ?Sized,
        S: KeyPart + ?Sized,
    {
        let draft = &mut self.draft;
        let is_of_another = |it: &Arc<dyn Admission>| !(&**it as &dyn Any).is::<Submission>();
        let admission = draft.admission.as_ref();
        if draft.wants_key(admission.map_or(draft.id.is_some(), is_of_another)) {
            if let Some((id, mut submission)) = Submission::find(&draft.name, token, subject) {
                let runtime = draft.runtime.as_ref();
                submission.throttle = runtime.and_then(|runtime| runtime.shared());
                draft.settings.times.least_secs = submission.ttl_secs;
                draft.id = Some(id);
                draft.admission = Some(Arc::new(submission));
            } else {
                draft.problem = Some(Error::MissingSubject {
                    operation: (*draft.name).into(),
                });
            }
        }
        self
    }
}

/// The part of a call with a token that replaces the key.
#[derive(Debug, Clone)]
pub(super) struct Submission {
    subject: KeyDigest,
    /// The token's own `ttl`; 0 if the token is refused.
    ttl_secs: u32,
    /// Why the token is refused without asking the store.
    pub(super) flaw: Option<Flaw>,
    /// Counts what may be a guess. `None`: nothing does, or a person settles the record.
    throttle: Option<Arc<Throttle>>,
}

/// The fault of a token. The caller does not learn which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It has no record.
    Unknown,
    /// Its time is over.
    Expired,
    /// `idem` did not make the text.
    Forged,
    /// It was issued to another subject, or for another operation.
    OfAnother,
}

impl Flaw {
    fn event(self) -> Event {
        match self {
            Self::Unknown => NOT_ISSUED,
            Self::Expired => Event::info("token_expired"),
            Self::Forged => Event::warn("token_forged"),
            Self::OfAnother => Event::warn("token_of_another"),
        }
    }

    /// Whether it may be a guess. An expired token was issued to this subject, so it is none.
    fn may_be_guess(self) -> bool {
        self != Self::Expired
    }
}

impl Submission {
    /// Finds the record of a token, and what can be found wrong with it without the store. `None`
    /// if the subject is missing.
    pub(super) fn find<T, S>(operation: &str, token: &T, subject: &S) -> Option<(RecordId, Self)>
    where
        T: AsToken + ?Sized,
        S: KeyPart + ?Sized,
    {
        let subject = Subject::encode(subject)?;
        let (bound, ttl_secs, flaw) = match token.as_token() {
            Ok(token) => {
                let bound = token.bound(operation, &subject);
                let flaw = (bound.tag != token.0[BOUND..CHECKED]).then_some(Flaw::OfAnother);
                (
                    bound,
                    if flaw.is_none() { token.ttl_secs() } else { 0 },
                    flaw,
                )
            }
            // The events about one subject's forgeries share one key.
            Err(InvalidToken(())) => (Bound::new(&[], operation, &subject), 0, Some(Flaw::Forged)),
        };
        Some((
            bound.id(operation),
            Self {
                subject: subject.digest(),
                ttl_secs,
                flaw,
                throttle: None,
            },
        ))
    }

    fn refuse(&self, id: &RecordId, flaw: Flaw) -> Rejected {
        if let Some(throttle) = self.throttle.as_ref().filter(|_| flaw.may_be_guess()) {
            throttle.failed(id.name(), self.subject, clock::now());
        }
        let error = Error::UnknownToken {
            operation: id.name().into(),
            key: id.digest(),
        };
        Rejected::Refused(flaw.event(), error)
    }
}

impl Admission for Submission {
    /// Refuses a token that is malformed, or whose subject has sent too many invalid ones.
    fn admit(&self, id: &RecordId, now: Instant) -> Result<(), Rejected> {
        let throttle = self.throttle.as_ref();
        if let Some(retry_after) = throttle.and_then(|it| it.check(id.name(), self.subject, now)) {
            let error = Error::Throttled {
                operation: id.name().into(),
                key: id.digest(),
                retry_after,
            };
            return Err(Rejected::Refused(Event::warn("token_throttled"), error));
        }
        self.flaw.map_or(Ok(()), |flaw| Err(self.refuse(id, flaw)))
    }

    fn not_issued(&self, id: &RecordId, is_expired: bool) -> Rejected {
        let flaw = if is_expired {
            Flaw::Expired
        } else {
            Flaw::Unknown
        };
        self.refuse(id, flaw)
    }

    fn by_hand(&self) -> Arc<dyn Admission> {
        Arc::new(Self {
            throttle: None,
            ..self.clone()
        })
    }
}

impl fmt::Display for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subject {}", self.subject)
    }
}
