//! A transactional inbox: message, rows and record in one commit, and then the acknowledgement. A
//! consumer is killed between the two, and its message comes again.
//!
//! ```text
//! cargo run --example inbox   # a nats-server of its own, SQLite in a temporary file
//! ```
//!
//! The second delivery finds the record, changes no row, and is acknowledged. The first run is
//! slow: the example builds itself again, with the clients of NATS and SQLite.

#[cfg(feature = "inbox")]
#[path = "inbox/consumer.rs"]
mod consumer;
#[allow(dead_code)]
#[path = "rebuild/mod.rs"]
mod rebuild;

use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("inbox: {problem}");
            ExitCode::from(2)
        }
    }
}

#[cfg(feature = "inbox")]
async fn run() -> Result<bool, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] => consumer::conduct().await,
        ["--consumer", nats, file, dies] => consumer::consume(nats, file, *dies == "dies")
            .await
            .map(|()| true),
        _ => Err("usage: inbox".into()),
    }
}

#[cfg(not(feature = "inbox"))]
#[allow(clippy::unused_async)]
async fn run() -> Result<bool, Box<dyn Error>> {
    println!("Building the example with the clients of NATS and SQLite ..");
    rebuild::run_with_features("inbox", "inbox")
}
