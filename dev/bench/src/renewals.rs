//! Many bodies in flight, whose leases are renewed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem::{Error, Idempotency};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::report::{Figure, Group, Unit};
use crate::tap::Tap;
use crate::target::Target;
use crate::target::store;

const BODIES: usize = 2000;
const LEASE: Duration = Duration::from_secs(1);
/// Before it is counted, so that all claims are over and renewals go on as they will.
const SETTLE: Duration = Duration::from_secs(1);
/// For how long it is counted: several leases.
const WINDOW: Duration = Duration::from_secs(4);

/// By round.
#[derive(Default)]
pub(crate) struct Renewals {
    round_trips: Vec<f64>,
    kilobytes: Vec<f64>,
    lost: Vec<f64>,
}

impl Renewals {
    #[allow(clippy::cast_precision_loss)]
    pub(crate) async fn round(&mut self, target: &Target, round: usize) -> Result<()> {
        let server = target
            .own()
            .context("round trips are counted on a server of our own")?;
        let tap = Tap::start(server.port()).await?;
        let idempotency = Idempotency::builder(store(&tap.url(), &target.prefix()).await?)
            .lease(LEASE)
            .build();
        let (end, ends) = watch::channel(false);
        let begun = Arc::new(AtomicU64::new(0));
        let mut running = JoinSet::new();
        for number in 0..BODIES {
            let idempotency = idempotency.clone();
            let begun = begun.clone();
            let mut ends = ends.clone();
            let key = format!("{}-{round}-{number}", target.run);
            running.spawn(async move {
                let body = || async move {
                    begun.fetch_add(1, Ordering::Relaxed);
                    // The sender lives as long as the bodies.
                    let _ = ends.wait_for(|end| *end).await;
                    Ok::<_, Error>(())
                };
                idempotency
                    .operation("long")
                    .key(&key)
                    .run(body)
                    .await
                    .map(drop)
            });
        }
        let all_begun = async {
            while begun.load(Ordering::Relaxed) < BODIES as u64 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), all_begun)
            .await
            .context("not all bodies have begun")?;
        sleep(SETTLE).await;
        let counted = Instant::now();
        let round_trips = tap.round_trips();
        let bytes = tap.bytes();
        sleep(WINDOW).await;
        let seconds = counted.elapsed().as_secs_f64();
        self.round_trips
            .push((tap.round_trips() - round_trips) as f64 / seconds);
        self.kilobytes
            .push((tap.bytes() - bytes) as f64 / seconds / 1e3);
        end.send_replace(true);
        let mut kept = 0;
        while let Some(ended) = running.join_next().await {
            kept += usize::from(ended?.is_ok());
        }
        self.lost.push((BODIES - kept) as f64);
        ensure!(
            begun.load(Ordering::Relaxed) == BODIES as u64,
            "a body ran twice"
        );
        Ok(())
    }

    /// The tables' part.
    pub(crate) fn group(self) -> Group {
        let figures = vec![
            Figure::new(
                "2,000 bodies, lease 1 s: round trips a second",
                Unit::Count,
                self.round_trips,
            )
            .at_most(40.0)
            .series(
                "kilobytes a second to the server:",
                Unit::Count,
                &self.kilobytes,
            ),
            Figure::new("leases that were lost", Unit::Count, self.lost).at_most(0.0),
        ];
        Group {
            title: "Renewal".to_owned(),
            figures,
        }
    }
}
