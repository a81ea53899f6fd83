//! The clock of Redis is set while owners live.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use idem_core::record::{Claimed, Origin, Ownership, Removed};
use idem_core::{Store as _, StoreError};
use idem_redis::RedisStore;
use idem_testkit::RedisServer;

use crate::{SECOND, claim, claim_for, commit, give_up, id, patient, release, renewal};

const LEASE: Duration = SECOND;

/// A real server whose clock a test can set.
struct Clocked {
    server: RedisServer,
    set_by: PathBuf,
    _dir: tempfile::TempDir,
}

impl Clocked {
    async fn start() -> Self {
        Self::faster_by(0).await
    }

    /// One whose clock gains so many hundredths.
    async fn faster_by(hundredths: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let library = path("set_clock.so");
        let set_by = path("set_by");
        let program = path("redis-server");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis/clock/set_clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .status();
        assert!(
            built.unwrap().success(),
            "the C compiler that links Rust programs builds the clock"
        );
        std::fs::write(&set_by, "0").unwrap();
        std::fs::write(path("faster_by"), hundredths.to_string()).unwrap();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/redis/clock/redis-server.sh"
        );
        std::os::unix::fs::symlink(script, &program).unwrap();
        let server = RedisServer::builder()
            .program(program)
            .start()
            .await
            .unwrap();
        Self {
            server,
            set_by,
            _dir: dir,
        }
    }

    async fn store(&self) -> RedisStore {
        patient(self.server.url()).await
    }

    /// Sets the clock, by so many seconds in all.
    fn set_by(&self, seconds: i64) {
        // At once, so that the server never reads half of it.
        let next = self.set_by.with_extension("next");
        std::fs::write(&next, seconds.to_string()).unwrap();
        std::fs::rename(next, &self.set_by).unwrap();
    }
}

/// Claims until the key is owned, or for the longest that a test waits.
async fn claims_in_the_end(store: &RedisStore, key: &str) -> Result<(u64, Duration), StoreError> {
    let begun = std::time::Instant::now();
    loop {
        if let Claimed::Owned {
            attempt,
            from: Origin::Abandoned,
        } = store.claim(&claim_for(key, LEASE)).await?
        {
            return Ok((attempt, begun.elapsed()));
        }
        assert!(begun.elapsed() < 20 * SECOND, "the key is locked for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn p1_no_key_of_a_living_owner_is_taken_over_when_the_clock_is_set_ahead() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    let held = claim_for("k", 30 * SECOND);
    owner.claim(&held).await.unwrap();
    // Past the lease, and not past the expiry of the record.
    server.set_by(200);
    for _ in 0..3 {
        let answer = other.claim(&claim("k")).await.unwrap();
        assert!(
            matches!(answer, Claimed::InFlight { attempt: 1, .. }),
            "{answer:?}"
        );
        let removed = other.remove(&id("k")).await.unwrap();
        assert!(matches!(removed, Removed::InFlight { .. }), "{removed:?}");
    }
    assert!(matches!(
        owner.renew(&[renewal(&held)]).await.as_slice(),
        [Ok(Ownership::Held)]
    ));
    assert_eq!(
        owner.commit(&commit(&held, 1, "1")).await.unwrap(),
        Ownership::Held
    );
    assert!(matches!(
        other.claim(&claim("k")).await.unwrap(),
        Claimed::Committed { attempt: 1, .. }
    ));
}

#[tokio::test]
async fn p1_a_small_jump_does_not_hide_a_large_one() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    owner.claim(&claim_for("k", 60 * SECOND)).await.unwrap();
    for set_by in [200, 202] {
        server.set_by(set_by);
        // A new connection looks at the clock.
        let _ = server
            .server
            .cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        let answer = loop {
            if let Ok(answer) = other.claim(&claim("k")).await {
                break answer;
            }
        };
        assert!(
            matches!(answer, Claimed::InFlight { attempt: 1, .. }),
            "{set_by}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn p1_several_jumps_count_together() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    // Its owner runs for 27 s, and each jump is less than a tenth of its lease.
    owner.claim(&claim_for("k", 30 * SECOND)).await.unwrap();
    for jumps in 1..=16 {
        server.set_by(2 * jumps);
        let _ = server
            .server
            .cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        let answer = loop {
            if let Ok(answer) = other.claim(&claim("k")).await {
                break answer;
            }
        };
        assert!(
            matches!(answer, Claimed::InFlight { attempt: 1, .. }),
            "{jumps}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn p1_it_is_noticed_in_a_removal_too() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    owner.claim(&claim_for("k", 30 * SECOND)).await.unwrap();
    server.set_by(200);
    assert!(matches!(
        other.remove(&id("k")).await.unwrap(),
        Removed::InFlight { .. }
    ));
}

#[tokio::test]
async fn what_was_given_up_waits_for_no_clock() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    for (key, step) in [
        ("released", release(&claim("released"))),
        ("abandoned", give_up(&claim("abandoned"))),
    ] {
        let held = claim(key);
        owner.claim(&held).await.unwrap();
        owner.release(&step.with_owner(held.owner)).await.unwrap();
    }
    server.set_by(20);
    for key in ["released", "abandoned"] {
        let answer = other.claim(&claim(key)).await.unwrap();
        assert!(
            matches!(answer, Claimed::Owned { attempt: 2, .. }),
            "{key}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn p1_a_clock_that_is_set_back_takes_no_key_from_anybody() {
    let server = Clocked::start().await;
    let owner = server.store().await;
    let other = server.store().await;
    let held = claim_for("k", LEASE);
    owner.claim(&held).await.unwrap();
    server.set_by(-5);
    assert!(matches!(
        other.claim(&claim("k")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));
    assert_eq!(
        owner.commit(&commit(&held, 1, "1")).await.unwrap(),
        Ownership::Held
    );
    // The record of an owner that is gone stays so much longer, and no longer.
    server.set_by(0);
    owner.claim(&claim_for("other", LEASE)).await.unwrap();
    server.set_by(-1);
    let (attempt, _) = claims_in_the_end(&other, "other").await.unwrap();
    assert_eq!(attempt, 2);
}

mod quiet {
    use super::*;

    #[tokio::test]
    async fn p5_an_abandoned_key_is_taken_over_a_lease_after_the_clock_was_set_ahead() {
        let server = Clocked::start().await;
        let owner = server.store().await;
        let other = server.store().await;
        owner.claim(&claim_for("k", LEASE)).await.unwrap();
        server.set_by(200);
        let (attempt, waited) = claims_in_the_end(&other, "k").await.unwrap();
        assert_eq!(attempt, 2);
        assert!(
            waited >= LEASE * 9 / 10,
            "{waited:?}: its owner, if it were alive, would still run"
        );
        // What is claimed after the jump is as old as it looks, a lease later.
        let (attempt, waited) = claims_in_the_end(&other, "k").await.unwrap();
        assert_eq!(attempt, 3);
        assert!(waited < 3 * LEASE, "{waited:?}");
    }

    #[tokio::test]
    async fn p5_beside_a_clock_that_is_as_fast_as_is_promised_an_abandoned_key_is_taken_over() {
        let server = Clocked::faster_by(9).await;
        let owner = server.store().await;
        let other = server.store().await;
        let lease = 3 * SECOND;
        owner.claim(&claim_for("k", lease)).await.unwrap();
        let begun = std::time::Instant::now();
        let (attempt, _) = claims_in_the_end(&other, "k").await.unwrap();
        assert_eq!(attempt, 2);
        assert!(begun.elapsed() < 3 * lease, "{:?}", begun.elapsed());
    }
}
