//! One trial, and how it is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use idem_core::store::AdminStore;

use crate::bench::Bench;
use crate::check::{Failure, Verdict};
use crate::script::{self, Line};
use crate::subject::{Admin, DynSubject, Subject, Time};

/// How often a trial is tried whose machine held it up; its lengths double each time.
const TRIES: u32 = 6;

/// One trial: a few steps, and what the store must answer.
#[derive(Clone, Copy)]
pub struct Trial {
    pub(crate) name: &'static str,
    steps: Steps,
}

#[derive(Clone, Copy)]
enum Steps {
    Lines(&'static [Line]),
    Code(Code),
}

type Code = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// A trial whose steps are lines of a table.
pub(crate) const fn lines(name: &'static str, lines: &'static [Line]) -> Trial {
    let steps = Steps::Lines(lines);
    Trial { name, steps }
}

/// A trial whose steps need more than lines: tasks, lengths of time, batches.
pub(crate) const fn code(name: &'static str, code: Code) -> Trial {
    let steps = Steps::Code(code);
    Trial { name, steps }
}

/// How a trial ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The store did what it must.
    Passed,
    /// The trial does not apply to this subject, for this reason.
    Skipped(&'static str),
}

/// The source of a trial's subjects.
pub(crate) type Subjects = Arc<dyn Fn() -> (Box<dyn DynSubject>, Time) + Send + Sync>;

pub(crate) fn plain<S: Subject>(subject: impl Fn() -> S + Send + Sync + 'static) -> Subjects {
    Arc::new(move || {
        let subject = subject();
        let time = subject.time();
        (Box::new(subject), time)
    })
}

pub(crate) fn admin<S: Subject<Store: AdminStore>>(
    subject: impl Fn() -> S + Send + Sync + 'static,
) -> Subjects {
    Arc::new(move || {
        let subject = subject();
        let time = subject.time();
        (Box::new(Admin(subject)), time)
    })
}

impl Trial {
    /// Returns the name: the method or the subject, `::`, and the expected behaviour.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs it in the current tokio runtime, which must have time enabled.
    ///
    /// Some trials start over on another subject, a few times, and then fail: a trial that was
    /// delayed for so long that it shows nothing, and one in which the store failed with
    /// [`Timeout`](idem_core::StoreErrorKind::Timeout).
    ///
    /// # Errors
    ///
    /// Says what the store did, and what it must do.
    pub async fn run<S: Subject>(
        &self,
        subject: impl Fn() -> S + Send + Sync + 'static,
    ) -> Result<Outcome, Failure> {
        self.run_on(&plain(subject)).await
    }

    pub(crate) async fn run_on(&self, subjects: &Subjects) -> Result<Outcome, Failure> {
        let mut tries = 0..TRIES;
        loop {
            let scale = 1 << tries.next().unwrap_or_default();
            let (subject, time) = subjects();
            let verdict = async {
                let bench = Bench::new(subject, time, scale).await?;
                let verdict = match self.steps {
                    Steps::Lines(lines) => script::play(&bench, lines).await,
                    Steps::Code(code) => code(&bench).await,
                };
                verdict.map_err(|failure| bench.in_time(failure))
            };
            match verdict.await {
                Ok(()) => return Ok(Outcome::Passed),
                Err(failure) if failure.is_delay() && !tries.is_empty() => {}
                Err(failure) => return failure.skip_reason().map(Outcome::Skipped).ok_or(failure),
            }
        }
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trial({})", self.name)
    }
}
