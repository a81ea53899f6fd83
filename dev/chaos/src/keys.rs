//! Which keys are called when: a small pool that changes with time, so that calls meet, and each
//! key comes to an end. The outcomes of a few more keys expire within the run, so that these keys
//! have many runs of steps.

use std::time::Duration;

use fastrand::Rng;

/// How long a pool is the present one.
const POOL: u64 = 1_500_000_000;
/// How many keys there are in a pool.
const KEYS: u64 = 12;

/// How many short-lived keys there are.
const SHORT_LIVED: u64 = 4;
/// How long their outcomes are kept.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A key for a call at a time of the run (ns): mostly of the present pool, now and then of an
/// earlier one, which by now should be replays.
pub(crate) fn pick(time: u64, dice: &mut Rng) -> String {
    let pool = time / POOL;
    let back = match dice.u8(..100) {
        0..80 => 0,
        80..95 => 1,
        _ => dice.u64(..20),
    };
    name(pool.saturating_sub(back), dice.u64(..KEYS))
}

/// The keys of the last pools at a time of the run.
pub(crate) fn last(time: u64) -> impl Iterator<Item = String> {
    let pool = time / POOL;
    (pool.saturating_sub(2)..=pool).flat_map(|pool| (0..KEYS).map(move |key| name(pool, key)))
}

/// Now and then a key whose outcomes expire within the run.
pub(crate) fn pick_short_lived(dice: &mut Rng) -> Option<String> {
    (dice.u8(..100) < 12).then(|| format!("s{}", dice.u64(..SHORT_LIVED)))
}

/// Whether the outcomes of a key expire within the run.
pub(crate) fn is_short_lived(key: &str) -> bool {
    key.starts_with('s')
}

/// The name of a step of a key: the same in each run of the key.
pub(crate) fn step(key: &str, name: &str, part: Option<&str>) -> String {
    match part {
        None => format!("{key}/{name}"),
        Some(part) => format!("{key}/{name}:{part}"),
    }
}

/// The key of the call that a step belongs to; `None` if this is not the name of a step.
pub(crate) fn of_step(name: &str) -> Option<&str> {
    name.split_once('/').map(|(key, _)| key)
}

fn name(pool: u64, key: u64) -> String {
    format!("p{pool}-{key}")
}
