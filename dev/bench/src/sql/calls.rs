//! The cost of a call: one at a time, by 64 tasks, and for those who wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use idem::Error;
use idem_bench::{plain, result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::place::{Place, Subject};
use crate::report::{Figure, Group, Kind, Unit};
use crate::stats::{median, quantile};

const TASKS: u64 = 64;
/// How long the tasks of one subject call in one turn, and how many turns a round has.
const SLICE: Duration = Duration::from_millis(400);
const TURNS: u32 = 2;
/// How many wait for one key, and how long its body takes.
const WAITERS: usize = 64;
const BODY: Duration = Duration::from_millis(50);

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

pub(crate) async fn groups(place: Place, rounds: u64, calls: u64) -> Result<Vec<Group>> {
    let place = Arc::new(place);
    let name = place.database.name();
    let measured = measure(&place, rounds, calls).await?;
    let mut figures = Vec::new();
    if let Some([first, replay]) = place.messages().await? {
        #[allow(clippy::cast_precision_loss)]
        for (what, count, floor) in [("first execution", first, 2.0), ("replay", replay, 1.0)] {
            let figure = Figure::new(
                format!("messages to the server, {what}"),
                Unit::Count,
                vec![count as f64],
            );
            figures.push(figure.at_most(floor).beside(format!("floor {floor}")));
        }
    }
    figures.extend(measured.figures());
    Ok(vec![Group {
        title: name.to_owned(),
        figures,
    }])
}

async fn measure(place: &Arc<Place>, rounds: u64, calls: u64) -> Result<Rounds> {
    let mut all = Rounds::default();
    let mut next = 0;
    for round in 0..=rounds {
        eprintln!("{}, round {round} of {rounds}", place.database.name());
        let times = one_at_a_time(place, calls, next).await?;
        next += calls;
        let rates = at_once(place, &mut next).await?;
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
    fn figures(self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let times = Unit::Microseconds;
        for kind in Kind::ALL {
            for (what, of, goal) in [("p50", &self.p50, Some(1.10)), ("p99", &self.p99, None)] {
                let what = format!("{what}, one at a time");
                for subject in Subject::ALL.into_iter().skip(1) {
                    figures.push(figure(kind, &what, of, subject, times, goal));
                }
                figures.push(over_slim(kind, &what, of, times));
            }
            for subject in Subject::ALL.into_iter().skip(1) {
                let what = "rate, 64 at once";
                let figure = figure(kind, what, &self.rates, subject, Unit::PerSecond, None);
                figures.push(if subject == Subject::Ours {
                    figure.at_least(0.9)
                } else {
                    figure
                });
            }
            figures.push(over_slim(
                kind,
                "rate, 64 at once",
                &self.rates,
                Unit::PerSecond,
            ));
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

fn figure(
    kind: Kind,
    what: &str,
    of: &Measured,
    subject: Subject,
    unit: Unit,
    goal: Option<f64>,
) -> Figure {
    let figure = ratio(kind, what, of, [subject, Subject::Floor], unit);
    match goal {
        Some(goal) if subject == Subject::Ours => figure.at_most(goal),
        _ => figure,
    }
}

fn over_slim(kind: Kind, what: &str, of: &Measured, unit: Unit) -> Figure {
    ratio(kind, what, of, [Subject::Ours, Subject::Slim], unit)
}

/// One subject over another.
fn ratio(kind: Kind, what: &str, of: &Measured, pair: [Subject; 2], unit: Unit) -> Figure {
    let [own, floor] = pair.map(|subject| &of[subject as usize][kind as usize]);
    let ratios = own
        .iter()
        .zip(floor)
        .map(|(own, floor)| own / floor)
        .collect();
    let beside = format!(
        "{}; floor {}",
        unit.show(median(own)),
        unit.show(median(floor))
    );
    let [own, floor] = pair.map(Subject::name);
    let what = format!("{kind}, {what}: {own} over {floor}");
    Figure::new(what, Unit::Ratio, ratios).beside(beside)
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

/// Calls a second of each subject and kind, in slices that take turns.
async fn at_once(place: &Arc<Place>, next: &mut u64) -> Result<[[f64; 2]; Subject::ALL.len()]> {
    let mut rates = [[0.0; 2]; Subject::ALL.len()];
    let mut order = Subject::ALL;
    for _ in 0..TURNS {
        for subject in order {
            let (made, rate) = slice(place, subject, Kind::First, *next).await?;
            rates[subject as usize][0] += rate / f64::from(TURNS);
            let (_, rate) = slice(place, subject, Kind::Replay, *next).await?;
            rates[subject as usize][1] += rate / f64::from(TURNS);
            *next += made;
        }
        order.reverse();
    }
    Ok(rates)
}

/// The numbers of keys that were used, and the calls a second. Replays are of each task's first
/// keys.
async fn slice(place: &Arc<Place>, subject: Subject, kind: Kind, from: u64) -> Result<(u64, f64)> {
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for task in 0..TASKS {
        let place = place.clone();
        running.spawn(async move {
            let mut calls = 0;
            while begun.elapsed() < SLICE {
                let number = from
                    + task
                    + if kind == Kind::First {
                        calls * TASKS
                    } else {
                        0
                    };
                place
                    .call(subject, kind, &format!("many-{number:020}"))
                    .await?;
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
    Ok((most * TASKS, rate))
}

/// How many milliseconds after the end of the body the last of many waiters has its answer. They
/// are in the process of the body, over the same store, or in another one.
async fn waiters(place: &Arc<Place>, round: u64, same: bool) -> Result<f64> {
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
