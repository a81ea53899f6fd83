//! P6: what a type says of its errors, with the derive.

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
enum StockError {
    #[error("sold out")]
    #[idem(keep)]
    SoldOut,
    #[error("busy")]
    #[idem(retry(max = 2, backoff = "1ms"))]
    Busy,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
#[error("not known")]
#[idem(keep(ttl = "1h"))]
struct Unknown {
    id: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
enum Failure {
    #[error(transparent)]
    #[idem(inner)]
    Stock(StockError),
    #[error(transparent)]
    #[idem(inner)]
    Unknown(Box<Unknown>),
    #[error("plain")]
    Plain,
    #[error("{0}")]
    #[serde(skip)]
    Idempotency(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
#[error("no")]
#[idem(keep)]
struct Final;

impl From<idem::Error> for Failure {
    fn from(error: idem::Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

impl From<idem::Error> for Final {
    fn from(_: idem::Error) -> Self {
        Self
    }
}

/// The variant is not all that says that it is an error of `idem`.
#[derive(Debug, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
#[error("struct")]
#[idem(keep)]
struct WithSource {
    code: u32,
    #[source]
    #[serde(skip)]
    source: Option<idem::Error>,
}

impl From<idem::Error> for WithSource {
    fn from(error: idem::Error) -> Self {
        Self {
            code: 503,
            source: Some(error),
        }
    }
}

#[idempotent(key = 1, name = "type.inner", in_flight = reject)]
async fn inner() -> Result<u32, idem::Error> {
    Ok(5)
}

#[idempotent(key = 1, name = "type.source.type")]
async fn by_type_with_source() -> Result<u32, WithSource> {
    Ok(inner().await?)
}

#[idempotent(key = 1, name = "type.source.arm", errors(WithSource { .. } => keep))]
async fn by_arm_with_source() -> Result<u32, WithSource> {
    Ok(inner().await?)
}

#[tokio::test(start_paused = true)]
async fn p6_an_idem_error_that_is_a_source_is_never_kept() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency.clone(), async {
        let Begin::Execute(busy) = idempotency
            .operation("type.inner")
            .key(&1)
            .begin()
            .await
            .unwrap()
        else {
            panic!("nobody else was there")
        };
        assert_eq!(by_type_with_source().await.unwrap_err().code, 503);
        assert_eq!(by_arm_with_source().await.unwrap_err().code, 503);
        busy.release().await.unwrap();
        assert_eq!(
            (
                by_type_with_source().await.unwrap(),
                by_arm_with_source().await.unwrap()
            ),
            (5, 5)
        );
    })
    .await;
}

#[idempotent(key = key, name = "type.passed", errors(WithSource { .. } => keep))]
async fn passed(
    key: &str,
    failed: Option<idem::Error>,
    runs: &AtomicU32,
) -> Result<u32, WithSource> {
    runs.fetch_add(1, Ordering::SeqCst);
    Err(WithSource {
        code: 402,
        source: failed,
    })
}

#[tokio::test(start_paused = true)]
async fn p6_an_idem_error_that_failed_outside_of_the_body_is_never_kept_as_its_source() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    let runs = AtomicU32::new(0);
    let failed = idempotency
        .operation("type.none")
        .key("")
        .run(async || Ok::<u32, idem::Error>(1))
        .await
        .unwrap_err();
    idem::scope(idempotency, async {
        for (key, failed, expected) in [("with", Some(failed), 2), ("without", None, 1)] {
            for _ in 0..2 {
                assert_eq!(
                    passed(key, failed.clone(), &runs).await.unwrap_err().code,
                    402
                );
            }
            assert_eq!(runs.swap(0, Ordering::SeqCst), expected, "{key}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_by_hand_an_idem_error_among_the_sources_is_never_kept_where_they_are_checked() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    let runs = AtomicU32::new(0);
    let elsewhere =
        idem::Error::in_flight("stock.reserve", "o-1", std::time::Duration::from_secs(1));
    for (key, source, expected) in [("with", Some(elsewhere), 2), ("without", None, 1)] {
        for _ in 0..2 {
            let failed = WithSource {
                code: 402,
                source: source.clone(),
            };
            let operation = idempotency
                .operation("type.sources")
                .key(key)
                .errors(|_: &WithSource| idem::ErrorAction::Keep);
            let body = async || {
                runs.fetch_add(1, Ordering::SeqCst);
                Err::<u32, _>(WithSource {
                    code: failed.code,
                    source: failed.source.clone(),
                })
            };
            assert_eq!(
                operation.check_sources().run(body).await.unwrap_err().code,
                402
            );
        }
        assert_eq!(runs.swap(0, Ordering::SeqCst), expected, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn p6_an_outcome_that_a_body_cannot_read_is_never_kept_as_its_error() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idempotency
        .operation("type.read")
        .key("k")
        .run(async || Ok::<_, idem::Error>("jane@example.org".to_owned()))
        .await
        .unwrap();
    let runs = AtomicU32::new(0);
    for _ in 0..2 {
        let operation = idempotency
            .operation("type.reads")
            .key("k")
            .errors(|_: &WithSource| idem::ErrorAction::Keep);
        let failed = operation.run(async || {
            runs.fetch_add(1, Ordering::SeqCst);
            let Begin::Replay(recorded) =
                idempotency.operation("type.read").key("k").begin().await?
            else {
                panic!("it was recorded")
            };
            Ok::<u32, WithSource>(recorded.decode()?)
        });
        let failed = failed.await.unwrap_err();
        if let Some(error) = failed.source {
            assert!(!error.to_string().contains("jane"), "{error}");
        }
    }
    assert_eq!(runs.into_inner(), 2);
}

type Answer<E> = Result<u32, E>;
/// The error comes first.
type Swapped<E, T> = Result<T, E>;

#[idempotent(key = id, name = "type.default")]
async fn by_default(id: u64, runs: &AtomicU32) -> Answer<Final> {
    runs.fetch_add(1, Ordering::SeqCst);
    Err(Final)
}

#[idempotent(key = id, name = "type.overridden", errors(Final => release))]
async fn overridden(id: u64, runs: &AtomicU32) -> Answer<Final> {
    runs.fetch_add(1, Ordering::SeqCst);
    Err(Final)
}

#[idempotent(key = id, name = "type.policy", errors(policy))]
async fn policy(id: u64, errors: &[Failure], runs: &AtomicU32) -> Answer<Failure> {
    let run = runs.fetch_add(1, Ordering::SeqCst);
    errors.get(run as usize).cloned().map_or(Ok(run + 1), Err)
}

#[idempotent(key = id, name = "type.generic", errors(_ => keep))]
async fn generic<E>(id: u64, error: E, runs: &AtomicU32) -> Result<u32, E>
where
    E: From<idem::Error> + Serialize + serde::de::DeserializeOwned + Clone,
{
    runs.fetch_add(1, Ordering::SeqCst);
    Err(error)
}

#[tokio::test(start_paused = true)]
async fn p6_the_policy_of_the_type_holds_for_every_function_and_errors_overrides_it() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let runs = AtomicU32::new(0);
        let total = || runs.swap(0, Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(by_default(1, &runs).await, Err(Final));
        }
        assert_eq!(total(), 1);
        for _ in 0..2 {
            assert_eq!(overridden(1, &runs).await, Err(Final));
        }
        assert_eq!(total(), 2);
        for _ in 0..2 {
            assert_eq!(generic(1, Final, &runs).await, Err(Final));
        }
        assert_eq!(total(), 1);
    })
    .await;
}

/// Its policy has a condition: one of the error inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ErrorPolicy)]
enum Wrapped<E> {
    #[idem(keep)]
    Declined,
    #[idem(inner)]
    Inner(E),
    #[serde(skip)]
    Idempotency(String),
}

impl<E> From<idem::Error> for Wrapped<E> {
    fn from(error: idem::Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

#[idempotent(key = id, name = "type.wrapped")]
async fn wrapped(id: u64, error: Wrapped<Final>, runs: &AtomicU32) -> Answer<Wrapped<Final>> {
    runs.fetch_add(1, Ordering::SeqCst);
    Err(error)
}

#[idempotent(key = id, name = "type.wrapped_parameter")]
async fn wrapped_parameter<E>(id: u64, error: Wrapped<E>, runs: &AtomicU32) -> Answer<Wrapped<E>>
where
    E: ErrorPolicy<Retries = idem::Never> + Serialize + serde::de::DeserializeOwned,
{
    runs.fetch_add(1, Ordering::SeqCst);
    Err(error)
}

#[idempotent(key = id, name = "type.parameter")]
async fn parameter<E>(id: u64, error: E, runs: &AtomicU32) -> Result<u32, E>
where
    E: From<idem::Error> + ErrorPolicy<Retries = idem::Never, Keeps = idem::Sometimes> + Serialize,
    E: serde::de::DeserializeOwned,
{
    runs.fetch_add(1, Ordering::SeqCst);
    Err(error)
}

/// A type parameter that is the value needs no policy, whatever its place.
#[idempotent(key = id, name = "type.swapped")]
async fn swapped<T>(id: u64, value: &T, runs: &AtomicU32) -> Swapped<Final, T>
where
    T: Serialize + serde::de::DeserializeOwned,
{
    let _ = value;
    runs.fetch_add(1, Ordering::SeqCst);
    Err(Final)
}

#[idempotent(key = id, name = "type.swapped_parameter")]
async fn swapped_parameter<E>(id: u64, error: E, runs: &AtomicU32) -> Swapped<E, u32>
where
    E: From<idem::Error> + ErrorPolicy<Retries = idem::Never, Keeps = idem::Sometimes> + Serialize,
    E: serde::de::DeserializeOwned,
{
    runs.fetch_add(1, Ordering::SeqCst);
    Err(error)
}

#[tokio::test(start_paused = true)]
async fn p6_an_alias_may_name_the_error_before_the_value() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let runs = AtomicU32::new(0);
        for _ in 0..2 {
            assert_eq!(swapped(1, &1_u8, &runs).await, Err(Final));
            let kept = Wrapped::<Final>::Declined;
            assert_eq!(swapped_parameter(1, kept.clone(), &runs).await, Err(kept));
        }
        assert_eq!(runs.into_inner(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_a_policy_with_a_condition_holds_where_the_condition_is_met() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let runs = AtomicU32::new(0);
        for (id, error) in [(1, Wrapped::Declined), (2, Wrapped::Inner(Final))] {
            for _ in 0..2 {
                assert_eq!(wrapped(id, error.clone(), &runs).await, Err(error.clone()));
                assert_eq!(
                    wrapped_parameter(id, error.clone(), &runs).await,
                    Err(error.clone())
                );
                assert_eq!(
                    parameter(id, error.clone(), &runs).await,
                    Err(error.clone())
                );
            }
            assert_eq!(runs.swap(0, Ordering::SeqCst), 3);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_a_type_s_policy_keeps_releases_retries_and_asks_the_error_inside() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let runs = AtomicU32::new(0);
        let sold_out = [Failure::Stock(StockError::SoldOut)];
        assert_eq!(policy(1, &sold_out, &runs).await, Err(sold_out[0].clone()));
        assert_eq!(policy(1, &sold_out, &runs).await, Err(sold_out[0].clone()));
        assert_eq!(runs.swap(0, Ordering::SeqCst), 1);

        let busy = [
            Failure::Stock(StockError::Busy),
            Failure::Stock(StockError::Busy),
        ];
        assert_eq!(policy(2, &busy, &runs).await, Ok(3));
        runs.store(0, Ordering::SeqCst);

        let unknown = [Failure::Unknown(Box::new(Unknown { id: 7 }))];
        for _ in 0..2 {
            assert_eq!(policy(3, &unknown, &runs).await, Err(unknown[0].clone()));
        }
        assert_eq!(runs.swap(0, Ordering::SeqCst), 1);

        assert_eq!(
            policy(4, &[Failure::Plain], &runs).await,
            Err(Failure::Plain)
        );
        assert_eq!(policy(4, &[Failure::Plain], &runs).await, Ok(2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_without_a_guard_errors_are_retried_all_the_same() {
    let runs = AtomicU32::new(0);
    let busy = [Failure::Stock(StockError::Busy)];
    assert_eq!(
        idem::scope(Idempotency::disabled(), policy(1, &busy, &runs)).await,
        Ok(2)
    );
}
