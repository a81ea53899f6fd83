//! Issuing tokens: each one is recorded in the store before a caller gets it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::{Subject, Token};
use crate::adapter::engine::{Event, MAX_LENGTH, Prepared, Runtime, current, whole_millis};
use crate::api::operation::{Draft, Operation};
use crate::bounds::IntoDuration;
use crate::record::{Issue, Issued};
use crate::{Error, KeyPart, StoreError, StoreErrorKind};

/// How many tokens one step of the store records, which has a time limit.
const AT_ONCE: usize = 5_000;

/// The longest time for which the store can tell an expired token from an unknown one.
const MOST_GRACE: Duration = Duration::from_secs(60 * 60);

/// Makes tokens of one operation, and their records.
struct Mint<'a> {
    /// `None`: disabled.
    runtime: Option<Arc<Runtime>>,
    operation: Cow<'a, str>,
    ttl: Duration,
}

impl Mint<'_> {
    fn make(&self, subject: Option<Subject>) -> Result<(Token, Issue), Error> {
        let operation = &*self.operation;
        let Some(subject) = subject else {
            return Err(Error::MissingSubject {
                operation: operation.into(),
            });
        };
        let token =
            Token::generate(self.ttl, operation, &subject).map_err(|error| Error::Config {
                operation: operation.into(),
                reason: format!("the system gives no random numbers for a token: {error}").into(),
            })?;
        let id = token.bound(operation, &subject).id(operation);
        Ok((
            token,
            Issue {
                id,
                ttl: self.ttl,
                grace: self.ttl.min(MOST_GRACE),
            },
        ))
    }

    /// Records what was made.
    async fn record(&self, issues: &[Issue]) -> Result<(), Error> {
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        for issues in issues.chunks(AT_ONCE) {
            Self::record_some(runtime, issues).await?;
        }
        for issue in issues {
            runtime
                .observer
                .decided(Event::debug("issued"), &issue.id, 0);
        }
        Ok(())
    }

    async fn record_some(runtime: &Runtime, issues: &[Issue]) -> Result<(), Error> {
        let mut answers = runtime.store.issue(issues).await;
        // If the result is unknown, sends the issue once more. The store recognises a token that it
        // wrote the first time.
        let again: Vec<usize> = (0..answers.len())
            .filter(|&index| {
                answers
                    .get(index)
                    .is_some_and(|answer| answer.as_ref().is_err_and(StoreError::is_unknown))
            })
            .collect();
        if !again.is_empty() {
            let resent: Vec<Issue> = again
                .iter()
                .filter_map(|&index| issues.get(index).cloned())
                .collect();
            for (index, answer) in again.into_iter().zip(runtime.store.issue(&resent).await) {
                if let Some(slot) = answers.get_mut(index) {
                    *slot = answer;
                }
            }
        }
        let mut answers = answers.into_iter();
        for issue in issues {
            match answers.next() {
                Some(Ok(Issued::Issued)) => {}
                Some(Ok(Issued::Taken)) => return Err(runtime.failed(&issue.id, repeated())),
                Some(Err(error)) => return Err(runtime.failed(&issue.id, error)),
                None => return Err(runtime.failed(&issue.id, unanswered())),
            }
        }
        Ok(())
    }
}

/// Returns what issuing needs: the runtime, unless it is disabled, and the operation's name.
fn issuer(mut draft: Draft<'_>) -> Result<(Option<Arc<Runtime>>, Cow<'_, str>), Error> {
    draft.check_name();
    if draft.id.is_some() {
        draft.misconfigured(
            "a token that is issued is a key of its own: leave `key` and `token` out",
        );
    }
    match draft.problem {
        Some(problem) => Err(problem),
        None => Ok((draft.runtime, draft.name)),
    }
}

/// Of 128 random bits, none come twice.
fn repeated() -> StoreError {
    let message = "there is a record of this new token already; the system's random numbers seem \
        to repeat themselves";
    StoreError::new(StoreErrorKind::Refused, message)
}

fn unanswered() -> StoreError {
    StoreError::new(
        StoreErrorKind::Refused,
        "the store has answered fewer issues than it was asked for",
    )
}

/// Reports a token that could not be issued.
fn not_issued(error: &Error) {
    Prepared::Refused(error.clone()).announce();
    current::taint();
}

