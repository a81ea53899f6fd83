//! A case as a row: the record that is given, the steps of its callers, and the answer of the store
//! to each.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{
    AsClaimed, Claim, Claimed, Commit, Encoded, Issued, Metadata, Origin, Ownership, RecordId,
    RecordState, Release, Removed,
};

use crate::bench::{
    Bench, LONG, Seen, abandon, claim, commit, issue, outcome, print, release, renewal, unanswered,
    undo,
};
use crate::check::{Failure, Verdict, broken, same};
use crate::handle::Handle;

/// One line of a case. The callers that are named claim, commit, .. the record of one key.
#[derive(Debug)]
pub(crate) enum Line {
    /// On a new key: a record in this state, whose first and only attempt is that of [`A`]. The
    /// lines up to the next such one are tried in each of these states; `Committed` is two, since
    /// a store may keep an outcome in another place if the record remembers longer. Without a
    /// state, nothing is known of the key, as at the beginning of each case.
    Given(&'static [RecordState]),
    /// The same, with the fingerprint of a text.
    GivenWith(&'static str, &'static [RecordState]),
    Claims(Caller, Answer),
    Commits(Caller, Ownership),
    Releases(Caller, Ownership),
    /// A release that names the run.
    NamesRun(Caller, Ownership),
    /// A release to abandoned.
    GivesUp(Caller, Ownership),
    /// A release to unanswered.
    GetsNoAnswer(Caller, Ownership),
    Undoes(Caller, Ownership),
    Renews(Caller, Ownership),
    Removes(Caller, Removed),
    /// The key is issued.
    Issues(Issued),
    /// The record's state now.
    Is(RecordState),
    IsAt(RecordState, u64),
    IsGone,
    /// The text that the record has the fingerprint of.
    HasPrint(Option<&'static str>),
    /// The record's run began with this caller's claim.
    HasRunOf(Caller),
    HasNoRun,
    /// Looks at the record. Time passes then, so that times that begin again are seen to.
    Look,
    /// The record is as it was at the last look.
    Unchanged,
    /// A moment passes.
    Pass,
}

/// The answer to a claim.
#[derive(Debug)]
pub(crate) enum Answer {
    Owned(u64, Origin),
    FindsInFlight(u64),
    FindsAbandoned(u64),
    /// With the outcome that was committed.
    FindsCommitted(u64),
    FindsDone(u64),
    Exhausted(u64),
    Mismatch,
    NotIssued,
    IssueExpired,
}

/// A caller, who keeps its owner and its claim from one line to the next. One that has claimed
/// nothing is a stranger.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    name: char,
    with: &'static [With],
}

/// What is unusual about a step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum With {
    /// By another handle.
    Elsewhere,
    // Of a claim, and of what the same caller sends later.
    AtMost(u64),
    NoTakeOver,
    TakeOverAfter(Duration),
    MustBeIssued,
    Print(&'static str),
    Lease(Duration),
    Hold(Duration),
    /// The metadata of a claim, as text.
    Said(&'static str),
    // Of a commit.
    Outcome(&'static str),
    NoOutcome,
    /// The record remembers no longer than it keeps the outcome.
    RememberForTtl,
    Attempt(u64),
    /// The caller knows what its claim found.
    From(Origin),
}

pub(crate) const TWICE: Duration = Duration::from_secs(2 * LONG.as_secs());
pub(crate) const EIGHTFOLD: Duration = Duration::from_secs(8 * LONG.as_secs());

pub(crate) const A: Caller = Caller::new('A');
pub(crate) const B: Caller = Caller::new('B');
pub(crate) const C: Caller = Caller::new('C');
pub(crate) const D: Caller = Caller::new('D');
pub(crate) const E: Caller = Caller::new('E');
pub(crate) const F: Caller = Caller::new('F');

impl Caller {
    const fn new(name: char) -> Self {
        Self { name, with: &[] }
    }

    pub(crate) const fn with(mut self, with: &'static [With]) -> Self {
        self.with = with;
        self
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.with.is_empty() {
            write!(f, " with {:?}", self.with)?;
        }
        Ok(())
    }
}

/// Plays a case.
pub(crate) async fn play(t: &Bench, lines: &'static [Line]) -> Verdict {
    let begins = |line: &Line| matches!(line, Line::Given(_) | Line::GivenWith(..));
    for (number, part) in lines.chunk_by(|_, next| !begins(next)).enumerate() {
        let (print, states, part) = match part {
            [Line::Given(states), part @ ..] => (None, *states, part),
            [Line::GivenWith(print, states), part @ ..] => (Some(*print), *states, part),
            _ => (None, &[][..], part),
        };
        let mut scenes = Vec::new();
        if states.is_empty() {
            scenes.push(Scene::new(t, t.id()?));
        }
        for state in states {
            scenes.extend(Scene::given(t, *state, print).await?);
        }
        for mut scene in scenes {
            for line in part {
                let what = format!("part {}, {line:?}", number + 1);
                scene.play(&what, line).await?;
            }
        }
    }
    Ok(())
}

/// One key, and the callers that use it.
struct Scene<'a> {
    t: &'a Bench,
    id: RecordId,
    actors: HashMap<char, Actor>,
    /// The outcome that was committed last.
    outcome: Option<Encoded>,
    before: Option<Seen>,
}

struct Actor {
    claim: Claim,
    attempt: u64,
    /// The commit of the record that was given, by its owner.
    commit: Option<Commit>,
}

impl<'a> Scene<'a> {
    fn new(t: &'a Bench, id: RecordId) -> Self {
        Self {
            t,
            id,
            actors: HashMap::new(),
            outcome: None,
            before: None,
        }
    }

    async fn given(
        t: &'a Bench,
        state: RecordState,
        text: Option<&str>,
    ) -> Result<Vec<Self>, Failure> {
        let fingerprint = text.map_or(Ok(None), print)?;
        let all = match state {
            RecordState::Issued => return Ok(vec![Self::new(t, t.issued().await?.id)]),
            RecordState::Expired => return Ok(vec![Self::new(t, t.expired().await?.id)]),
            RecordState::Committed => t.both_committed(fingerprint).await?.into(),
            _ => vec![t.given_with(state, fingerprint).await?],
        };
        let scene = |given: crate::bench::Given| {
            let mut scene = Self::new(t, given.id);
            scene.outcome.clone_from(&given.commit.outcome);
            let actor = Actor {
                claim: given.claim,
                attempt: 1,
                commit: Some(given.commit),
            };
            scene.actors.insert(A.name, actor);
            scene
        };
        Ok(all.into_iter().map(scene).collect())
    }

    async fn play(&mut self, what: &str, line: &Line) -> Verdict {
        match line {
            // They begin a part.
            Line::Given(_) | Line::GivenWith(..) => Ok(()),
            Line::Claims(caller, answer) => self.claims(what, *caller, answer).await,
            Line::Commits(caller, answer) => self.commits(what, *caller, *answer).await,
            Line::Releases(caller, answer) => self.releases(what, *caller, release, *answer).await,
            Line::NamesRun(caller, answer) => {
                let names = |claim: &Claim| release(claim).with_run(true);
                self.releases(what, *caller, names, *answer).await
            }
            Line::GivesUp(caller, answer) => self.releases(what, *caller, abandon, *answer).await,
            Line::GetsNoAnswer(caller, answer) => {
                self.releases(what, *caller, unanswered, *answer).await
            }
            Line::Undoes(caller, answer) => self.releases(what, *caller, undo, *answer).await,
            Line::Renews(caller, answer) => {
                let renewal = renewal(&self.actor(*caller)?.claim);
                let found = self.handle(*caller).await?.renew(renewal).await?;
                same(what, found, *answer)
            }
            Line::Removes(caller, answer) => {
                let found = self.handle(*caller).await?.remove(&self.id).await?;
                same(what, &found, answer)
            }
            Line::Issues(answer) => {
                same(what, &self.t.store.issue(&issue(&self.id)).await?, answer)
            }
            Line::Look => {
                self.before = Some(self.t.look(&self.id).await?);
                self.t.pass(self.t.unit() / 4).await;
                Ok(())
            }
            Line::Pass => {
                self.t.pass(Duration::from_millis(1)).await;
                Ok(())
            }
            Line::Unchanged => match &self.before {
                Some(before) => self.t.unchanged(what, &self.id, before).await,
                None => Err(broken("no look before: a mistake in the suite")),
            },
            Line::HasRunOf(caller) => {
                let owner = self.actor(*caller)?.claim.owner;
                let info = self.t.store.inspect(&self.id).await?;
                same(what, info.and_then(|info| info.run), Some(owner))
            }
            Line::Is(_) | Line::IsAt(..) | Line::IsGone | Line::HasPrint(_) | Line::HasNoRun => {
                self.is_as_said(what, line).await
            }
        }
    }

    async fn is_as_said(&self, what: &str, line: &Line) -> Verdict {
        let info = self.t.store.inspect(&self.id).await?;
        match line {
            Line::Is(state) => same(what, info.map(|info| info.state), Some(*state)),
            Line::IsAt(state, attempt) => {
                let found = info.map(|info| (info.state, info.attempt));
                same(what, found, Some((*state, *attempt)))
            }
            Line::HasPrint(text) => {
                let wanted = text.map_or(Ok(None), print)?;
                same(what, info.and_then(|info| info.fingerprint), wanted)
            }
            Line::HasNoRun => same(what, info.map(|info| info.run), Some(None)),
            _ => same(what, info.map(|info| info.state), None),
        }
    }

    async fn claims(&mut self, what: &str, caller: Caller, wanted: &Answer) -> Verdict {
        let claim = self.actor(caller)?.claim.clone();
        let found = self.handle(caller).await?.claim(&claim).await?;
        if let Claimed::Owned { attempt, .. } = found {
            self.actor(caller)?.attempt = attempt;
        }
        let is_wanted = match (wanted, &found) {
            (Answer::Owned(wanted, origin), Claimed::Owned { attempt, from }) => {
                (wanted, origin) == (attempt, from)
            }
            (Answer::FindsInFlight(wanted), Claimed::InFlight { attempt, .. })
            | (Answer::FindsAbandoned(wanted), Claimed::Abandoned { attempt })
            | (Answer::FindsDone(wanted), Claimed::Done { attempt })
            | (Answer::Exhausted(wanted), Claimed::Exhausted { attempts: attempt }) => {
                wanted == attempt
            }
            (Answer::FindsCommitted(wanted), Claimed::Committed { attempt, outcome }) => {
                wanted == attempt && Some(outcome) == self.outcome.as_ref()
            }
            (Answer::Mismatch, Claimed::Mismatch)
            | (Answer::NotIssued, Claimed::NotIssued)
            | (Answer::IssueExpired, Claimed::IssueExpired) => true,
            _ => false,
        };
        if is_wanted {
            return Ok(());
        }
        let outcome = match wanted {
            Answer::FindsCommitted(_) => format!(" with {:?}", self.outcome),
            _ => String::new(),
        };
        let wanted = format!("wanted {wanted:?}{outcome}");
        Err(broken(format!("{what}: {wanted}, got {found:?}")))
    }

    async fn commits(&mut self, what: &str, caller: Caller, wanted: Ownership) -> Verdict {
        let commit = self.commit_of(caller)?;
        let found = self.handle(caller).await?.commit(&commit).await?;
        if found == Ownership::Held {
            self.outcome = commit.outcome;
        }
        same(what, found, wanted)
    }

    fn commit_of(&mut self, caller: Caller) -> Result<Commit, Failure> {
        let actor = self.actor(caller)?;
        let given = actor.commit.clone();
        let mut commit = given.unwrap_or_else(|| commit(&actor.claim, actor.attempt));
        for with in caller.with {
            match with {
                With::Attempt(attempt) => commit = crate::bench::commit(&actor.claim, *attempt),
                With::Outcome(text) => commit.outcome = Some(outcome(text.as_bytes())),
                With::NoOutcome => commit.outcome = None,
                With::RememberForTtl => commit.remember = commit.ttl,
                With::From(origin) => {
                    let claim = &actor.claim;
                    commit.as_claimed = Some(AsClaimed::new(*origin, claim.lease, claim.hold));
                }
                _ => {}
            }
        }
        Ok(commit)
    }

    async fn releases(
        &mut self,
        what: &str,
        caller: Caller,
        release: fn(&Claim) -> Release,
        wanted: Ownership,
    ) -> Verdict {
        let release = release(&self.actor(caller)?.claim);
        same(
            what,
            self.handle(caller).await?.release(&release).await?,
            wanted,
        )
    }

    /// The caller, with what is unusual about its claim.
    fn actor(&mut self, caller: Caller) -> Result<&mut Actor, Failure> {
        let new = || Actor {
            claim: claim(&self.id),
            attempt: 1,
            commit: None,
        };
        let actor = self.actors.entry(caller.name).or_insert_with(new);
        let claim = &mut actor.claim;
        for with in caller.with {
            match with {
                With::AtMost(attempts) => claim.max_attempts = Some(*attempts),
                With::NoTakeOver => claim.take_over = false,
                With::TakeOverAfter(silent) => {
                    claim.take_over = false;
                    claim.take_over_after = Some(*silent);
                }
                With::MustBeIssued => claim.must_be_issued = true,
                With::Print(text) => claim.fingerprint = print(text)?,
                With::Lease(lease) => claim.lease = *lease,
                With::Hold(hold) => claim.hold = *hold,
                With::Said(text) => claim.metadata = Metadata::parse(text).map(Arc::new),
                _ => {}
            }
        }
        Ok(actor)
    }

    async fn handle(&self, caller: Caller) -> Result<Handle, Failure> {
        if caller
            .with
            .iter()
            .any(|with| matches!(with, With::Elsewhere))
        {
            self.t.second().await
        } else {
            Ok(self.t.store.clone())
        }
    }
}
