//! How large the explored world is.

use idem_core::record::owner_stops_after;

use crate::ticks::{FOREVER, TICK};

/// The possible fates of a request that its sender gave up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// A claim is carried out before the later steps of the same owner, or never. Anything else
    /// comes in any order.
    ClaimsInOrder,
    /// Anything comes in any order.
    AnyOrder,
}

/// How large the explored world is. Time is unbounded: all times are kept as what is left of them.
// Its switches have nothing to do with each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The lease, in ticks.
    pub lease: u8,
    /// How long a record in flight stays, in ticks: at least twice the lease.
    pub hold: u8,
    /// How long an outcome is kept, in ticks.
    pub ttl: u8,
    /// How long it is known that there was one, in ticks: at least `ttl`.
    pub remember: u8,
    /// How long the attempt count of a released key is kept, in ticks.
    pub keep: u8,
    /// How many claims of each caller may come to own the key, or stay without an answer. Those
    /// that find it in flight or committed are not counted.
    pub calls: u8,
    /// How many crashes, dropped callers, lost messages and timeouts there are, all callers
    /// together.
    pub faults: u8,
    /// How many requests of one caller may still be on their way after it gave up on them.
    pub strays: u8,
    /// How often a body is polled, at most.
    pub polls: u8,
    /// Whether an abandoned record may be claimed (`abandoned = rerun`), or not (`reject`).
    pub take_over: bool,
    /// For how many ticks an abandoned record is rejected, where it is; `None`: as long as it is
    /// there.
    pub rejected_for: Option<u8>,
    /// Whether callers have one of two fingerprints, or none has any.
    pub prints: bool,
    /// Whether a body that is not the first asks what became of an earlier one, and may get no
    /// answer.
    pub asks: bool,
    /// How many attempts may begin a body.
    pub max_attempts: Option<u8>,
    /// Whether an operator settles what no call goes on with, and replaces what was settled.
    pub operated: bool,
    /// Whether a token was issued: else nothing stands at the key at first.
    pub issued: bool,
    /// Whether a body that releases has begun steps.
    pub steps: bool,
    /// In which order requests arrive.
    pub network: Network,
}

impl Bounds {
    /// Small enough for every run of the tests.
    pub const SMALL: Self = Self {
        lease: 2,
        hold: 4,
        ttl: 1,
        remember: 2,
        keep: FOREVER,
        calls: 1,
        faults: 1,
        strays: 1,
        polls: 2,
        take_over: true,
        rejected_for: None,
        prints: false,
        asks: false,
        max_attempts: None,
        operated: false,
        issued: false,
        steps: false,
        network: Network::ClaimsInOrder,
    };

    /// Callers with fingerprints.
    pub const PRINTS: Self = Self {
        prints: true,
        polls: 1,
        ..Self::SMALL
    };

    /// Callers that ask, of whose attempts only so many may begin a body.
    pub const ASKS: Self = Self {
        asks: true,
        max_attempts: Some(2),
        polls: 1,
        hold: 5,
        ..Self::SMALL
    };

    /// Bodies with steps, whose runs go on after a release.
    pub const STEPS: Self = Self {
        steps: true,
        polls: 1,
        ..Self::SMALL
    };

    /// Attempts are soon exhausted, and an operator settles what is left.
    pub const OPERATED: Self = Self {
        operated: true,
        max_attempts: Some(2),
        polls: 1,
        ..Self::SMALL
    };

    /// Abandoned records are rejected, for a time that ends before the record does.
    pub const REJECTED_FOR_A_TIME: Self = Self {
        take_over: false,
        rejected_for: Some(3),
        ..Self::SMALL
    };

    /// For a look at what takes longer.
    pub const LARGE: Self = Self {
        faults: 2,
        ..Self::SMALL
    };

    /// For how many ticks of the store's clock an owner may go on, whose own clock is as slow as is
    /// promised: a tenth. With `to_its_end` it gives the lease up there, not before.
    pub(crate) fn stops_after(&self, to_its_end: bool) -> u8 {
        let lease = TICK * u32::from(self.lease);
        let by_its_clock = if to_its_end {
            lease
        } else {
            owner_stops_after(lease)
        };
        let by_the_stores = by_its_clock.as_nanos() * 10;
        // It does not go on at the very end, so the last tick counts where it is begun.
        u8::try_from(by_the_stores.div_ceil(TICK.as_nanos() * 9)).unwrap_or(FOREVER)
    }
}
