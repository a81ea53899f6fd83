//! Facts about a call in its record: its W3C trace context, with the links of replays to it, and
//! the type of its outcome.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::policy::settings::Settings;
use crate::record::{Encoded, Metadata, RecordInfo, is_trace, short_type_name};

/// Gives a `traceparent`.
pub(crate) type TraceContext = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The metadata of one call in its record in flight. It is found out once, at the call's first
/// claim, in the call's span.
pub(crate) struct CallMetadata {
    current: Option<TraceContext>,
    /// `None`: the record does not name the outcome's type.
    type_name: Option<OnceLock<&'static str>>,
    known: OnceLock<Option<Arc<Metadata>>>,
}

impl CallMetadata {
    /// Returns `None` if the record says nothing.
    pub(crate) fn new(current: Option<&TraceContext>, settings: &Settings) -> Option<Arc<Self>> {
        let names_type = settings.may_need_a_person();
        (current.is_some() || names_type).then(|| {
            Arc::new(Self {
                current: current.cloned(),
                type_name: names_type.then(OnceLock::new),
                known: OnceLock::new(),
            })
        })
    }

    /// Names the type of the value that the call returns. It counts before the first claim.
    pub(crate) fn returns<T>(&self) {
        if let Some(name) = &self.type_name {
            let _ = name.set(std::any::type_name::<T>());
        }
    }

    /// Replaces it by that of an earlier call, which this call settles.
    pub(crate) fn is_that_of(&self, earlier: Option<&RecordInfo>) {
        let said = earlier.map(|info| Metadata {
            trace: info.trace.clone(),
            type_name: info.outcome_type.clone(),
            ..Metadata::default()
        });
        let _ = self.known.set(said.map(Arc::new));
    }

    fn get(&self) -> Option<Arc<Metadata>> {
        let said = || {
            let type_name = self.type_name.as_ref().and_then(OnceLock::get);
            let metadata = Metadata {
                trace: self.trace(),
                type_name: type_name.map(|name| short_type_name(name)),
                ..Metadata::default()
            };
            (!metadata.is_empty()).then(|| Arc::new(metadata))
        };
        self.known.get_or_init(said).clone()
    }

    fn trace(&self) -> Option<Arc<str>> {
        let current = self.current.as_ref()?;
        // A panic in the application's tracing must not end the call.
        let trace = catch_unwind(AssertUnwindSafe(|| current())).ok()??;
        is_trace(&trace).then(|| trace.into())
    }
}

/// Returns the metadata of a call in its record in flight.
pub(crate) fn in_flight(call: Option<&Arc<CallMetadata>>) -> Option<Arc<Metadata>> {
    call.and_then(|call| call.get())
}

/// Adds the trace of a call to its outcome.
pub(crate) fn traced(call: Option<&Arc<CallMetadata>>, mut outcome: Encoded) -> Encoded {
    if let Some(trace) = in_flight(call).and_then(|call| call.trace.clone()) {
        outcome.describe(|metadata| metadata.trace = Some(trace));
    }
    outcome
}

impl fmt::Debug for CallMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallMetadata")
            .field(&self.known.get())
            .finish()
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
