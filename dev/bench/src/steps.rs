//! A call of ten steps, beside ten rows by hand and beside ten steps of a library for durable
//! execution. Over PostgreSQL, one call at a time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use durare::{DurableContext, DurableEngine, WorkflowOptions};
use idem::sqlx::{self, PgPool};
use idem::{Error, Idempotency, PostgresStore};
use idem_testkit::PostgresServer;

use crate::extent::Extent;
use crate::report::{Figure, Group, Report, Unit};
use crate::stats::quantile;

/// Their bodies do nothing, because what is measured is what comes on top of them.
const STEPS: u64 = 10;
/// What one writes by hand: a row for each effect, which is looked for before and written after it.
const TABLE: &str = "CREATE TABLE steps (call text, step bigint, value bigint NOT NULL, \
    PRIMARY KEY (call, step))";
const FIND: &str = "SELECT value FROM steps WHERE call = $1 AND step = $2";
const WRITE: &str = "INSERT INTO steps VALUES ($1, $2, $3)";
const HOUR: Duration = Duration::from_secs(3600);

/// Who keeps the steps.
#[derive(Clone, Copy)]
enum Subject {
    ByHand,
    Ours,
    Durare,
}

const ALL: [Subject; 3] = [Subject::ByHand, Subject::Ours, Subject::Durare];

struct Place {
    pool: PgPool,
    idempotency: Idempotency,
    engine: DurableEngine,
    _server: PostgresServer,
}

#[durare::workflow]
async fn ten_steps(ctx: DurableContext, _call: String) -> durare::Result<u64> {
    let mut sum = 0;
    for step in 0..STEPS {
        let body = move || async move { Ok::<_, durare::Error>(step) };
        sum += ctx.step(&format!("step-{step}"), body).await?;
    }
    Ok(sum)
}

impl Place {
    async fn start() -> Result<Self> {
        let server = PostgresServer::start().await?;
        let pool = PgPool::connect(&server.url()).await?;
        sqlx::raw_sql(TABLE).execute(&pool).await?;
        let store = PostgresStore::new(pool.clone());
        store.migrate().await?;
        let builder = DurableEngine::connect(&server.url()).await?;
        Ok(Self {
            pool,
            idempotency: Idempotency::new(store),
            engine: builder.build().await?,
            _server: server,
        })
    }

    async fn call(&self, subject: Subject, call: &str) -> Result<u64> {
        match subject {
            Subject::ByHand => self.by_hand(call).await,
            Subject::Ours => {
                let operation = self.idempotency.operation("bench.steps").key(call);
                // Kept for as long as the steps are, so that the record need not be renewed.
                let ours = operation.ttl(HOUR * 24 * 31).run(|| async {
                    let mut sum = 0;
                    for step in 0..STEPS {
                        let body = async || Ok::<_, Error>(step);
                        sum += idem::step(("step", step), body).await?;
                    }
                    Ok::<_, Error>(sum)
                });
                Ok(ours.await?.into_inner())
            }
            Subject::Durare => {
                let options = WorkflowOptions::with_id(call);
                let handle = self
                    .engine
                    .start_with(TenSteps, call.to_owned(), options)
                    .await?;
                Ok(handle.await?)
            }
        }
    }

    async fn by_hand(&self, call: &str) -> Result<u64> {
        let mut sum = 0;
        for step in 0..STEPS {
            let number = i64::try_from(step)?;
            let found = sqlx::query_scalar::<_, i64>(FIND).bind(call).bind(number);
            let value = if let Some(value) = found.fetch_optional(&self.pool).await? {
                u64::try_from(value)?
            } else {
                let write = sqlx::query(WRITE).bind(call).bind(number).bind(number);
                write.execute(&self.pool).await?;
                step
            };
            sum += value;
        }
        Ok(sum)
    }
}

pub(crate) async fn measure(extent: &Extent, report: &mut Report) -> Result<()> {
    let place = Place::start().await;
    let Some(place) = report.started("steps", place) else {
        return Ok(());
    };
    let calls = extent.sql_calls / 4;
    let mut p50 = ALL.map(|_| Vec::new());
    for round in 0..=extent.rounds {
        eprintln!("steps, round {}", extent.round(round));
        let mut times = ALL.map(|_| Vec::new());
        for call in 0..calls {
            for (subject, times) in ALL.into_iter().zip(&mut times) {
                let start = Instant::now();
                let sum = place.call(subject, &format!("{round}-{call}")).await?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
                ensure!(
                    sum == (0..STEPS).sum::<u64>(),
                    "the steps were not carried out"
                );
            }
        }
        // Steps of ours are removed in the background: not while others are timed.
        place.idempotency.shutdown(HOUR).await.ok();
        if round > 0 {
            for (p50, times) in p50.iter_mut().zip(&times) {
                p50.push(quantile(times, 0.5));
            }
        }
    }
    let [by_hand, ours, durare] = &p50;
    let what = |other| format!("a call of {STEPS} steps, p50, one at a time: idem over {other}");
    let figures = [("ten rows by hand", by_hand), ("durare 0.5", durare)]
        .map(|(name, other)| Figure::ratio(what(name), Unit::Microseconds, ours, (name, other)));
    report.groups.push(Group {
        title: "Steps (PostgreSQL)".to_owned(),
        figures: figures.into(),
    });
    Ok(())
}
