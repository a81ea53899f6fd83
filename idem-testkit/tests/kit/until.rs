//! Waiting for a state.

use std::time::Duration;

/// Waits until something is so, for longer than any machine needs.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in 30 s: {what}");
}
