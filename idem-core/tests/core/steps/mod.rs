//! Steps: a body that runs again goes on after the steps that an earlier attempt has finished.

mod bad_input;
mod runs;

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::store::AdminStore as _;
use idem::store::admin::Listing;
use idem::{
    Abandoned, Error, ErrorAction, Idempotency, MemoryStore, Operation, Outcome, RecordState,
    Retry, StoreFailure, UnkeptAction,
};
use idem_core as idem;
use idem_core::store::record::Owner;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

const LEASE: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Failure {
    Declined,
    Down,
    Idempotency(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

/// The effects in their order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, effect: impl Into<String>) {
        self.0.lock().unwrap().push(effect.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct World {
    store: MemoryStore,
    idempotency: Idempotency,
    log: Log,
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new();
        Self {
            idempotency: Idempotency::new(store.clone()),
            store,
            log: Log::default(),
        }
    }

    fn order(&self) -> Operation<'static> {
        let operation = self.idempotency.operation("orders.place").key("o-1");
        operation.lease(LEASE).fingerprint("two pens")
    }

    /// Charges, reserves two items, and sends a mail, unless it fails before that.
    async fn place(&self, fails: bool) -> Result<u32, Failure> {
        let log = &self.log;
        let charge = idem::step("charge", async || {
            log.add("charge");
            Ok::<_, Failure>(7)
        });
        let charge = charge.await?;
        for sku in ["pen", "ink"] {
            let reserve = idem::step(("reserve", sku), async || {
                log.add(format!("reserve {sku}"));
                Ok::<_, Failure>(())
            });
            reserve.await?;
        }
        if fails {
            return Err(Failure::Down);
        }
        let mail = idem::step("mail", async || {
            log.add("mail");
            Ok::<_, Failure>(())
        });
        mail.await?;
        Ok(charge)
    }

    /// The records of steps, as `operation:key`, with `*` for each run.
    async fn steps(&self) -> Vec<String> {
        let page = self.store.list(&Listing::all()).await.unwrap();
        let ids = page.records.iter().map(|listed| &listed.id);
        let mut steps: Vec<String> = ids
            .filter_map(|id| id.as_str().strip_prefix("idem.step/"))
            .map(|id| {
                let is_run = |part: &&str| Owner::parse(part).is_some();
                let parts = id.split(':');
                let parts: Vec<_> = parts
                    .map(|part| Some(part).filter(|part| !is_run(part)).unwrap_or("*"))
                    .collect();
                parts.join(":")
            })
            .collect();
        steps.sort();
        steps
    }
}

const ALL: [&str; 4] = ["charge", "reserve pen", "reserve ink", "mail"];

#[tokio::test(start_paused = true)]
async fn a_body_that_failed_goes_on_after_its_finished_steps() {
    let world = World::new();
    let failed = world.order().run(|| world.place(true)).await;
    assert_eq!(failed.unwrap_err(), Failure::Down);
    assert_eq!(world.log.all(), ALL[..3]);
    assert_eq!(
        world.steps().await,
        [
            "orders.place/charge:o-1:*",
            "orders.place/reserve:o-1:*:ink",
            "orders.place/reserve:o-1:*:pen"
        ]
    );
    let charge = world.order().of_step("charge");
    let record = charge.inspect().await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Committed);
    assert!(record.expires_in > DAY * 29, "{:?}", record.expires_in);

    let placed = world.order().run(|| world.place(false)).await.unwrap();
    assert_eq!(placed.into_inner(), 7);
    assert_eq!(world.log.all(), ALL);
    world.idempotency.shutdown(DAY).await.unwrap();
    assert_eq!(world.steps().await, [""; 0]);
    assert!(
        world
            .order()
            .run(|| world.place(false))
            .await
            .unwrap()
            .is_replayed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_kept_error_is_an_outcome_after_which_the_steps_are_removed() {
    let world = World::new();
    let keeping = world.order().errors(|_: &Failure| ErrorAction::Keep);
    let kept = keeping.run(|| world.place(true)).await;
    assert_eq!(kept.unwrap_err(), Failure::Down);
    world.idempotency.shutdown(DAY).await.unwrap();
    assert_eq!(world.steps().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_retried_in_place_begins_anew_and_its_finished_steps_are_replayed() {
    let world = World::new();
    let tries = AtomicU32::new(0);
    let placed = world
        .order()
        .errors(|error: &Failure| match error {
            Failure::Down => UnkeptAction::Retry(Retry::new(3)),
            _ => UnkeptAction::Release,
        })
        .run(|| world.place(tries.fetch_add(1, Ordering::SeqCst) < 2))
        .await;
    assert_eq!(placed.unwrap().into_inner(), 7);
    assert_eq!(
        (tries.load(Ordering::SeqCst), world.log.all()),
        (3, ALL.map(str::to_owned).to_vec())
    );
}

#[tokio::test(start_paused = true)]
async fn a_detached_body_has_steps_and_so_has_code_that_has_the_call() {
    let world = World::new();
    let log = world.log.clone();
    let detached = world.order().run_detached(move || async move {
        let call = idem::current().unwrap();
        let step = call.step("charge", async || {
            let current = idem::current().unwrap();
            assert_eq!(
                (current.operation(), current.attempt()),
                ("orders.place/charge", 1)
            );
            log.add("charge");
            Ok::<_, Failure>(3)
        });
        step.await
    });
    assert_eq!(detached.await.unwrap().into_inner(), 3);
    assert_eq!(world.log.all(), ["charge"]);
}

#[tokio::test(start_paused = true)]
async fn p1_after_a_cut_in_a_step_the_next_attempt_waits_for_the_lease_of_the_step() {
    let world = World::new();
    let begun = Notify::new();
    let long = LEASE * 5;
    let cut = world.order().run(|| async {
        idem::step_with("charge")
            .lease(long)
            .run(async || {
                begun.notify_one();
                pending::<Result<u32, Failure>>().await
            })
            .await
    });
    tokio::select! {
        _ = cut => panic!("a body that never ends has ended"),
        () = begun.notified() => {}
    }
    let since = tokio::time::Instant::now();
    let again = world.order().wait(LEASE * 2).run(|| async {
        assert_eq!(idem::current().unwrap().attempt(), 2);
        let since = since.elapsed();
        assert!(since >= LEASE && since < long, "{since:?}");
        idem::step("charge", async || {
            assert_eq!(idem::current().unwrap().attempt(), 2);
            Ok::<_, Failure>(1)
        })
        .await
    });
    assert_eq!(again.await.unwrap().into_inner(), 1);
    assert!(since.elapsed() >= long, "{:?}", since.elapsed());
}

/// Leaves an order that was cut off in its step `charge`.
async fn cut_in_charge(world: &World, order: impl Fn() -> Operation<'static>) {
    let begun = Notify::new();
    let cut = order().run(|| {
        idem::step("charge", async || {
            begun.notify_one();
            pending::<Result<u32, Error>>().await
        })
    });
    tokio::select! {
        _ = cut => panic!("a body that never ends has ended"),
        () = begun.notified() => {}
    }
    tokio::time::sleep(LEASE * 2).await;
    let record = world.order().inspect().await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Abandoned);
}

#[tokio::test(start_paused = true)]
async fn p5_a_step_that_was_cut_off_is_rejected_below_a_call_that_is_and_settled_by_itself() {
    let world = World::new();
    let order = || world.order().abandoned(Abandoned::Reject);
    cut_in_charge(&world, order).await;
    let place = || idem::step("charge", async || Ok::<_, Error>(1_u32));
    assert!(matches!(
        order().run(place).await,
        Err(Error::Abandoned { .. })
    ));
    assert!(world.order().release().await.unwrap());
    let Err(Error::Abandoned { operation, .. }) = order().run(place).await else {
        panic!("the step was not rejected");
    };
    assert_eq!(&*operation, "orders.place/charge");
    world
        .order()
        .of_step("charge")
        .settle(&9_u32)
        .await
        .unwrap();
    assert_eq!(order().run(place).await.unwrap().into_inner(), 9);
}

#[tokio::test(start_paused = true)]
async fn p5_a_step_that_reconciles_asks_what_became_of_it() {
    for found in [Some(5), None] {
        let world = World::new();
        let reconciled = AtomicU32::new(0);
        let order = || world.order().abandoned(Abandoned::Reject);
        cut_in_charge(&world, order).await;
        assert!(world.order().release().await.unwrap());
        let placed = order().run(|| {
            idem::step_with("charge")
                .reconcile(async || {
                    reconciled.fetch_add(1, Ordering::SeqCst);
                    Ok(found)
                })
                .run(async || Ok::<_, Error>(1_u32))
        });
        assert_eq!(placed.await.unwrap().into_inner(), found.unwrap_or(1));
        assert_eq!(reconciled.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn p5_below_a_call_that_reconciles_a_step_that_was_cut_off_is_not_run_again_blindly() {
    let world = World::new();
    cut_in_charge(&world, || world.order().abandoned(Abandoned::Reject)).await;
    let placed = world
        .order()
        .reconcile(async || Ok(None))
        .run(|| idem::step("charge", async || Ok::<_, Error>(1_u32)))
        .await;
    assert!(matches!(placed, Err(Error::Abandoned { .. })), "{placed:?}");
}

#[tokio::test(start_paused = true)]
async fn p6_an_error_of_a_step_goes_to_the_body_and_is_kept_only_where_its_policy_says_so() {
    for keeps in [false, true] {
        let world = World::new();
        let runs = AtomicU32::new(0);
        for _ in 0..2 {
            let placed = world.order().run(|| {
                let policy = move |error: &Failure| match error {
                    Failure::Declined if keeps => ErrorAction::Keep,
                    _ => ErrorAction::Release,
                };
                idem::step_with("charge").errors(policy).run(async || {
                    runs.fetch_add(1, Ordering::SeqCst);
                    Err::<u32, _>(Failure::Declined)
                })
            });
            assert_eq!(placed.await.unwrap_err(), Failure::Declined);
        }
        assert_eq!(runs.load(Ordering::SeqCst), if keeps { 1 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn p7_another_request_under_a_released_key_does_not_get_the_steps_of_the_first() {
    let world = World::new();
    world.order().run(|| world.place(true)).await.unwrap_err();
    let other = world
        .order()
        .fingerprint("a ship")
        .run(|| world.place(false));
    let Err(Failure::Idempotency(message)) = other.await else {
        panic!("the other request was carried out");
    };
    assert!(message.contains("orders.place/charge"), "{message}");
    assert_eq!(world.log.all(), ALL[..3]);
}

#[tokio::test(start_paused = true)]
async fn a_step_inside_of_a_step_is_a_step_of_it() {
    let world = World::new();
    let placed = world.order().run(|| async {
        let outer = idem::step(("parcel", 1), async || {
            world.log.add("parcel");
            idem::step(("label", "a"), async || Ok::<_, Failure>(())).await?;
            assert_eq!(
                world.steps().await,
                [
                    "orders.place/parcel/label:o-1:*:1:*:a",
                    "orders.place/parcel:o-1:*:1"
                ]
            );
            Ok::<_, Failure>(())
        });
        outer.await
    });
    placed.await.unwrap();
    world.idempotency.shutdown(DAY).await.unwrap();
    assert_eq!(world.steps().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_recorded_the_steps_of_a_body_run() {
    let world = World::new();
    let disabled = Idempotency::disabled().operation("orders.place").key("o-1");
    disabled.run(|| world.place(false)).await.unwrap();
    let missing = world.idempotency.operation("orders.place").key("");
    missing
        .missing_key(idem::MissingKey::Run)
        .run(|| world.place(false))
        .await
        .unwrap();
    // Inside of a guarded call as well, which has the steps of neither.
    let inside = world.order().run(|| async {
        let disabled = Idempotency::disabled().operation("a").key("o-1");
        disabled
            .run(|| world.place(false))
            .await
            .map(Outcome::into_inner)
    });
    inside.await.unwrap();
    idem::scope(Idempotency::disabled(), async {
        let alone = idem::step("alone", async || {
            world.log.add("alone");
            Ok::<_, Failure>(())
        });
        alone.await.unwrap();
    })
    .await;
    let all: Vec<&str> = [&ALL[..], &ALL[..], &ALL[..], &["alone"]].concat();
    assert_eq!(world.log.all(), all);
    assert_eq!(world.steps().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn in_observe_mode_the_owner_records_its_steps_and_every_body_runs_them() {
    let world = World::new();
    for fails in [true, false, false] {
        let _ = world.order().observe().run(|| world.place(fails)).await;
    }
    let all: Vec<&str> = [&ALL[..3], &ALL[..], &ALL[..]].concat();
    assert_eq!(world.log.all(), all);
}

#[tokio::test(start_paused = true)]
async fn a_strict_runtime_takes_the_fingerprint_of_a_step_from_its_call() {
    let idempotency = Idempotency::builder(MemoryStore::new()).strict().build();
    let order = idempotency
        .operation("orders.place")
        .key("o-1")
        .no_fingerprint();
    let placed = order.run(|| idem::step("charge", async || Ok::<_, Error>(1_u32)));
    assert_eq!(placed.await.unwrap().into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_of_an_earlier_version_of_a_step_is_upgraded() {
    let world = World::new();
    let first = world.order().run(|| async {
        idem::step("charge", async || Ok::<_, Failure>(150_u32)).await?;
        Err::<String, _>(Failure::Down)
    });
    first.await.unwrap_err();
    let second = world.order().run(|| {
        idem::step_with("charge")
            .outcome_version(2)
            .upgrade(1, |cents: u32| format!("{cents} cents"))
            .run(async || Ok::<_, Failure>("new".to_owned()))
    });
    assert_eq!(second.await.unwrap().into_inner(), "150 cents");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_step_that_is_ours_is_not_kept_by_the_call_around_it() {
    let world = World::new();
    let order = || world.order().errors(|_: &Failure| ErrorAction::Keep);
    let failed = order().run(|| idem::step("a b", async || Ok::<_, Failure>(())));
    failed.await.unwrap_err();
    order().run(|| async { Ok(()) }).await.unwrap();
}

#[tokio::test]
async fn a_call_with_steps_can_be_spawned() {
    let world = World::new();
    let order = world.order().store_failure(StoreFailure::Run);
    let spawned = tokio::spawn(async move {
        let items = vec!["pen".to_owned(), "ink".to_owned()];
        let place = || async {
            let mut reserved = 0;
            for item in &items {
                let body = async || {
                    tokio::task::yield_now().await;
                    Ok::<_, Error>(item.len())
                };
                reserved += idem::step(("reserve", item), body).await?;
            }
            Ok::<_, Error>(reserved)
        };
        order.run(place).await.map(Outcome::into_inner)
    });
    assert_eq!(spawned.await.unwrap().unwrap(), 6);
}
