//! P12: nothing silent, and no key in the logs.

#[cfg(feature = "sqlite")]
mod endings;
mod given_up;
mod observe;
mod read_back;
mod steps;
mod trail;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::events::AtEachEvent;
use crate::support::{Failure, LEASE, LONG, World, eventually};
use idem::{Error, RecordState, StoreFailure};
use idem_testkit::{Fault, Gate, Step};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What was logged: level and `decision`, with what an observing call `would` have come to, and all
/// texts together.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Logged>>);

type Logged = (Vec<(Level, String)>, String);

impl Log {
    fn decisions(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }
    fn text(&self) -> String {
        self.0.lock().unwrap().1.clone()
    }
}

struct Fields<'a>(&'a mut Logged, Level);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "decision" {
            self.0.0.push((self.1, text.trim_matches('"').to_owned()));
        }
        if let ("would", Some((_, decision))) = (field.name(), self.0.0.last_mut()) {
            *decision = format!("{decision}: {}", text.trim_matches('"'));
        }
        if field.name() == "attempt" {
            self.0.1.push_str("attempt ");
        }
        self.0.1.push_str(&text);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Fields(
            &mut self.0.lock().unwrap(),
            *span.metadata().level(),
        ));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(
            &mut self.0.lock().unwrap(),
            *event.metadata().level(),
        ));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn logged(decisions: &[(Level, &str)]) -> Vec<(Level, String)> {
    decisions
        .iter()
        .map(|(level, decision)| (*level, (*decision).to_owned()))
        .collect()
}

/// One call, and what it is expected to log.
macro_rules! expect {
    ($log:expr, $call:expr, [$($level:ident $decision:literal),*]) => {{
        let answer = $call.await;
        assert_eq!($log.decisions(), logged(&[$((Level::$level, $decision)),*]));
        answer
    }};
}

/// `false` cannot be written.
#[derive(Debug)]
struct Kept(bool);
impl From<Error> for Kept {
    fn from(_: Error) -> Self {
        Self(false)
    }
}
impl serde::Serialize for Kept {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 {
            serializer.serialize_unit()
        } else {
            Err(serde::ser::Error::custom("no"))
        }
    }
}
impl<'de> serde::Deserialize<'de> for Kept {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <() as serde::Deserialize>::deserialize(deserializer).map(|()| Self(true))
    }
}

