//! Encryption keys that change while calls are in flight, and outcomes whose key a reader does not
//! have: they are errors wherever they are read, and no body runs.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, RwLock};

use idem::store::CodecContext;
use idem::{
    Begin, CodecFailure, EncryptedCodec, EncryptionKey, EncryptionKeys, Error, ErrorAction,
    Idempotency, KeyRing, Lookup, MemoryStore, RecordState, StoreFailure, idempotent,
};
use tokio::sync::Notify;

use super::{Bound, Res, Successor, copy};
use crate::support::{LONG, World};

/// A ring of keys, of which the first one writes. Each is made of its name.
fn ring(names: &[&str]) -> KeyRing {
    let key = |name: &str| EncryptionKey::new([name.as_bytes()[0]; 32]);
    let first = KeyRing::new(names[0], key(names[0])).unwrap();
    names[1..]
        .iter()
        .fold(first, |ring, name| ring.reads(*name, key(name)).unwrap())
}

/// The keys of one process, which are reloaded while it runs; `None`: there are none at the moment.
#[derive(Clone)]
struct Reloaded(Arc<RwLock<Option<KeyRing>>>);

impl Reloaded {
    fn new(names: &[&str]) -> Self {
        Self(Arc::new(RwLock::new(Some(ring(names)))))
    }

    fn reload(&self, names: &[&str]) {
        *self.0.write().unwrap() = Some(ring(names));
    }

    fn lose(&self) {
        *self.0.write().unwrap() = None;
    }
}

impl EncryptionKeys for Reloaded {
    fn current(&self, context: &CodecContext<'_>) -> Result<(String, EncryptionKey), CodecFailure> {
        self.0
            .read()
            .unwrap()
            .as_ref()
            .ok_or("the secret manager is away")?
            .current(context)
    }

    fn find(
        &self,
        id: &str,
        context: &CodecContext<'_>,
    ) -> Result<Option<EncryptionKey>, CodecFailure> {
        self.0
            .read()
            .unwrap()
            .as_ref()
            .ok_or("the secret manager is away")?
            .find(id, context)
    }
}

/// A key for each customer, who is the first part of the key of a call.
#[derive(Clone)]
struct PerCustomer(Arc<RwLock<Vec<(&'static str, EncryptionKey)>>>);

impl PerCustomer {
    fn new(customers: &[&'static str]) -> Self {
        let keys = customers
            .iter()
            .map(|customer| (*customer, EncryptionKey::generate().unwrap()));
        Self(Arc::new(RwLock::new(keys.collect())))
    }

    fn destroy(&self, customer: &str) {
        self.0.write().unwrap().retain(|(id, _)| *id != customer);
    }
}

impl EncryptionKeys for PerCustomer {
    fn current(&self, context: &CodecContext<'_>) -> Result<(String, EncryptionKey), CodecFailure> {
        let customer = context.first_key_part().ok_or("no customer")?;
        let key = self.find(&customer, context)?.ok_or("it was destroyed")?;
        Ok((customer.into_owned(), key))
    }

    fn find(&self, id: &str, _: &CodecContext<'_>) -> Result<Option<EncryptionKey>, CodecFailure> {
        let keys = self.0.read().unwrap();
        let found = keys.iter().find(|(customer, _)| *customer == id);
        Ok(found.map(|(_, key)| key.clone()))
    }
}

async fn process(world: &World, keys: &Reloaded) -> Idempotency {
    world
        .builder()
        .await
        .codec(EncryptedCodec::new(keys.clone()))
        .local_cache(100)
        .build()
}

fn is_codec<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Codec { .. }))
}

#[idempotent(key = order, name = "keys.attribute")]
async fn charge(order: &str, runs: &AtomicU32) -> Res {
    Ok(runs.fetch_add(1, SeqCst))
}

#[tokio::test(start_paused = true)]
async fn keys_are_rotated_while_a_call_is_in_flight_and_waiters_read_what_they_have_the_key_of() {
    let world = World::memory();
    let keys = [
        Reloaded::new(&["a"]),
        Reloaded::new(&["a"]),
        Reloaded::new(&["a"]),
    ];
    let [owner, waiter, behind] = [
        process(&world, &keys[0]).await,
        process(&world, &keys[1]).await,
        process(&world, &keys[2]).await,
    ];
    let begun = Notify::new();
    let goes_on = Notify::new();
    let call =
        |idempotency: &Idempotency| idempotency.operation("keys.rotated").key("k").wait(LONG);
    let owning = call(&owner).run(async || {
        begun.notify_one();
        goes_on.notified().await;
        Res::Ok(7)
    });
    let others = async {
        begun.notified().await;
        let waiting = [&owner, &waiter, &behind]
            .map(|process| call(process).run(async || -> Res { panic!("it waits") }));
        let rotates = async {
            // They wait by now, or come later: all the same. The last process has only the old
            // key.
            tokio::task::yield_now().await;
            keys[0].reload(&["b", "a"]);
            keys[1].reload(&["a", "b"]);
            goes_on.notify_one();
        };
        futures_util::future::join(futures_util::future::join_all(waiting), rotates)
            .await
            .0
    };
    let (first, rest) = tokio::join!(owning, others);
    assert!(!first.unwrap().is_replayed());
    let [same, other, late] = rest.try_into().unwrap();
    assert_eq!(
        (same.unwrap().into_inner(), other.unwrap().into_inner()),
        (7, 7)
    );
    assert!(is_codec(&late), "{late:?}");
    keys[2].reload(&["a", "b"]);
    assert_eq!(
        call(&behind)
            .run(async || -> Res { panic!("it is done") })
            .await
            .unwrap()
            .into_inner(),
        7
    );
}

