//! A bank moves money between accounts, each transfer in one transaction. Its clients are hostile:
//! they send each order several times at once, vanish in mid-transfer, roll back, and cut their
//! connections. Branches, which are processes of their own, send the same orders and are killed.
//! Each transfer must happen once, and no cent may appear or vanish.
//!
//! ```text
//! cargo run --example ledger                                              # SQLite, in a temporary file
//! cargo run --example ledger -- --store sqlite://ledger.db                # in your own file
//! cargo run --example ledger -- --store postgres://user:password@host/db  # in PostgreSQL
//! cargo run --example ledger -- --orders 5000 --seed 7                    # more of them, other accidents
//! ```
//!
//! The tables `ledger_accounts` and `ledger_transfers` are created again in each run. The exit code
//! is 1 if an invariant is broken. To see that, take the attribute off `transfer`, in
//! `ledger/bank.rs`.
//!
//! The first run with a database is slow: the example builds itself again, with that client.

// An example reads the clock where it likes.
#![allow(clippy::disallowed_methods)]
// The bank is written once, and compiled for each database.
#![allow(clippy::duplicate_mod)]

#[cfg(feature = "postgres")]
#[path = "ledger/postgres.rs"]
mod postgres;
#[allow(dead_code)]
#[path = "rebuild/mod.rs"]
mod rebuild;
#[cfg(feature = "sqlite")]
#[path = "ledger/sqlite.rs"]
mod sqlite;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[path = "ledger/summary.rs"]
mod summary;

use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("ledger: {problem}");
            ExitCode::from(2)
        }
    }
}

#[allow(clippy::unused_async)] // without a database
async fn run() -> Result<bool, Box<dyn Error>> {
    let arguments = Arguments::read()?;
    if !arguments.store.contains("://") {
        return Err(NEEDS_A_DATABASE.into());
    }
    if let Some(feature) = rebuild::missing_feature(&arguments.store) {
        return rebuild::run_with_features("ledger", feature);
    }
    match arguments.store.split("://").next() {
        #[cfg(feature = "sqlite")]
        Some("sqlite") => sqlite::run(&arguments).await,
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => postgres::run(&arguments).await,
        _ => Err(NEEDS_A_DATABASE.into()),
    }
}

const NEEDS_A_DATABASE: &str = "`--store` needs the URL of a database for the accounts: \
                                sqlite://ledger.db or postgres://user:password@host/db";

/// The command line.
struct Arguments {
    /// `sqlite://` alone is a temporary file.
    store: String,
    /// How many transfers are ordered.
    #[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), allow(dead_code))]
    orders: u64,
    /// Which duplicates and accidents there are.
    #[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), allow(dead_code))]
    seed: u64,
    /// This process is a branch of that run, which started it.
    #[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), allow(dead_code))]
    branch_of: Option<u64>,
}

impl Arguments {
    fn read() -> Result<Self, Box<dyn Error>> {
        const USAGE: &str = "usage: ledger [--store URL] [--orders NUMBER] [--seed NUMBER]";

        let mut arguments = Self {
            store: "sqlite://".to_owned(),
            orders: 1000,
            seed: 1,
            branch_of: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            match word.as_str() {
                "--store" => arguments.store = value,
                "--orders" => arguments.orders = value.parse().map_err(|_| USAGE)?,
                "--seed" => arguments.seed = value.parse().map_err(|_| USAGE)?,
                "--branch-of" => arguments.branch_of = Some(value.parse().map_err(|_| USAGE)?),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(arguments)
    }
}