#[tokio::test(start_paused = true)]
async fn p12_a_change_by_hand_says_who_made_it_and_why() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let idempotency = World::memory().builder().await.lease(LEASE).build();
    let call = |key: &'static str| idempotency.operation("events.by_hand").key(key);
    for key in ["settled", "released", "forgotten"] {
        let dropped = call(key).run(std::future::pending::<Result<u32, Error>>);
        tokio::time::timeout(LEASE / 10, dropped).await.unwrap_err();
    }
    for key in ["settled", "released", "forgotten"] {
        let state = async || call(key).inspect().await.unwrap().unwrap().state;
        eventually("it is abandoned", async || {
            state().await == RecordState::Abandoned
        })
        .await;
    }
    log.decisions();
    call("settled")
        .audit("jane", "ticket 1")
        .settle(&7_u32)
        .await
        .unwrap();
    assert!(
        call("released")
            .audit("jane", "ticket 2")
            .release()
            .await
            .unwrap()
    );
    assert!(
        call("forgotten")
            .audit("jane\n", "ticket 3\u{202e}")
            .forget()
            .await
            .unwrap()
    );
    let decisions = log.decisions();
    for decision in ["settled", "released_by_hand", "forgotten"] {
        assert!(
            decisions.contains(&(Level::INFO, decision.to_owned())),
            "{decision}: {decisions:?}"
        );
    }
    let text = log.text();
    assert!(
        text.contains("by jane: ticket 1") && text.contains("by jane: ticket 2"),
        "{text}"
    );
    assert!(
        text.contains("ticket 3") && !text.contains(['\n', '\u{202e}']),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn p12_every_decision_is_an_event_and_keys_are_redacted() {
    let world = World::memory();
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = world.faulty().await;
    let idempotency = builder.build();
    drop(log.decisions());
    let key = "jane@example.org";
    let call = |fingerprint: u8| {
        idempotency
            .operation("events")
            .key(key)
            .fingerprint(&fingerprint)
    };

    let failed = expect!(log, call(1).run(async || Err::<u32, Failure>(Failure::Declined)), [DEBUG "released"]);
    assert!(matches!(failed, Err(Failure::Declined)));
    expect!(log, call(1).run(async || Ok::<_, Error>(7)), [DEBUG "executed"]).unwrap();
    expect!(log, call(1).run(async || Ok::<_, Error>(7)), [DEBUG "replayed"]).unwrap();
    expect!(log, call(1).run(async || Ok::<_, Error>(())), [DEBUG "replayed", WARN "unreadable"])
        .unwrap_err();
    expect!(log, call(2).run(async || Ok::<_, Error>(7)), [WARN "rejected_mismatch"]).unwrap_err();
    expect!(log, call(1).forget(), [INFO "forgotten"]).unwrap();
    expect!(log, call(1).settle(&7u32), [INFO "settled"]).unwrap();
    expect!(log, call(1).forget(), [INFO "forgotten"]).unwrap();
    expect!(log, call(1).key("").run(async || Ok::<_, Error>(7)), [INFO "rejected_missing_key"])
        .unwrap_err();
    expect!(log, call(1).lease(Duration::ZERO).run(async || Ok::<_, Error>(7)), [WARN "misconfigured"]).unwrap_err();

    let dropped = call(1)
        .lease(LEASE)
        .run(std::future::pending::<Result<u32, Error>>);
    expect!(log, tokio::time::timeout(Duration::from_millis(50), dropped), [WARN "caller_dropped"])
        .unwrap_err();
    let taken = call(1).wait(LONG).run(async || Ok::<_, Error>(7)).await;
    assert_eq!(taken.unwrap().into_inner(), 7);
    let decisions = log.decisions();
    let (waits, rest): (Vec<_>, Vec<_>) = decisions
        .into_iter()
        .partition(|(_, decision)| decision == "waited");
    assert!(!waits.is_empty());
    assert_eq!(
        rest,
        logged(&[(Level::INFO, "taken_over"), (Level::DEBUG, "executed")])
    );

    for fault in [Fault::Refuse, Fault::Refuse] {
        faults.next(Step::Claim, fault);
    }
    expect!(log, call(1).run(async || Ok::<_, Error>(7)), [WARN "store_failed"]).unwrap_err();
    let unguarded = call(1)
        .store_failure(StoreFailure::Run)
        .run(async || Ok::<_, Error>(7));
    expect!(log, unguarded, [WARN "store_failed", WARN "ran_unguarded"]).unwrap();

    let text = log.text();
    assert!(!text.contains("jane"), "a key in the logs: {text}");

    let failing = |key: &'static str, writable, action| {
        let operation = idempotency
            .operation("events.errors")
            .key(key)
            .errors(move |_: &Kept| action);
        operation.run(move || std::future::ready(Err::<u32, _>(Kept(writable))))
    };
    let once =
        |retry: idem::Retry| idem::ErrorAction::Retry(retry.backoff(Duration::from_millis(1)));
    expect!(log, failing("kept", true, idem::ErrorAction::Keep), [DEBUG "error_kept"]).unwrap_err();
    expect!(log, failing("kept", true, idem::ErrorAction::Keep), [DEBUG "replayed"]).unwrap_err();
    let unwritable = failing("unwritable", false, idem::ErrorAction::Keep);
    expect!(log, unwritable, [WARN "error_not_kept", DEBUG "released"]).unwrap_err();
    let retried = failing("retried", true, once(idem::Retry::new(2)));
    expect!(log, retried, [INFO "retried", INFO "retried", INFO "released"]).unwrap_err();
    let then_kept = failing("then", true, once(idem::Retry::new(1).then_keep()));
    expect!(log, then_kept, [INFO "retried", INFO "error_kept"]).unwrap_err();
    // Who sees the tries sees their end.
    for last in ["try 2 of 3 in ", "try 3 of 3 in ", "try 2 of 2 in "] {
        assert_eq!(log.text().matches(last).count(), 1, "{last}");
    }

    faults.next(
        Step::Claim,
        Fault::DelayReply(LEASE / 3 + Duration::from_millis(20)),
    );
    let far = idempotency
        .operation("events.far")
        .key("k")
        .lease(LEASE)
        .run(async || Ok::<_, Error>(7));
    expect!(log, far, [WARN "lease_too_short", DEBUG "executed"]).unwrap();

    let plain = world.builder().await.log_keys().build();
    plain
        .operation("events")
        .key("asked-for")
        .run(async || Ok::<_, Error>(1))
        .await
        .unwrap();
    assert!(log.text().contains("asked-for"));

    // Whoever sends the key does not write the log.
    plain
        .operation("events")
        .key("x\u{202e}y\u{200b}z")
        .run(async || Ok::<_, Error>(1))
        .await
        .unwrap();
    assert!(log.text().contains("x%E2%80%AEy%E2%80%8Bz"));
    for name in ["orders\ncreate\u{202e}", &"x".repeat(100_000)] {
        log.decisions();
        let refused = plain
            .operation(name)
            .key("k")
            .run(async || Ok::<_, Error>(1))
            .await
            .unwrap_err();
        assert!(
            matches!(refused, Error::Config { .. }) && refused.to_string().len() < 500,
            "{refused}"
        );
        // Without a key too.
        let refused = plain
            .operation(name)
            .run(async || Ok::<_, Error>(1))
            .await
            .unwrap_err();
        assert!(
            matches!(refused, Error::Config { .. }) && !refused.operation().contains('\n'),
            "{refused}"
        );
        assert_eq!(
            log.decisions(),
            logged(&[
                (Level::WARN, "misconfigured"),
                (Level::WARN, "misconfigured")
            ])
        );
    }
    let text = log.text();
    assert!(
        !text.contains('\u{202e}') && !text.contains('\n') && text.len() < 100_000,
        "{} bytes",
        text.len()
    );
}

