//! Records changed by hand: an error that names the key by its digest, no body, and the value as it
//! was.

use std::future::pending;
use std::time::Duration;

use idem::record::RecordId;
use idem::{Begin, Error, ErrorAction, Idempotency, Key, Outcome, StoreFailure};
use idem_testkit::{RedisServer, Reply};

use crate::owner::Failure;
use crate::support::{LEASE, LONG, patient_store};

type Res<T = u64> = Result<T, Failure>;

const KEY: &str = "idem:bad:k";

struct World {
    server: RedisServer,
    idempotency: Idempotency,
}

impl World {
    async fn start() -> Self {
        let server = RedisServer::start().await.unwrap();
        let idempotency = Idempotency::new(patient_store(&server.url()).await);
        Self {
            server,
            idempotency,
        }
    }

    async fn send(&self, words: &[&[u8]]) -> Reply {
        self.server.cli(words).await.unwrap()
    }

    async fn text(&self) -> Vec<u8> {
        self.send(&[b"GET", KEY.as_bytes()])
            .await
            .bytes()
            .unwrap()
            .to_vec()
    }

    async fn plant(&self, text: &[u8]) {
        self.send(&[b"SET", KEY.as_bytes(), text, b"PX", b"60000"])
            .await;
    }

    fn operation(&self) -> idem::Operation<'static> {
        self.idempotency.operation("bad").key("k")
    }

    /// A call, which must not come to its body, whatever is to be done where the store fails.
    async fn refuses(&self, what: &str) {
        for failing in [StoreFailure::Reject, StoreFailure::Run] {
            let call = self.operation().store_failure(failing).wait(LONG);
            let answer = call
                .run(async || -> Res { panic!("{what}: a body ran") })
                .await;
            assert_codec(what, &answer.map(Outcome::into_inner));
        }
    }

    /// The text of a record of each state, as calls write it.
    async fn records(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut records = Vec::new();
        let mut take = async |state| {
            records.push((state, self.text().await));
            self.send(&[b"FLUSHALL"]).await;
        };
        let Begin::Execute(lease) = self.operation().fingerprint(&1).begin().await.unwrap() else {
            panic!()
        };
        take("in flight").await;
        drop(lease);
        self.operation()
            .run(async || Res::<u64>::Err(Failure::Declined))
            .await
            .unwrap_err();
        take("released").await;
        self.operation()
            .fingerprint(&1)
            .run(async || Res::Ok(7))
            .await
            .unwrap();
        take("committed").await;
        let keeping = self.operation().errors(|_: &Failure| ErrorAction::Keep);
        keeping
            .run(async || Res::<u64>::Err(Failure::Declined))
            .await
            .unwrap_err();
        take("an error that is kept").await;
        self.operation()
            .ttl(LONG)
            .remember(LONG * 2)
            .run(async || Res::Ok(7))
            .await
            .unwrap();
        take("kept aside").await;
        records
    }
}

