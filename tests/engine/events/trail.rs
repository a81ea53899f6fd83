//! The trail of what operators decided: no change without an entry, and no entry of what did not
//! happen.

use std::future::pending;
use std::time::Duration;

use idem::store::admin::{Intervened, Intervention, Listing};
use idem::store::record::{RecordId, Release, ReleaseTo, Removed};
use idem::store::trail::{self, Decision, Ended, Entry, Trail};
use idem::store::{AdminStore as _, Store as _};
use idem::{Error, Idempotency, Key, MemoryStore, RecordState, StoreErrorKind};
use idem_testkit::{Fault, FaultStore, Gate, ManualClock, Step};
use tokio::sync::Notify;

use super::Log;
use crate::over_both_stores;
use crate::support::{LEASE, LONG, World, eventually, patient_store};

fn id(operation: &str, key: &str) -> RecordId {
    RecordId::new(operation, &Key::encode(key).unwrap()).unwrap()
}

/// The decisions about a record, the latest first.
async fn entries(world: &World, id: &RecordId) -> Vec<Entry> {
    match world {
        World::Memory(store) => Trail::new(store).of(id, 100).await.unwrap(),
        World::Redis(url) => Trail::new(&patient_store(url).await)
            .of(id, 100)
            .await
            .unwrap(),
        #[allow(
            unreachable_patterns,
            reason = "there are other worlds with other features"
        )]
        _ => unreachable!("these tests run over memory and Redis"),
    }
}

fn done() -> Ended {
    Ended::Done { records: 1 }
}