#[tokio::test(start_paused = true)]
async fn p12_a_slow_store_is_said_once_a_second_with_how_often_it_was() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    faults.always(Step::Claim, Fault::DelayReply(LEASE / 2));
    let said = async |calls: u32, round: u32| {
        let calls = (0..calls).map(|key| {
            let call = idempotency.operation("events.slow").key(&(round, key));
            async move { call.run(async || Ok::<_, Error>(7)).await.unwrap() }
        });
        let calls: Vec<_> = calls.map(tokio::spawn).collect();
        for call in calls {
            call.await.unwrap();
        }
        log.decisions()
            .iter()
            .filter(|(_, decision)| decision == "lease_too_short")
            .count()
    };
    assert_eq!(said(100, 1).await, 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(said(1, 2).await, 1);
    assert!(
        log.text().contains("99 more since the last report"),
        "{}",
        log.text()
    );
}

#[tokio::test(start_paused = true)]
async fn p12_a_release_whose_caller_goes_away_before_the_answer_is_not_called_refused() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    let gate = Gate::new();
    faults.next(Step::Release, Fault::HangReply(gate.clone()));
    let call = idempotency
        .operation("events.release")
        .key("k")
        .run(async || Err::<u32, Failure>(Failure::Declined));
    tokio::select! { _ = call => panic!("it has ended"), () = gate.reached() => {} }
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(log.decisions(), logged(&[(Level::DEBUG, "released")]));
}

