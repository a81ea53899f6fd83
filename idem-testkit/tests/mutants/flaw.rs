//! The flaws: each is a mistake that a store was, or could well be, written with.

macro_rules! flaws {
    ($($flaw:ident),* $(,)?) => {
        /// What is wrong with a store.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Flaw { $($flaw),* }

        impl Flaw {
            pub(crate) const ALL: [Self; [$(stringify!($flaw)),*].len()] = [$(Self::$flaw),*];
        }
    };
}

flaws![
    ClaimChecksThenWrites,
    ClaimForgetsItself,
    ClaimForgetsWhatItFound,
    ClaimIgnoresFingerprint,
    ClaimIgnoresMaxAttempts,
    ClaimIgnoresTakeOver,
    ClaimIgnoresTheOperation,
    ClaimMismatchesAfterConflict,
    ClaimOfReleasedStartsAtOne,
    ClaimSaysTheWholeLeaseIsLeft,
    ClaimSentAgainIsANewAttempt,
    ClaimSentAgainRenews,
    CommitBelievesTheOwner,
    CommitByAnybody,
    CommitByTheLivingOnly,
    CommitChecksThenWrites,
    CommitCutsLargeOutcomes,
    CommitForgetsTheCodec,
    CommitForgetsThatItIsAnError,
    CommitForgetsTheOutcomeAndSaysHeld,
    CommitKeepsTheOutcomeTooLong,
    CommitMakesTextOfTheOutcome,
    CommitOfNothingIsHeld,
    CommitRemembersForTheTtlOnly,
    CommitSentAgainExtendsTheTtl,
    CommitSentAgainAfterTheTtlIsLost,
    CommitSentAgainIsLost,
    CommitTakesNullForNoOutcome,
    HandlesAreApart,
    HoldIsTooLong,
    InspectSaysInFlightWhenAbandoned,
    KeysAreCut,
    KeysAreOfOneCase,
    LeaseRunsOutEarly,
    LeaseRunsOutLate,
    ReleaseByAnybody,
    ReleaseByTheLivingOnly,
    ReleaseForgetsTheAttempt,
    ReleaseKeepsTooLong,
    ReleaseToAbandonedDoesNothing,
    ReleaseToAbandonedIsReleased,
    ReleaseToUndoneIsAbandoned,
    ReleaseToUndoneIsReleased,
    ReleaseToUndoneRemoves,
    RemoveForcesInFlight,
    RemoveLeavesReleased,
    RenewAnswersInAnotherOrder,
    RenewByAnybody,
    RenewDoesTheFirstHundred,
    RenewDoesNothing,
    RenewKeepsTheExpiry,
    RenewOfTheLivingOnly,
    RenewSaysHeldToStrangers,
    TakeOverForgetsItsFingerprint,
    TakeOverKeepsTheAttempt,
    TakeOverNever,
    WaitGivenUpReleases,
    WaitIgnoresTheAttempt,
    WaitIgnoresTheLease,
    WaitLosesWakeUps,
    WaitMissesCommits,
    WaitMissesReleases,
    WaitMissesReleasesToAbandoned,
    WaitNeverEnds,
    WaitRenews,
    WaitTakesItsWholeLimit,
    WaitWakesOne,
];