/// # Issuing tokens
///
/// A token is given to a visitor before the call, in a form or an invitation; the call with it runs
/// once. Other calls need no token.
impl<'a, Q, P> Operation<'a, Q, P> {
    /// Issues a token for one submission, in one round trip.
    ///
    /// It is valid only for the operation of this name and for the subject: the visitor that must
    /// submit it, such as the user's or the session's id. Take the subject from the server's own
    /// knowledge, never from the form.
    ///
    /// The token is valid until `ttl` has passed, 1 ms to 100 years. This is the token's own time,
    /// not that of the outcome; the operation's other settings do not apply. After a body that
    /// released the key, the token is valid for at least `ttl` again. After a commit, the record is
    /// kept for at least `ttl`.
    ///
    /// The store keeps the unused token's record for `ttl` and a grace: as long again, but at most
    /// an hour. In the grace, an event distinguishes an expired token from an unknown one.
    ///
    /// Under [`Idempotency::disabled`](crate::Idempotency::disabled) no record is written or read.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store cannot record it. [`Error::MissingSubject`] if the subject is
    /// `None` or empty. [`Error::Config`] if `ttl` or the operation's name is invalid, or if the
    /// call has a key already, because a token takes the place of a key.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, a record of an unused token may remain until it expires.
    pub fn issue<S, D>(
        self,
        subject: &S,
        ttl: D,
    ) -> impl Future<Output = Result<Token, Error>> + use<'a, Q, P, S, D>
    where
        S: KeyPart + ?Sized,
        D: IntoDuration,
    {
        let subject = Subject::encode(subject);
        let made = self
            .mint(ttl)
            .and_then(|mint| Ok((mint.make(subject)?, mint)));
        async move {
            let issued = async {
                let ((token, issue), mint) = made?;
                mint.record(&[issue]).await?;
                Ok(token)
            };
            issued.await.inspect_err(not_issued)
        }
    }

    /// Issues a token for each of several subjects, in their order, in as few round trips as the
    /// store allows. Use it for invitations or, with `std::iter::repeat_n(&user.id, 20)`, for a
    /// page of many forms.
    ///
    /// # Errors
    ///
    /// Like [`issue`](Self::issue). Then no token is returned, and those that were recorded expire.
    ///
    /// # Cancellation safety
    ///
    /// Like [`issue`](Self::issue).
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let guests = ["ada@example.com", "grace@example.com"];
    /// let tokens = idempotency
    ///     .operation("invitations.accept")
    ///     .issue_many(guests, "7d")
    ///     .await?;
    /// assert_eq!(tokens.len(), guests.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn issue_many<I, D>(
        self,
        subjects: I,
        ttl: D,
    ) -> impl Future<Output = Result<Vec<Token>, Error>> + use<'a, Q, P, I, D>
    where
        I: IntoIterator<Item: KeyPart>,
        D: IntoDuration,
    {
        let made = self.mint(ttl).and_then(|mint| {
            let made: Result<Vec<_>, _> = subjects
                .into_iter()
                .map(|subject| mint.make(Subject::encode(&subject)))
                .collect();
            Ok((made?, mint))
        });
        async move {
            let issued = async {
                let (made, mint) = made?;
                let (tokens, issues): (Vec<_>, Vec<_>) = made.into_iter().unzip();
                mint.record(&issues).await?;
                Ok(tokens)
            };
            issued.await.inspect_err(not_issued)
        }
    }

    fn mint(self, ttl: impl IntoDuration) -> Result<Mint<'a>, Error> {
        let (runtime, operation) = issuer(self.draft)?;
        let config = |reason: String| Error::Config {
            operation: (*operation).into(),
            reason: reason.into(),
        };
        let ttl = ttl
            .into_duration()
            .map_err(|reason| config(format!("the token's `ttl`: {reason}")))?;
        let rounded = whole_millis(ttl);
        if rounded.is_zero() {
            return Err(config(
                "the token's `ttl` is zero, so that it could never be used; set at least 1 ms"
                    .into(),
            ));
        }
        if rounded > MAX_LENGTH {
            return Err(config(format!(
                "the token's `ttl` is {ttl:?}, more than the 100 years that it may be; is the unit \
                 right?"
            )));
        }
        Ok(Mint {
            runtime,
            operation,
            ttl: rounded,
        })
    }
}
