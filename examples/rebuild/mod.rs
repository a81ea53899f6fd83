//! Builds an example again, with the features that its arguments need. A store's client takes
//! longer to build than all the rest, so an example is built without it until it is asked for.

use std::error::Error;
use std::ffi::OsString;
use std::process::Command;

/// The feature that the example must be built with to open the store, unless it is.
pub(crate) fn missing_feature(url: &str) -> Option<&'static str> {
    let (feature, is_there) = match url.split("://").next()? {
        "sqlite" => ("sqlite", cfg!(feature = "sqlite")),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
            ("redis", cfg!(any(feature = "redis", feature = "axum")))
        }
        "postgres" | "postgresql" => ("postgres", cfg!(feature = "postgres")),
        "mysql" | "mariadb" => ("mysql", cfg!(feature = "mysql")),
        _ => return None,
    };
    (!is_there).then_some(feature)
}

/// Builds and runs the example again, with other features. Returns whether it ended well.
pub(crate) fn run_with_features(example: &str, features: &str) -> Result<bool, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let status = Command::new(cargo)
        .args([
            "run",
            "--quiet",
            "--manifest-path",
            manifest,
            "--example",
            example,
            "--features",
            features,
            "--",
        ])
        .args(std::env::args_os().skip(1))
        .status()?;
    Ok(status.success())
}
