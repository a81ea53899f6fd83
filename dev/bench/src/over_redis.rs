//! Over Redis and over Valkey: the parts that share a server, in rounds.

use std::sync::Arc;

use anyhow::{Context as _, Result};

use crate::cost;
use crate::crowd::Crowds;
use crate::extent::Extent;
use crate::latency::Latencies;
use crate::layer::{Layers, Services};
use crate::renewals::Renewals;
use crate::report::Report;
use crate::subject::Subjects;
use crate::target::Target;
use crate::throughput::Throughputs;

/// So many numbers of keys has each round for each of its parts.
const NUMBERS: u64 = 1_000_000_000;
/// Rounds of renewals. They are counted, so that more of them show nothing new.
const RENEWALS: usize = 3;
/// Crowds of a round.
const CROWDS: usize = 5;
/// The least share of the floor's rate of many callers, over Redis and over Valkey.
const SHARE: f64 = 0.95;
const SHARE_ON_VALKEY: f64 = 1.2;

/// Calls by the attribute and by hand, one at a time and many at once; what the server sees.
pub(crate) async fn calls(extent: &Extent, url: Option<String>, report: &mut Report) -> Result<()> {
    let target = Target::open(url).await?;
    report.server(target.version().await?);
    let subjects = Arc::new(Subjects::connect(&target).await?);
    // Annotated functions use the installed runtime.
    idem::install(subjects.idempotency.clone()).context("a runtime is installed already")?;
    let mut latencies = Latencies::default();
    let mut throughputs = Throughputs::on_redis();
    let mut crowds = Crowds::default();
    let mut renewals = Renewals::default();
    for round in 0..=extent.rounds {
        eprintln!("over Redis, round {}", extent.round(round));
        if round == 1 {
            latencies = Latencies::default();
            throughputs = Throughputs::on_redis();
            crowds = Crowds::default();
        }
        let from = NUMBERS * 2 * round as u64;
        latencies.round(&subjects, extent.calls, from).await?;
        throughputs
            .round(&subjects, extent.slice, extent.turns, from + NUMBERS)
            .await?;
        crowds.round(&target, CROWDS).await?;
        if target.own().is_some() && (1..=RENEWALS).contains(&round) {
            renewals.round(&target, round).await?;
        }
        target.clear().await?;
    }
    report.groups.push(latencies.group());
    report.groups.push(throughputs.group("Redis", SHARE));
    if target.own().is_some() {
        report.groups.push(cost::group(&target, &subjects).await?);
        report.groups.push(crowds.group());
        report.groups.push(renewals.group());
    } else {
        report.groups.push(crowds.group());
        report
            .left_out
            .push("what the server counts, and renewals: they need a server of our own".to_owned());
    }
    Ok(())
}

/// First executions of many callers over a Valkey, whose commits need no script.
pub(crate) async fn valkey(extent: &Extent, report: &mut Report) -> Result<()> {
    let Some(target) = report.started("Valkey", Target::valkey().await) else {
        return Ok(());
    };
    report.server(target.version().await?);
    let subjects = Arc::new(Subjects::connect(&target).await?);
    let mut throughputs = Throughputs::on_valkey();
    for round in 0..=extent.rounds {
        eprintln!("over Valkey, round {}", extent.round(round));
        if round == 1 {
            throughputs = Throughputs::on_valkey();
        }
        let from = NUMBERS * round as u64;
        throughputs
            .round(&subjects, extent.slice, extent.turns, from)
            .await?;
        target.clear().await?;
    }
    report
        .groups
        .push(throughputs.group("Valkey", SHARE_ON_VALKEY));
    Ok(())
}

/// The HTTP layer, in memory and over Redis.
pub(crate) async fn http(extent: &Extent, url: Option<String>, report: &mut Report) -> Result<()> {
    let target = Target::open(url).await?;
    report.server(target.version().await?);
    let services = Services::start(&target).await?;
    let mut layers = Layers::default();
    for round in 0..=extent.rounds {
        eprintln!("the HTTP layer, round {}", extent.round(round));
        if round == 1 {
            layers = Layers::default();
        }
        let from = NUMBERS * round as u64;
        layers.round(&services, extent, from).await?;
        target.clear().await?;
    }
    report.groups.push(layers.group());
    Ok(())
}
