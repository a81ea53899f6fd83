//! Connections are bound to a tokio runtime, and callers come from others.

use std::time::Duration;

use crate::{fails_in_time, order, over_both_servers, runtime};

fn another() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

over_both_servers! {
    async fn a_caller_whose_runtime_ends_takes_no_connection_along<S: Server>() {
        let server = S::empty().await;
        let idempotency = runtime(server.store().await);
        for round in 0..12_u32 {
            let other = another();
            let call = idempotency.clone();
            let (begun, begins) = tokio::sync::oneshot::channel();
            other.spawn(async move {
                let _ = begun.send(());
                order(&call, &round.to_string(), round).await
            });
            begins.await.unwrap();
            // In the middle of its step, most of the time.
            other.shutdown_background();
            assert!(order(&idempotency, &format!("own {round}"), 1).await.is_ok());
        }
    }
}

mod quiet {
    use super::*;

    over_both_servers! {
        async fn the_end_of_the_stores_own_runtime_is_an_error_in_time<S: Server>() {
            let server = S::empty().await;
            let other = another();
            let url = server.url();
            let store = other.spawn(async move {
                let store = S::connect(&url).await.unwrap();
                S::migrate(&store).await.unwrap();
                store
            }).await.unwrap();
            other.shutdown_background();
            let error = fails_in_time(&store).await;
            assert!(error.is_unknown() && error.to_string().contains("runtime"), "{error}");
            let error = order(&runtime(store), "k", 1).await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
        }

        async fn a_parked_runtime_of_the_store_is_an_error_in_time<S: Server>() {
            let server = S::empty().await;
            let other = another();
            let url = server.url();
            let store = other.spawn(async move {
                let store = S::connect(&url).await.unwrap();
                S::migrate(&store).await.unwrap();
                store
            }).await.unwrap();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            other.spawn(async move { let _ = ended.recv_timeout(Duration::from_secs(10)); });
            tokio::task::yield_now().await;
            fails_in_time(&store).await;
            drop(end);
            crate::recovers(&store).await;
            other.shutdown_background();
        }
    }
}
