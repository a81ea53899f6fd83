//! The program `idem`: operators list, judge and settle the calls that idem guards.

mod args;
mod argument_error;
mod ask;
mod commands;
mod doctor;
mod failure;
mod hints;
mod print;
mod progress;
mod store;

use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::filter::LevelFilter;

use crate::args::Args;
use crate::failure::Failure;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are not mistakes.
            let code = if error.use_stderr() {
                failure::WRONG_ARGUMENTS
            } else {
                failure::DONE
            };
            argument_error::print(&error);
            return ExitCode::from(code);
        }
    };
    // The warnings of the stores, and with `IDEM_LOG=info` every decision.
    let level = std::env::var("IDEM_LOG")
        .ok()
        .and_then(|level| level.parse().ok())
        .unwrap_or(LevelFilter::WARN);
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(level)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(commands::run(args));
            // A server that does not answer must not delay the end of the program.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(Failure::Output(error)),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.is_closed_pipe() {
                print::aside(&format!("idem: {failure}"));
            }
            ExitCode::from(failure.code())
        }
    }
}
