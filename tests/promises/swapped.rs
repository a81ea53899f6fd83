//! Encrypted outcomes that were moved with write access to the store, or described in
//! another way: each is an error, and no body runs.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use idem::{
    Codec, CodecContext, CodecFailure, CodecId, EncryptedCodec, EncryptionKey, Error, ErrorAction,
    Idempotency, KeyRing, Lookup, Operation, erased_serde,
};
use serde::{Deserialize, Serialize};

use crate::Res;
use crate::support::World;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Declined;

impl From<Error> for Declined {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

/// The codec of the attacker: writes the bytes that it has, under the name that it likes, and keeps
/// those that it reads.
#[derive(Clone)]
struct Forger {
    name: &'static str,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Codec for Forger {
    fn id(&self) -> CodecId {
        CodecId::parse(self.name.as_bytes()).unwrap()
    }

    fn encode(
        &self,
        _: CodecContext<'_>,
        _: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        Ok(self.bytes.lock().unwrap().clone())
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        bytes: &[u8],
        _: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        *self.bytes.lock().unwrap() = bytes.to_vec();
        Err("it is kept".into())
    }
}

/// The place of an outcome, and its description in the record.
#[derive(Clone, Copy, Debug)]
struct Place {
    operation: &'static str,
    key: &'static str,
    version: u32,
    is_error: bool,
    /// The attempts of the key before this one.
    earlier: u32,
    codec: &'static str,
}

const HERS: Place = Place {
    operation: "swapped.charge",
    key: "hers",
    version: 2,
    is_error: false,
    earlier: 0,
    codec: "xchacha",
};

impl Place {
    fn call(self, idempotency: &Idempotency) -> Operation<'_> {
        idempotency
            .operation(self.operation)
            .key(self.key)
            .outcome_version(self.version)
    }

    /// Writes an outcome there by the runtime's codec.
    async fn write(self, idempotency: &Idempotency) {
        for _ in 0..self.earlier {
            let released = self
                .call(idempotency)
                .run(async || Err::<u32, _>(Declined))
                .await;
            assert_eq!(released.unwrap_err(), Declined);
        }
        if self.is_error {
            let keeping = self
                .call(idempotency)
                .errors(|_: &Declined| ErrorAction::Keep);
            keeping
                .run(async || Err::<u32, _>(Declined))
                .await
                .unwrap_err();
        } else {
            self.call(idempotency)
                .run(async || Res::Ok(150))
                .await
                .unwrap();
        }
    }
}

crate::over_all_stores! {
    async fn a_ciphertext_counts_only_where_it_was_written_and_as_what_it_was_written(world: World) {
        let ring = KeyRing::new("a", EncryptionKey::new([7; 32])).unwrap();
        let idempotency = world.builder().await.codec(EncryptedCodec::new(ring)).build();
        let bytes = Arc::default();
        let forger = async |name| world.builder().await.codec(Forger { name, bytes: Arc::clone(&bytes) }).build();
        HERS.write(&idempotency).await;
        let reader = forger("xchacha").await;
        assert!(matches!(HERS.call(&reader).lookup::<u32>().await, Err(Error::Codec { .. })));
        assert_eq!(bytes.lock().unwrap().first(), Some(&2), "the form of the ciphertext");
        let cases = [
            ("the same", HERS),
            ("another key", Place { key: "his", ..HERS }),
            ("another operation", Place { operation: "swapped.refund", ..HERS }),
            ("key and operation with another boundary", Place { operation: "swapped", key: "charge:hers", ..HERS }),
            ("an error", Place { is_error: true, ..HERS }),
            ("a later attempt", Place { earlier: 1, ..HERS }),
            ("no version", Place { version: 1, ..HERS }),
            ("a later version", Place { version: 3, ..HERS }),
            ("another codec", Place { codec: "j", ..HERS }),
        ];
        for (what, place) in cases {
            idempotency.operation(HERS.operation).key(HERS.key).forget().await.unwrap();
            place.write(&forger(place.codec).await).await;
            let ran = AtomicU32::new(0);
            // As an attacker would have it: 150 of version 1 is 15,000 of version 2.
            let call = || place.call(&idempotency).outcome_version(place.version.max(2)).upgrade(1, |old: u32| old * 100);
            let charged = call().run(async || Res::Ok(ran.fetch_add(1, SeqCst))).await;
            let found = call().lookup::<u32>().await;
            if what == "the same" {
                assert_eq!(charged.unwrap().into_inner(), 150);
                assert!(matches!(found, Ok(Lookup::Outcome(150))));
            } else {
                assert!(matches!(charged, Err(Error::Codec { .. })), "{what}: {charged:?}");
                let read = match found {
                    Ok(Lookup::Error(recorded)) => recorded.decode_error::<u32>(),
                    other => other.map(|found| panic!("{what}: {found:?}")),
                };
                assert!(matches!(read, Err(Error::Codec { .. })), "{what}: {read:?}");
            }
            assert_eq!(ran.load(SeqCst), 0, "{what}: a body ran");
        }
        // The other way round: an error that was kept is not a value.
        let kept = Place { key: "kept", version: 1, is_error: true, ..HERS };
        kept.write(&idempotency).await;
        let Ok(Lookup::Error(recorded)) = kept.call(&reader).lookup::<u32>().await else { panic!("it is kept") };
        assert!(matches!(recorded.decode_error::<Declined>(), Err(Error::Codec { .. })));
        kept.call(&idempotency).forget().await.unwrap();
        let value = Place { is_error: false, ..kept };
        value.write(&reader).await;
        let charged = value.call(&idempotency).run(async || -> Result<Declined, Error> { panic!("it is done") }).await;
        assert!(matches!(charged, Err(Error::Codec { .. })), "{charged:?}");
    }
}
