//! A caller: where its call is, and what it has on the way to and from the store.

use std::fmt;

use idem_core::record::Owner;

/// A claim: a caller, and which of its claims. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) u8);

impl Id {
    pub(crate) const NOBODY: Self = Self(0);
    /// Somebody who is none of the callers.
    pub(crate) const STRANGER: Self = Self(u8::MAX);
    /// The outcome that an operator settles a record with.
    pub(crate) const SETTLED: Self = Self(u8::MAX - 1);
    /// The one in its place.
    pub(crate) const REPLACED: Self = Self(u8::MAX - 2);

    pub(crate) fn new(caller: usize, call: u8) -> Self {
        Self(u8::try_from(caller).unwrap_or(0) * 16 + call + 1)
    }

    /// The caller, and which of its claims.
    pub(crate) fn of(self) -> Option<(usize, u8)> {
        let id = self.0.checked_sub(1)?;
        Some((usize::from(id / 16), id % 16))
    }

    /// As the functions of `idem-core` take it.
    pub(crate) fn owner(self) -> Owner {
        let mut bytes = [0; 16];
        bytes[15] = self.0;
        Owner::from_bytes(bytes)
    }

    pub(crate) fn from_owner(owner: Owner) -> Self {
        Self(owner.to_bytes()[15])
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of() {
            None => f.write_str("nobody"),
            Some((caller, call)) => write!(f, "{caller}.{call}"),
        }
    }
}

/// One of the callers. Its process, its task and its keeper are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// The phase of its call.
    pub phase: Phase,
    /// The step of its call that is under way.
    pub wire: Wire,
    /// The renewal that is under way.
    pub renewal: Wire,
    /// How long ago the renewal was sent, up to the lease.
    pub renewal_age: u8,
    /// Which of its claims this is.
    pub call: u8,
    /// Its fingerprint, 0 for none.
    pub print: u8,
    /// Requests that it gave up on, and that may still be carried out. Sorted.
    pub strays: [Option<Stray>; 2],
    /// Seen from outside: another body has begun since this caller's did.
    pub superseded: bool,
    /// Seen from outside: which of its claims may be left alone at the store, as bits: its process
    /// died, its body was cut, or the time for undoing it passed.
    pub excused: u8,
}

/// The phase of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// There is none; or it waits, and claims again when it likes.
    Idle,
    /// A claim is under way.
    Claiming {
        /// How long ago it was first sent, up to the lease.
        age: u8,
        /// It was sent once more.
        resent: bool,
    },
    /// It is the owner, and the body is there.
    Body {
        /// Its attempt.
        attempt: u8,
        /// How long until it stops by itself, on the store's clock.
        left: u8,
        /// How often the body may be polled yet without ending.
        polls: u8,
        /// It was polled.
        begun: bool,
    },
    /// The body has returned a value, and a commit is under way until the store takes it.
    Committing {
        /// Its attempt.
        attempt: u8,
    },
    /// The body has ended otherwise, and a release is under way until the store takes it.
    Releasing {
        /// Its attempt.
        attempt: u8,
        /// To `Abandoned`, not to `Released`.
        abandon: bool,
        /// How the body ended.
        after: Ended,
    },
    /// A claim of unknown fate is being undone.
    Undoing {
        /// For how long, up to the lease.
        age: u8,
    },
}

/// How a body ended that is followed by a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// With an error that releases or abandons, or a panic.
    Error,
    /// It was not begun: it asked, and got no answer.
    Unanswered,
    /// It was cut. Nothing is released then, but by a mutant.
    Cut,
    /// With a value. Nothing is released then, but by a mutant.
    Value,
}

/// A step that is under way. The phase determines which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wire {
    /// None is.
    Free,
    /// The request is on its way to the store.
    Sent,
    /// The reply is on its way back.
    Reply(Reply),
}

/// The store's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reply {
    /// To a claim: the caller is the owner, as this attempt.
    Owned(u8),
    /// To a claim: another caller is.
    InFlight,
    /// To a claim that does not take over: abandoned.
    Abandoned,
    /// To a claim: the record has another fingerprint.
    Mismatch,
    /// To a claim: no more attempts may be.
    Exhausted,
    /// To a claim of a token: there is none, or its time is over.
    NotIssued,
    /// To a claim: this owner's outcome.
    Committed(Id),
    /// To a claim: there was an outcome.
    Done,
    /// To any other step: carried out, now or before.
    Held,
    /// To any other step: not the owner.
    Lost,
}

