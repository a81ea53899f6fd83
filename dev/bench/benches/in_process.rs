//! Single calls in process, in nanoseconds: the library over `MemoryStore`, caches that people use
//! for the same, and the plain call.
//!
//! `cargo xtask bench` runs it once for each round, each time all of it, so that drift hits all
//! alike.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a benchmark times itself, and ends where something fails"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use cached::macros::cached;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use idem::{Error, Idempotency, MemoryStore, RedisStore, scope};
use idem_bench::{Keys, annotated, annotated_nothing, plain, plain_nothing, result};
use idem_testkit::RedisServer;
use moka::future::Cache;
use tokio::runtime::Runtime;

/// As the library's default.
const TTL: Duration = Duration::from_secs(86_400);
/// How many outcomes are replayed in turn: some, as in a service, and few enough to be in the
/// processor's caches for all alike.
const HELD: u64 = 1000;
/// How many others are there already where something new comes.
const OTHERS: u64 = 10_000;
/// How many there can be, which is the library's default.
const CAPACITY: u64 = 1_000_000;

criterion_group! {
    name = benches;
    // Short, since all of it is run again in each round.
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(600));
    targets = in_process
}
criterion_main!(benches);

fn in_process(criterion: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut group = criterion.benchmark_group("in_process");
    bodies(&mut group, &tokio);
    cached(&mut group, &tokio);
    moka(&mut group, &tokio);
    idem(&mut group, &tokio);
    local_cache(&mut group, &tokio);
    group.finish();
}

/// The body alone, and under a runtime that is disabled.
fn bodies(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &Runtime) {
    idem::install(Idempotency::disabled()).expect("the only runtime");
    let result = &result();
    let keys = Keys::new(0);
    let key = keys.current();
    group.bench_function("plain", |bencher| {
        bencher.to_async(tokio).iter(|| plain(black_box(result)));
    });
    group.bench_function("disabled", |bencher| {
        bencher
            .to_async(tokio)
            .iter(|| annotated(black_box(key), black_box(result)));
    });
    group.bench_function("plain_nothing", |bencher| {
        bencher.to_async(tokio).iter(|| plain_nothing(black_box(1)));
    });
    group.bench_function("disabled_nothing", |bencher| {
        bencher
            .to_async(tokio)
            .iter(|| annotated_nothing(black_box(key), black_box(1)));
    });
    let encoded = serde_json::to_vec(result).expect("JSON");
    group.bench_function("decode", |bencher| {
        bencher.iter(|| serde_json::from_slice::<String>(black_box(&encoded)).expect("JSON"));
    });
}

/// One body of a key at a time, as the library has it.
#[cached(
    ttl_secs = 86_400,
    key = "String",
    convert = r"{ key.to_owned() }",
    sync_writes = "by_key"
)]
#[allow(unused_variables, reason = "the key is read by the cache alone")]
async fn cached_result(key: &str, result: &str) -> Result<String, Error> {
    plain(result).await
}

fn cached(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &Runtime) {
    let result = &result();
    let mut keys = Keys::new(1);
    misses(
        group,
        "cached_miss",
        tokio,
        || (),
        async |()| {
            cached_result(keys.advance(), result)
                .await
                .expect("a result")
        },
    );
    hits(group, "cached_hit", tokio, async |key| {
        cached_result(key, result).await.expect("a result")
    });
}

fn moka(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &Runtime) {
    let result = &result();
    let cache = || {
        Cache::builder()
            .max_capacity(CAPACITY)
            .time_to_live(TTL)
            .build()
    };
    let body = || async { plain(result).await.expect("a result") };
    let mut keys = Keys::new(2);
    misses(
        group,
        "moka_miss",
        tokio,
        cache,
        async |cache: &mut Cache<String, String>| {
            cache.get_with(keys.advance().to_owned(), body()).await
        },
    );
    let held: Cache<String, String> = cache();
    hits(group, "moka_hit", tokio, async |key| {
        held.get_with(key.to_owned(), body()).await
    });
    hits(group, "moka_hit_by_ref", tokio, async |key| {
        held.get_with_by_ref(key, body()).await
    });
}

