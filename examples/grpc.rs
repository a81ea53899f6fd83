//! gRPC with tonic: a server behind the layer, and a client that loses a reply.
//!
//! ```text
//! cargo run --example grpc
//! ```
//!
//! The first reply is lost after the body ran. The client sends the call again with its key, and
//! gets the recorded answer. The first run is slow: the example builds itself again, with tonic.

#[cfg(feature = "grpc")]
#[path = "grpc/charges.rs"]
mod charges;
#[cfg(feature = "grpc")]
#[path = "grpc/conduct.rs"]
mod conduct;
#[cfg(feature = "grpc")]
#[path = "grpc/lossy.rs"]
mod lossy;
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
            eprintln!("grpc: {problem}");
            ExitCode::from(2)
        }
    }
}

#[cfg(feature = "grpc")]
async fn run() -> Result<bool, Box<dyn Error>> {
    conduct::conduct().await
}

#[cfg(not(feature = "grpc"))]
#[allow(clippy::unused_async)]
async fn run() -> Result<bool, Box<dyn Error>> {
    println!("Building the example with tonic ..");
    rebuild::run_with_features("grpc", "grpc")
}
