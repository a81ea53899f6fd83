//! A codec knows whose outcome it writes, so that it can bind it there.

mod deployment;
#[cfg(feature = "encryption")]
mod keys;

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{LEASE, LONG, World, eventually};
use idem::record::{Claim, Commit, Owner, RecordId};
use idem::{
    Begin, Codec, CodecContext, CodecFailure, CodecId, Error, ErrorAction, Idempotency, Key,
    Lookup, MemoryStore, RecordState, Store, erased_serde, idempotent,
};
use serde::{Deserialize, Serialize};

type Res = Result<u32, Error>;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Declined;

impl From<Error> for Declined {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

/// Writes its context before the outcome, and reads only data that begins with it, like associated
/// data.
struct Bound;

fn bound(context: CodecContext<'_>) -> Vec<u8> {
    format!(
        "{} {} {} ",
        context.operation(),
        context.key(),
        context.is_error()
    )
    .into_bytes()
}

impl Codec for Bound {
    fn id(&self) -> CodecId {
        CodecId::parse(b"bound").unwrap()
    }

    fn encode(
        &self,
        context: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        let mut bytes = bound(context);
        serde_json::to_writer(&mut bytes, value)?;
        Ok(bytes)
    }

    fn decode(
        &self,
        context: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let json = bytes
            .strip_prefix(&*bound(context))
            .ok_or("it was written for another record")?;
        let mut json = serde_json::Deserializer::from_slice(json);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))?;
        Ok(json.end()?)
    }
}

/// The successor of [`Bound`], whose outcomes it still reads.
struct Successor;

impl Codec for Successor {
    fn id(&self) -> CodecId {
        CodecId::parse(b"next").unwrap()
    }

    fn encode(
        &self,
        context: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        Ok([b"2 ".to_vec(), Bound.encode(context, value)?].concat())
    }

    fn decode(
        &self,
        context: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        Bound.decode(
            context,
            bytes
                .strip_prefix(b"2 ")
                .ok_or("it was written by another codec")?,
            read,
        )
    }

    fn earlier(&self, id: CodecId) -> Option<&dyn Codec> {
        (id == Bound.id()).then_some(&Bound)
    }
}

