//! Steps that are wrong: each is an error that says what to write.

use std::time::Duration;

use idem::{Error, Outcome};
use idem_core as idem;

use super::{ALL, Failure, World};

/// The reason of a misconfigured call.
fn reason(answer: Result<(), Error>) -> String {
    match answer {
        Err(Error::Config {
            operation, reason, ..
        }) => format!("{operation}: {reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_step_is_an_error_that_says_what_to_write() {
    let world = World::new();
    let step = async |name: &str| idem::step(name, async || Ok::<_, Error>(())).await;
    let outside = reason(step("charge").await);
    assert!(
        outside.starts_with("charge: ") && outside.contains("body of a guarded call"),
        "{outside}"
    );
    let body = || async {
        for (name, says) in [
            ("", "is empty"),
            ("a/b", "is not valid"),
            ("a b", "is not valid"),
            ("a:b", "is not valid"),
            (&*"x".repeat(128), "is not valid"),
        ] {
            let reason = reason(step(name).await);
            assert!(
                reason.starts_with("orders.place/") && reason.contains(says),
                "{reason}"
            );
        }
        let empty = reason(idem::step(("reserve", ""), async || Ok(())).await);
        assert!(empty.contains("missing or empty"), "{empty}");
        let none = reason(idem::step(("reserve", None::<u8>), async || Ok(())).await);
        assert!(none.contains("missing or empty"), "{none}");
        step("once").await?;
        let twice = reason(step("once").await);
        assert!(
            twice.starts_with("orders.place/once: ") && twice.contains("before"),
            "{twice}"
        );
        let call = idem::current().unwrap();
        let spawned = tokio::spawn(async move {
            let by_call = call.step("spawned", async || Ok::<_, Error>(())).await;
            let by_task = idem::step("spawned", async || Ok::<_, Error>(())).await;
            [by_call, by_task].map(reason)
        });
        for reason in spawned.await.unwrap() {
            assert!(
                reason.contains("not from a task that the body has spawned"),
                "{reason}"
            );
        }
        Ok::<_, Error>(())
    };
    world.order().run(body).await.unwrap();
    let short = world.order().key("o-2").run(|| {
        idem::step_with("charge")
            .lease(Duration::ZERO)
            .run(async || Ok::<_, Error>(()))
    });
    assert!(reason(short.await.map(Outcome::into_inner)).contains("lease"));
    let misspelt = world.order().key("o-3").run(|| {
        idem::step_with("charge")
            .lease("2 score")
            .run(async || Ok::<_, Error>(()))
    });
    let said = reason(misspelt.await.map(Outcome::into_inner));
    assert!(said.contains("`lease`") && said.contains("score"), "{said}");
    let right = world.order().key("o-4").run(|| {
        idem::step_with("charge")
            .lease("2s")
            .run(async || Ok::<_, Error>(()))
    });
    right.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_use_of_a_name_in_each_run_of_the_body_counts() {
    let world = World::new();
    for _ in 0..2 {
        let placed = world.order().run(|| async {
            world.place(true).await.unwrap_err();
            let again = idem::step("charge", async || Ok::<_, Error>(1)).await;
            assert!(matches!(again, Err(Error::Config { .. })), "{again:?}");
            Err::<(), _>(Failure::Down)
        });
        placed.await.unwrap_err();
    }
    assert_eq!(world.log.all(), ALL[..3]);
}
