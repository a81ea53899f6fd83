//! Transactions that begin themselves: what runs again, what is committed, and what is lost.

mod bodies;
mod conflicts;
mod kept;

use std::error::Error;
use std::fmt::Write as _;

use idem_core::Idempotency;

/// The texts of an error and of all its sources.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for error in std::iter::successors(Some(error), |error| (*error).source()) {
        let _ = writeln!(text, "{error}");
    }
    text
}

async fn has_record(idempotency: &Idempotency, name: &str) -> bool {
    let call = idempotency.operation("begun").key(name);
    call.inspect().await.unwrap().is_some()
}
