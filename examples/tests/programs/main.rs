//! The examples, each as the process that cargo has built with these tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod again;
#[cfg(all(feature = "grpc", feature = "inbox", feature = "mails"))]
mod full;
mod program;
mod run;
