//! The core by itself, over its store in memory: durations that are texts, the public face, holds,
//! steps, links of traces, and the format of records.

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
mod face;
mod hold;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod quiet;
mod steps;
mod subscriber;
mod wire;
