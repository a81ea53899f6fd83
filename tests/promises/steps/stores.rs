//! The promises of steps, once over each store.

use std::future::pending;
use std::sync::Arc;

use idem::{Abandoned, Error, Idempotency, Operation, RecordState};
use idem_testkit::Step;
use tokio::sync::Notify;

use super::{EFFECTS, Failure, Shop};
use crate::over_all_stores;
use crate::support::{LEASE, LONG, World, eventually};

fn order(idempotency: &Idempotency, name: &'static str) -> Operation<'static> {
    idempotency
        .operation(name)
        .key("o-1")
        .fingerprint("two pens")
        // Its owner is alive until it is cut off, on a busy machine too.
        .lease(LEASE * 3)
        .wait(LONG)
}

over_all_stores! {
    async fn another_process_goes_on_after_the_finished_steps_and_they_are_removed_in_the_end(
        world: World,
    ) {
        let one = world.builder().await.local_cache(1000).build();
        let (builder, faults) = world.faulty().await;
        let two = builder.build();
        let shop = Shop::failing(1);
        let failed = order(&one, "steps.goes_on").run(|| shop.place()).await;
        assert!(matches!(failed, Err(Failure::Down)), "{failed:?}");
        for step in ["charge", "reserve"] {
            let order = order(&two, "steps.goes_on");
            let step = match step {
                "reserve" => order.of_step(("reserve", "pen")),
                step => order.of_step(step),
            };
            let state = step.inspect().await.unwrap().map(|info| info.state);
            assert_eq!(state, Some(RecordState::Committed));
        }

        let placed = order(&two, "steps.goes_on")
            .run(|| shop.place())
            .await
            .unwrap();
        assert_eq!(
            (placed.into_inner(), shop.effects()),
            (7, EFFECTS.map(str::to_owned).to_vec())
        );
        two.shutdown(LONG).await.unwrap();
        assert_eq!(faults.calls(Step::Remove), 4);
        assert!(
            order(&one, "steps.goes_on")
                .run(|| shop.place())
                .await
                .unwrap()
                .is_replayed()
        );
    }

    async fn p1_an_attempt_that_was_cut_off_in_a_step_is_waited_for_and_the_step_runs_again(
        world: World,
    ) {
        let (one, two) = (world.process().await, world.process().await);
        let begun = Notify::new();
        let cut = order(&one, "steps.cut").run(|| {
            idem::step("charge", async || {
                begun.notify_one();
                pending::<Result<u64, Error>>().await
            })
        });
        tokio::select! {
            ended = cut => panic!("a body that never ends has ended: {ended:?}"),
            () = begun.notified() => {}
        }
        let again = order(&two, "steps.cut").run(|| {
            idem::step("charge", async || {
                Ok::<_, Error>(idem::current().unwrap().attempt())
            })
        });
        assert_eq!(again.await.unwrap().into_inner(), 2);
    }

    async fn p5_a_step_that_was_cut_off_below_a_call_that_rejects_is_settled_by_itself(
        world: World,
    ) {
        let idempotency = world.process().await;
        let order = || order(&idempotency, "steps.reject").abandoned(Abandoned::Reject);
        let begun = Arc::new(Notify::new());
        let cut = order().run(|| {
            idem::step("charge", async || {
                begun.notify_one();
                pending::<Result<u64, Error>>().await
            })
        });
        tokio::select! {
            ended = cut => panic!("a body that never ends has ended: {ended:?}"),
            () = begun.notified() => {}
        }
        eventually("the lease ends", async || {
            matches!(order().release().await, Ok(true))
        })
        .await;
        let place = || idem::step("charge", async || Ok::<_, Error>(1_u64));
        let refused = order().run(place).await;
        assert!(
            matches!(refused, Err(Error::Abandoned { .. })),
            "{refused:?}"
        );
        order().of_step("charge").settle(&9_u64).await.unwrap();
        assert_eq!(order().run(place).await.unwrap().into_inner(), 9);
    }
}
