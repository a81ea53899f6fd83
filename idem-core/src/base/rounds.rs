//! Transactions that run again after a conflict.

use std::future::Future;

use crate::base::backoff::Backoff;

/// How one round of a transaction has ended. The transaction is over by then.
#[derive(Debug)]
pub enum Round<T> {
    /// There is no further round.
    Over(T),
    /// It met another transaction and is rolled back. The next round begins after a pause.
    Conflict,
    /// It has waited for something else, with no transaction open. The next round begins at once,
    /// with the same number.
    Waited,
}

/// A transaction that runs again after a conflict.
///
/// A trait, because the future of an async closure cannot be promised to be `Send`.
pub trait Rounds<T> {
    /// Begins a transaction, runs it, and ends it. The first round has the number 1. The last round
    /// that there may be gives [`Round::Over`] whatever it meets.
    fn round(&mut self, number: u32) -> impl Future<Output = Round<T>>;
}

/// Runs the rounds of a transaction until one is over.
///
/// # Cancellation safety
///
/// The same as that of a round. In between, no transaction is open.
pub async fn run_rounds<T>(mut pauses: Backoff, mut rounds: impl Rounds<T>) -> T {
    let mut number = 1;
    loop {
        match rounds.round(number).await {
            Round::Over(result) => return result,
            Round::Waited => {}
            Round::Conflict => {
                number += 1;
                tokio::time::sleep(pauses.next_pause()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::clock;

    struct Script(Vec<Round<u32>>, Vec<u32>);

    impl Rounds<Vec<u32>> for Script {
        async fn round(&mut self, number: u32) -> Round<Vec<u32>> {
            self.1.push(number);
            match self.0.remove(0) {
                Round::Over(_) => Round::Over(std::mem::take(&mut self.1)),
                Round::Conflict => Round::Conflict,
                Round::Waited => Round::Waited,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_counts_and_is_followed_by_a_pause_and_a_wait_neither() {
        let pauses = || Backoff::new(Duration::from_secs(4), Duration::from_secs(8));
        let began = clock::now();
        let waits = vec![Round::Waited, Round::Waited, Round::Over(0)];
        assert_eq!(
            run_rounds(pauses(), Script(waits, Vec::new())).await,
            [1, 1, 1]
        );
        assert_eq!(clock::now(), began);
        let conflicts = vec![
            Round::Conflict,
            Round::Waited,
            Round::Conflict,
            Round::Over(0),
        ];
        assert_eq!(
            run_rounds(pauses(), Script(conflicts, Vec::new())).await,
            [1, 2, 2, 3]
        );
        // Pauses of 2 to 4 and of 4 to 8 seconds.
        assert!(clock::now() >= clock::after(began, Duration::from_secs(6)));
    }
}
