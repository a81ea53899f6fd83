//! A codec that panics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use idem::store::{Codec, CodecContext, CodecFailure, CodecId};
use idem::{Begin, Error, Idempotency, MemoryStore, RecordState, erased_serde};
use idem_testkit::{FaultStore, Step};

use super::Res;
use crate::support::LEASE;

/// A codec that panics while this is set, and otherwise writes JSON.
#[derive(Clone, Default)]
struct PanickingCodec(Arc<AtomicBool>);

impl PanickingCodec {
    fn may_panic(&self) {
        assert!(!self.0.load(SeqCst), "a codec that panics");
    }
}

impl Codec for PanickingCodec {
    fn id(&self) -> CodecId {
        CodecId::parse(b"touchy").unwrap()
    }

    fn encode(
        &self,
        _: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        self.may_panic();
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        self.may_panic();
        let mut json = serde_json::Deserializer::from_slice(bytes);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))?;
        Ok(json.end()?)
    }
}

#[tokio::test(start_paused = true)]
async fn p9_a_codec_that_panics_loses_no_record_of_work_that_is_done() {
    let codec = PanickingCodec::default();
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let panics = |now| codec.0.store(now, SeqCst);
    let idempotency = Idempotency::builder(store)
        .codec(codec.clone())
        .local_cache(10)
        .build();
    let call = |key: &'static str| {
        idempotency
            .operation("callbacks.codec")
            .key(key)
            .lease(LEASE)
    };
    let unreachable = async || -> Res { unreachable!("it is done") };

    // The body has run: that is recorded, in a call of each kind.
    panics(true);
    call("run").run(async || Res::Ok(1)).await.unwrap();
    let Begin::Execute(lease) = call("by hand").begin().await.unwrap() else {
        panic!("nothing was there")
    };
    lease.commit(&1).await.unwrap();
    drop(lease);
    panics(false);
    for key in ["run", "by hand"] {
        assert!(
            matches!(
                call(key).run(unreachable).await,
                Err(Error::AlreadyDone { .. })
            ),
            "{key}"
        );
    }

    // An unreadable outcome is not a reason to run again, now or later.
    call("read").run(async || Res::Ok(2)).await.unwrap();
    panics(true);
    assert!(matches!(
        call("read").run(unreachable).await,
        Err(Error::Codec { .. })
    ));
    assert!(matches!(
        call("read").lookup::<u32>().await,
        Err(Error::Codec { .. })
    ));
    panics(false);
    assert_eq!(call("read").run(unreachable).await.unwrap().into_inner(), 2);

    // What is settled by hand is written before anything is changed.
    drop(call("settled").begin().await.unwrap());
    tokio::time::sleep(LEASE).await;
    let claims = faults.calls(Step::Claim);
    panics(true);
    assert!(matches!(
        call("settled").settle(&3).await,
        Err(Error::Config { .. })
    ));
    panics(false);
    let found = call("settled").inspect().await.unwrap().unwrap();
    assert_eq!(
        (found.state, found.attempt),
        (RecordState::Abandoned, 1),
        "an attempt that only settles would be the second"
    );
    assert_eq!(faults.calls(Step::Claim), claims, "nothing was claimed");
    call("settled").settle(&3).await.unwrap();
    assert_eq!(
        call("settled").run(unreachable).await.unwrap().into_inner(),
        3
    );
}

/// Writes JSON, and fails for one attempt.
#[derive(Clone, Default)]
struct FailsFor {
    attempt: Arc<AtomicU64>,
    /// The attempts whose outcomes were to be written.
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Codec for FailsFor {
    fn id(&self) -> CodecId {
        CodecId::parse(b"fails").unwrap()
    }

    fn encode(
        &self,
        context: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        let attempt = context.attempt();
        self.seen.lock().unwrap().push(attempt);
        if attempt == self.attempt.load(SeqCst) {
            return Err("there is no key for this attempt".into());
        }
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        Ok(read(&mut <dyn erased_serde::Deserializer<'_>>::erase(
            &mut json,
        ))?)
    }
}

/// The attempt is known only once the key is claimed.
#[tokio::test(start_paused = true)]
async fn p5_what_is_settled_is_written_before_the_claim_and_for_the_attempt_and_else_stays_abandoned()
 {
    let codec = FailsFor::default();
    let idempotency = Idempotency::builder(MemoryStore::new())
        .codec(codec.clone())
        .build();
    let call = || {
        let call = idempotency.operation("callbacks.settled").key("k");
        call.lease(LEASE)
    };
    drop(call().begin().await.unwrap());
    tokio::time::sleep(LEASE).await;
    for (fails_for, attempt) in [(1, 1), (2, 2)] {
        codec.attempt.store(fails_for, SeqCst);
        let failed = call().settle(&3).await;
        assert!(matches!(failed, Err(Error::Config { .. })), "{failed:?}");
        // At once: the lease of the operator is not waited for.
        let found = call().inspect().await.unwrap().unwrap();
        assert_eq!(
            (found.state, found.attempt),
            (RecordState::Abandoned, attempt)
        );
    }
    call().settle(&3).await.unwrap();
    assert_eq!(*codec.seen.lock().unwrap(), [1, 1, 2, 1, 3]);
}