over_both_stores! {
    async fn p12_who_changed_a_record_by_hand_stays_known_when_it_is_gone(world: World) {
        let idempotency = world.builder().await.lease(LEASE * 3).build();
        let id = id("trail.by_hand", "k");
        let call = || idempotency.operation("trail.by_hand").key("k");
        let abandon = async || {
            let begun = Notify::new();
            let cut = call().run(async || {
                begun.notify_one();
                pending::<Result<u32, Error>>().await
            });
            tokio::select! {
                cut = cut => panic!("{cut:?}"),
                () = begun.notified() => {}
            }
            let state = async || call().inspect().await.unwrap().unwrap().state;
            eventually("it is abandoned", async || {
                state().await == RecordState::Abandoned
            })
            .await;
        };
        abandon().await;
        assert!(call().audit("jane", "ticket 1").release().await.unwrap());
        abandon().await;
        call()
            .audit("joe", "ticket 2")
            .settle(&7_u32)
            .await
            .unwrap();
        let again = call().audit("joe", "ticket 3").settle(&8_u32).await;
        assert!(matches!(again, Err(Error::Duplicate { .. })), "{again:?}");
        assert!(call().audit("jane", "").forget().await.unwrap());
        // Without a record nothing is noted, and no operator was named.
        assert!(!call().audit("jane", "again").forget().await.unwrap());
        call().run(async || Ok::<_, Error>(1)).await.unwrap();
        assert!(call().forget().await.unwrap());

        let entries = entries(&world, &id).await;
        let said: Vec<_> = entries
            .iter()
            .map(|entry| {
                let Decision {
                    name,
                    state,
                    attempt,
                    ..
                } = &entry.decision;
                (
                    &**name,
                    *state,
                    *attempt,
                    &*entry.who,
                    &*entry.why,
                    entry.result.clone(),
                )
            })
            .collect();
        assert_eq!(
            said,
            [
                (
                    "forgotten",
                    Some(RecordState::Committed),
                    Some(4),
                    "jane",
                    "",
                    Some(done())
                ),
                (
                    "settled",
                    Some(RecordState::Committed),
                    Some(4),
                    "joe",
                    "ticket 3",
                    Some(Ended::refused("duplicate"))
                ),
                (
                    "settled",
                    Some(RecordState::Abandoned),
                    Some(3),
                    "joe",
                    "ticket 2",
                    Some(done())
                ),
                (
                    "released",
                    Some(RecordState::Abandoned),
                    Some(1),
                    "jane",
                    "ticket 1",
                    Some(done())
                ),
            ]
        );
        for entry in &entries {
            assert_eq!(
                (&*entry.decision.operation, entry.decision.digest),
                ("trail.by_hand", Some(id.digest()))
            );
            assert!(entry.age < Duration::from_secs(60), "{entry:?}");
        }
    }

    async fn without_an_entry_nothing_is_changed(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let call = || idempotency.operation("trail.no_entry").key("k");
        call().run(async || Ok::<_, Error>(7)).await.unwrap();
        for step in [Step::Claim, Step::Commit, Step::Release] {
            faults.next(step, Fault::Fail(StoreErrorKind::Full));
            let refused = call().audit("jane", "no room").forget().await;
            assert!(
                matches!(refused, Err(Error::Store { .. })),
                "{step:?}: {refused:?}"
            );
            assert_eq!(
                call().inspect().await.unwrap().unwrap().state,
                RecordState::Committed,
                "{step:?}"
            );
        }
        assert_eq!(entries(&world, &id("trail.no_entry", "k")).await, []);
    }

    async fn a_decision_that_was_cut_off_between_its_entry_and_its_step_has_no_result(
        world: World,
    ) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let call = || idempotency.operation("trail.cut").key("k");
        call().run(async || Ok::<_, Error>(7)).await.unwrap();
        let gate = Gate::new();
        faults.next(Step::Remove, Fault::Hang(gate.clone()));
        tokio::select! {
            removed = call().audit("jane", "cut off").forget() => panic!("{removed:?}"),
            () = gate.reached() => {}
        }
        let [entry] = &entries(&world, &id("trail.cut", "k")).await[..] else {
            panic!()
        };
        assert_eq!((&*entry.why, &entry.result), ("cut off", &None));
        assert_eq!(
            call().inspect().await.unwrap().unwrap().state,
            RecordState::Committed
        );
    }

    async fn a_result_that_is_not_noted_is_logged_and_the_change_is_made(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let call = || idempotency.operation("trail.lost").key("k");
        call().run(async || Ok::<_, Error>(7)).await.unwrap();
        for fault in [Fault::Pass, Fault::Refuse] {
            faults.next(Step::Commit, fault);
        }
        let log = Log::default();
        let logging = crate::support::events::logging(log.clone());
        assert!(call().audit("jane", "away").forget().await.unwrap());
        drop(logging);
        assert!(
            log.text().contains("missing in the trail"),
            "{}",
            log.text()
        );
        let [entry] = &entries(&world, &id("trail.lost", "k")).await[..] else {
            panic!()
        };
        assert_eq!((&*entry.why, &entry.result), ("away", &None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_whose_step_failed_without_a_clear_answer_has_no_result() {
    for (name, step, fault) in [
        ("forgotten", Step::Remove, Fault::LoseReply),
        ("settled", Step::Commit, Fault::LoseReply),
        (
            "settled",
            Step::Commit,
            Fault::Fail(StoreErrorKind::Unreadable),
        ),
    ] {
        let world = World::memory();
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let call = || idempotency.operation("trail.open").key("k");
        if name == "forgotten" {
            call().run(async || Ok::<_, Error>(7)).await.unwrap();
        } else {
            // The commit of the entry.
            faults.next(step, Fault::Pass);
        }
        faults.next(step, fault);
        let changing = call().audit("jane", "lost");
        let changed = match name {
            "forgotten" => changing.forget().await.map(drop),
            _ => changing.settle(&8_u32).await,
        };
        assert!(
            matches!(changed, Err(Error::Store { .. } | Error::Codec { .. })),
            "{changed:?}"
        );
        let [entry] = &entries(&world, &id("trail.open", "k")).await[..] else {
            panic!()
        };
        assert_eq!((&*entry.decision.name, &entry.result), (name, &None));
    }
}

#[tokio::test]
async fn of_many_operators_at_once_each_has_an_entry_and_one_has_done_it() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::new(store.clone());
    idempotency
        .operation("orders")
        .key("k")
        .run(async || Ok::<_, Error>(7))
        .await
        .unwrap();
    let id = id("orders", "k");
    // Nobody acts before all have looked.
    let slow = FaultStore::new(store.clone());
    let gate = Gate::new();
    let faults = slow.faults();
    faults.always(Step::Release, Fault::HangReply(gate.clone()));
    let operators: Vec<_> = (0..8)
        .map(|number| {
            let store = slow.clone();
            let forget = Intervention::forget(id.clone()).by(&format!("o-{number}"), "");
            tokio::spawn(async move { Trail::new(&store).intervene(&forget).await.unwrap() })
        })
        .collect();
    tokio::time::timeout(LONG, faults.reached(Step::Release, 8))
        .await
        .expect("all of them take a number first");
    gate.open();
    let mut done = 0;
    for operator in operators {
        done += usize::from(operator.await.unwrap() == Intervened::Done { attempt: 1 });
    }
    let entries = Trail::new(&store).of(&id, 100).await.unwrap();
    assert_eq!(entries.len(), 8);
    let did = entries
        .iter()
        .filter(|entry| entry.result == Some(self::done()))
        .count();
    assert_eq!((done, did), (1, 1), "{entries:?}");
    assert!(
        entries.iter().all(|entry| entry.result.is_some()),
        "{entries:?}"
    );
}

#[tokio::test]
async fn what_the_step_refuses_is_noted_as_refused_and_why() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::new(store.clone());
    let _alive = idempotency
        .operation("orders")
        .key("k")
        .begin()
        .await
        .unwrap();
    let trail = Trail::new(&store);
    let id = id("orders", "k");
    let forget = Intervention::forget(id.clone()).by("jane", "too early");
    assert!(matches!(
        trail.intervene(&forget).await.unwrap(),
        Intervened::Alive { .. }
    ));
    let changed = forget.clone().only_attempt(2);
    assert!(matches!(
        trail.intervene(&changed).await.unwrap(),
        Intervened::Changed { .. }
    ));
    assert_eq!(
        trail.intervene(&forget.force(true)).await.unwrap(),
        Intervened::Done { attempt: 1 }
    );
    let entries = trail.of(&id, 2).await.unwrap();
    assert_eq!(
        (entries.len(), entries[0].decision.force, &entries[0].result),
        (2, true, &Some(done()))
    );
    assert_eq!(
        entries[1].result,
        Some(Ended::refused(
            "the record had changed since the operator looked"
        ))
    );
    // Without who, and about the trail itself: nothing is done.
    let nameless = trail.intervene(&Intervention::forget(id.clone())).await;
    assert_eq!(nameless.unwrap(), Intervened::Nothing, "the record is gone");
    idempotency
        .operation("orders")
        .key("k")
        .run(async || Ok::<_, Error>(7))
        .await
        .unwrap();
    for (id, by) in [(id.clone(), ""), (self::id(trail::OPERATION, "k"), "jane")] {
        let refused = trail
            .intervene(&Intervention::forget(id).by(by, ""))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    }
    assert_eq!(trail.of(&id, 100).await.unwrap().len(), 3);
}

#[tokio::test]
async fn an_entry_is_kept_for_its_time_and_found_among_those_before_and_after_it() {
    const DAY: Duration = Duration::from_secs(86_400);
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let id = id("orders", "k");
    let note = async |trail: Trail<'_, MemoryStore>, why: &str| {
        let decision = Decision::about(&id, "forgotten", None);
        let noted = trail.note(&decision, "jane", why).await.unwrap();
        trail.end(noted, &Ended::Done { records: 1 }).await.unwrap();
    };
    let trail = Trail::new(&store);
    let kept = async || {
        let entries = trail.of(&id, 100).await.unwrap();
        entries
            .into_iter()
            .map(|entry| (entry.why.to_string(), entry.age, entry.result))
            .collect::<Vec<_>>()
    };
    let entry = |why: &str, days: u32| (why.to_owned(), DAY * days, Some(done()));
    note(trail, "first").await;
    clock.advance(DAY * 60);
    note(trail.keep_for(DAY), "short").await;
    assert_eq!(kept().await, [entry("short", 0), entry("first", 60)]);
    clock.advance(DAY * 29);
    assert_eq!(kept().await, [entry("first", 89)]);
    clock.advance(DAY);
    assert_eq!(kept().await, []);
    note(trail.keep_for(Duration::MAX), "longest").await;
    clock.advance(DAY * 399);
    note(trail, "last").await;
    assert_eq!(kept().await, [entry("last", 0), entry("longest", 399)]);
    // The count is lost: no entry is written over.
    let counter = self::id(trail::OPERATION, &id.digest().to_string());
    assert_eq!(store.remove(&counter).await.unwrap(), Removed::Removed);
    for why in ["one", "two", "three"] {
        note(trail, why).await;
    }
    let kept: Vec<_> = kept().await.into_iter().map(|entry| entry.0).collect();
    assert_eq!(kept, ["three", "last", "longest", "two", "one"]);
}

