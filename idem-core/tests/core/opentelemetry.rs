//! Records name the span of the call that ran, and replays link to it, as an exporter sees it.

use std::time::Duration;

use idem_core::{Abandoned, Begin, Error, Idempotency, MemoryStore, Operation, RecordState};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument as _, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::subscriber;

/// The spans of this thread that have ended.
struct Spans {
    exporter: InMemorySpanExporter,
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Spans {
    fn of_level(level: LevelFilter) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        // Not a filter of the layer alone: beside subscribers of other tests, the registry would make
        // the spans that it rejects.
        let guard =
            subscriber::of_this_thread(tracing_subscriber::registry().with(level).with(layer));
        Self {
            exporter,
            _provider: provider,
            _guard: guard,
        }
    }

    /// The span of this name, below the caller's span of that name if there is one.
    fn named(&self, name: &str, parent: Option<&SpanData>) -> SpanData {
        let is_it = |span: &SpanData| {
            span.name == name
                && parent.is_none_or(|parent| span.parent_span_id == parent.span_context.span_id())
        };
        let found: Vec<_> = self
            .exporter
            .get_finished_spans()
            .unwrap()
            .into_iter()
            .filter(is_it)
            .collect();
        assert_eq!(found.len(), 1, "{name}: {found:#?}");
        found.into_iter().next().unwrap()
    }

    /// The span around a call that was made in the caller's span of this name.
    fn of_call(&self, caller: &str) -> SpanData {
        self.named("idempotent", Some(&self.named(caller, None)))
    }
}

fn links(span: &SpanData) -> Vec<String> {
    span.links
        .iter()
        .map(|link| traceparent(&link.span_context))
        .collect()
}

fn traceparent(span: &opentelemetry::trace::SpanContext) -> String {
    format!(
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        span.trace_flags().to_u8()
    )
}

fn call(idempotency: &Idempotency) -> Operation<'_> {
    idempotency.operation("orders.charge").key("o-1")
}

async fn run(idempotency: &Idempotency) -> u32 {
    call(idempotency)
        .run(async || Ok::<_, Error>(42))
        .await
        .unwrap()
        .into_inner()
}

async fn trace(idempotency: &Idempotency) -> Option<String> {
    call(idempotency)
        .inspect()
        .await
        .unwrap()
        .unwrap()
        .trace
        .map(|trace| trace.to_string())
}

fn runtime() -> Idempotency {
    Idempotency::builder(MemoryStore::new())
        .opentelemetry()
        .build()
}

#[tokio::test]
async fn a_replay_links_to_the_span_of_the_call_that_ran() {
    let spans = Spans::of_level(LevelFilter::DEBUG);
    let idempotency = runtime();
    for caller in ["first", "second"] {
        assert_eq!(
            run(&idempotency)
                .instrument(info_span!("caller", otel.name = caller))
                .await,
            42
        );
    }
    let ran = spans.of_call("first");
    let replayed = spans.of_call("second");
    assert_eq!(
        trace(&idempotency).await,
        Some(traceparent(&ran.span_context))
    );
    assert_eq!(
        (links(&ran), links(&replayed)),
        (vec![], vec![traceparent(&ran.span_context)])
    );
    assert_ne!(
        ran.span_context.trace_id(),
        replayed.span_context.trace_id()
    );
}

#[tokio::test]
async fn where_the_span_of_calls_is_disabled_those_of_the_callers_are_linked() {
    let spans = Spans::of_level(LevelFilter::INFO);
    let idempotency = runtime();
    for caller in ["first", "second"] {
        run(&idempotency)
            .instrument(info_span!("caller", otel.name = caller))
            .await;
    }
    let first = spans.named("first", None);
    let second = spans.named("second", None);
    assert_eq!(links(&second), [traceparent(&first.span_context)]);
}

#[tokio::test]
async fn a_duplicate_that_has_waited_links_to_the_call_it_waited_for() {
    let spans = Spans::of_level(LevelFilter::DEBUG);
    let idempotency = runtime();
    let Begin::Execute(lease) = call(&idempotency)
        .begin()
        .instrument(info_span!("owner"))
        .await
        .unwrap()
    else {
        panic!("the key is free")
    };
    let waiter = run(&idempotency).instrument(info_span!("waiter"));
    let commit = async {
        tokio::task::yield_now().await;
        lease.commit(&7u32).await.unwrap();
    };
    let (replayed, ()) = tokio::join!(waiter, commit);
    assert_eq!(replayed, 7);
    assert_eq!(
        links(&spans.of_call("waiter")),
        [traceparent(&spans.named("owner", None).span_context)]
    );
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_call_names_its_span_and_what_settles_it_keeps_that() {
    let spans = Spans::of_level(LevelFilter::DEBUG);
    let idempotency = runtime();
    let abandoned = || {
        call(&idempotency)
            .abandoned(Abandoned::Reject)
            .lease(Duration::from_secs(1))
    };
    let lease = abandoned()
        .begin()
        .instrument(info_span!("killed"))
        .await
        .unwrap();
    let killed = traceparent(&spans.named("killed", None).span_context);
    assert_eq!(trace(&idempotency).await, Some(killed.clone()), "in flight");
    drop(lease);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let record = call(&idempotency).inspect().await.unwrap().unwrap();
    assert_eq!(
        (record.state, record.trace.map(|trace| trace.to_string())),
        (RecordState::Abandoned, Some(killed.clone()))
    );

    abandoned()
        .settle(&42u32)
        .instrument(info_span!("operator"))
        .await
        .unwrap();
    assert_eq!(trace(&idempotency).await, Some(killed.clone()), "settled");
    run(&idempotency).instrument(info_span!("late")).await;
    assert_eq!(links(&spans.of_call("late")), [killed]);
}

#[tokio::test]
async fn without_the_setting_and_without_a_layer_no_record_has_a_trace() {
    let idempotency = Idempotency::new(MemoryStore::new());
    {
        let spans = Spans::of_level(LevelFilter::DEBUG);
        for caller in ["first", "second"] {
            run(&idempotency)
                .instrument(info_span!("caller", otel.name = caller))
                .await;
        }
        assert_eq!(
            (trace(&idempotency).await, links(&spans.of_call("second"))),
            (None, vec![])
        );
    }
    let idempotency = runtime();
    run(&idempotency).await;
    assert_eq!(trace(&idempotency).await, None);
}
