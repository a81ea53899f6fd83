//! The name of an operation: whose it is, and who may share it.

use super::*;

#[idempotent(key = "key")]
async fn free(runs: &Runs, key: u8) -> Result<u32, Failure> {
    Ok(runs.count())
}

struct Invoices;
struct Orders;
struct Generic<T>(T);

impl Invoices {
    #[idempotent(key = "key")]
    async fn create(runs: &Runs, key: u8) -> Result<u32, Failure> {
        Ok(runs.count())
    }
}

impl<T> Generic<T> {
    #[idempotent(key = "key")]
    async fn create(runs: &Runs, key: u8) -> Result<u32, Failure> {
        Ok(runs.count())
    }
}

/// Two functions of one name in one function: nothing tells them apart.
async fn two(runs: &Runs) -> [Result<u32, Failure>; 2] {
    let first = {
        #[idempotent(key = "key")]
        async fn same(runs: &Runs, key: u8) -> Result<u32, Failure> {
            Ok(runs.count())
        }
        same(runs, 1).await
    };
    let second = {
        #[idempotent(key = "key")]
        async fn same(runs: &Runs, key: u8) -> Result<u32, Failure> {
            Ok(runs.count())
        }
        same(runs, 1).await
    };
    [first, second]
}

/// The functions that one macro writes have one file, line and column.
macro_rules! guarded {
    ($($name:ident)*) => {$(
        async fn $name(runs: &Runs) -> Result<u32, Failure> {
            #[idempotent(key = "key")]
            async fn guarded_by_macro(runs: &Runs, key: u8) -> Result<u32, Failure> {
                Ok(runs.count())
            }
            guarded_by_macro(runs, 1).await
        }
    )*};
}

guarded!(charge refund);

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    match result {
        Err(Failure::Idempotency(text)) => text,
        #[allow(clippy::panic, reason = "a test")]
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_free_function_is_named_by_its_module_and_its_name() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs = Runs::default();
    assert_eq!(
        idem::scope(idempotency.clone(), free(&runs, 1)).await,
        Ok(1)
    );
    let record = idempotency
        .operation("macros::attribute::names::free")
        .key(&1_u8)
        .inspect()
        .await
        .unwrap();
    assert_eq!(record.unwrap().state, idem::RecordState::Committed);
}

#[tokio::test]
async fn a_function_of_a_type_needs_a_name_and_is_refused_at_its_first_call_without_one() {
    fresh(async {
        let runs = Runs::default();
        let Generic(()) = Generic(());
        for text in [
            refused(Invoices::create(&runs, 1).await),
            refused(Generic::<u8>::create(&runs, 1).await),
        ] {
            assert!(
                text.contains("names.rs") && text.contains("name = "),
                "{text}"
            );
        }
        assert_eq!(runs.total(), 0);
    })
    .await;
}

#[tokio::test]
async fn two_functions_of_one_default_name_are_refused_and_both_places_are_said() {
    fresh(async {
        let runs = Runs::default();
        let answers = two(&runs).await;
        let [Ok(1), Err(Failure::Idempotency(text))] = answers else {
            panic!("not refused: {answers:?}")
        };
        assert_eq!(text.matches("names.rs").count(), 2, "{text}");
        assert_eq!(runs.total(), 1);
    })
    .await;
}

#[tokio::test]
async fn two_functions_that_one_macro_writes_are_told_apart() {
    fresh(async {
        let runs = Runs::default();
        assert_eq!(charge(&runs).await, Ok(1));
        let text = refused(refund(&runs).await);
        assert!(
            text.contains("charge::guarded_by_macro") && text.contains("refund::guarded_by_macro"),
            "{text}"
        );
        assert_eq!((charge(&runs).await, runs.total()), (Ok(1), 1));
    })
    .await;
}

trait Charge {
    const NAME: &'static str;

    fn runs(&self) -> &Runs;

    #[idempotent(key = id, name = "names.charge")]
    async fn charge(&self, id: u64) -> Result<u32, Failure> {
        Ok(self.runs().count())
    }

    #[idempotent(key = id, name = "names.associated")]
    async fn associated(runs: &Runs, id: u64) -> Result<u32, Failure> {
        Ok(runs.count())
    }

    #[idempotent(key = id, name = Self::NAME)]
    async fn named_by_type(&self, id: u64) -> Result<u32, Failure> {
        Ok(self.runs().count())
    }
}

struct CardBank(Runs);
struct Wire(Runs);

impl Charge for CardBank {
    const NAME: &'static str = "names.card";

    fn runs(&self) -> &Runs {
        &self.0
    }
}

impl Charge for Wire {
    const NAME: &'static str = "names.wire";

    fn runs(&self) -> &Runs {
        &self.0
    }
}

/// One implementation for all types of one kind: one operation, on purpose.
impl<T> Charge for (Runs, T) {
    const NAME: &'static str = "names.pair";

    fn runs(&self) -> &Runs {
        &self.0
    }

    #[idempotent(key = id, name = "names.pair.charge")]
    async fn charge(&self, id: u64) -> Result<u32, Failure> {
        Ok(self.0.count())
    }
}

struct Kind<T>(Runs, T);

impl<T> Charge for Kind<T> {
    const NAME: &'static str = "names.kind";

    fn runs(&self) -> &Runs {
        &self.0
    }

    #[idempotent(key = id, name = "names.kind.charge")]
    async fn charge(&self, id: u64) -> Result<u32, Failure> {
        Ok(self.0.count())
    }
}

#[async_trait::async_trait]
trait Boxed: Sync {
    #[idempotent(key = id, name = "names.boxed")]
    async fn place(&self, id: u64) -> Result<u64, Failure> {
        Ok(id)
    }
}

