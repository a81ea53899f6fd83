//! The steps of one run of a key, which goes on for weeks of paused time.

use idem::{Error, Outcome, RecordState};
use idem_core as idem;
use tokio::time::advance;

use super::{ALL, Abandoned, AtomicU32, DAY, Duration, Failure, LEASE, Operation, Ordering, World};
use super::{Notify, pending};

const MINUTE: Duration = Duration::from_secs(60);

/// An order whose record would be kept for five minutes.
fn brief(world: &World) -> Operation<'static> {
    world.order().ttl("5m").hold("5m")
}

/// Charges, and is cut off or fails.
async fn charge_and_end(world: &World, dies: bool) {
    let charged = Notify::new();
    let order = brief(world).run(|| async {
        let log = &world.log;
        idem::step("charge", async || {
            log.add("charge");
            Ok::<_, Failure>(7)
        })
        .await?;
        charged.notify_one();
        if dies {
            pending::<()>().await;
        }
        Err::<u32, _>(Failure::Down)
    });
    tokio::select! {
        ended = order => assert!(!dies && ended.is_err(), "{ended:?}"),
        () = charged.notified(), if dies => {}
    }
    if dies {
        tokio::time::sleep(LEASE * 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_call_that_is_tried_again_each_minute_charges_once() {
    let world = World::new();
    for _ in 0..30 {
        charge_and_end(&world, false).await;
        advance(MINUTE).await;
    }
    // Nobody tries for 26 days: the record is there, and so are the steps.
    advance(26 * DAY).await;
    brief(&world).run(|| world.place(false)).await.unwrap();
    assert_eq!(world.log.all(), ALL);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_a_step_does_not_shorten_the_life_of_the_run() {
    for first_dies in [false, true] {
        let world = World::new();
        charge_and_end(&world, first_dies).await;
        for _ in 0..2 {
            // It dies before its first step, or fails there.
            let dies = brief(&world).run(pending::<Result<u32, Failure>>);
            tokio::time::timeout(MINUTE, dies).await.unwrap_err();
            advance(6 * MINUTE).await;
            let fails = brief(&world).run(|| async { Err::<u32, _>(Failure::Down) });
            fails.await.unwrap_err();
            advance(6 * MINUTE).await;
        }
        brief(&world).run(|| world.place(false)).await.unwrap();
        assert_eq!(world.log.all(), ALL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_through_an_operators_release_and_a_question_without_an_answer() {
    let world = World::new();
    let order = || brief(&world).abandoned(Abandoned::Reject);
    charge_and_end(&world, true).await;
    assert!(order().release().await.unwrap());
    // The question of a call that reconciles finds nothing, and then fails.
    charge_and_end(&world, true).await;
    let asks = brief(&world).reconcile(async || Err::<Option<u32>, _>(Failure::Down));
    asks.run(|| world.place(false)).await.unwrap_err();
    let asks = brief(&world).reconcile(async || Ok::<Option<u32>, Failure>(None));
    asks.run(|| world.place(false)).await.unwrap();
    assert_eq!(world.log.all(), ALL);
}

#[tokio::test(start_paused = true)]
async fn after_many_attempts_that_were_cut_off_the_run_is_still_that_of_the_first() {
    let world = World::new();
    for _ in 0..8 {
        charge_and_end(&world, true).await;
    }
    let run = brief(&world).inspect().await.unwrap().unwrap().run;
    brief(&world).run(|| world.place(true)).await.unwrap_err();
    assert_eq!(world.log.all(), ALL[..3]);
    let info = brief(&world).inspect().await.unwrap().unwrap();
    assert_eq!((info.state, info.run), (RecordState::Released, run));
    assert_eq!(info.attempt, 9);
}

#[tokio::test(start_paused = true)]
async fn a_step_of_a_run_that_is_too_old_is_refused_before_its_body_until_the_key_is_forgotten() {
    let world = World::new();
    world.order().run(|| world.place(true)).await.unwrap_err();
    for _ in 0..26 {
        advance(DAY).await;
        world.order().run(|| world.place(true)).await.unwrap_err();
    }
    advance(DAY).await;
    for _ in 0..2 {
        let late = world.order().run(|| async {
            // One that was recorded, and one that was not.
            for name in ["charge", "new"] {
                let step = idem::step(name, async || Ok::<_, Error>(1)).await;
                let Err(Error::Abandoned {
                    operation, attempt, ..
                }) = step
                else {
                    panic!("{step:?}");
                };
                assert_eq!((&*operation, attempt), ("orders.place", 0));
            }
            Err::<u32, _>(Failure::Down)
        });
        late.await.unwrap_err();
        advance(5 * DAY).await;
    }
    assert!(world.order().forget().await.unwrap());
    world.order().run(|| world.place(false)).await.unwrap();
    assert_eq!(world.log.all()[3..], ALL);
}

#[tokio::test(start_paused = true)]
async fn a_longer_hold_keeps_steps_for_longer() {
    let world = World::new();
    let order = || world.order().hold("60d");
    order().run(|| world.place(true)).await.unwrap_err();
    // One that dies before its first step.
    let dies = order().run(pending::<Result<u32, Failure>>);
    tokio::time::timeout(MINUTE, dies).await.unwrap_err();
    advance(50 * DAY).await;
    order().run(|| world.place(false)).await.unwrap();
    assert_eq!(world.log.all(), ALL);
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_step_is_found_in_the_run_of_its_call() {
    let world = World::new();
    let charge = || world.order().of_step("charge");
    let without_a_run = async || {
        let none = charge().inspect().await;
        let Err(Error::Config {
            operation, reason, ..
        }) = none
        else {
            panic!("{none:?}");
        };
        assert_eq!(&*operation, "orders.place/charge");
        assert!(reason.contains("settle"), "{reason}");
    };
    without_a_run().await;
    // A release without steps begins no run that goes on.
    let failed = world.order().run(|| async { Err::<u32, _>(Failure::Down) });
    failed.await.unwrap_err();
    without_a_run().await;
    world.order().run(|| world.place(true)).await.unwrap_err();
    let info = charge().inspect().await.unwrap().unwrap();
    assert_eq!(info.state, RecordState::Committed);
    let none = world.order().of_step("mail").inspect().await.unwrap();
    assert_eq!(none, None);
    world.order().run(|| world.place(false)).await.unwrap();
    without_a_run().await;

    let runs = AtomicU32::new(0);
    let refused = charge().run(|| async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Error>(())
    });
    let refused = refused.await.map(Outcome::into_inner);
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_step_inside_of_a_step_is_settled_by_itself() {
    let world = World::new();
    let order = || world.order().abandoned(Abandoned::Reject);
    let place = || {
        idem::step(("parcel", 1), async || {
            idem::step("label", async || pending::<Result<u32, Error>>().await).await
        })
    };
    let cut = order().run(place);
    tokio::time::timeout(Duration::from_millis(1), cut)
        .await
        .unwrap_err();
    tokio::time::sleep(LEASE * 2).await;
    let label = || order().of_step(("parcel", 1)).of_step("label");
    let info = label().inspect().await.unwrap().unwrap();
    assert_eq!(info.state, RecordState::Abandoned);
    label().settle(&5_u32).await.unwrap();
    assert!(order().of_step(("parcel", 1)).release().await.unwrap());
    assert!(order().release().await.unwrap());
    assert_eq!(order().run(place).await.unwrap().into_inner(), 5);
}
