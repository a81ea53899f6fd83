//! Steps where there can be none, and records that are older than steps are kept.

use std::sync::Arc;

use idem::store::Store as _;
use idem::store::StoreHandle;
use idem::store::record::{Claim, Claimed, Owner, Ownership, RecordId, Release, ReleaseTo};
use idem::{Error, Key, RecordState};

use super::{DAY, EFFECTS, Failure, Shop, order};
use crate::over_all_stores;
use crate::support::{LEASE, LONG, World};

/// The reason of a step that is refused.
fn reason(step: Result<(), Error>) -> String {
    match step {
        Err(Error::Config {
            operation, reason, ..
        }) => format!("{operation}: {reason}"),
        other => panic!("{other:?}"),
    }
}

async fn step(shop: &Shop, name: &'static str) -> Result<(), Error> {
    let run = async || {
        shop.has(name);
        Ok(())
    };
    idem::step(name, run).await
}

/// The owner of a first attempt that was made so many days ago.
fn made(days_ago: u64) -> Owner {
    let mut owner = Owner::generate().to_bytes();
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&owner[..6]);
    let made = u64::from_be_bytes(millis) - days_ago * 86_400_000;
    owner[..6].copy_from_slice(&made.to_be_bytes()[2..]);
    Owner::from_bytes(owner)
}

/// Claims the key of an [`order`] for this owner.
async fn claimed(store: &StoreHandle, name: &'static str, owner: Owner) -> RecordId {
    let id = RecordId::new(name, &Key::encode("o-1").unwrap()).unwrap();
    let claim = Claim::new(id.clone(), owner, LEASE, DAY * 30);
    let claimed = store.claim(&claim).await.unwrap();
    assert!(
        matches!(claimed, Claimed::Owned { attempt: 1, .. }),
        "{claimed:?}"
    );
    id
}

over_all_stores! {
    async fn a_step_outside_of_a_body_in_a_spawned_task_or_begun_twice_is_an_error(world: World) {
        let idempotency = world.process().await;
        let shop = Arc::new(Shop::default());
        let outside = reason(idem::scope(idempotency.clone(), step(&shop, "outside")).await);
        assert!(
            outside.starts_with("outside: ") && outside.contains("body of a guarded call"),
            "{outside}"
        );
        // In a later attempt, whose steps are replayed, as in the first one.
        for _ in 0..2 {
            let failed = order(&idempotency, "bad.steps").run(|| async {
                step(&shop, "once").await?;
                let twice = reason(step(&shop, "once").await);
                assert!(
                    twice.starts_with("bad.steps/once: ") && twice.contains("before"),
                    "{twice}"
                );
                let call = idem::current().unwrap();
                let there = shop.clone();
                let spawned = tokio::spawn(async move {
                    let by_call = call.step("spawned", async || {
                        there.has("spawned");
                        Ok::<_, Error>(())
                    });
                    [by_call.await, step(&there, "spawned").await].map(reason)
                });
                for reason in spawned.await.unwrap() {
                    let why = "not from a task that the body has spawned";
                    assert!(reason.contains(why), "{reason}");
                }
                Err::<(), _>(Failure::Down)
            });
            failed.await.unwrap_err();
        }
        assert_eq!(shop.effects(), ["once"]);
    }

    async fn a_run_that_is_older_than_nine_tenths_of_its_steps_begins_and_replays_none(
        world: World,
    ) {
        let idempotency = world.process().await;
        let store = world.store().await;
        for (name, days, is_too_old) in [("bad.young", 26, false), ("bad.old", 28, true)] {
            let shop = Shop::default();
            let order = || order(&idempotency, name);
            let owner = made(days);
            let id = claimed(&store, name, owner).await;
            let keep = ReleaseTo::Released { keep: DAY * 30 };
            let release = Release::new(id, owner, keep).with_run(true);
            assert_eq!(store.release(&release).await.unwrap(), Ownership::Held);
            order().of_step("charge").settle(&7_u32).await.unwrap();
            for _ in 0..2 {
                let failed = order().run(|| async {
                    // One that was recorded, and one that was not.
                    for step in ["charge", "mail"] {
                        let step = idem::step(step, async || {
                            shop.has(step);
                            Ok::<_, Error>(8_u32)
                        });
                        match step.await {
                            Ok(_) if !is_too_old => {}
                            Err(Error::Abandoned { operation, attempt: 0, .. }) if is_too_old => {
                                assert_eq!(&*operation, name);
                            }
                            other => panic!("{name}: {other:?}"),
                        }
                    }
                    Err::<(), _>(Failure::Down)
                });
                failed.await.unwrap_err();
            }
            let before = usize::from(!is_too_old);
            assert_eq!(shop.effects(), ["mail"][..before]);
            assert!(order().forget().await.unwrap());
            order().run(|| shop.place()).await.unwrap();
            assert_eq!(shop.effects()[before..], EFFECTS);
        }
    }

    async fn a_run_whose_first_owner_says_no_time_goes_on(world: World) {
        let idempotency = world.process().await;
        let store = world.store().await;
        let shop = Shop::failing(1);
        let order = || order(&idempotency, "bad.undated");
        // Of version 4, as all owners were before there were runs.
        let mut owner = Owner::generate().to_bytes();
        owner[6] = owner[6] & 0x0f | 0x40;
        let owner = Owner::from_bytes(owner);
        claimed(&store, "bad.undated", owner).await;
        // It takes over what that owner has left.
        order().wait(LONG).run(|| shop.place()).await.unwrap_err();
        let info = order().inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.run), (RecordState::Released, Some(owner)));
        order().run(|| shop.place()).await.unwrap();
        assert_eq!(shop.effects(), EFFECTS);
    }
}
