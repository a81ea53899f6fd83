//! Annotated functions, and what the attribute has besides: errors, codecs, the profile for
//! payments, and the warnings of generated code.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs
)]
// For `lints`: these count at the top alone.
#![warn(future_incompatible, rust_2021_compatibility, rust_2024_compatibility)]

mod attribute;
mod codec;
mod errors;
#[path = "../ui/pass/forms.rs"]
mod forms;
// Public as in a crate of its own: a lint looks for items that nobody reaches.
pub mod lints;
#[path = "../ui/pass/near_misses.rs"]
mod near_misses;
mod profile;
#[path = "../support/mod.rs"]
mod support;
