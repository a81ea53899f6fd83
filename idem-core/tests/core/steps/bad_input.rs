//! Names and leases of steps that are wrong: each is an error that says what to write.

use std::time::Duration;

use idem::{Error, Outcome};
use idem_core as idem;

use super::World;

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
async fn a_wrong_name_or_lease_is_an_error_that_says_what_to_write() {
    let world = World::new();
    let step = async |name: &str| idem::step(name, async || Ok::<_, Error>(())).await;
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
