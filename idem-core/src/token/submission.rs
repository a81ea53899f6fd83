//! The part of a call with a token that replaces the key, and what is wrong with the token.

use std::fmt;

use super::{AsToken, BOUND, Bound, CHECKED, InvalidToken, Subject};
use crate::encoding::key::{KeyDigest, KeyPart};
use crate::observe::Event;
use crate::record::RecordId;

/// The part of a call with a token that replaces the key.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) subject: KeyDigest,
    /// The token's own `ttl`; 0 if the token is refused.
    pub(crate) ttl_secs: u32,
    /// Why the token is refused without asking the store.
    pub(crate) flaw: Option<Flaw>,
    /// By a person who settles it: no guess.
    pub(crate) settles: bool,
}

/// What is wrong with a token. The caller does not learn which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
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
    pub(crate) fn event(self) -> Event {
        match self {
            Self::Unknown => Event::warn("token_unknown"),
            Self::Expired => Event::info("token_expired"),
            Self::Forged => Event::warn("token_forged"),
            Self::OfAnother => Event::warn("token_of_another"),
        }
    }

    /// Whether it may be a guess. An expired token was issued to this subject, so it is none.
    pub(crate) fn may_be_guess(self) -> bool {
        self != Self::Expired
    }
}

impl Submission {
    /// Finds the record of a token, and what can be found wrong with it without the store. `None`
    /// if the subject is missing.
    pub(crate) fn of<T, S>(operation: &str, token: &T, subject: &S) -> Option<(RecordId, Self)>
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
                settles: false,
            },
        ))
    }
}

impl fmt::Display for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subject {}", self.subject)
    }
}
