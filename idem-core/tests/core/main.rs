//! The core by itself, over its store in memory: durations that are texts, the public face, holds,
//! steps, links of traces, the runs of records, and their format.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::similar_names,
    clippy::unchecked_time_subtraction,
    missing_docs
)]

mod durations;
mod endings;
mod face;
mod hold;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod quiet;
mod steps;
mod subscriber;
mod transitions;
mod wire;
