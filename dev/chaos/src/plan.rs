//! Which faults happen when: thrown beforehand, so that one seed gives the same faults each time.

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A process of workers is killed, and another started in its place.
    Kill,
    /// A process of workers stands still.
    Pause,
    /// The connections of a process end, and no new ones are made.
    Cut,
    /// A process's requests are carried out, and the replies are lost.
    Swallow,
    /// Replies are late.
    Delay,
    /// A server is killed, and started again, or another one takes its place.
    #[value(alias = "redis-kill")]
    ServerKill,
    /// A server stands still.
    #[value(alias = "redis-pause")]
    ServerPause,
    /// The broker is killed, and started again.
    BrokerKill,
    /// The connections of a process to the broker end, and no new ones are made.
    BrokerCut,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Cut => "cut",
            Self::Swallow => "swallow",
            Self::Delay => "delay",
            Self::ServerKill => "server-kill",
            Self::ServerPause => "server-pause",
            Self::BrokerKill => "broker-kill",
            Self::BrokerCut => "broker-cut",
        }
    }

    /// Whether it needs a proxy before the server. Clients of a Sentinel or a cluster learn the
    /// servers' own addresses.
    pub(crate) fn needs_proxy(self) -> bool {
        matches!(self, Self::Cut | Self::Swallow | Self::Delay)
    }

    /// Whether it hits a broker.
    pub(crate) fn needs_broker(self) -> bool {
        matches!(self, Self::BrokerKill | Self::BrokerCut)
    }

    fn weight(self) -> usize {
        match self {
            Self::Pause => 4,
            Self::Kill | Self::Cut | Self::Swallow => 3,
            Self::Delay | Self::BrokerCut => 2,
            Self::ServerKill | Self::ServerPause | Self::BrokerKill => 1,
        }
    }
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Since the beginning of the run.
    pub(crate) at: Duration,
    pub(crate) kind: Kind,
    /// Which process or server is hit: a number that is taken modulo how many there are.
    pub(crate) target: usize,
    /// Until it is healed.
    pub(crate) length: Duration,
    /// How late replies are.
    pub(crate) delay: Duration,
}

/// A stretch of faults, and then a quiet one, in which it can be seen that all goes on.
const STRETCH: Duration = Duration::from_millis(6_000);
const QUIET: Duration = Duration::from_millis(3_000);
/// For servers that fail over, which takes time, and for long leases.
const LONG_STRETCH: Duration = Duration::from_millis(14_000);
const LONG_QUIET: Duration = Duration::from_millis(7_000);
const LONG_LEASE: Duration = Duration::from_millis(1_000);
/// Longer than it takes until a server is given up.
const GIVEN_UP: f64 = 4.0;

/// The faults of a run.
pub(crate) fn faults(
    seed: u64,
    length: Duration,
    kinds: &[Kind],
    lease: Duration,
    fails_over: bool,
) -> Vec<Fault> {
    let is_long = fails_over || lease > LONG_LEASE;
    let (long, quiet) = if is_long {
        (LONG_STRETCH, LONG_QUIET)
    } else {
        (STRETCH, QUIET)
    };
    let mut dice = Rng::with_seed(seed);
    let weighted: Vec<Kind> = kinds
        .iter()
        .flat_map(|kind| std::iter::repeat_n(*kind, kind.weight()))
        .collect();
    let mut faults = Vec::new();
    let mut stretch = Duration::ZERO;
    while stretch < length && !weighted.is_empty() {
        let end = (stretch + long).min(length);
        let mut at = stretch + Duration::from_millis(dice.u64(200..600));
        while at < end {
            let kind = weighted[dice.usize(..weighted.len())];
            let leases = lengths(kind, &mut dice);
            let delay = lease.mul_f64(dice.f64() / 2.0);
            let given_up =
                fails_over && matches!(kind, Kind::ServerKill | Kind::ServerPause) && dice.bool();
            let length = if given_up {
                Duration::from_secs_f64(GIVEN_UP)
            } else {
                lease.mul_f64(leases)
            };
            let length = length.min(end.saturating_sub(at));
            faults.push(Fault {
                at,
                kind,
                target: dice.usize(..1_000),
                length,
                delay,
            });
            at += Duration::from_millis(dice.u64(20..450));
        }
        // An owner that dies where all else is well: its keys must be taken over soon.
        if kinds.contains(&Kind::Kill) && end < length {
            let at = end + Duration::from_millis(700);
            let target = dice.usize(..1_000);
            faults.push(Fault {
                at,
                kind: Kind::Kill,
                target,
                length: Duration::ZERO,
                delay: Duration::ZERO,
            });
        }
        stretch = end + quiet;
    }
    faults
}

/// How long a fault lasts, in leases: about as long as a lease, for that is where things change.
fn lengths(kind: Kind, dice: &mut Rng) -> f64 {
    match kind {
        Kind::Kill => dice.f64(),
        Kind::Pause => 0.3 + dice.f64() * 2.7,
        Kind::Cut | Kind::Swallow => 0.1 + dice.f64() * 2.4,
        Kind::Delay => 0.5 + dice.f64() * 3.0,
        Kind::ServerKill | Kind::BrokerKill => 0.2 + dice.f64() * 2.5,
        Kind::BrokerCut => 0.2 + dice.f64() * 4.0,
        Kind::ServerPause => 0.2 + dice.f64() * 3.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(400);

    #[test]
    fn one_seed_gives_the_same_faults_each_time() {
        let faults = |seed| {
            faults(
                seed,
                Duration::from_secs(30),
                Kind::value_variants(),
                LEASE,
                false,
            )
        };
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
        for kind in Kind::value_variants() {
            assert!(
                faults(7).iter().any(|fault| fault.kind == *kind),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn every_fault_is_healed_before_it_is_quiet() {
        for fault in faults(
            3,
            Duration::from_secs(60),
            &[Kind::Pause, Kind::ServerKill],
            LEASE,
            false,
        ) {
            let cycle = (STRETCH + QUIET).as_nanos();
            let within = (fault.at + fault.length).as_nanos() % cycle;
            assert!(within <= STRETCH.as_nanos(), "{fault:?}");
        }
    }
}
