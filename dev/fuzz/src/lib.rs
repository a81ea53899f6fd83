//! The code that reads foreign bytes, with the properties that hold for every input.
//!
//! A target is a plain function of some bytes that panics where a property does not hold. libFuzzer
//! runs it (`cargo xtask fuzz`), and so does an ordinary test, over the corpus and what a few dice
//! make of it (`cargo xtask fuzz --corpus`).

use std::{env, fs, io};

pub mod claim;
pub mod duration;
mod input;
pub mod key;
pub mod outcome;
pub mod record;
pub mod token;
pub mod url;

pub(crate) use self::input::Input;

/// The errors of idem-redis, for its module `target`.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../idem-redis/src/connection/error.rs"]
mod error;
/// The address of a server. The module is private to idem-redis; including its source here keeps
/// the public API unchanged.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../idem-redis/src/connection/target.rs"]
mod target;

/// Runs a target over the files that this program was given.
///
/// # Errors
///
/// If a file cannot be read.
pub fn repeat(target: fn(&[u8])) -> io::Result<()> {
    for path in env::args_os().skip(1) {
        let data = fs::read(&path)?;
        println!("{}: {}", path.display(), data.escape_ascii());
        target(&data);
    }
    Ok(())
}
