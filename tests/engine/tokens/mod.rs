//! One-time tokens: a submission runs once, for whom its token was issued to, until its time is
//! over.

mod attribute;
mod cut_off;
mod events;
mod processes;
mod throttle;

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Bodies, Failure, LEASE, LONG, World, eventually};
use idem::{Duplicate, Error, RecordState, StoreErrorKind, StoreFailure, Token};
use idem_testkit::{Fault, Step};

type Res<T = u32> = Result<T, Error>;

const TTL: Duration = LONG;

fn is_unknown<T>(answer: &Res<T>) -> bool {
    matches!(answer, Err(Error::UnknownToken { .. }))
}

#[tokio::test(start_paused = true)]
async fn p13_the_first_submission_runs_and_each_later_one_gets_its_answer() {
    let world = World::memory();
    let one = world.process().await;
    let another = world.process().await;
    let token = one.operation("t.first").issue("ada", TTL).await.unwrap();
    let first = one
        .operation("t.first")
        .token(&token, "ada")
        .run(async || Res::Ok(7))
        .await
        .unwrap();
    assert!(!first.is_replayed());
    for process in [&one, &another] {
        let call = process
            .operation("t.first")
            .token(&token.to_string(), "ada");
        let again = call
            .run(async || -> Res { panic!("it runs twice") })
            .await
            .unwrap();
        assert_eq!((again.is_replayed(), again.into_inner()), (true, 7));
    }
    let call = another
        .operation("t.first")
        .token(&token, "ada")
        .duplicate(Duplicate::Reject);
    let rejected: Res<_> = call.run(async || Res::Ok(8)).await;
    assert!(
        matches!(rejected, Err(Error::Duplicate { .. })),
        "{rejected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn p13_a_hundred_submissions_at_once_run_one_body_and_get_equal_answers() {
    let world = World::memory();
    let processes = [world.process().await, world.process().await];
    let token = processes[0]
        .operation("t.many")
        .issue("ada", TTL)
        .await
        .unwrap();
    let bodies = Arc::new(Bodies::default());
    let calls: Vec<_> = (0..100)
        .map(|number| {
            let call = processes[number % 2]
                .operation("t.many")
                .token(&token, "ada")
                .wait(LONG);
            let bodies = bodies.clone();
            tokio::spawn(async move {
                let body = async {
                    // The others come meanwhile.
                    tokio::time::sleep(LEASE / 2).await;
                    Res::Ok(1)
                };
                call.run(async || bodies.run(body).await).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().into_inner(), 1);
    }
    assert_eq!(bodies.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn p13_what_was_not_issued_to_this_caller_for_this_operation_does_not_run() {
    let process = World::memory().process().await;
    let token = process.operation("t.who").issue("ada", TTL).await.unwrap();
    let never_issued = idem::Idempotency::new(idem::MemoryStore::new())
        .operation("t.who")
        .issue("ada", TTL)
        .await;
    let forged = token.to_string().replace(|c: char| c.is_ascii_digit(), "x");
    let submit = async |operation: &'static str, token: &str, subject: &str| {
        let call = process.operation(operation).token(token, subject);
        call.run(async || -> Res { panic!("it runs") }).await
    };
    for (operation, token, subject) in [
        ("t.who", token.to_string(), "grace"),
        ("t.other", token.to_string(), "ada"),
        ("t.who", never_issued.unwrap().to_string(), "ada"),
        ("t.who", format!("{forged}x"), "ada"),
        ("t.who", String::new(), "ada"),
    ] {
        let answer = submit(operation, &token, subject).await;
        assert!(is_unknown(&answer), "{operation} {subject}: {answer:?}");
    }
    // None of these has used it up.
    let owner = process
        .operation("t.who")
        .token(&token, "ada")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert!(!owner.is_replayed());
    // Nor does another get the answer.
    assert!(is_unknown(
        &submit("t.who", &token.to_string(), "grace").await
    ));
}

#[tokio::test(start_paused = true)]
async fn p13_after_a_release_the_token_counts_again() {
    let process = World::memory().process().await;
    let token = process
        .operation("t.again")
        .issue("ada", TTL)
        .await
        .unwrap();
    let call = || process.operation("t.again").token(&token, "ada");
    let failed: Result<_, Failure> = call()
        .run(async || Result::<u32, _>::Err(Failure::Declined))
        .await;
    assert!(matches!(failed, Err(Failure::Declined)));
    assert_eq!(
        call().inspect().await.unwrap().unwrap().state,
        RecordState::Released
    );
    assert!(is_unknown(
        &process
            .operation("t.again")
            .token(&token, "grace")
            .run(async || Res::Ok(1))
            .await
    ));
    let outcome = call()
        .run(async || Res::Ok(idem::current().unwrap().attempt()))
        .await
        .unwrap();
    assert_eq!((outcome.is_replayed(), outcome.into_inner()), (false, 2));
}

#[tokio::test(start_paused = true)]
async fn p13_no_record_of_a_token_ends_before_the_token_would_have() {
    let process = World::memory().process().await;
    let week = Duration::from_secs(7 * 86_400);
    let token = process
        .operation("t.week")
        .issue("ada", week)
        .await
        .unwrap();
    let call = || {
        process
            .operation("t.week")
            .token(&token, "ada")
            .ttl(Duration::from_secs(1))
            .lease(LEASE)
    };
    let left = async || call().inspect().await.unwrap().unwrap();
    let body = async || {
        assert!(left().await.expires_in > week / 2, "while it runs");
        Result::<u32, _>::Err(Failure::Declined)
    };
    assert!(call().run(body).await.is_err());
    let released = left().await;
    assert!(
        released.state == RecordState::Released && released.expires_in > week / 2,
        "{released:?}"
    );
    assert!(call().run(async || Res::Ok(1)).await.is_ok());
    // The outcome is gone after its second; that there was one is known for as long as the page
    // may lie open.
    eventually("it is done", async || {
        left().await.state == RecordState::Done
    })
    .await;
    assert!(left().await.expires_in > week / 2);
    let late = call()
        .run(async || -> Res { panic!("it runs twice") })
        .await;
    assert!(matches!(late, Err(Error::AlreadyDone { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn p13_a_token_whose_time_is_over_does_not_run() {
    let process = World::memory().process().await;
    let ttl = Duration::from_millis(1);
    let token = process.operation("t.over").issue("ada", ttl).await.unwrap();
    eventually("its time is over", async || {
        let info = process
            .operation("t.over")
            .token(&token, "ada")
            .inspect()
            .await
            .unwrap();
        info.is_none_or(|info| info.state == RecordState::Expired)
    })
    .await;
    let answer = process
        .operation("t.over")
        .token(&token, "ada")
        .run(async || -> Res { panic!("it runs") })
        .await;
    assert!(is_unknown(&answer), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_can_be_looked_at_and_withdrawn() {
    let process = World::memory().process().await;
    let token = process.operation("t.back").issue("ada", TTL).await.unwrap();
    let call = || process.operation("t.back").token(&token, "ada");
    let info = call().inspect().await.unwrap().unwrap();
    assert_eq!((info.state, info.attempt), (RecordState::Issued, 0));
    assert!(
        info.expires_in <= TTL && info.expires_in > TTL / 2,
        "{info:?}"
    );
    assert!(
        !process
            .operation("t.back")
            .token(&token, "grace")
            .forget()
            .await
            .unwrap()
    );
    assert!(call().forget().await.unwrap());
    assert!(is_unknown(&call().run(async || Res::Ok(1)).await));
}

#[tokio::test(start_paused = true)]
async fn another_form_under_the_same_token_is_another_payload() {
    let process = World::memory().process().await;
    let token = process
        .operation("t.print")
        .issue("ada", TTL)
        .await
        .unwrap();
    let call = |amount: u32| {
        process
            .operation("t.print")
            .token(&token, "ada")
            .fingerprint(&amount)
    };
    call(1).run(async || Res::Ok(1)).await.unwrap();
    let answer: Res<_> = call(2).run(async || Res::Ok(2)).await;
    assert!(
        matches!(answer, Err(Error::FingerprintMismatch { .. })),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn many_tokens_are_issued_at_once_each_to_its_own_subject() {
    let process = World::memory().process().await;
    let subjects: Vec<String> = (0..1_500).map(|number| format!("guest-{number}")).collect();
    let tokens = process
        .operation("t.guests")
        .issue_many(&subjects, TTL)
        .await
        .unwrap();
    assert_eq!(tokens.len(), subjects.len());
    for (token, subject) in tokens.iter().zip(&subjects).step_by(499) {
        let call = process.operation("t.guests").token(token, subject);
        assert!(!call.run(async || Res::Ok(1)).await.unwrap().is_replayed());
        assert!(is_unknown(
            &process
                .operation("t.guests")
                .token(token, "guest-x")
                .run(async || Res::Ok(1))
                .await
        ));
    }
    let none: [&str; 0] = [];
    assert_eq!(
        process
            .operation("t.guests")
            .issue_many(none, TTL)
            .await
            .unwrap(),
        []
    );
}

#[tokio::test(start_paused = true)]
async fn an_issue_whose_reply_is_lost_is_sent_again_and_recognised() {
    let (builder, faults) = World::memory().faulty().await;
    let process = builder.build();
    faults.next(Step::Issue, Fault::LoseReply);
    let token = process.operation("t.lost").issue("ada", TTL).await.unwrap();
    assert_eq!(faults.calls(Step::Issue), 2);
    process
        .operation("t.lost")
        .token(&token, "ada")
        .run(async || Res::Ok(1))
        .await
        .unwrap();

    faults.always(Step::Issue, Fault::Fail(StoreErrorKind::Unavailable));
    let failed = process.operation("t.lost").issue("ada", TTL).await;
    assert!(matches!(failed, Err(Error::Store { .. })), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_lost_is_recognised_and_one_that_is_dropped_leaves_the_token() {
    let (builder, faults) = World::memory().faulty().await;
    let process = builder.build();
    let token = process
        .operation("t.claim")
        .issue("ada", TTL)
        .await
        .unwrap();
    faults.next(Step::Claim, Fault::LoseReply);
    let outcome = process
        .operation("t.claim")
        .token(&token, "ada")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert!(!outcome.is_replayed());

    let token = process
        .operation("t.claim")
        .issue("ada", TTL)
        .await
        .unwrap();
    let gate = idem_testkit::Gate::new();
    faults.next(Step::Claim, Fault::HangReply(gate.clone()));
    let call = process.operation("t.claim").token(&token, "ada");
    let dropped = tokio::spawn(call.run(async || -> Res { panic!("it runs") }));
    gate.reached().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.open();
    eventually("the token is given back", async || {
        let info = process
            .operation("t.claim")
            .token(&token, "ada")
            .inspect()
            .await
            .unwrap();
        info.is_some_and(|info| info.state == RecordState::Issued)
    })
    .await;
    let outcome = process
        .operation("t.claim")
        .token(&token, "ada")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert!(!outcome.is_replayed());
}

#[tokio::test(start_paused = true)]
async fn p4_a_call_with_a_token_never_runs_without_the_store() {
    let (builder, faults) = World::memory().faulty().await;
    let process = builder
        .store_failure(StoreFailure::Run)
        .missing_key(idem::MissingKey::Run)
        .build();
    let token = process.operation("t.down").issue("ada", TTL).await.unwrap();
    faults.always(Step::Claim, Fault::Refuse);
    let call = || {
        process
            .operation("t.down")
            .token(&token, "ada")
            .store_failure(StoreFailure::Run)
    };
    let answer = call().run(async || -> Res { panic!("it runs") }).await;
    assert!(matches!(answer, Err(Error::Store { .. })), "{answer:?}");
    let nobody: Option<&str> = None;
    let call = process
        .operation("t.down")
        .token(&token, &nobody)
        .missing_key(idem::MissingKey::Run);
    let answer = call.run(async || -> Res { panic!("it runs") }).await;
    assert!(
        matches!(answer, Err(Error::MissingSubject { .. })),
        "{answer:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_issued_is_refused_with_what_to_do() {
    let process = World::memory().process().await;
    let refused = async |subject: Option<&str>, ttl: Duration| {
        process
            .operation("t.no")
            .issue(&subject, ttl)
            .await
            .unwrap_err()
    };
    let none = refused(None, TTL).await;
    let zero = refused(Some("ada"), Duration::ZERO).await;
    assert!(
        matches!(none, Error::MissingSubject { .. }) && none.to_string().contains("logged in"),
        "{none}"
    );
    assert!(
        matches!(zero, Error::Config { .. }) && zero.to_string().contains("at least 1 ms"),
        "{zero}"
    );
    let endless = refused(Some("ada"), Duration::MAX).await;
    assert!(
        endless.to_string().contains("is the unit right?"),
        "{endless}"
    );
    let bad_name = process
        .operation("no name")
        .issue("ada", TTL)
        .await
        .unwrap_err();
    assert!(matches!(bad_name, Error::Config { .. }), "{bad_name}");
    assert!(
        process
            .operation("t.no")
            .issue_many(["ada", ""], TTL)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_call_has_a_key_or_a_token_and_not_both() {
    let process = World::memory().process().await;
    let token = process.operation("t.both").issue("ada", TTL).await.unwrap();
    for call in [
        process.operation("t.both").key("k").token(&token, "ada"),
        process.operation("t.both").token(&token, "ada").key("k"),
    ] {
        let answer = call.run(async || Res::Ok(1)).await;
        assert!(matches!(answer, Err(Error::Config { .. })), "{answer:?}");
    }
    let keyed = process.operation("t.both").key("k").issue("ada", TTL).await;
    assert!(matches!(keyed, Err(Error::Config { .. })), "{keyed:?}");
}

#[tokio::test]
async fn a_disabled_runtime_issues_tokens_and_asks_for_none() {
    let disabled = idem::Idempotency::disabled();
    let token: Token = disabled.operation("t.off").issue("ada", TTL).await.unwrap();
    assert_eq!(token.to_string().len(), 36);
    for sent in ["no token", &token.to_string()] {
        assert!(
            !disabled
                .operation("t.off")
                .token(sent, "ada")
                .run(async || Res::Ok(1))
                .await
                .unwrap()
                .is_replayed()
        );
    }
}

#[tokio::test]
async fn a_full_memory_store_issues_nothing_and_says_so() {
    let process = idem::Idempotency::new(idem::MemoryStore::with_capacity(1));
    process.operation("t.full").issue("ada", TTL).await.unwrap();
    let full = process
        .operation("t.full")
        .issue("ada", TTL)
        .await
        .unwrap_err();
    assert!(
        matches!(&full, Error::Store { source, .. } if source.kind() == StoreErrorKind::Full),
        "{full}"
    );
}
