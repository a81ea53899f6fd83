//! The SQL stores beside the least that one writes by hand, and beside their own statements by hand,
//! in turns; and as their table grows.

mod calls;
mod database;
pub(crate) mod floor;
mod growth;
mod log;
mod place;
mod slim;

use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::ValueEnum;

pub(crate) use self::database::Database;
use self::place::Place;
use crate::extent::Extent;
use crate::machine::Machine;
use crate::report::{Report, tables};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// These alone
    #[arg(long, value_delimiter = ',')]
    only: Vec<Database>,
    /// Grow the table to so many records, and measure calls, size and sweeps
    #[arg(long)]
    records: u64,
}

/// The growing tables.
pub(crate) fn run(args: Args) -> Result<()> {
    let machine = Machine::look();
    println!(
        "{}, {} cores, load {}",
        machine.processor, machine.cores, machine.load
    );
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // In a task, as the requests of a server are.
    tokio.block_on(async { tokio::spawn(grow(args)).await? })
}

async fn grow(args: Args) -> Result<()> {
    let all = [Database::Postgres, Database::Mariadb, Database::Sqlite];
    let only = args.only.as_slice();
    for &database in if only.is_empty() { &all } else { only } {
        ensure!(
            all.contains(&database),
            "{} has no sequences to fill with",
            database.name()
        );
        let place = Place::start(database, true).await?;
        let group = growth::group(&place, args.records).await?;
        print!("{}", tables(&[group]));
    }
    Ok(())
}

/// Each database's part of the run.
pub(crate) async fn measure(extent: &Extent, report: &mut Report) -> Result<()> {
    for database in Database::value_variants().iter().copied() {
        let place = Place::start(database, false).await;
        let Some(place) = report.started(database.name(), place).map(Arc::new) else {
            continue;
        };
        report.server(format!(
            "{} {}",
            database.name(),
            place.floor.version().await?
        ));
        let mut group = calls::group(&place, extent).await?;
        if let Some(figure) = log::figure(&place, extent).await? {
            group.figures.push(figure);
        }
        report.groups.push(group);
    }
    Ok(())
}
