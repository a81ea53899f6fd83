//! The W3C trace context of a call, which its record keeps, and the links of replays to it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::record::{Encoded, is_trace};

/// Gives a `traceparent`.
pub(crate) type TraceContext = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The trace of one call. It is read once, at the call's first claim, in the call's span.
pub(crate) struct CallTrace {
    current: TraceContext,
    known: OnceLock<Option<Arc<str>>>,
}

impl CallTrace {
    pub(crate) fn new(current: &TraceContext) -> Arc<Self> {
        Arc::new(Self {
            current: current.clone(),
            known: OnceLock::new(),
        })
    }

    /// Replaces the trace by that of an earlier call, which this call settles.
    pub(crate) fn is_that_of(&self, earlier: Option<Arc<str>>) {
        let _ = self.known.set(earlier);
    }

    pub(crate) fn get(&self) -> Option<Arc<str>> {
        let current = || {
            // A panic in the application's tracing must not end the call.
            let trace = catch_unwind(AssertUnwindSafe(|| (self.current)())).ok()??;
            is_trace(&trace).then(|| trace.into())
        };
        self.known.get_or_init(current).clone()
    }
}

/// The trace of a call, if its runtime keeps traces.
pub(crate) fn of(call: Option<&Arc<CallTrace>>) -> Option<Arc<str>> {
    call.and_then(|call| call.get())
}

/// Adds the trace of a call to its outcome.
pub(crate) fn traced(call: Option<&Arc<CallTrace>>, mut outcome: Encoded) -> Encoded {
    if let Some(trace) = of(call) {
        outcome.describe(|metadata| metadata.trace = Some(trace));
    }
    outcome
}

impl fmt::Debug for CallTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallTrace").field(&self.known.get()).finish()
    }
}

/// The trace context of the current span, by the layer of `tracing-opentelemetry`.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current() -> Option<String> {
    use opentelemetry::trace::TraceContextExt as _;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| {
        format!(
            "00-{}-{}-{:02x}",
            span.trace_id(),
            span.span_id(),
            span.trace_flags().to_u8()
        )
    })
}

/// Links the current span, in which an outcome is replayed, to the span of the call that ran.
#[cfg(feature = "opentelemetry")]
pub(crate) fn link(trace: &str) {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    let fields: Vec<_> = trace.split('-').collect();
    let [_, trace, span, flags] = fields[..] else {
        return;
    };
    if let (Ok(trace), Ok(span), Ok(flags)) = (
        TraceId::from_hex(trace),
        SpanId::from_hex(span),
        u8::from_str_radix(flags, 16),
    ) {
        let that = SpanContext::new(trace, span, TraceFlags::new(flags), true, TraceState::NONE);
        tracing::Span::current().add_link(that);
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn link(_trace: &str) {}
