//! Which keys are called when: a small pool that changes with time, so that calls meet, and each
//! key comes to an end.

use fastrand::Rng;

/// How long a pool is the present one.
const POOL: u64 = 1_500_000_000;
/// How many keys there are in a pool.
const KEYS: u64 = 12;

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

fn name(pool: u64, key: u64) -> String {
    format!("p{pool}-{key}")
}