fn idem(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &Runtime) {
    let result = &result();
    let runtime = || Idempotency::new(MemoryStore::new());
    let by_hand = async |idempotency: &Idempotency, key: &str| {
        let outcome = idempotency
            .operation("bench")
            .key(key)
            .run(|| plain(result))
            .await;
        outcome.expect("an outcome").into_inner()
    };
    let mut keys = Keys::new(3);
    misses(
        group,
        "first",
        tokio,
        runtime,
        async |idempotency: &mut Idempotency| by_hand(idempotency, keys.advance()).await,
    );
    let held = runtime();
    hits(group, "replay", tokio, async |key| {
        by_hand(&held, key).await
    });
    let held = runtime();
    hits(group, "fingerprinted_replay", tokio, async |key| {
        let outcome = held
            .operation("bench")
            .key(key)
            .fingerprint(&(key, 1999))
            .run(|| plain(result))
            .await;
        outcome.expect("an outcome").into_inner()
    });

    // As `misses`, but the runtime is that of a scope around all calls.
    let mut keys = Keys::new(4);
    let mut filled = runtime();
    let mut held = CAPACITY;
    group.bench_function("annotated_first", |bencher| {
        let mut call = async || annotated(keys.advance(), result).await;
        bencher.iter_custom(|calls| {
            if held + calls > CAPACITY {
                filled = runtime();
                tokio.block_on(scope(filled.clone(), timed(OTHERS, &mut call)));
                held = OTHERS;
            }
            held += calls;
            tokio.block_on(scope(filled.clone(), timed(calls, &mut call)))
        });
    });
    annotated_hits(group, "annotated_replay", tokio, &runtime());
}

/// Outcomes that came from Redis to begin with.
fn local_cache(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &Runtime) {
    let result = &result();
    let server = tokio
        .block_on(RedisServer::start())
        .expect("a redis-server");
    let store = tokio
        .block_on(RedisStore::connect(server.url()))
        .expect("a store");
    let held = Idempotency::builder(store).local_cache(10_000).build();
    hits(group, "l1_replay", tokio, async |key| {
        let outcome = held.operation("bench").key(key).run(|| plain(result)).await;
        outcome.expect("an outcome").into_inner()
    });
    annotated_hits(group, "l1_annotated_replay", tokio, &held);
}

/// Calls whose keys are new, in a cache that has others already.
fn misses<C, T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    tokio: &Runtime,
    cache: impl Fn() -> C,
    mut call: impl AsyncFnMut(&mut C) -> T,
) {
    let mut filled = cache();
    let mut held = CAPACITY;
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|calls| {
            tokio.block_on(async {
                // It must not come to be full.
                if held + calls > CAPACITY {
                    filled = cache();
                    timed(OTHERS, async || call(&mut filled).await).await;
                    held = OTHERS;
                }
                held += calls;
                timed(calls, async || call(&mut filled).await).await
            })
        });
    });
}

/// Calls whose keys were used before.
fn hits<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    tokio: &Runtime,
    mut call: impl AsyncFnMut(&str) -> T,
) {
    let keys = held_keys();
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|calls| {
            tokio.block_on(async {
                for key in &keys {
                    black_box(call(key).await);
                }
                let mut next = keys.iter().cycle();
                timed(calls, async || call(next.next().expect("a key")).await).await
            })
        });
    });
}

/// The same of the annotated function, whose runtime is that of a scope around all calls.
fn annotated_hits(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: &str,
    tokio: &Runtime,
    runtime: &Idempotency,
) {
    let result = &result();
    let keys = held_keys();
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|calls| {
            tokio.block_on(scope(runtime.clone(), async {
                for key in &keys {
                    annotated(key, result).await.expect("an outcome");
                }
                let mut next = keys.iter().cycle();
                timed(calls, async || {
                    annotated(next.next().expect("a key"), result).await
                })
                .await
            }))
        });
    });
}

fn held_keys() -> Vec<String> {
    let mut keys = Keys::new(5);
    (0..HELD).map(|_| keys.advance().to_owned()).collect()
}

async fn timed<T>(calls: u64, mut call: impl AsyncFnMut() -> T) -> Duration {
    let begun = Instant::now();
    for _ in 0..calls {
        black_box(call().await);
    }
    begun.elapsed()
}
