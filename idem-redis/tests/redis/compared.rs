//! Commits on servers with `SET .. IFEQ`. The command is emulated here, as [`front`](crate::front)
//! says.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Commit, Origin, Owner, Ownership, RecordState};
use idem_core::{Error, Idempotency, Store as _};
use idem_redis::RedisStore;
use idem_testkit::{Mishap, Passing, Proxy};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::front::{Front, Says, VALKEY_8_1};
use crate::server::Server;
use crate::still::{until, within};
use crate::{SECOND, claim, claim_for, commit, give_up, id, outcome, patient, release, renewal};

const REDIS_8_4: Says = Says {
    redis: "8.4.0",
    valkey: None,
    refuses: false,
};

/// A store at a server that says something of itself, and what it sends.
struct Given {
    server: Server,
    front: Front,
    proxy: Proxy,
    store: RedisStore,
    compared: Passing,
    scripts: Passing,
    others: Passing,
}

impl Given {
    async fn new(says: Says) -> Self {
        let server = Server::start(&[]).await;
        let front = Front::start(server.port(), says).await;
        let proxy = Proxy::start(&front.url()).await.unwrap();
        let compared = proxy.passing(|words| matches!(words, [b"SET", _, _, b"IFEQ", ..]));
        let scripts = proxy.passing(|words| words[0].starts_with(b"EVAL"));
        // The clock is looked at when it is time for it.
        let others = proxy.passing(|words| words[0] != b"TIME");
        let store = patient(proxy.url()).await;
        Self {
            server,
            front,
            proxy,
            store,
            compared,
            scripts,
            others,
        }
    }

    /// How many were sent so far: with a comparison, scripts, and others.
    fn sent(&self) -> [u64; 3] {
        [&self.compared, &self.scripts, &self.others].map(Passing::calls)
    }

    /// Returns the answer of a commit, and how many commands of these kinds it sends.
    async fn commits(&self, commit: &Commit) -> (Ownership, [u64; 3]) {
        let before = self.sent();
        let answer = self.store.commit(commit).await.unwrap();
        let after = self.sent();
        (
            answer,
            std::array::from_fn(|kind| after[kind] - before[kind]),
        )
    }

    async fn claimed(&self, key: &str) -> Claim {
        let first = claim(key);
        assert!(matches!(
            self.store.claim(&first).await.unwrap(),
            Claimed::Owned { attempt: 1, .. }
        ));
        first
    }

    /// Ends the connection, and waits for the next.
    async fn connect_again(&self) {
        self.proxy.cut();
        until("the loss", || async {
            self.store.claim(&claim("lost")).await.is_err()
        })
        .await;
        self.proxy.restore();
        until("the connection", || async {
            self.store.claim(&claim("lost")).await.is_ok()
        })
        .await;
    }
}

const HELD_BY_ONE_SET: (Ownership, [u64; 3]) = (Ownership::Held, [1, 0, 0]);
const HELD_BY_SET_AND_SCRIPT: (Ownership, [u64; 3]) = (Ownership::Held, [1, 1, 0]);
const LOST_BY_SET_AND_SCRIPT: (Ownership, [u64; 3]) = (Ownership::Lost, [1, 1, 0]);
const HELD_BY_SCRIPT: (Ownership, [u64; 3]) = (Ownership::Held, [0, 1, 0]);
const LOST_BY_SCRIPT: (Ownership, [u64; 3]) = (Ownership::Lost, [0, 1, 0]);

