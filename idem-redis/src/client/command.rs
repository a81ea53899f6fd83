//! Parts of the commands that are sent: scripts, and lengths of time.

use std::time::Duration;

use redis::{Cmd, Script};

/// The command that runs a script.
pub(crate) fn evalsha(script: &Script, keys: &[&str], args: &[&[u8]]) -> Cmd {
    let length = 64 + keys.iter().map(|key| key.len()).chain(args.iter().map(|arg| arg.len())).sum::<usize>();
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

/// The longest time that is sent: some 35 000 years, which the server's and Lua's numbers hold
/// exactly.
pub(crate) const FOREVER: u64 = 1 << 50;

/// A length of time as it is sent. The server refuses an expiry of zero.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(FOREVER).clamp(1, FOREVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_such_that_the_server_takes_them() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert_eq!(millis(Duration::MAX), FOREVER);
    }
}
