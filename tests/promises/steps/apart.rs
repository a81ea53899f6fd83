//! What a step has nothing to do with: a run that has ended, however that was, and calls and steps
//! of other keys and names.

use std::future::pending;
use std::time::Duration;

use futures_util::future::join_all;
use idem::{Abandoned, Error, ErrorAction, Idempotency, Operation, UnkeptAction};
use tokio::sync::Notify;

use super::{EFFECTS, Failure, Shop, order, place_anew};
use crate::over_all_stores;
use crate::support::{LEASE, World};

/// The end of a run whose next attempt does not come to its steps.
#[derive(Clone, Copy, Debug)]
enum End {
    Passed,
    Settled,
    Kept,
    Reconciled,
}

async fn ends(idempotency: &Idempotency, end: End) {
    let shop = Shop::failing(1);
    let order = || order(idempotency, "apart.ended").key(&format!("{end:?}"));
    let failed = order()
        .errors(move |_: &Failure| match end {
            End::Reconciled => UnkeptAction::Abandon,
            _ => UnkeptAction::Release,
        })
        .run(|| shop.place());
    failed.await.unwrap_err();
    match end {
        End::Passed => drop(order().run(async || Ok::<_, Failure>(1)).await.unwrap()),
        End::Settled => order().settle(&1_u32).await.unwrap(),
        End::Kept => {
            let kept = order().errors(|_: &Failure| ErrorAction::Keep);
            let kept = kept.run(async || Err::<u32, _>(Failure::Down));
            kept.await.unwrap_err();
        }
        End::Reconciled => {
            let asks = order().reconcile(async || Ok::<_, Failure>(Some(1)));
            asks.run(|| shop.place()).await.unwrap();
        }
    }
    assert_eq!(shop.effects(), EFFECTS[..3], "{end:?}");
    while order().inspect().await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    order().run(|| shop.place()).await.unwrap();
    assert_eq!(shop.effects()[3..], EFFECTS, "{end:?}");
}

over_all_stores! {
    async fn steps_that_stayed_when_their_run_ended_belong_to_nobody(world: World) {
        let idempotency = world.process().await;
        let all = [End::Passed, End::Settled, End::Kept, End::Reconciled];
        join_all(all.map(|end| ends(&idempotency, end))).await;
    }

    async fn a_step_that_was_dropped_does_not_answer_a_later_call_that_it_is_abandoned(
        world: World,
    ) {
        let idempotency = world.process().await;
        let shop = Shop::default();
        let order = || {
            let order = order(&idempotency, "apart.dropped").hold("1h");
            order.abandoned(Abandoned::Reject)
        };
        let placed = order().run(|| async {
            let begun = Notify::new();
            let dropped = idem::step_with("charge").lease(LEASE * 3).run(async || {
                begun.notify_one();
                pending::<Result<u32, Failure>>().await
            });
            tokio::select! {
                ended = dropped => panic!("a step that never ends has ended: {ended:?}"),
                () = begun.notified() => {}
            }
            Ok::<_, Failure>(0)
        });
        placed.await.unwrap();
        tokio::time::sleep(LEASE * 3).await;
        assert!(place_anew(order, &shop).await);
        assert_eq!(shop.effects(), EFFECTS);
    }

    async fn a_call_that_is_forgotten_begins_a_new_run_and_a_refused_forget_changes_nothing(
        world: World,
    ) {
        let idempotency = world.process().await;
        // Those that are stored as digests, too.
        let long = "x".repeat(300);
        for key in ["o-1", &long] {
            let shop = Shop::failing(u32::MAX);
            let order = |key: &str| order(&idempotency, "apart.forgotten").key(key);
            let place = async |order: Operation<'static>, meanwhile: Option<Operation<'static>>| {
                let failed = order.run(|| async {
                    let label = idem::step(("label", &long), async || {
                        shop.has("label");
                        Ok::<_, Failure>(())
                    });
                    label.await?;
                    let placed = shop.place().await;
                    if let Some(order) = meanwhile {
                        let refused = order.forget().await;
                        assert!(matches!(refused, Err(Error::InFlight { .. })), "{refused:?}");
                    }
                    placed
                });
                let failed = failed.await;
                assert!(matches!(failed, Err(Failure::Down)), "{failed:?}");
            };
            let all = ["label", EFFECTS[0], EFFECTS[1], EFFECTS[2]];
            let other = [key, "0"].concat();
            place(order(&other), None).await;
            place(order(key), Some(order(key))).await;
            assert_eq!(shop.effects(), [all, all].concat());
            place(order(key), None).await;
            assert_eq!(shop.effects().len(), 8);

            // A single step.
            let ink = || order(key).of_step(("reserve", "ink"));
            assert!(ink().forget().await.unwrap());
            place(order(key), None).await;
            assert_eq!(shop.effects()[8..], ["reserve ink"]);

            assert!(order(key).forget().await.unwrap());
            assert!(!order(key).forget().await.unwrap());
            place(order(key), None).await;
            assert_eq!(shop.effects()[9..], all);
            place(order(&other), None).await;
            assert_eq!(shop.effects().len(), 13);
        }
    }

    async fn steps_of_other_names_keys_and_nesting_are_other_steps(world: World) {
        let idempotency = world.process().await;
        let shop = Shop::default();
        let effect = async |name: &str| {
            shop.has(name);
            Ok::<_, Failure>(name.to_owned())
        };
        let order = order(&idempotency, "apart.names").run(|| async {
            let charge = idem::step("charge", async || effect("the step").await).await?;
            assert_eq!(charge, "the step");
            for (outer, inner) in [(Some(7), None), (None, Some(7))] {
                let label = async || match inner {
                    Some(part) => {
                        idem::step(("label", part), async || effect("label 7").await).await
                    }
                    None => idem::step("label", async || effect("label").await).await,
                };
                match outer {
                    Some(part) => idem::step(("parcel", part), label).await?,
                    None => idem::step("parcel", label).await?,
                };
            }
            Err::<(), _>(Failure::Down)
        });
        order.await.unwrap_err();
        let pen = idempotency.operation("apart.names").key(&("o-1", "pen"));
        let pen = pen.run(|| idem::step("charge", async || effect("the pen").await));
        assert_eq!(pen.await.unwrap().into_inner(), "the pen");
        assert_eq!(shop.effects(), ["the step", "label", "label 7", "the pen"]);
    }
}