impl Boxed for Invoices {}
impl Boxed for Orders {}

#[tokio::test]
async fn a_default_method_serves_one_type_and_is_refused_for_a_second() {
    fresh(async {
        let card = CardBank(Runs::default());
        let wire = Wire(Runs::default());
        assert_eq!(card.charge(1).await, Ok(1));
        let text = refused(wire.charge(1).await);
        assert!(
            text.contains("CardBank") && text.contains("Wire") && text.contains("Self::NAME"),
            "{text}"
        );
        assert_eq!(card.charge(1).await, Ok(1));

        assert_eq!(CardBank::associated(&card.0, 1).await, Ok(2));
        let text = refused(Wire::associated(&wire.0, 1).await);
        assert!(text.contains("CardBank") && text.contains("Wire"), "{text}");

        assert_eq!(Invoices.place(1).await, Ok(1));
        let text = refused(Orders.place(1).await);
        assert!(
            text.contains("Invoices") && text.contains("Orders"),
            "{text}"
        );
        assert_eq!(wire.0.total(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_default_method_named_by_a_constant_of_the_type_serves_all() {
    fresh(async {
        let card = CardBank(Runs::default());
        let wire = Wire(Runs::default());
        assert_eq!(
            (card.named_by_type(1).await, wire.named_by_type(1).await),
            (Ok(1), Ok(1))
        );
        assert_eq!(
            (card.named_by_type(1).await, wire.named_by_type(1).await),
            (Ok(1), Ok(1))
        );
    })
    .await;
}

#[tokio::test]
async fn a_method_of_a_generic_type_is_one_operation_for_all_its_parameters() {
    fresh(async {
        assert_eq!(Kind(Runs::default(), 1_u8).charge(1).await, Ok(1));
        let other = Kind(Runs::default(), "x");
        assert_eq!(
            (other.charge(1).await, other.0.total(), other.1),
            (Ok(1), 0, "x")
        );
        assert_eq!(<(Runs, u8) as Charge>::NAME, "names.pair");
    })
    .await;
}

const SUBMIT: &str = "names.submit";

mod all {
    pub(super) const REFUND: &str = "names.refund";
}

#[idempotent(name = SUBMIT, token = token, subject = user)]
async fn submit(runs: &Runs, token: &idem::Token, user: u64) -> Result<u32, Failure> {
    Ok(runs.count())
}

#[idempotent(name = all::REFUND, key = id)]
async fn refund_by_path(runs: &Runs, id: u64) -> Result<u32, Failure> {
    Ok(runs.count())
}

#[idempotent(name = concat!("names", ".", "joined"), key = id)]
async fn joined(runs: &Runs, id: u64) -> Result<u32, Failure> {
    Ok(runs.count())
}

#[tokio::test]
async fn a_name_may_be_a_constant_that_other_code_uses_as_well() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let token = idempotency
        .operation(SUBMIT)
        .issue(&7_u64, Duration::from_secs(60))
        .await
        .unwrap();
    idem::scope(idempotency.clone(), async {
        let runs = Runs::default();
        assert_eq!(submit(&runs, &token, 7).await, Ok(1));
        assert_eq!(submit(&runs, &token, 7).await, Ok(1));
        assert_eq!(
            (refund_by_path(&runs, 1).await, joined(&runs, 1).await),
            (Ok(2), Ok(3))
        );
    })
    .await;
    for name in [all::REFUND, "names.joined"] {
        assert!(
            idempotency
                .operation(name)
                .key(&1_u64)
                .inspect()
                .await
                .unwrap()
                .is_some(),
            "{name}"
        );
    }
}

// Generated code names everything by whole paths: there nothing is in scope but what the module
// names, and some of that hides names of `core`.
#[no_implicit_prelude]
#[allow(dead_code, non_camel_case_types, clippy::unused_async)]
mod without_prelude;

#[tokio::test]
async fn generated_code_needs_no_name_in_scope() {
    fresh(async {
        let runs = Runs::default();
        let key = without_prelude::key();
        for _ in 0..2 {
            assert_eq!(without_prelude::plain(&runs, &key).await, Ok(1));
        }
        let service = without_prelude::Service(Runs::default());
        for runs in 1..=2 {
            assert_eq!(service.method(1).await, Ok(runs), "it observes");
            let value = without_prelude::Service::generic(1, vec![runs]).await;
            assert_eq!(value.unwrap(), [1]);
        }
    })
    .await;
}

#[tokio::test]
async fn the_code_of_each_option_needs_no_name_in_scope() {
    let idempotency = Idempotency::new(MemoryStore::new());
    for number in [1, 1, 2] {
        let answer = without_prelude::with_options(&idempotency, number).await;
        assert_eq!(answer, Ok(number));
    }
    let call = idempotency.operation("names.bare.token");
    let token = call.issue(&7_u64, Duration::from_secs(60)).await.unwrap();
    idem::scope(idempotency, async {
        let submit = || without_prelude::with_token(&token, 7, 5);
        assert_eq!(submit().await.unwrap(), 5);
        assert_eq!(submit().await.unwrap_err().0, "duplicate");
    })
    .await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_code_of_a_transaction_needs_no_name_in_scope() {
    let pool = idem::sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let store = idem::SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    idem::scope(Idempotency::new(store), async {
        // The first error is kept.
        for _ in 0..2 {
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let refused = without_prelude::in_transaction(&mut tx, 1, "no").await;
            assert_eq!(refused.unwrap_err().0, "no");
            tx.commit().await.unwrap();
        }
    })
    .await;
}