#[tokio::test(start_paused = true)]
async fn p2_an_outcome_whose_key_is_gone_is_an_error_wherever_it_is_read_and_no_body_runs() {
    let world = World::memory();
    let keys = Reloaded::new(&["a"]);
    // The one that committed it, with its local cache, and another one.
    let processes = [process(&world, &keys).await, process(&world, &keys).await];
    let runs = AtomicU32::new(0);
    let errors = AtomicU32::new(0);
    let token = processes[0]
        .operation("keys.token")
        .issue("ada", LONG)
        .await
        .unwrap();
    let value = |process: &Idempotency| {
        process
            .operation("keys.value")
            .key("k")
            .store_failure(StoreFailure::Run)
            .run(async || Res::Ok(runs.fetch_add(1, SeqCst)))
    };
    let kept = async |process: &Idempotency| {
        let keeping = process
            .operation("keys.kept")
            .key("k")
            .errors(|_: &Failed| ErrorAction::Keep);
        keeping
            .run(async || {
                errors.fetch_add(1, SeqCst);
                Err::<u32, _>(Failed::Declined)
            })
            .await
            .unwrap_err()
    };
    let submit = |process: &Idempotency| {
        process
            .operation("keys.token")
            .token(&token, "ada")
            .run(async || Res::Ok(runs.fetch_add(1, SeqCst)))
    };
    let annotated =
        async |process: &Idempotency| idem::scope(process.clone(), charge("o-1", &runs)).await;
    for _ in 0..2 {
        value(&processes[0]).await.unwrap();
        assert_eq!(kept(&processes[0]).await, Failed::Declined);
        submit(&processes[0]).await.unwrap();
        annotated(&processes[0]).await.unwrap();
    }
    for round in 0..2 {
        if round == 0 {
            keys.reload(&["b"]);
        } else {
            keys.lose();
        }
        for process in &processes {
            assert!(
                is_codec(&value(process).await)
                    && is_codec(&submit(process).await)
                    && is_codec(&annotated(process).await)
            );
            assert_eq!(kept(process).await, Failed::Idempotency("codec".into()));
            let operation = |name: &'static str| process.operation(name).key("k");
            assert!(is_codec(&operation("keys.value").lookup::<u32>().await));
            let Begin::Replay(recorded) = operation("keys.value").begin().await.unwrap() else {
                panic!("it is done")
            };
            assert!(is_codec(&recorded.decode::<u32>()));
            let Lookup::Error(recorded) = operation("keys.kept").lookup::<u32>().await.unwrap()
            else {
                panic!("it is kept")
            };
            assert!(is_codec(&recorded.decode_error::<Failed>()));
            // A person can still see that it is done, and cannot settle it again.
            assert_eq!(
                operation("keys.value")
                    .inspect()
                    .await
                    .unwrap()
                    .unwrap()
                    .state,
                RecordState::Committed
            );
            assert!(operation("keys.value").settle(&7).await.is_err());
        }
    }
    // The work of a process without keys is recorded as done.
    processes[0]
        .operation("keys.none")
        .key("k")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    // The keys are back: nothing was lost, and nothing ran again.
    keys.reload(&["b", "a"]);
    for process in &processes {
        assert!(
            value(process).await.unwrap().is_replayed()
                && submit(process).await.unwrap().is_replayed()
        );
        assert_eq!(
            (annotated(process).await.unwrap(), kept(process).await),
            (2, Failed::Declined)
        );
        let none = process
            .operation("keys.none")
            .key("k")
            .run(async || Res::Ok(2))
            .await;
        assert!(matches!(none, Err(Error::AlreadyDone { .. })), "{none:?}");
    }
    assert_eq!((runs.into_inner(), errors.into_inner()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn p2_a_customer_whose_key_was_destroyed_gets_a_clear_error_and_no_body_runs() {
    let keys = PerCustomer::new(&["jane", "joe"]);
    let builder = World::memory().builder().await.local_cache(100);
    let idempotency = builder.codec(EncryptedCodec::new(keys.clone())).build();
    let runs = AtomicU32::new(0);
    let call = |customer: &'static str, number: u32| {
        idempotency
            .operation("keys.customer")
            .key(&(customer, number))
            .run(async || Res::Ok(runs.fetch_add(1, SeqCst)))
    };
    for customer in ["jane", "joe"] {
        assert!(!call(customer, 1).await.unwrap().is_replayed());
        assert!(call(customer, 1).await.unwrap().is_replayed());
    }
    keys.destroy("jane");
    let refused = call("jane", 1).await.unwrap_err();
    assert!(matches!(refused, Error::Codec { .. }), "{refused:?}");
    assert!(
        refused.to_string().contains("the key `jane`")
            && refused.to_string().contains("if the key was destroyed"),
        "{refused}"
    );
    assert!(call("joe", 1).await.unwrap().is_replayed());
    assert_eq!(runs.load(SeqCst), 2);
    // A later call of hers is recorded as done, without its value.
    assert_eq!(call("jane", 2).await.unwrap().into_inner(), 2);
    assert!(matches!(
        call("jane", 2).await,
        Err(Error::AlreadyDone { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn p8_a_body_that_was_cut_off_under_the_old_key_runs_again_and_is_recorded_under_the_new_one()
{
    let world = World::memory();
    let keys = Reloaded::new(&["a"]);
    let idempotency = process(&world, &keys).await;
    let call = || {
        idempotency
            .operation("keys.cut")
            .key("k")
            .lease(crate::support::LEASE)
            .wait(LONG)
    };
    drop(call().begin().await.unwrap());
    keys.reload(&["b"]);
    assert_eq!(
        call().run(async || Res::Ok(1)).await.unwrap().into_inner(),
        1
    );
    assert_eq!(
        call().run(async || Res::Ok(2)).await.unwrap().into_inner(),
        1
    );
}

/// An error that shows which error of `idem` it was made of.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Failed {
    Declined,
    Idempotency(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.code().to_owned())
    }
}

#[tokio::test]
async fn p7_a_ciphertext_that_was_copied_to_another_key_or_operation_is_refused_and_no_body_runs() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone())
        .codec(EncryptedCodec::new(ring(&["a"])))
        .build();
    idempotency
        .operation("keys.copied")
        .key("hers")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    copy(&store, "keys.copied", "hers", "his").await;
    let copied = idempotency
        .operation("keys.copied")
        .key("his")
        .run(async || Res::Ok(2))
        .await;
    assert!(is_codec(&copied), "{copied:?}");
    // It says why, and nothing of the outcome.
    assert!(
        copied
            .unwrap_err()
            .to_string()
            .contains("was not encrypted for this record")
    );
}

#[tokio::test]
async fn the_codec_inside_of_the_encryption_can_be_replaced() {
    let store = MemoryStore::new();
    let run = async |codec: EncryptedCodec, key: &str| {
        let idempotency = Idempotency::builder(store.clone()).codec(codec).build();
        idempotency
            .operation("keys.replaced")
            .key(key)
            .run(async || Res::Ok(1))
            .await
            .map(|outcome| outcome.is_replayed())
    };
    let plain = Idempotency::builder(store.clone()).codec(Bound).build();
    plain
        .operation("keys.replaced")
        .key("plain")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert!(
        !run(EncryptedCodec::over(Bound, ring(&["a"])), "encrypted")
            .await
            .unwrap()
    );
    let successor = || EncryptedCodec::over(Successor, ring(&["a"]));
    assert!(run(successor(), "encrypted").await.unwrap());
    assert!(is_codec(&run(successor(), "plain").await));
    assert!(run(successor().reads_unencrypted(), "plain").await.unwrap());
    // Not the other way round: the older codec knows nothing of the newer one.
    assert!(!run(successor(), "new").await.unwrap() && run(successor(), "new").await.unwrap());
    assert!(is_codec(
        &run(EncryptedCodec::over(Bound, ring(&["a"])), "new").await
    ));
}

#[cfg(all(feature = "http", feature = "axum"))]
#[tokio::test]
async fn p2_a_response_whose_key_is_gone_is_an_error_of_the_server_and_no_handler_runs() {
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::post;
    use tower::ServiceExt as _;

    let keys = Reloaded::new(&["a"]);
    let runs = Arc::new(AtomicU32::new(0));
    let idempotency = process(&World::memory(), &keys).await;
    let layer = idem::http::IdempotencyLayer::new(idempotency.clone())
        .name("tests")
        .unscoped();
    let lookup = idem::http::lookup(idempotency)
        .name("tests")
        .route("POST", "/charges")
        .unscoped();
    let counted = runs.clone();
    let handler = async move || format!("secret {}", counted.fetch_add(1, SeqCst));
    let app = axum::Router::new()
        .route("/charges", post(handler))
        .layer(layer)
        .route_service("/charges/{key}", lookup);
    let send = async |request: Request<Body>| {
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let post = || {
        Request::post("/charges")
            .header("idempotency-key", "k")
            .body(Body::empty())
            .unwrap()
    };
    let ask = || Request::get("/charges/k").body(Body::empty()).unwrap();
    assert_eq!(send(post()).await, (200, "secret 0".into()));
    keys.reload(&["b"]);
    for request in [post(), ask()] {
        let (status, text) = send(request).await;
        assert!(
            status == 500 && text.contains("\"codec\"") && !text.contains("secret"),
            "{status} {text}"
        );
    }
    keys.reload(&["b", "a"]);
    for request in [post(), ask()] {
        assert_eq!(send(request).await, (200, "secret 0".into()));
    }
    assert_eq!(runs.load(SeqCst), 1);
}
