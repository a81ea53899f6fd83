//! A run from beginning to end: servers, processes, faults, and the verdict on what happened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::check::{Findings, check};
use crate::history::{self, Journal};
use crate::messages::{self, Producer};
use crate::nemesis::Field;
use crate::settings::Settings;

/// How often a run that ends with the first violation looks for one.
const LOOK: Duration = Duration::from_secs(2);
/// Links find back to their server in this time.
const RECOVERY: Duration = Duration::from_secs(1);
/// Beyond its length, a run may take this long: starting, the last calls, the verdict.
const LIMIT: Duration = Duration::from_secs(90);

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) findings: Findings,
    pub(crate) took: Duration,
    /// Of the run that was asked for, when it began by the clock that all share.
    pub(crate) epoch: u64,
}

/// Runs. With `until_found`, only until there is a violation.
pub(crate) async fn run(settings: Settings, until_found: bool) -> Result<Verdict> {
    let limit = settings.length
        + if settings.broker.is_some() {
            LIMIT * 3
        } else {
            LIMIT
        };
    let begun = Instant::now();
    tokio::time::timeout(limit, carry_out(&settings, until_found)).await??;
    // Complete: those who were to end have ended, or were ended.
    let history = history::read(&settings.folder)?;
    let findings = check(&history, settings.rules(), true);
    Ok(Verdict {
        findings,
        took: begun.elapsed(),
        epoch: settings.epoch,
    })
}

async fn carry_out(settings: &Settings, until_found: bool) -> Result<()> {
    let journal = Journal::open(&settings.folder, 0)?;
    let faults = settings.faults();
    let field = Field::start(settings.clone(), journal.clone()).await?;
    let producer = field.broker().map(|broker| {
        Producer::start(
            Arc::clone(broker),
            journal.clone(),
            settings.seed,
            settings.epoch,
        )
    });
    let found = async {
        loop {
            tokio::time::sleep(LOOK).await;
            if until_found && is_found(settings).await {
                break;
            }
        }
    };
    field.suffer(faults, found).await?;
    field.settled().await?;
    tokio::time::sleep(RECOVERY).await;
    if let (Some(producer), Some(broker)) = (producer, field.broker()) {
        producer.end().await?;
        messages::drained(broker, &journal).await?;
        field.end().await?;
        return messages::left(broker, &journal).await;
    }
    field.end().await
}

async fn is_found(settings: &Settings) -> bool {
    let folder = settings.folder.clone();
    let rules = settings.rules();
    let looked = tokio::task::spawn_blocking(move || {
        history::read(&folder)
            .is_ok_and(|history| !check(&history, rules, false).violations.is_empty())
    });
    looked.await.unwrap_or_default()
}