/// A request whose sender no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stray {
    /// Which claim of its caller it belongs to.
    pub call: u8,
    /// The step that it asks for.
    pub request: Request,
}

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// To become the owner.
    Claim {
        /// The fingerprint.
        print: u8,
    },
    /// To record the outcome of this attempt.
    Commit {
        /// The attempt.
        attempt: u8,
        /// The fingerprint.
        print: u8,
    },
    /// To give the key up.
    Release {
        /// The attempt.
        attempt: u8,
        /// To `Abandoned`, not to `Released`.
        abandon: bool,
        /// How the body ended.
        after: Ended,
    },
    /// To undo the claim.
    Undo,
    /// To keep the lease.
    Renew {
        /// The attempt.
        attempt: u8,
    },
}

impl Caller {
    pub(crate) const NEW: Self = Self {
        phase: Phase::Idle,
        wire: Wire::Free,
        renewal: Wire::Free,
        renewal_age: 0,
        call: 0,
        print: 0,
        strays: [None; 2],
        superseded: false,
        excused: 0,
    };

    /// The request of the step that is under way.
    pub(crate) fn request(&self) -> Option<Request> {
        match self.phase {
            Phase::Claiming { .. } => Some(Request::Claim { print: self.print }),
            Phase::Committing { attempt } => Some(Request::Commit {
                attempt,
                print: self.print,
            }),
            Phase::Releasing {
                attempt,
                abandon,
                after,
            } => Some(Request::Release {
                attempt,
                abandon,
                after,
            }),
            Phase::Undoing { .. } => Some(Request::Undo),
            Phase::Idle | Phase::Body { .. } => None,
        }
    }

    /// Whether a claim is under way, that was sent once, or twice.
    pub(crate) fn is_claiming(&self, twice: bool) -> bool {
        matches!(self.phase, Phase::Claiming { resent, .. } if resent == twice)
    }

    pub(crate) fn enters(&mut self, phase: Phase) {
        self.phase = phase;
        self.wire = if self.request().is_some() {
            Wire::Sent
        } else {
            Wire::Free
        };
    }

    /// The call is over, and its claim with it.
    pub(crate) fn ends(&mut self, excused: bool, room: u8) {
        self.stops_renewing(room);
        self.excused |= u8::from(excused) << self.call;
        self.call += 1;
        self.superseded = false;
        self.enters(Phase::Idle);
    }

    /// From now on no sender waits for a renewal that is under way.
    pub(crate) fn stops_renewing(&mut self, room: u8) {
        if let (Wire::Sent, Phase::Body { attempt, .. }) = (self.renewal, self.phase) {
            self.strays(Request::Renew { attempt }, room);
        }
        (self.renewal, self.renewal_age) = (Wire::Free, 0);
    }

    /// Leaves a request on its way, where there is room. One that is never carried out is one that
    /// was lost.
    pub(crate) fn strays(&mut self, request: Request, room: u8) -> bool {
        let stray = Stray {
            call: self.call,
            request,
        };
        let free = self
            .strays
            .iter_mut()
            .take(usize::from(room))
            .find(|place| place.is_none());
        let Some(place) = free else { return false };
        *place = Some(stray);
        self.sort();
        true
    }

    pub(crate) fn take_stray(&mut self, place: usize) -> Option<Stray> {
        let stray = self.strays.get_mut(place)?.take();
        self.sort();
        stray
    }

    /// Whether a claim of this call is among the strays.
    pub(crate) fn has_stray_claim(&self, call: u8) -> bool {
        let is_claim =
            |stray: &Stray| stray.call == call && matches!(stray.request, Request::Claim { .. });
        self.strays.iter().flatten().any(is_claim)
    }

    fn sort(&mut self) {
        // Those that are there come first.
        self.strays
            .sort_unstable_by_key(|stray| (stray.is_none(), *stray));
    }
}
