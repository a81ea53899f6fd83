//! The examples, each as a process, as cargo has built it beside these tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod again;
#[cfg(all(feature = "grpc", feature = "inbox", feature = "mails"))]
mod full;
mod program;
mod run;