/// Copies the outcome of one key to another one, as an attacker with access to the store can.
async fn copy(store: &impl Store, operation: &str, from: &str, to: &str) {
    let id = |key| RecordId::new(operation, &Key::encode(key).unwrap()).unwrap();
    let info = store.inspect(&id(from)).await.unwrap().unwrap();
    let id = id(to);
    let owner = Owner::generate();
    let claim = Claim::new(id.clone(), owner, LONG, LONG * 2).with_take_over(false);
    store.claim(&claim).await.unwrap();
    let commit = Commit::new(id, owner, 1, info.outcome, LONG);
    store.commit(&commit).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_codec_is_told_operation_key_and_kind_wherever_an_outcome_is_written_and_read() {
    let idempotency = World::memory().builder().await.codec(Bound).build();
    let operation = |key| idempotency.operation("codec.told").key(key);
    let run = async |key| {
        operation(key)
            .run(async || Res::Ok(1))
            .await
            .unwrap()
            .is_replayed()
    };
    let declined = async |key| {
        let keeping = operation(key).errors(|_: &Declined| ErrorAction::Keep);
        keeping
            .run(async || Err::<u32, _>(Declined))
            .await
            .unwrap_err()
            == Declined
    };
    assert!(
        !run("run").await && run("run").await && declined("kept").await && declined("kept").await
    );
    for (key, is_error) in [("commit", false), ("commit_error", true)] {
        let Begin::Execute(lease) = operation(key).begin().await.unwrap() else {
            panic!("nothing was there")
        };
        if is_error {
            lease.commit_error(&Declined, None).await.unwrap();
        } else {
            lease.commit(&1_u32).await.unwrap();
        }
    }
    operation("settle").settle(&1_u32).await.unwrap();
    operation("settle_error")
        .settle_error(&Declined)
        .await
        .unwrap();
    for key in ["commit", "settle"] {
        assert!(
            run(key).await
                && matches!(
                    operation(key).lookup().await.unwrap(),
                    Lookup::Outcome(1_u32)
                )
        );
    }
    for key in ["kept", "commit_error", "settle_error"] {
        let Begin::Replay(recorded) = operation(key).begin().await.unwrap() else {
            panic!("it is kept")
        };
        assert_eq!(recorded.decode_error::<Declined>().unwrap(), Declined);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_copied_to_another_key_is_refused_by_a_codec_that_binds_it() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone()).codec(Bound).build();
    let operation = |key| idempotency.operation("codec.copied").key(key);
    operation("hers").run(async || Res::Ok(1)).await.unwrap();
    copy(&store, "codec.copied", "hers", "his").await;
    let copied = operation("his").run(async || Res::Ok(2)).await;
    assert!(matches!(copied, Err(Error::Codec { .. })), "{copied:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_of_an_earlier_version_is_upgraded_and_one_of_a_later_version_is_an_error() {
    let idempotency = World::memory().process().await;
    let runs = AtomicU32::new(0);
    let call = |key| idempotency.operation("codec.versions").key(key);
    // One process of before the deployment, and one of after it, in each order.
    let before = async |key| {
        call(key)
            .run(async || {
                Ok::<_, Error>(V1 {
                    cents: 150 + runs.fetch_add(1, Ordering::SeqCst),
                })
            })
            .await
    };
    let after = async |key| {
        let call = call(key).outcome_version(2).upgrade(1, from_v1);
        call.run(async || {
            Ok::<_, Error>(V2 {
                amount: runs.fetch_add(1, Ordering::SeqCst).to_string(),
            })
        })
        .await
    };
    assert_eq!(before("old").await.unwrap().into_inner(), V1 { cents: 150 });
    for _ in 0..2 {
        let upgraded = after("old").await.unwrap();
        assert!(upgraded.is_replayed());
        assert_eq!(
            upgraded.into_inner(),
            V2 {
                amount: "150 cents".into()
            }
        );
    }
    assert_eq!(
        before("old").await.unwrap().into_inner(),
        V1 { cents: 150 },
        "the record stays as it is"
    );
    let Lookup::Outcome(found) = call("old")
        .outcome_version(2)
        .upgrade(1, from_v1)
        .lookup::<V2>()
        .await
        .unwrap()
    else {
        panic!("it is there")
    };
    assert_eq!(
        found,
        V2 {
            amount: "150 cents".into()
        }
    );

    assert_eq!(
        after("new").await.unwrap().into_inner(),
        V2 { amount: "1".into() }
    );
    assert!(after("new").await.unwrap().is_replayed());
    let refused = before("new").await.unwrap_err();
    assert!(
        matches!(refused, Error::Codec { .. })
            && refused.to_string().contains("as version 2 of its type"),
        "{refused}"
    );
    let later = call("old")
        .outcome_version(3)
        .run(async || {
            Ok::<_, Error>(V2 {
                amount: String::new(),
            })
        })
        .await
        .unwrap_err();
    assert!(later.to_string().contains("`upgrade(1 => ..)`"), "{later}");
    assert_eq!(runs.load(Ordering::SeqCst), 2, "no body ran for them");

    let info = call("new").inspect().await.unwrap().unwrap();
    assert_eq!(info.outcome.unwrap().version(), 2);
    assert!(
        call("old")
            .inspect()
            .await
            .unwrap()
            .unwrap()
            .outcome
            .unwrap()
            .metadata
            .is_none(),
        "nothing is stored of a first version"
    );
    for wrong in [
        call("w").outcome_version(0),
        call("w").outcome_version(2).upgrade(2, from_v1),
    ] {
        let refused = wrong
            .run(async || {
                Ok::<_, Error>(V2 {
                    amount: String::new(),
                })
            })
            .await;
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_upgrade_reads_the_version_that_it_is_for_and_kept_errors_have_none() {
    let idempotency = World::memory().process().await;
    let call = |key: &'static str| idempotency.operation("codec.upgrades").key(key);
    call("first")
        .run(async || Ok::<_, Error>(V1 { cents: 1 }))
        .await
        .unwrap();
    call("second")
        .outcome_version(2)
        .run(async || {
            Ok::<_, Error>(V2 {
                amount: "2 cents".into(),
            })
        })
        .await
        .unwrap();
    for (key, expected) in [
        ("first", "1 of the first version"),
        ("second", "2 cents of the second"),
    ] {
        let third = call(key)
            .outcome_version(3)
            .upgrade(2, |old: V2| format!("{} of the second", old.amount));
        let third = third.upgrade(1, |old: V1| format!("{} of the first version", old.cents));
        let read = third
            .run(async || Ok::<_, Error>(String::new()))
            .await
            .unwrap();
        assert_eq!(
            (read.is_replayed(), read.into_inner().as_str()),
            (true, expected)
        );
    }
    let keeps = |_: &Declined| ErrorAction::Keep;
    let before = call("failed")
        .errors(keeps)
        .run(async || Err::<V1, _>(Declined))
        .await;
    assert_eq!(before.unwrap_err(), Declined);
    let after = call("failed")
        .outcome_version(2)
        .upgrade(1, from_v1)
        .errors(keeps);
    let after = after
        .run(async || {
            Ok(V2 {
                amount: "no body runs".into(),
            })
        })
        .await;
    assert_eq!(after.unwrap_err(), Declined);
}

#[tokio::test(start_paused = true)]
async fn the_attribute_upgrades_an_earlier_version() {
    idem::scope(World::memory().process().await, async {
        assert_eq!(charge_before(7).await.unwrap(), V1 { cents: 7 });
        assert_eq!(
            charge(7).await.unwrap(),
            V2 {
                amount: "7 cents".into()
            }
        );
        assert_eq!(charge(8).await.unwrap(), V2 { amount: "8".into() });
        assert!(matches!(charge_before(8).await, Err(Error::Codec { .. })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_settled_a_record_when_and_why_stands_in_it() {
    let idempotency = World::memory().builder().await.lease(LEASE).build();
    let call = |key| {
        idempotency
            .operation("codec.audit")
            .key(key)
            .ttl(LONG)
            .remember(LONG * 2)
    };
    for key in ["settled", "failed", "released", "forgotten"] {
        let dropped = call(key).fingerprint(&1).run(std::future::pending::<Res>);
        tokio::time::timeout(LEASE / 10, dropped).await.unwrap_err();
    }
    let refused = call("settled")
        .audit("jane", "too early")
        .settle(&1_u32)
        .await;
    assert!(
        matches!(refused, Err(Error::InFlight { .. })),
        "{refused:?}"
    );
    assert!(matches!(
        call("released").release().await,
        Err(Error::InFlight { .. })
    ));
    for key in ["settled", "failed", "released", "forgotten"] {
        let state = async || call(key).inspect().await.unwrap().unwrap().state;
        eventually("it is abandoned", async || {
            state().await == RecordState::Abandoned
        })
        .await;
    }
    call("settled")
        .audit("jane", "ticket 7")
        .settle(&1_u32)
        .await
        .unwrap();
    call("failed")
        .audit("joe", "")
        .settle_error(&Declined)
        .await
        .unwrap();
    for (key, who, why) in [("settled", "jane", "ticket 7"), ("failed", "joe", "")] {
        let info = call(key).inspect().await.unwrap().unwrap();
        assert!(info.audit_age.is_some_and(|age| age < LONG), "{info:?}");
        let metadata = info.outcome.unwrap().metadata.unwrap();
        let audit = metadata.audit.as_ref().unwrap();
        assert_eq!((&*audit.who, &*audit.why), (who, why));
    }
    let replayed = call("settled")
        .fingerprint(&1)
        .run(async || Res::Ok(2))
        .await
        .unwrap();
    assert!(replayed.is_replayed() && replayed.into_inner() == 1);

    let nameless = call("released").audit("", "why").release().await;
    assert!(
        matches!(nameless, Err(Error::Config { .. })),
        "{nameless:?}"
    );
    // What the operator says of the fingerprint does not matter.
    assert!(
        call("released")
            .fingerprint(&2)
            .audit("jane", "it was not done")
            .release()
            .await
            .unwrap()
    );
    assert!(
        !call("released").release().await.unwrap(),
        "it is released already"
    );
    assert!(!call("nothing").release().await.unwrap());
    assert!(matches!(
        call("settled").release().await,
        Err(Error::Duplicate { .. })
    ));
    let attempt = async || Res::Ok(u32::try_from(idem::current().unwrap().attempt()).unwrap());
    assert_eq!(
        call("released")
            .fingerprint(&1)
            .run(attempt)
            .await
            .unwrap()
            .into_inner(),
        3
    );
    assert!(
        call("forgotten")
            .audit("jane", "a test")
            .forget()
            .await
            .unwrap()
    );
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct V1 {
    cents: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct V2 {
    amount: String,
}

#[allow(clippy::needless_pass_by_value)] // what `upgrade` takes
fn from_v1(old: V1) -> V2 {
    V2 {
        amount: format!("{} cents", old.cents),
    }
}

#[idempotent(name = "codec.versions.attribute", key = cents)]
async fn charge_before(cents: u32) -> Result<V1, Error> {
    Ok(V1 { cents })
}

#[idempotent(name = "codec.versions.attribute", key = cents, outcome_version = 2, upgrade(1 => from_v1))]
async fn charge(cents: u32) -> Result<V2, Error> {
    Ok(V2 {
        amount: cents.to_string(),
    })
}
