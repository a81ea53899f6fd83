//! `redis-server`, and the programs that are installed with it.

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use crate::tool;

const SERVER: tool::Package = tool::Package {
    program: "redis-server",
    apt: "redis-server",
    brew: "redis",
    elsewhere: None,
};

/// `SET .. NX GET`, the claim, came with this one.
const OLDEST_MAJOR: u32 = 7;

/// Makes sure that there is a `redis-server`, new enough, and installs one if there is none.
pub(crate) fn ensure(shell: &Shell) -> Result<()> {
    ensure_with(shell, &[])
}

/// The same, and makes sure of other programs in one go.
pub(crate) fn ensure_with(shell: &Shell, others: &[tool::Package]) -> Result<()> {
    tool::ensure(shell, &[&[SERVER], others].concat())?;
    let said = cmd!(shell, "redis-server --version").quiet().read()?;
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or_default();
    // A version that cannot be read is let through: the tests will tell.
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST_MAJOR) {
        bail!(
            "redis-server {version} is too old: install Redis {OLDEST_MAJOR} or newer, or Valkey \
             as redis-server"
        );
    }
    Ok(())
}