fn assert_codec(what: &str, answer: &Res) {
    let digest = RecordId::new("bad", &Key::encode("k").unwrap())
        .unwrap()
        .digest();
    match answer {
        Err(Failure::Idempotency(error @ Error::Codec { key, .. })) => {
            assert_eq!(*key, digest, "{what}");
            assert!(
                error.to_string().contains(&digest.to_string()),
                "{what}: {error}"
            );
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn a_record_that_was_cut_or_is_of_another_version_is_refused_and_stays() {
    let world = World::start().await;
    for (state, whole) in world.records().await {
        let later = [b"i2", &whole[2..]].concat();
        for text in (0..whole.len())
            .map(|end| &whole[..end])
            .chain([later.as_slice()])
        {
            let what = format!("{state}: {:?}", String::from_utf8_lossy(text));
            world.plant(text).await;
            world.refuses(&what).await;
            assert_eq!(world.text().await, text, "{what}");
        }
        assert!(
            matches!(world.operation().inspect().await, Err(Error::Codec { .. })),
            "{state}"
        );
        assert!(
            matches!(
                world.operation().settle(&7u64).await,
                Err(Error::Codec { .. })
            ),
            "{state}"
        );
        assert!(
            matches!(world.operation().forget().await, Err(Error::Codec { .. })),
            "{state}"
        );
        assert_eq!(world.text().await, later, "{state}");
    }
}

#[tokio::test]
async fn an_outcome_with_a_flipped_bit_is_refused_and_stays() {
    let world = World::start().await;
    for (state, whole) in world.records().await {
        if !["committed", "an error that is kept"].contains(&state) {
            // Only outcomes have a check.
            continue;
        }
        for at in 0..whole.len() {
            let mut text = whole.clone();
            text[at] ^= 1 << (at % 8);
            let what = format!("{state}: {:?}", String::from_utf8_lossy(&text));
            world.plant(&text).await;
            world.refuses(&what).await;
            assert_eq!(world.text().await, text, "{what}");
        }
    }
}

#[tokio::test]
async fn what_is_no_text_huge_or_never_expires_is_refused_and_stays() {
    let world = World::start().await;
    for (kind, command) in [
        ("list", vec!["RPUSH", KEY, "x"]),
        ("hash", vec!["HSET", KEY, "f", "x"]),
        ("set", vec!["SADD", KEY, "x"]),
        ("zset", vec!["ZADD", KEY, "1", "x"]),
        ("stream", vec!["XADD", KEY, "1-1", "f", "x"]),
    ] {
        world.server.cli(&command).await.unwrap();
        world.refuses(kind).await;
        assert_eq!(
            world.send(&[b"TYPE", KEY.as_bytes()]).await.to_string(),
            kind
        );
        world.send(&[b"DEL", KEY.as_bytes()]).await;
    }
    let huge = vec![b'i'; 16 << 20];
    world.plant(&huge).await;
    world.refuses("16 MiB").await;
    assert!(world.text().await == huge);
    world.send(&[b"DEL", KEY.as_bytes()]).await;

    let Begin::Execute(lease) = world.operation().lease(LEASE).begin().await.unwrap() else {
        panic!()
    };
    drop(lease);
    world.send(&[b"PERSIST", KEY.as_bytes()]).await;
    let persisted = world.text().await;
    world.refuses("in flight, without an expiry").await;
    assert_eq!(
        (
            world.text().await,
            world.send(&[b"PTTL", KEY.as_bytes()]).await.number()
        ),
        (persisted, Some(-1))
    );
}

#[tokio::test]
async fn p1_a_record_that_is_changed_under_a_running_body_stops_it_or_refuses_its_outcome() {
    let world = World::start().await;
    let call = world.operation().lease(LEASE).run(async || {
        world.plant(b"somebody else's").await;
        pending::<Res>().await
    });
    let stopped = call.await;
    assert!(
        matches!(stopped, Err(Failure::Idempotency(Error::LeaseLost { .. }))),
        "{stopped:?}"
    );
    assert_eq!(world.text().await, b"somebody else's");

    world.send(&[b"DEL", KEY.as_bytes()]).await;
    let value = world.operation().run(async || {
        world.plant(b"somebody else's").await;
        Res::Ok(1)
    });
    // P3: its own caller has it all the same.
    assert_eq!(value.await.unwrap().into_inner(), 1);
    // There is nothing to try again, so duplicates in the same process need not wait for the lease
    // to be lost.
    world.idempotency.shutdown(Duration::ZERO).await.unwrap();
    world.refuses("somebody else's").await;
    assert_eq!(world.text().await, b"somebody else's");

    world.send(&[b"DEL", KEY.as_bytes()]).await;
    let Begin::Execute(lease) = world.operation().begin().await.unwrap() else {
        panic!("replayed")
    };
    world.plant(b"somebody else's").await;
    assert_codec(
        "by hand",
        &lease
            .commit(&1u64)
            .await
            .map(|()| 1)
            .map_err(Failure::Idempotency),
    );
}
