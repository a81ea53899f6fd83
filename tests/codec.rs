//! A codec knows whose outcome it writes, so that it can bind it there.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

mod support;

use idem::record::{Claim, Commit, Owner, RecordId};
use idem::{
    Begin, Codec, CodecContext, CodecFailure, CodecId, Error, ErrorAction, Key, Lookup, RedisStore, Store, erased_serde,
};
use serde::{Deserialize, Serialize};
use support::{LONG, World};

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
    format!("{} {} {} ", context.operation(), context.key(), context.is_error()).into_bytes()
}

impl Codec for Bound {
    fn id(&self) -> CodecId {
        CodecId::parse(b"bound").unwrap()
    }

    fn encode(&self, context: CodecContext<'_>, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecFailure> {
        let mut bytes = bound(context);
        serde_json::to_writer(&mut bytes, value)?;
        Ok(bytes)
    }

    fn decode(
        &self,
        context: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(&mut dyn erased_serde::Deserializer<'_>) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let json = bytes.strip_prefix(&*bound(context)).ok_or("it was written for another record")?;
        let mut json = serde_json::Deserializer::from_slice(json);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))?;
        Ok(json.end()?)
    }
}

/// Copies the outcome of one key to another one, as an attacker with access to the store can.
async fn copy(store: &impl Store, operation: &str, from: &str, to: &str) {
    let id = |key| RecordId::new(operation, &Key::encode(key).unwrap()).unwrap();
    let info = store.inspect(&id(from)).await.unwrap().unwrap();
    let (id, owner) = (id(to), Owner::generate());
    let claim = Claim::new(id.clone(), owner, LONG, LONG * 2).with_take_over(false);
    store.claim(&claim).await.unwrap();
    let commit = Commit::new(id, owner, 1, info.outcome, LONG);
    store.commit(&commit).await.unwrap();
}

over_both_stores! {
    async fn a_codec_is_told_operation_key_and_kind_wherever_an_outcome_is_written_and_read(world: World) {
        let idempotency = world.builder().await.codec(Bound).build();
        let operation = |key| idempotency.operation("codec.told").key(key);
        let run = async |key| operation(key).run(async || Res::Ok(1)).await.unwrap().is_replayed();
        let declined = async |key| {
            let keeping = operation(key).errors(|_: &Declined| ErrorAction::Keep);
            keeping.run(async || Err::<u32, _>(Declined)).await.unwrap_err() == Declined
        };
        assert!(!run("run").await && run("run").await && declined("kept").await && declined("kept").await);
        for (key, is_error) in [("commit", false), ("commit_error", true)] {
            let Begin::Execute(lease) = operation(key).begin().await.unwrap() else { panic!("nothing was there") };
            if is_error { lease.commit_error(&Declined, None).await.unwrap() } else { lease.commit(&1_u32).await.unwrap() }
        }
        operation("settle").settle(&1_u32).await.unwrap();
        operation("settle_error").settle_error(&Declined).await.unwrap();
        for key in ["commit", "settle"] {
            assert!(run(key).await && matches!(operation(key).lookup().await.unwrap(), Lookup::Outcome(1_u32)));
        }
        for key in ["kept", "commit_error", "settle_error"] {
            let Begin::Replay(recorded) = operation(key).begin().await.unwrap() else { panic!("it is kept") };
            assert_eq!(recorded.decode_error::<Declined>().unwrap(), Declined);
        }
    }

    async fn an_outcome_that_was_copied_to_another_key_is_refused_by_a_codec_that_binds_it(world: World) {
        let idempotency = world.builder().await.codec(Bound).build();
        let operation = |key| idempotency.operation("codec.copied").key(key);
        operation("hers").run(async || Res::Ok(1)).await.unwrap();
        match &world {
            World::Memory(store) => copy(store, "codec.copied", "hers", "his").await,
            World::Redis(url) => copy(&RedisStore::connect(url).await.unwrap(), "codec.copied", "hers", "his").await,
            #[allow(unreachable_patterns, reason = "there are other worlds with other features")]
            _ => unreachable!("these tests run over memory and Redis"),
        }
        let copied = operation("his").run(async || Res::Ok(2)).await;
        assert!(matches!(copied, Err(Error::Codec { .. })), "{copied:?}");
    }
}