#[tokio::test]
async fn a_commit_is_one_plain_command_where_the_server_compares() {
    for says in [VALKEY_8_1, REDIS_8_4] {
        let given = Given::new(says).await;
        let first = given.claimed("1").await;
        assert_eq!(
            given.commits(&commit(&first, 1, "1")).await,
            HELD_BY_ONE_SET,
            "{says:?}"
        );
        let record = given.server.get("idem:orders:1").await.unwrap();
        assert!(
            record.starts_with("i1c 1 j - ") && record.ends_with(" 1"),
            "{record}"
        );
        let left: i64 = given.server.send(&["PTTL", "idem:orders:1"]).await;
        assert!((50_001..=60_000).contains(&left), "{left}");
        let again = given.store.claim(&claim("1")).await.unwrap();
        assert_eq!(
            again,
            Claimed::Committed {
                attempt: 1,
                outcome: outcome("1")
            }
        );

        let second = given.claimed("2").await;
        let without = commit(&second, 1, "").with_outcome(None);
        assert_eq!(given.commits(&without).await, HELD_BY_ONE_SET);
        assert_eq!(
            given.server.get("idem:orders:2").await.as_deref(),
            Some("i1d 1 -.")
        );
    }
}

#[tokio::test]
async fn what_a_claim_found_and_renewals_make_no_difference() {
    let given = Given::new(VALKEY_8_1).await;
    let renewed = given.claimed("1").await;
    assert_eq!(
        *given.store.renew(&[renewal(&renewed)]).await[0]
            .as_ref()
            .unwrap(),
        Ownership::Held
    );
    assert_eq!(
        given.commits(&commit(&renewed, 1, "1")).await,
        HELD_BY_ONE_SET
    );

    let released = given.claimed("2").await;
    given.store.release(&release(&released)).await.unwrap();
    let later = claim("2");
    assert_eq!(
        given.store.claim(&later).await.unwrap(),
        Claimed::Owned {
            attempt: 2,
            from: Origin::Released
        }
    );
    let as_claimed = Some(later.as_claimed(Origin::Released));
    assert_eq!(
        given
            .commits(&commit(&later, 2, "1").with_as_claimed(as_claimed))
            .await,
        HELD_BY_ONE_SET
    );

    // Lengths that are not sent as they are.
    for (key, lease, hold) in [
        ("3", Duration::from_micros(1500), Duration::MAX),
        ("4", Duration::from_micros(1), SECOND),
    ] {
        let odd = claim_for(key, lease).with_hold(hold);
        given.store.claim(&odd).await.unwrap();
        assert_eq!(
            given.commits(&commit(&odd, 1, "1")).await,
            HELD_BY_ONE_SET,
            "{lease:?}, {hold:?}"
        );
    }
}

#[tokio::test]
async fn whatever_is_not_as_it_was_claimed_is_for_the_script() {
    let given = Given::new(VALKEY_8_1).await;
    let abandoned = given.claimed("1").await;
    given.store.release(&give_up(&abandoned)).await.unwrap();
    assert_eq!(
        given.commits(&commit(&abandoned, 1, "1")).await,
        HELD_BY_SET_AND_SCRIPT
    );

    let mut renewed = given.claimed("2").await;
    renewed.hold *= 2;
    given
        .store
        .renew(&[renewal(&renewed)])
        .await
        .remove(0)
        .unwrap();
    renewed.hold /= 2;
    assert_eq!(
        given.commits(&commit(&renewed, 1, "1")).await,
        HELD_BY_SET_AND_SCRIPT
    );

    let unknown = given.claimed("3").await;
    let silent = commit(&unknown, 1, "1").with_as_claimed(None);
    assert_eq!(given.commits(&silent).await, HELD_BY_SCRIPT);

    let aside = given.claimed("4").await;
    let kept = commit(&aside, 1, "1").with_remember(600 * SECOND);
    assert_eq!(given.commits(&kept).await, HELD_BY_SCRIPT);
    assert!(given.server.get("idem:{idem:orders:4}").await.is_some());
}

