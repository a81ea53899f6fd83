//! Failed claims are counted, and limited for each subject.

use std::time::Duration;

use idem::{Error, Idempotency, MemoryStore};

use super::{Res, TTL, is_unknown};

const WINDOW: Duration = Duration::from_secs(60);

fn limited() -> Idempotency {
    Idempotency::builder(MemoryStore::new())
        .limit_token_failures(3, WINDOW)
        .build()
}

async fn submit(process: &Idempotency, token: &str, subject: &str) -> Res {
    let call = process.operation("t.guess").token(token, subject);
    call.run(async || Res::Ok(1))
        .await
        .map(idem::Outcome::into_inner)
}

#[tokio::test(start_paused = true)]
async fn a_subject_that_guesses_is_refused_until_the_window_is_over_and_nobody_else_is() {
    let process = limited();
    let issue = async |subject: &str| {
        process
            .operation("t.guess")
            .issue(subject, 10 * WINDOW)
            .await
            .unwrap()
            .to_string()
    };
    let of_mallory = issue("mallory").await;
    let of_ada = issue("ada").await;
    for guess in [
        "forged",
        &of_ada,
        &Idempotency::disabled()
            .operation("t.guess")
            .issue("mallory", TTL)
            .await
            .unwrap()
            .to_string(),
    ] {
        assert!(is_unknown(&submit(&process, guess, "mallory").await));
    }
    let refused = submit(&process, &of_mallory, "mallory").await.unwrap_err();
    let Error::Throttled { retry_after, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(retry_after, WINDOW);
    assert!(
        refused.is_retryable() && refused.to_string().contains("try again in 60.0s"),
        "{refused}"
    );
    assert_eq!(submit(&process, &of_ada, "ada").await.unwrap(), 1);

    tokio::time::advance(WINDOW).await;
    assert_eq!(submit(&process, &of_mallory, "mallory").await.unwrap(), 1);
    // A new window, a new count.
    for _ in 0..3 {
        assert!(is_unknown(&submit(&process, "forged", "mallory").await));
    }
    assert!(matches!(
        submit(&process, "forged", "mallory").await,
        Err(Error::Throttled { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn expired_tokens_and_those_of_other_operations_are_not_counted_as_guesses() {
    let process = limited();
    let token = process
        .operation("t.guess")
        .issue("ada", Duration::from_secs(60))
        .await
        .unwrap()
        .to_string();
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..10 {
        assert!(is_unknown(&submit(&process, &token, "ada").await));
    }
    // There, the same subject may be another kind of user.
    for _ in 0..3 {
        let answer = process
            .operation("t.other")
            .token("forged", "ada")
            .run(async || Res::Ok(1))
            .await;
        assert!(is_unknown(&answer));
    }
    for _ in 0..3 {
        assert!(is_unknown(&submit(&process, "forged", "ada").await));
    }
    assert!(matches!(
        submit(&process, &token, "ada").await,
        Err(Error::Throttled { .. })
    ));
    // Nor is it a guess what a person settles.
    for _ in 0..4 {
        let settled = process
            .operation("t.guess")
            .token("forged", "support")
            .settle(&1)
            .await;
        assert!(
            matches!(settled, Err(Error::UnknownToken { .. })),
            "{settled:?}"
        );
    }
    assert!(is_unknown(&submit(&process, "forged", "support").await));
}

#[tokio::test]
async fn without_a_limit_there_is_none_and_one_that_cannot_be_is_refused() {
    let process = Idempotency::new(MemoryStore::new());
    for _ in 0..100 {
        assert!(is_unknown(&submit(&process, "forged", "ada").await));
    }
    for (max, window) in [(0, WINDOW), (3, Duration::ZERO)] {
        assert!(
            Idempotency::builder(MemoryStore::new())
                .limit_token_failures(max, window)
                .try_build()
                .is_err()
        );
    }
}
