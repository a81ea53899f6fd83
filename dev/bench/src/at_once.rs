//! Many tasks that call at the same time.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

/// Has tasks call again and again for so long. Each call gets the number of its task, and how many
/// calls that task made before. Returns how many numbers of keys may have been used, and the calls
/// a second.
pub(crate) async fn at_once<Call>(
    tasks: u64,
    length: Duration,
    call: impl Fn(u64, u64) -> Call + Clone + Send + 'static,
) -> Result<(u64, f64)>
where
    Call: Future<Output = Result<()>> + Send,
{
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for task in 0..tasks {
        let call = call.clone();
        running.spawn(async move {
            let mut calls = 0;
            while begun.elapsed() < length {
                call(task, calls).await?;
                calls += 1;
            }
            anyhow::Ok(calls)
        });
    }
    let mut all = 0;
    let mut most = 0;
    while let Some(calls) = running.join_next().await {
        let calls: u64 = calls??;
        all += calls;
        most = most.max(calls);
    }
    #[allow(clippy::cast_precision_loss)]
    let rate = all as f64 / begun.elapsed().as_secs_f64();
    Ok((most * tasks, rate))
}