#[tokio::test]
async fn a_waiter_is_woken() {
    let given = Given::new(VALKEY_8_1).await;
    let first = given.claimed("1").await;
    // In a runtime of its own, whose clock stands still: it is woken, and does not look once more.
    let url = given.server.url();
    let waiting = spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let other = patient(url).await;
            let id = id("1");
            let waited = other.wait(&id, 1, 20 * SECOND);
            within(Duration::ZERO, waited).await.unwrap();
        });
    });
    until("the mark", || async {
        given
            .server
            .get("idem:orders:1")
            .await
            .unwrap()
            .as_bytes()
            .ends_with(b".w")
    })
    .await;
    assert_eq!(
        given.commits(&commit(&first, 1, "1")).await,
        HELD_BY_SET_AND_SCRIPT
    );
    waiting.await.unwrap();
}

#[tokio::test]
async fn a_late_owner_is_refused_and_changes_nothing() {
    let given = Given::new(VALKEY_8_1).await;
    let late = claim_for("1", Duration::ZERO);
    given.store.claim(&late).await.unwrap();
    let next = claim("1");
    let taken = Claimed::Owned {
        attempt: 2,
        from: Origin::Abandoned,
    };
    assert_eq!(given.store.claim(&next).await.unwrap(), taken);
    let before = given.server.get("idem:orders:1").await;
    assert_eq!(
        given.commits(&commit(&late, 1, "1")).await,
        LOST_BY_SET_AND_SCRIPT
    );
    // Even with all that the owner knows but the owner's name.
    let as_claimed = Some(next.as_claimed(Origin::Abandoned));
    let stranger = commit(&next, 2, "1")
        .with_owner(Owner::generate())
        .with_as_claimed(as_claimed);
    assert_eq!(given.commits(&stranger).await, LOST_BY_SCRIPT);
    assert_eq!(given.server.get("idem:orders:1").await, before);
    // The owner does not know the part of its record about the one that it took over.
    assert_eq!(
        given
            .commits(&commit(&next, 2, "2").with_as_claimed(as_claimed))
            .await,
        HELD_BY_SCRIPT
    );
    assert_eq!(
        given.commits(&commit(&late, 1, "1")).await,
        LOST_BY_SET_AND_SCRIPT
    );

    // And where nothing is there any more.
    let forgotten = given.claimed("2").await;
    let () = given.server.send(&["DEL", "idem:orders:2"]).await;
    assert_eq!(
        given.commits(&commit(&forgotten, 1, "1")).await,
        LOST_BY_SET_AND_SCRIPT
    );
    assert_eq!(given.server.get("idem:orders:2").await, None);
}

#[tokio::test]
async fn a_commit_whose_reply_was_lost_is_recognised() {
    let given = Given::new(VALKEY_8_1).await;
    let first = given.claimed("1").await;
    given.compared.next(Mishap::LoseReply);
    let error = given
        .store
        .commit(&commit(&first, 1, "1"))
        .await
        .unwrap_err();
    assert!(error.is_unknown(), "{error}");
    until("the record", || async {
        given
            .server
            .get("idem:orders:1")
            .await
            .unwrap()
            .starts_with("i1c")
    })
    .await;
    until("the connection", || async {
        given.store.claim(&claim("1")).await.is_ok()
    })
    .await;
    assert_eq!(
        given.commits(&commit(&first, 1, "1")).await,
        HELD_BY_SET_AND_SCRIPT
    );
    assert_eq!(
        given.commits(&commit(&first, 1, "2")).await,
        LOST_BY_SET_AND_SCRIPT
    );

    let second = given.claimed("2").await;
    given.compared.next(Mishap::LoseRequest);
    assert!(
        given
            .store
            .commit(&commit(&second, 1, "1"))
            .await
            .unwrap_err()
            .is_unknown()
    );
    until("the connection", || async {
        given.store.claim(&claim("1")).await.is_ok()
    })
    .await;
    assert_eq!(
        given.commits(&commit(&second, 1, "1")).await,
        HELD_BY_ONE_SET
    );
}

