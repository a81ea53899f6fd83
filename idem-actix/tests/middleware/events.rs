//! What the layer logs, on whatever thread it runs.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::site;

/// The decisions of all tests of this program since the subscriber was set.
static DECISIONS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

struct Decisions;

impl Visit for Decisions {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "decision" {
            DECISIONS.lock().unwrap().insert(value.to_owned());
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Decisions {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[actix_web::test]
async fn a_response_is_read_back_as_it_was_recorded() {
    tracing::subscriber::set_global_default(Decisions).unwrap();
    let site = site();
    for path in ["/charges", "/linked", "/streaming", "/failing"] {
        for _ in 0..2 {
            site.post(path, path, "10").await;
        }
    }
    let decisions = DECISIONS.lock().unwrap();
    assert!(decisions.contains("executed"), "{decisions:?}");
    assert!(!decisions.contains("not_read_back"), "{decisions:?}");
}