#[tokio::test]
async fn the_number_of_an_operator_that_died_is_not_given_twice() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let id = id("orders", "k");
    let counter = self::id(trail::OPERATION, &id.digest().to_string());
    // It claimed a number, and no more was heard of it.
    let owner = idem::store::record::Owner::generate();
    let claim = idem::store::record::Claim::new(counter.clone(), owner, LEASE, LEASE * 100);
    store.claim(&claim).await.unwrap();
    clock.advance(LEASE);
    let trail = Trail::new(&store);
    let noted = trail
        .note(&Decision::about(&id, "forgotten", None), "jane", "")
        .await
        .unwrap();
    trail.end(noted, &Ended::refused("a test")).await.unwrap();
    // It comes back, and gives up the key that it has lost.
    let release = Release::new(counter, owner, ReleaseTo::Abandoned);
    store.release(&release).await.unwrap();
    assert_eq!(trail.of(&id, 100).await.unwrap().len(), 1);
    let records = store
        .list(&Listing::all().operation(trail::OPERATION))
        .await
        .unwrap()
        .records;
    let mut numbers = Vec::new();
    for listed in records {
        numbers.extend(
            trail
                .entry(&listed.id)
                .await
                .unwrap()
                .map(|_| listed.id.key().to_owned()),
        );
    }
    assert_eq!(numbers, [format!("{}:2", id.digest())]);
}
