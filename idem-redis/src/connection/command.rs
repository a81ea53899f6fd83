//! Parts of commands: scripts, and lengths of time.

use std::time::Duration;

use redis::{Cmd, Script};

/// Returns the command that runs a script.
pub(crate) fn evalsha(script: &Script, keys: &[&str], args: &[&[u8]]) -> Cmd {
    let length = 64
        + keys
            .iter()
            .map(|key| key.len())
            .chain(args.iter().map(|arg| arg.len()))
            .sum::<usize>();
    let mut cmd = Cmd::with_capacity(3 + keys.len() + args.len(), length);
    cmd.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
    for key in keys {
        cmd.arg(*key);
    }
    for arg in args {
        cmd.arg(*arg);
    }
    cmd
}

/// The longest time that is sent, in ms: some 35 000 years. The numbers of the server and of Lua
/// hold it exactly.
pub(crate) const MAX_MILLIS: u64 = 1 << 50;

/// Converts a length of time to what is sent. The server refuses an expiry of zero.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis())
        .unwrap_or(MAX_MILLIS)
        .clamp(1, MAX_MILLIS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_such_that_the_server_takes_them() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert_eq!(millis(Duration::MAX), MAX_MILLIS);
    }
}
