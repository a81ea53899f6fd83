//! Runs: which steps a later call sees, over every store and with faults.

use std::future::pending;

use idem::{Error, RecordState, StoreFailure};
use idem_testkit::{Fault, Gate, Step};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{DAY, EFFECTS, Failure, Shop, order, place_anew};
use crate::over_all_stores;
use crate::support::{LEASE, LONG, World};

fn times<T: Clone>(count: usize, parts: &[T]) -> Vec<T> {
    vec![parts; count].concat()
}

over_all_stores! {
    async fn p1_a_body_that_works_for_longer_than_ttl_and_hold_and_dies_does_not_charge_again(
        world: World,
    ) {
        let lease = LEASE * 4;
        let shop = Shop::failing(1);
        let order = |idempotency| order(idempotency, "runs.dies").lease(lease);
        let one = world.process().await;
        let worked = Notify::new();
        let dies = order(&one).run(|| async {
            let failed = shop.place().await;
            sleep(LEASE * 3 / 2).await;
            worked.notify_one();
            assert!(failed.is_err());
            pending::<Result<u32, Failure>>().await
        });
        tokio::select! {
            ended = dies => panic!("a body that never ends has ended: {ended:?}"),
            () = worked.notified() => {}
        }
        // The next attempt comes when nobody would have the record any more.
        sleep(lease * 2 + LEASE / 2).await;
        let two = world.process().await;
        order(&two).run(|| shop.place()).await.unwrap();
        assert_eq!(shop.effects(), EFFECTS);
    }

    async fn p1_a_call_that_is_tried_again_after_each_ttl_charges_once(world: World) {
        let idempotency = world.process().await;
        let shop = Shop::failing(3);
        for _ in 0..3 {
            let failed = order(&idempotency, "runs.retried").run(|| shop.place());
            failed.await.unwrap_err();
            sleep(LEASE * 11 / 10).await;
        }
        let placed = order(&idempotency, "runs.retried").run(|| shop.place());
        placed.await.unwrap();
        assert_eq!(shop.effects(), EFFECTS);
    }

    async fn p1_while_a_run_has_steps_its_record_stays_whatever_the_ttl_and_the_hold_are(
        world: World,
    ) {
        let idempotency = world.process().await;
        let shop = Shop::failing(2);
        let stays = async || {
            let info = order(&idempotency, "runs.stays").inspect().await;
            let info = info.unwrap().unwrap();
            (info.state, info.expires_in > DAY * 29, info.run)
        };
        let first = order(&idempotency, "runs.stays").run(|| async {
            let failed = shop.place().await;
            let (state, is_long, run) = stays().await;
            assert_eq!((state, is_long), (RecordState::InFlight, true));
            assert_eq!(run.is_some(), failed.is_err());
            failed
        });
        first.await.unwrap_err();
        let (state, is_long, run) = stays().await;
        assert_eq!((state, is_long), (RecordState::Released, true));
        // An attempt that ends before its first step.
        let failed = order(&idempotency, "runs.stays").run(|| async { Err::<u32, _>(Failure::Down) });
        failed.await.unwrap_err();
        assert_eq!(stays().await, (RecordState::Released, true, run));
        // And one whose claim is undone, because its caller has left.
        let (builder, faults) = world.faulty().await;
        let leaves = builder.build();
        let gate = Gate::new();
        faults.next(Step::Claim, Fault::HangReply(gate.clone()));
        tokio::select! {
            _ = order(&leaves, "runs.stays").run(|| shop.place()) => panic!("the reply is held"),
            () = gate.reached() => {}
        }
        gate.open();
        leaves.shutdown(LONG).await.unwrap();
        assert_eq!(stays().await, (RecordState::Released, true, run));
        order(&idempotency, "runs.stays").run(|| shop.place()).await.unwrap_err();
        order(&idempotency, "runs.stays").run(|| shop.place()).await.unwrap();
        assert_eq!(shop.effects(), EFFECTS);
    }

    async fn a_call_that_uses_the_key_again_sees_no_step_although_none_was_removed(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        faults.always(Step::Remove, Fault::LoseRequest);
        let shop = Shop::default();
        for _ in 0..2 {
            assert!(place_anew(|| order(&idempotency, "runs.again"), &shop).await);
        }
        assert_eq!(shop.effects(), times(2, &EFFECTS));
        idempotency.shutdown(LONG).await.unwrap();
        assert_eq!(faults.calls(Step::Remove), 8, "each step once");
    }

    async fn a_removal_that_is_late_takes_no_step_of_the_next_call(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let gate = Gate::new();
        faults.next(Step::Remove, Fault::Hang(gate.clone()));
        let shop = Shop::default();
        let order = || order(&idempotency, "runs.late");
        assert!(place_anew(order, &shop).await);
        gate.reached().await;
        shop.fail(1);
        assert!(!place_anew(order, &shop).await);
        gate.open();
        idempotency.shutdown(LONG).await.unwrap();
        assert!(place_anew(order, &shop).await);
        assert_eq!(shop.effects(), times(2, &EFFECTS));
    }

    async fn what_the_steps_of_an_attempt_cost_in_commands(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let kinds = [Step::Claim, Step::Commit, Step::Renew, Step::Inspect, Step::Remove];
        let counts = || kinds.map(|kind| faults.calls(kind));
        for (name, ttl, renewals) in [("runs.cost.long", "31d", 0), ("runs.cost.short", "1s", 1)] {
            let shop = Shop::failing(1);
            let order = || order(&idempotency, name).ttl(ttl).lease("60s");
            let mut before = counts();
            let mut cost = || {
                let now = counts();
                let cost = std::array::from_fn(|kind| now[kind] - before[kind]);
                before = now;
                cost
            };
            // Three steps run, and the call fails: its record is made to stay, where it would not.
            order().run(|| shop.place()).await.unwrap_err();
            assert_eq!(cost(), [1 + 3, 3, renewals, 0, 0], "{name}");
            // Three are replayed, and one runs. The record tells the run.
            order().run(|| shop.place()).await.unwrap();
            idempotency.shutdown(LONG).await.unwrap();
            assert_eq!(cost(), [1 + 4, 1 + 1, 0, 1, 4], "{name}");
            // Nobody looks for the steps of a call that is forgotten: only for a run beside a
            // transaction, where there can be one.
            shop.fail(1);
            let other = || order().key("o-2");
            other().run(|| shop.place()).await.unwrap_err();
            cost();
            assert!(other().forget().await.unwrap());
            let [claims, commits, renewals, inspects, removals] = cost();
            assert_eq!([claims, commits, renewals, inspects], [0; 4], "{name}");
            assert!((1..=2).contains(&removals), "{name}: {removals}");
        }
    }

    async fn where_the_store_is_away_at_the_first_step_no_body_of_it_runs(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let shop = Shop::failing(1);
        // No renewal of the keeper's comes before that of the step.
        let order = |name| order(&idempotency, name).lease(LONG);
        for (kind, first) in [(Step::Renew, true), (Step::Inspect, false)] {
            if !first {
                order("runs.away").run(|| shop.place()).await.unwrap_err();
            }
            faults.next(kind, Fault::LoseRequest);
            let before = shop.effects();
            let away = order("runs.away").run(|| shop.place()).await;
            assert!(
                matches!(away, Err(Failure::Idempotency(Error::Store { .. }))),
                "{away:?}"
            );
            assert_eq!(shop.effects(), before);
            // The call may run without the store, and so may its steps.
            faults.next(kind, Fault::LoseRequest);
            let other = order("runs.runs").store_failure(StoreFailure::Run);
            let ran = other.run(|| async {
                let step = idem::step("charge", async || Ok::<_, Failure>(1)).await?;
                if first { Err(Failure::Down) } else { Ok(step) }
            });
            assert_eq!(ran.await.is_ok(), !first);
        }
        order("runs.away").run(|| shop.place()).await.unwrap();
        assert_eq!(shop.effects(), EFFECTS);
    }

    async fn a_first_step_that_is_not_polled_holds_up_no_other(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let gate = Gate::new();
        let placed = order(&idempotency, "runs.parked").lease(LONG).run(|| async {
            faults.next(Step::Renew, Fault::Hang(gate.clone()));
            let one = idem::step("one", async || Ok::<_, Error>(1));
            let mut one = std::pin::pin!(one);
            tokio::select! {
                one = &mut one => panic!("{one:?}"),
                () = gate.reached() => {}
            }
            let two = idem::step("two", async || Ok::<_, Error>(2)).await?;
            gate.open();
            Ok::<_, Error>(two + one.await?)
        });
        assert_eq!(placed.await.unwrap().into_inner(), 3);
    }

    async fn a_step_of_the_name_of_a_route_and_the_route_are_two_records(world: World) {
        let idempotency = world.process().await;
        let route = || idempotency.operation("POST/orders/charge").key("o-1");
        let posted = route().run(|| async { Ok::<_, Error>("the route".to_owned()) });
        posted.await.unwrap();
        let order = || idempotency.operation("POST/orders").key("o-1");
        let placed = order().run(|| idem::step("charge", async || Ok::<_, Error>("the step".to_owned())));
        assert_eq!(placed.await.unwrap().into_inner(), "the step");
        idempotency.shutdown(LONG).await.unwrap();
        let info = route().inspect().await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Committed);
        let taken = idempotency.operation("idem.step/POST/orders/charge").key("o-1");
        let taken = taken.run(|| async { Ok::<_, Error>(()) }).await;
        assert!(matches!(taken, Err(Error::Config { .. })), "{taken:?}");
    }
}
