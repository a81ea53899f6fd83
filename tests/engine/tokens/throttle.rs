//! Failed claims are counted, and limited for each subject.

use std::time::Duration;

use futures_util::future::join3;
use idem::{Error, Idempotency, MemoryStore};
use idem_testkit::{Fault, FaultStore, Gate, Step};

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

/// They share a claim, and each of them has guessed.
#[tokio::test(start_paused = true)]
async fn a_guess_is_counted_for_each_of_the_calls_that_send_it_at_once() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let builder = Idempotency::builder(store).limit_token_failures(3, WINDOW);
    let process = builder.build();
    let elsewhere = Idempotency::disabled().operation("t.guess");
    let guess = elsewhere.issue("mallory", TTL).await.unwrap().to_string();
    let gate = Gate::new();
    faults.next(Step::Claim, Fault::HangReply(gate.clone()));
    let submit = || submit(&process, &guess, "mallory");
    let opened = async {
        gate.reached().await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(join3(submit(), submit(), submit()), opened);
    let answers = [answers.0, answers.1, answers.2];
    assert!(answers.iter().all(is_unknown), "{answers:?}");
    assert_eq!(
        faults.calls(Step::Claim),
        2,
        "the third waits for the second"
    );
    let refused = submit().await;
    assert!(
        matches!(refused, Err(Error::Throttled { .. })),
        "{refused:?}"
    );
}

/// Neither asks the store.
#[tokio::test(start_paused = true)]
async fn a_subject_that_is_refused_gets_no_answer_that_this_process_remembers() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let process = Idempotency::builder(store)
        .limit_token_failures(3, WINDOW)
        .local_cache(10)
        .build();
    let issuing = process.operation("t.guess");
    let token = issuing.issue("ada", TTL).await.unwrap().to_string();
    for _ in 0..2 {
        assert_eq!(submit(&process, &token, "ada").await.unwrap(), 1);
    }
    for _ in 0..3 {
        assert!(is_unknown(&submit(&process, "forged", "ada").await));
    }
    let refused = submit(&process, &token, "ada").await;
    assert!(
        matches!(refused, Err(Error::Throttled { .. })),
        "{refused:?}"
    );
    assert_eq!(faults.calls(Step::Claim), 1);
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