#[tokio::test(start_paused = true)]
async fn p12_a_release_whose_caller_goes_away_is_not_called_refused_although_the_key_has_a_new_owner()
 {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let other = world.process().await;
    let idempotency = builder.build();
    let reply = Gate::new();
    let again = Gate::new();
    faults.next(Step::Release, Fault::HangReply(reply.clone()));
    faults.next(Step::Release, Fault::Hang(again.clone()));
    let call = idempotency
        .operation("events.late")
        .key("k")
        .run(async || Err::<u32, Failure>(Failure::Declined));
    tokio::select! { _ = call => panic!("it has ended"), () = reply.reached() => {} }
    again.reached().await;
    let next = other
        .operation("events.late")
        .key("k")
        .begin()
        .await
        .unwrap();
    assert!(matches!(next, idem::Begin::Execute(_)), "it was released");
    again.open();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(log.decisions(), logged(&[(Level::DEBUG, "released")]));
}

#[tokio::test(start_paused = true)]
async fn p12_a_release_whose_reply_was_lost_is_not_called_refused_although_the_key_has_a_new_owner()
{
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let other = world.process().await;
    let idempotency = builder.build();
    let again = Gate::new();
    faults.next(Step::Release, Fault::LoseReply);
    faults.next(Step::Release, Fault::Hang(again.clone()));
    let call = idempotency.operation("events.lost").key("k");
    call.run(async || Err::<u32, Failure>(Failure::Declined))
        .await
        .unwrap_err();
    again.reached().await;
    let next = other.operation("events.lost").key("k").begin();
    let next = next.await.unwrap();
    assert!(matches!(next, idem::Begin::Execute(_)), "it was released");
    again.open();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        log.decisions(),
        logged(&[(Level::WARN, "release_delayed"), (Level::DEBUG, "released")])
    );
}

#[tokio::test(start_paused = true)]
async fn p12_a_release_that_the_store_has_carried_out_twice_is_not_called_refused() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, _) = World::memory().faulty().await;
    let idempotency = builder.build();
    let idem::Begin::Execute(one) = idempotency
        .operation("events.twice")
        .key("k")
        .begin()
        .await
        .unwrap()
    else {
        panic!("nobody else was there")
    };
    one.release().await.unwrap();
    // As where a store that lost the connection sends it again by itself.
    one.release().await.unwrap();
    assert_eq!(
        log.decisions(),
        logged(&[(Level::DEBUG, "released"), (Level::DEBUG, "released")])
    );
}

#[test]
fn p12_what_ends_with_the_only_tokio_runtime_is_said() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (builder, faults) = World::memory().faulty().await;
        let idempotency = builder.build();
        faults.always(Step::Release, Fault::Refuse);
        faults.always(Step::Commit, Fault::Refuse);
        for _ in 0..2 {
            faults.next(Step::Claim, Fault::LoseReply);
        }
        idempotency
            .operation("events.end")
            .key("claim")
            .run(async || Ok::<_, Error>(7))
            .await
            .unwrap_err();
        idempotency
            .operation("events.end")
            .key("commit")
            .run(async || Ok::<_, Error>(7))
            .await
            .unwrap();
        drop(log.decisions());
    });
    drop(runtime);
    let said = log.decisions();
    for decision in ["not_released", "not_recorded"] {
        assert!(
            said.contains(&(Level::WARN, decision.to_owned())),
            "{said:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p1_leases_are_renewed_on_after_a_panic_in_the_applications_subscriber() {
    let panicked = Arc::new(AtomicBool::new(false));
    let first = panicked.clone();
    let subscriber = AtEachEvent::new(move |event| {
        let mut logged = Logged::default();
        event.record(&mut Fields(&mut logged, Level::WARN));
        let failed = logged
            .0
            .iter()
            .any(|(_, decision)| decision == "renewal_failed");
        assert!(
            !failed || first.swap(true, Ordering::SeqCst),
            "a subscriber that panics"
        );
    });
    let _logging = crate::support::events::logging(subscriber);
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    faults.next(Step::Renew, Fault::Refuse);
    let body = async || {
        // Two renewals more than the one whose failure is reported.
        faults.reached(Step::Renew, 4).await;
        Ok::<_, Error>(7)
    };
    let outcome = idempotency
        .operation("events.panic")
        .key("k")
        .lease(LEASE)
        .run(body)
        .await
        .unwrap();
    assert_eq!(outcome.into_inner(), 7);
    assert!(panicked.load(Ordering::SeqCst), "it did not panic");
}
