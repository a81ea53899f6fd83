//! The caller is not told what is wrong with a token; the events say it, and show neither token nor
//! subject.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::{Idempotency, MemoryStore};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{Res, TTL};
use crate::support::events::logging;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<String>, String)>>);

struct Fields<'a>(&'a mut (Vec<String>, String));

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "decision" {
            self.0.0.push(text.trim_matches('"').to_owned());
        }
        self.0.1.push_str(&text);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Fields(&mut self.0.lock().unwrap()));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn p12_the_caller_cannot_tell_what_is_wrong_and_the_events_can() {
    let log = Log::default();
    let _guard = logging(log.clone());
    let process = Idempotency::builder(MemoryStore::new())
        .log_keys()
        .limit_token_failures(4, TTL)
        .build();
    let issue = async |subject: &str, ttl| {
        process
            .operation("t.log")
            .issue(subject, ttl)
            .await
            .unwrap()
            .to_string()
    };
    let expired = issue("subject-ada", Duration::from_secs(1)).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let of_another = issue("grace", TTL).await;
    let unknown = Idempotency::disabled()
        .operation("t.log")
        .issue("subject-ada", TTL)
        .await
        .unwrap()
        .to_string();
    log.0.lock().unwrap().0.clear();

    let mut told = Vec::new();
    let sent = [unknown, expired, "f0rged".to_owned(), of_another];
    for token in sent.iter().chain(&sent[2..]) {
        let call = process.operation("t.log").token(token, "subject-ada");
        let error = call.run(async || Res::Ok(1)).await.unwrap_err();
        told.push((
            error.is_retryable(),
            error
                .to_string()
                .replace(|c: char| c.is_ascii_hexdigit(), ""),
        ));
    }
    let (decisions, text) = log.0.lock().unwrap().clone();
    let wanted = [
        "token_unknown",
        "token_expired",
        "token_forged",
        "token_of_another",
        "token_forged",
        "token_throttled",
    ];
    assert_eq!(decisions, wanted);
    assert!(told[..5].iter().all(|one| *one == told[0]), "{told:#?}");
    assert_ne!(told[5], told[0]);
    assert!(
        !text.contains("subject-ada") && text.contains("subject "),
        "{text}"
    );
    for token in sent {
        assert!(!text.contains(&token), "{token} in {text}");
    }
}
