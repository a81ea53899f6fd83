//! The server's cost of calls: commands and bytes.

use anyhow::{Context as _, Result, ensure};
use idem::Idempotency;
use idem_bench::{KEY_BYTES, plain, result};
use idem_testkit::{Passing, Proxy};

use crate::floor::Floor;
use crate::report::{Figure, Group, Unit};
use crate::subject::{Subject, Subjects};
use crate::target::Target;
use crate::target::store;

/// How many calls the commands are counted of.
const CALLS: u64 = 1000;
/// How much longer than the floor's a record may be.
const BYTES: f64 = 40.0;

/// Counts the commands that clients send: those that a script calls inside the server are not among
/// them.
pub(crate) struct Counter {
    _proxy: Proxy,
    all: Passing,
    pub(crate) url: String,
}

impl Counter {
    pub(crate) async fn start(target: &Target) -> Result<Self> {
        let proxy = Proxy::start(target.url()).await?;
        let all = proxy.passing(|_| true);
        let url = proxy.url();
        Ok(Self {
            _proxy: proxy,
            all,
            url,
        })
    }

    pub(crate) fn commands(&self) -> u64 {
        self.all.calls()
    }

    /// A runtime whose commands are counted.
    pub(crate) async fn idempotency(&self, target: &Target) -> Result<Idempotency> {
        let idempotency = target.idempotency(store(&self.url, &target.prefix()).await?);
        // So that scripts are known, and connections made.
        run(
            &idempotency,
            "bench",
            &format!("{}-warm-{}", target.run, fastrand::u64(..)),
        )
        .await?;
        Ok(idempotency)
    }
}

/// Commands and bytes; `target` must be a server of our own.
pub(crate) async fn group(target: &Target, subjects: &Subjects) -> Result<Group> {
    let counter = Counter::start(target).await?;
    let idempotency = counter.idempotency(target).await?;
    let mut counts = [0.0; 2];
    for (kind, count) in ["first execution", "replay"].into_iter().zip(&mut counts) {
        let before = counter.commands();
        for number in 0..CALLS {
            run(&idempotency, "bench", &format!("{}-{number}", target.run))
                .await
                .context(kind)?;
        }
        *count = per_call(counter.commands() - before);
    }
    let cached = Idempotency::builder(store(&counter.url, &target.prefix()).await?)
        .local_cache(10)
        .build();
    run(&cached, "bench", &format!("{}-cached", target.run)).await?;
    let before = counter.commands();
    for _ in 0..CALLS {
        run(&cached, "bench", &format!("{}-cached", target.run)).await?;
    }
    let of_cached = per_call(counter.commands() - before);

    let floor = Floor::connect(target.url(), target.ttl_ms()).await?;
    let key = subjects.key(Subject::Floor, 999_999_999_999);
    ensure!(
        key.len() == KEY_BYTES,
        "{key} is no key of {KEY_BYTES} bytes"
    );
    floor.first(&key, &result()).await?;
    let of_floor = memory(target, &key).await?;
    let mut figures = vec![
        Figure::new(
            "commands of a first execution",
            Unit::Count,
            vec![counts[0]],
        )
        .at_most(2.0)
        .remark(format!("mean of {CALLS}, counted on the wire")),
        Figure::new("commands of a replay", Unit::Count, vec![counts[1]]).at_most(1.0),
        Figure::new(
            "commands of a replay from local_cache",
            Unit::Count,
            vec![of_cached],
        )
        .at_most(0.0),
    ];
    for name in ["bench", "orders.create"] {
        run(&idempotency, name, &key).await?;
        let bytes = memory(target, &format!("{}:{name}:{key}", target.prefix())).await?;
        let figure = Figure::new(
            format!("bytes of a record of `{name}`, over the floor's"),
            Unit::Bytes,
            vec![bytes - of_floor],
        );
        figures.push(
            figure
                .at_most(BYTES)
                .remark(format!("{bytes:.0}; floor {of_floor:.0} (MEMORY USAGE)")),
        );
    }
    Ok(Group {
        title: "What the server sees".to_owned(),
        figures,
    })
}

async fn run(idempotency: &Idempotency, name: &str, key: &str) -> Result<(), idem::Error> {
    let result = result();
    idempotency
        .operation(name)
        .key(key)
        .run(|| plain(&result))
        .await
        .map(drop)
}

#[allow(clippy::cast_precision_loss)]
fn per_call(commands: u64) -> f64 {
    commands as f64 / CALLS as f64
}

#[allow(clippy::cast_precision_loss)]
async fn memory(target: &Target, key: &str) -> Result<f64> {
    Ok(target
        .number(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
        .await? as f64)
}
