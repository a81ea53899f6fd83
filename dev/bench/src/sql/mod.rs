//! The SQL stores beside the same statements by hand, and beside the least that one writes by
//! hand, in turns.

mod calls;
mod database;
pub(crate) mod floor;
mod growth;
mod place;
mod slim;

use anyhow::Result;
use clap::ValueEnum;

use self::database::Database;
use self::place::Place;
use crate::machine::Machine;
use crate::report::tables;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// These alone
    #[arg(long, value_delimiter = ',')]
    only: Vec<Database>,
    /// How many rounds
    #[arg(long, default_value_t = 9)]
    rounds: u64,
    /// Calls of each subject and kind in a round, one at a time
    #[arg(long, default_value_t = 200)]
    calls: u64,
    /// Instead, grow the table to so many records, and measure calls, size and sweeps
    #[arg(long)]
    records: Option<u64>,
}

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
    tokio.block_on(async { tokio::spawn(measure(args)).await? })
}

async fn measure(args: Args) -> Result<()> {
    for database in Database::value_variants().iter().copied() {
        if !args.only.is_empty() && !args.only.contains(&database) {
            continue;
        }
        let place = Place::start(database, args.records.is_some()).await?;
        let groups = match args.records {
            Some(records) => vec![growth::group(&place, records).await?],
            None => calls::groups(place, args.rounds, args.calls).await?,
        };
        print!("{}", tables(&groups));
    }
    Ok(())
}
