//! The cost of a call: one at a time, by 64 tasks, and for those who wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use idem::Error;
use idem_bench::{plain, result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::database::Database;
use super::place::{Place, Subject};
use crate::at_once::at_once;
use crate::extent::Extent;
use crate::report::{Figure, Group, Kind, Unit};
use crate::stats::quantile;

const TASKS: u64 = 64;
/// How many wait for one key, and how long its body takes.
const WAITERS: usize = 64;
const BODY: Duration = Duration::from_millis(50);
/// A first execution sends so many messages, and a replay.
const MESSAGES: [(Kind, f64); 2] = [(Kind::First, 2.0), (Kind::Replay, 1.0)];

type Measured = [[Vec<f64>; 2]; Subject::ALL.len()];

/// The figures of each round.
#[derive(Default)]
struct Rounds {
    p50: Measured,
    p99: Measured,
    rates: Measured,
    /// Of the waiters in the process of the commit, and of those in another.
    here: Vec<f64>,
    elsewhere: Vec<f64>,
}

pub(crate) async fn group(place: &Arc<Place>, extent: &Extent) -> Result<Group> {
    let database = place.database;
    let measured = measure(place, extent).await?;
    let mut figures = Vec::new();
    if let Some(counted) = place.messages().await? {
        for ((kind, most), count) in MESSAGES.into_iter().zip(counted) {
            let what = format!("messages to the server, {kind}");
            #[allow(clippy::cast_precision_loss)]
            figures.push(Figure::new(what, Unit::Count, vec![count as f64]).at_most(most));
        }
    }
    figures.extend(measured.figures(database));
    Ok(Group {
        title: format!("{} ({})", database.name(), database.durability()),
        figures,
    })
}

async fn measure(place: &Arc<Place>, extent: &Extent) -> Result<Rounds> {
    let mut all = Rounds::default();
    let mut next = 0;
    for round in 0..=extent.rounds {
        eprintln!("{}, round {}", place.database.name(), extent.round(round));
        let times = one_at_a_time(place, extent.sql_calls, next).await?;
        next += extent.sql_calls;
        let rates = many(place, extent, &mut next).await?;
        let here = waiters(place, round, true).await?;
        let elsewhere = waiters(place, round, false).await?;
        // The first one warms up.
        if round == 0 {
            continue;
        }
        for (subject, times) in times.iter().enumerate() {
            for (kind, times) in times.iter().enumerate() {
                all.p50[subject][kind].push(quantile(times, 0.5));
                all.p99[subject][kind].push(quantile(times, 0.99));
                all.rates[subject][kind].push(rates[subject][kind]);
            }
        }
        all.here.push(here);
        all.elsewhere.push(elsewhere);
    }
    Ok(all)
}

impl Rounds {
    fn figures(self, database: Database) -> Vec<Figure> {
        let mut figures = Vec::new();
        for kind in Kind::ALL {
            for (what, of, unit, goal) in [
                (
                    "p50, one at a time",
                    &self.p50,
                    Unit::Microseconds,
                    Some(database.time(kind)),
                ),
                ("p99, one at a time", &self.p99, Unit::Microseconds, None),
                (
                    "rate, 64 at once",
                    &self.rates,
                    Unit::PerSecond,
                    database.rate(kind),
                ),
            ] {
                let of = |subject: Subject| &*of[subject as usize][kind as usize];
                for floor in [Subject::Slim, Subject::Statements] {
                    let name = floor.name();
                    let what = format!("{kind}, {what}: idem over {name}");
                    let figure = Figure::ratio(what, unit, of(Subject::Ours), (name, of(floor)));
                    figures.push(figure.with(goal.filter(|_| floor == Subject::Slim)));
                }
            }
        }
        for (what, values) in [
            ("in the process of the commit", self.here),
            ("in another process", self.elsewhere),
        ] {
            let what = format!("from the commit to the last answer of {WAITERS} waiters, {what}");
            figures.push(Figure::new(what, Unit::Milliseconds, values));
        }
        figures
    }
}

/// The microseconds of each call: call by call in turns, in an order that goes round.
async fn one_at_a_time(place: &Arc<Place>, calls: u64, from: u64) -> Result<Measured> {
    let place = place.clone();
    let measuring = tokio::spawn(async move {
        let mut times = Measured::default();
        let mut order = Subject::ALL;
        for call in from..from + calls {
            order.rotate_left(1);
            for kind in Kind::ALL {
                for subject in order {
                    let begun = Instant::now();
                    place
                        .call(subject, kind, &format!("alone-{call:020}"))
                        .await?;
                    times[subject as usize][kind as usize]
                        .push(begun.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        anyhow::Ok(times)
    });
    measuring.await?
}

/// Calls a second of each subject and kind, in slices that take turns. Replays are of each task's
/// first keys.
async fn many(
    place: &Arc<Place>,
    extent: &Extent,
    next: &mut u64,
) -> Result<[[f64; 2]; Subject::ALL.len()]> {
    let mut rates = [[0.0; 2]; Subject::ALL.len()];
    let mut order = Subject::ALL;
    for _ in 0..extent.turns {
        for subject in order {
            let mut made = 0;
            for kind in Kind::ALL {
                let place = place.clone();
                let from = *next;
                let call = move |task, calls| {
                    let place = place.clone();
                    let turn = if kind == Kind::First { calls } else { 0 };
                    let key = format!("many-{:020}", from + turn * TASKS + task);
                    async move { place.call(subject, kind, &key).await }
                };
                let (numbers, rate) = at_once(TASKS, extent.slice, call).await?;
                rates[subject as usize][kind as usize] += rate / f64::from(extent.turns);
                made = numbers.max(made);
            }
            *next += made;
        }
        order.reverse();
    }
    Ok(rates)
}

/// How many milliseconds after the end of the body the last of many waiters has its answer. They
/// are in the process of the body, over the same store, or in another one.
async fn waiters(place: &Arc<Place>, round: usize, same: bool) -> Result<f64> {
    let key = format!("waiters-{round}-{same}");
    let owner = place.process().await?;
    let waiter = if same {
        owner.clone()
    } else {
        place.process().await?
    };
    let (begins, begun) = oneshot::channel();
    let result = result();
    let body = {
        let key = key.clone();
        let result = result.clone();
        tokio::spawn(async move {
            let call = owner.operation("bench").key(&key).run(async || {
                let _ = begins.send(());
                tokio::time::sleep(BODY).await;
                plain(&result).await
            });
            call.await?;
            Ok::<_, Error>(Instant::now())
        })
    };
    begun.await?;
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        let waiter = waiter.clone();
        let key = key.clone();
        let result = result.clone();
        waiting.spawn(async move {
            waiter
                .operation("bench")
                .key(&key)
                .wait(Duration::from_secs(20))
                .run(|| plain(&result))
                .await?;
            Ok::<_, Error>(Instant::now())
        });
    }
    let committed = body.await??;
    let mut last = committed;
    while let Some(answered) = waiting.join_next().await {
        last = last.max(answered??);
    }
    Ok(last.duration_since(committed).as_secs_f64() * 1e3)
}
