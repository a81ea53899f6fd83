//! More calls at once than the store has connections.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::{TWO_SECONDS, fails_in_time, id, over_both_servers, recovers, runtime};

over_both_servers! {
    async fn a_burst_of_a_thousand_calls_is_answered<S: Server>() {
        let server = S::empty().await;
        crate::a_thousand_calls(&runtime(server.store().await)).await;
    }
}

mod quiet {
    use super::*;

    over_both_servers! {
        async fn a_burst_on_a_stopped_server_fails_in_time_and_the_store_goes_on_after_it<S: Server>() {
            let server = S::start().await;
            let store = server.own_store().await;
            recovers(&store).await;
            server.pause();
            let begun = Instant::now();
            let mut steps = JoinSet::new();
            for _ in 0..300 {
                let store = store.clone();
                steps.spawn(async move { drop(fails_in_time(&store).await) });
            }
            while let Some(step) = steps.join_next().await {
                step.unwrap();
            }
            assert!(begun.elapsed() < TWO_SECONDS, "{:?}", begun.elapsed());
            server.resume();
            recovers(&store).await;
            assert!(
                idem_core::Store::inspect(&store, &id("k"))
                    .await
                    .unwrap()
                    .is_none()
            );
        }
    }
}