#[tokio::test]
async fn a_server_that_refuses_the_command_is_asked_once_on_each_connection() {
    let given = Given::new(Says {
        refuses: true,
        ..VALKEY_8_1
    })
    .await;
    for (key, expected) in [
        ("1", HELD_BY_SET_AND_SCRIPT),
        ("2", HELD_BY_SCRIPT),
        ("3", HELD_BY_SCRIPT),
    ] {
        let first = given.claimed(key).await;
        assert_eq!(given.commits(&commit(&first, 1, "1")).await, expected);
    }
    given.connect_again().await;
    for (key, expected) in [("4", HELD_BY_SET_AND_SCRIPT), ("5", HELD_BY_SCRIPT)] {
        let first = given.claimed(key).await;
        assert_eq!(given.commits(&commit(&first, 1, "1")).await, expected);
    }
}

#[tokio::test]
async fn an_older_server_is_never_asked() {
    let older = [
        ("7.0.15", None),
        ("8.3.9", None),
        ("7.2.4", Some("8.0.9")),
        ("unknown", None),
    ];
    for (redis, valkey) in older {
        let given = Given::new(Says {
            redis,
            valkey,
            refuses: false,
        })
        .await;
        let first = given.claimed("1").await;
        assert_eq!(
            given.commits(&commit(&first, 1, "1")).await,
            HELD_BY_SCRIPT,
            "{redis}, {valkey:?}"
        );
    }
}

#[tokio::test]
async fn each_connection_is_to_a_server_of_its_own() {
    let given = Given::new(VALKEY_8_1).await;
    let first = given.claimed("1").await;
    given.front.says(Says {
        redis: "7.0.15",
        valkey: None,
        refuses: false,
    });
    given.connect_again().await;
    assert_eq!(given.commits(&commit(&first, 1, "1")).await, HELD_BY_SCRIPT);
    let second = given.claimed("2").await;
    given.front.says(REDIS_8_4);
    given.connect_again().await;
    assert_eq!(
        given.commits(&commit(&second, 1, "1")).await,
        HELD_BY_ONE_SET
    );
}

#[tokio::test]
async fn a_server_whose_memory_is_full_records_all_the_same() {
    let given = Given::new(VALKEY_8_1).await;
    let first = given.claimed("1").await;
    let second = given.claimed("2").await;
    let () = given
        .server
        .send(&["SET", "filler", &"x".repeat(4_000_000)])
        .await;
    let () = given
        .server
        .send(&["CONFIG", "SET", "maxmemory", "1mb"])
        .await;
    assert_eq!(
        given.commits(&commit(&first, 1, "1")).await,
        HELD_BY_SET_AND_SCRIPT
    );
    // That was no reason to think that it has not the command.
    let () = given
        .server
        .send(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    assert_eq!(
        given.commits(&commit(&second, 1, "1")).await,
        HELD_BY_ONE_SET
    );
}

#[tokio::test]
async fn an_owner_says_what_its_record_is() {
    let given = Given::new(VALKEY_8_1).await;
    let idempotency = Idempotency::new(given.store.clone());
    let call = async |key: &'static str| {
        let before = given.sent();
        let body = || async { Ok::<_, Error>(7) };
        let answer = idempotency
            .operation("orders")
            .key(key)
            .run(body)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer, 7);
        let after = given.sent();
        std::array::from_fn(|kind| after[kind] - before[kind])
    };
    // The claim, and the commit.
    assert_eq!(call("1").await, [1, 0, 1]);
    let abandoned = claim_for("2", Duration::ZERO);
    given.store.claim(&abandoned).await.unwrap();
    // The claim takes over, and its owner does not know all that its record says.
    assert_eq!(call("2").await, [0, 2, 1]);
    let released = given.claimed("3").await;
    given.store.release(&release(&released)).await.unwrap();
    assert_eq!(call("3").await, [1, 1, 1]);
    for key in ["1", "2", "3"] {
        let record = given.store.inspect(&id(key)).await.unwrap().unwrap();
        assert_eq!(record.state, RecordState::Committed);
    }
}
