//! Deviations that the promises must reject.

use crate::bounds::{Bounds, Network};
use crate::promise::Promise::{self, P1, P2, P3, P5, P6, P7, P8, P9, P10, P13, Run};

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident $promise:ident,)*) => {
        /// One deviation from what the code does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The promise that it breaks first, as the model is explored in order of depth.
            pub fn breaks(self) -> Promise {
                match self {
                    $(Self::$name => $promise,)*
                }
            }
        }
    };
}

mutants! {
    // At the store.
    /// A commit is accepted from anybody.
    CommitWithoutOwner P3,
    /// A release is accepted from anybody.
    ReleaseWithoutOwner P3,
    /// A renewal is accepted from anybody.
    RenewalWithoutOwner P3,
    /// A claim takes over without looking at the lease.
    TakesOverAlive P1,
    /// A claim that takes over has the attempt of the one before.
    AttemptNotCounted P5,
    /// A claim that does not take over does.
    TakesOverAlthoughRejected P5,
    /// A claim that was sent again is not recognised.
    NotRecognised P10,
    /// A renewal is answered, and not carried out.
    RenewalNotCarriedOut P1,
    /// A commit leaves the expiry as it was.
    CommitKeepsExpiry P2,
    /// A claim that finds an abandoned record replays an outcome that was never committed.
    ReplaysUncommitted P2,
    /// A second commit replaces the outcome.
    CommitOverCommit P3,
    /// Undoing a claim removes the record, and the attempt count with it.
    UndoForgets P10,
    /// Undoing a claim uses up the attempt.
    UndoCounts P10,
    /// Undoing a claim of an abandoned record leaves a released one.
    UndoReleasesAbandoned P10,
    /// Undoing a claim of an abandoned record leaves one without an owner.
    UndoForgetsTheOwner P10,
    /// Undoing a claim of an abandoned record leaves one without its fingerprint.
    UndoForgetsTheFingerprint P10,
    /// Undoing a claim of an abandoned record forgets how many attempts only asked.
    UndoForgetsTheQuestions P10,
    /// Undoing a claim of an abandoned record forgets what that one had taken over.
    UndoForgetsWhatWasTakenOver P10,
    /// Undoing a claim of a released key forgets the run.
    UndoForgetsTheRun Run,
    /// A release does not name the run.
    ReleaseForgetsTheRun Run,
    /// A claim of a released key begins a run, although one goes on.
    ClaimForgetsTheRun Run,
    /// A take-over begins a run.
    TakeOverBeginsARun Run,
    /// A renewal shortens the record's life to what its operation asks for.
    RenewalShortensTheHold Run,
    /// So does a take-over.
    TakeOverShortensTheHold Run,
    /// A fingerprint is written, and not compared.
    FingerprintNotCompared P7,
    /// An attempt whose question stayed without an answer counts as one that began a body.
    QuestionCounts P5,
    /// An abandoned record that is rejected for a time is taken over at once.
    TakesOverBeforeItsTime P5,
    /// To abandon is to release.
    AbandonReleases P6,
    /// A claim of a token does not ask whether it was issued.
    ClaimsWhatWasNotIssued P13,
    /// An operator settles a record whose owner lives.
    SettlesAlive P2,
    /// An operator replaces the outcome of a body.
    ReplacesAnything P2,
    // At the owner.
    /// The body goes on past its deadline.
    NoSelfCancel P1,
    /// The deadline is looked at when the body begins and by a timer, and not before each poll.
    NoLookBeforePoll P1,
    /// A claim that is answered too late starts the body.
    LateClaimStartsBody P1,
    /// A claim without an answer starts the body.
    UnansweredClaimStartsBody P1,
    /// The lease is counted from the claim's reply.
    DeadlineFromReply P1,
    /// The lease is counted from when the claim was sent again.
    DeadlineFromResend P1,
    /// The renewed lease is counted from the renewal's reply.
    DeadlineFromRenewalReply P1,
    /// The lease is given up at its end, not after nine tenths.
    LeaseToItsEnd P1,
    /// A renewal that stays without an answer is taken for a success.
    UnansweredRenewalCounts P1,
    /// A renewal that was carried out counts, although its reply is received after the deadline
    /// that it was to put off, when nothing has looked at that deadline meanwhile.
    LateRenewalCounts P1,
    /// A claim is sent again as another owner.
    ResendAsAnother P10,
    /// A claim of unknown fate is not undone.
    NoUndo P10,
    /// A commit that stays without an answer becomes a release.
    ReleaseOnFailedCommit P9,
    /// A commit is sent again as another owner.
    CommitAsAnother P9,
    /// A dropped caller releases.
    ReleaseOnDrop P8,
    /// The lease of a dropped caller is renewed.
    RenewalAfterDrop P5,
}

impl Mutant {
    /// The world in which it is found.
    pub fn bounds(self) -> Bounds {
        match self {
            Self::UndoForgetsTheFingerprint | Self::FingerprintNotCompared => Bounds::PRINTS,
            Self::UndoForgetsTheQuestions | Self::QuestionCounts => Bounds::ASKS,
            Self::UndoForgetsTheRun
            | Self::ReleaseForgetsTheRun
            | Self::ClaimForgetsTheRun
            | Self::RenewalShortensTheHold
            | Self::TakeOverShortensTheHold => Bounds::STEPS,
            Self::TakesOverBeforeItsTime => Bounds::REJECTED_FOR_A_TIME,
            Self::TakesOverAlthoughRejected => Bounds {
                take_over: false,
                ..Bounds::SMALL
            },
            Self::SettlesAlive | Self::ReplacesAnything => Bounds::OPERATED,
            Self::ClaimsWhatWasNotIssued => Bounds {
                issued: true,
                ..Bounds::SMALL
            },
            Self::ResendAsAnother | Self::CommitAsAnother => Bounds {
                calls: 2,
                ..Bounds::SMALL
            },
            Self::LateRenewalCounts => Bounds {
                network: Network::AnyOrder,
                ..Bounds::SMALL
            },
            _ => Bounds::SMALL,
        }
    }
}
