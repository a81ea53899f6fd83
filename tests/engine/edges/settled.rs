//! An outcome that a person has mistyped: no body runs because of it, and it can be corrected.

use futures_util::future::{join, join_all};
use idem::store::admin::{Intervened, Intervention};
use idem::store::record::{Encoded, RecordId};
use idem::store::{AdminStore as _, CodecId, Store as _};
use idem::{
    Abandoned, Begin, Error, ErrorAction, Idempotency, Key, Lookup, MemoryStore, RecordState,
};
use idem_testkit::FaultStore;

use crate::support::LONG;

/// As in an application: calls of one process share a wait.
fn process(store: &MemoryStore) -> Idempotency {
    Idempotency::builder(FaultStore::new(store.clone())).build()
}

fn json(text: &'static str) -> Encoded {
    Encoded::new(CodecId::JSON, text.into())
}

#[tokio::test(start_paused = true)]
async fn p2_a_mistyped_outcome_is_an_error_for_waiting_and_later_calls_until_it_is_replaced() {
    let store = MemoryStore::new();
    let processes = [process(&store), process(&store)];
    let call = |number: usize| {
        processes[number % 2]
            .operation("settled")
            .key("k")
            .wait(LONG)
    };
    let charge =
        |number| call(number).run(async || -> Result<String, Error> { panic!("a body ran") });
    let id = RecordId::new("settled", &Key::encode("k").unwrap()).unwrap();

    let Begin::Execute(lease) = call(0).begin().await.unwrap() else {
        panic!("nothing was there")
    };
    let waiting = join_all((0..4).map(charge));
    let settles = async {
        // They wait by now, or come later: all the same.
        tokio::task::yield_now().await;
        let settle = Intervention::settle(id.clone(), json(r#"{"receipt":7}"#))
            .force(true)
            .by("jane", "ticket 7");
        assert_eq!(
            store.intervene(&settle).await.unwrap(),
            Intervened::Done { attempt: 1 }
        );
    };
    let (waited, ()) = join(waiting, settles).await;
    let late = lease.commit(&"receipt 7".to_owned()).await;
    assert!(matches!(late, Err(Error::LeaseLost { .. })), "{late:?}");
    for answer in waited.into_iter().chain(join_all((0..4).map(charge)).await) {
        let error = answer.unwrap_err();
        assert!(
            matches!(error, Error::Codec { .. }) && !error.is_retryable(),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("do not `forget`") && text.contains("settle --replace"),
            "{text}"
        );
    }

    let seen = store.inspect(&id).await.unwrap().unwrap().outcome.unwrap();
    let replace = Intervention::replace(id.clone(), seen, json(r#""receipt 7""#))
        .by("jane", "ticket 7, as text");
    assert_eq!(
        store.intervene(&replace).await.unwrap(),
        Intervened::Done { attempt: 1 }
    );
    for number in 0..2 {
        assert_eq!(charge(number).await.unwrap().into_inner(), "receipt 7");
        let Lookup::Outcome(found) = call(number).lookup::<String>().await.unwrap() else {
            panic!("it is settled")
        };
        assert_eq!(found, "receipt 7");
    }
}

/// The pattern that `idem show` prints for the next outcome that is settled by hand.
#[tokio::test]
async fn the_type_of_an_outcome_is_named_where_a_person_may_have_to_settle_a_record() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Receipt(u32);
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Declined;
    impl From<Error> for Declined {
        fn from(error: Error) -> Self {
            panic!("{error}")
        }
    }

    let idempotency = Idempotency::new(MemoryStore::new());
    let call = |key: &'static str| idempotency.operation("settled.named").key(key);
    // A person may have to settle the record before there is an outcome.
    let receipts = async |key, name: Option<&str>| {
        let info = call(key).inspect().await?.unwrap();
        assert_eq!(
            (info.state, info.outcome_type.as_deref()),
            (RecordState::InFlight, name),
            "{key}"
        );
        Ok::<_, Error>(vec![Receipt(7)])
    };
    let named = Some("Vec<Receipt>");
    call("rerun").run(|| receipts("rerun", None)).await.unwrap();
    call("reject")
        .abandoned(Abandoned::Reject)
        .run(|| receipts("reject", named))
        .await
        .unwrap();
    call("reconcile")
        .reconcile(async || Ok::<_, Error>(None))
        .run(|| receipts("reconcile", named))
        .await
        .unwrap();
    call("attempts")
        .max_attempts(3)
        .run(|| receipts("attempts", named))
        .await
        .unwrap();
    let keeping = call("kept")
        .max_attempts(3)
        .errors(|_: &Declined| ErrorAction::Keep);
    assert!(keeping.run(async || Err::<u32, _>(Declined)).await.is_err());
    call("settled").settle(&Some(Receipt(7))).await.unwrap();
    for (key, name) in [
        ("rerun", None),
        ("reject", Some("Vec<Receipt>")),
        ("reconcile", Some("Vec<Receipt>")),
        ("attempts", Some("Vec<Receipt>")),
        ("kept", Some("Declined")),
        ("settled", Some("Option<Receipt>")),
    ] {
        let info = call(key).inspect().await.unwrap().unwrap();
        assert_eq!(info.outcome_type.as_deref(), name, "{key}");
        assert_eq!(
            info.outcome.unwrap().metadata.is_some(),
            name.is_some(),
            "{key}"
        );
    }
}
