//! The steps of a call as they pass on the wire.

use std::fmt::Write as _;

use idem_redis::redis::Script;
use idem_testkit::{Passing, Proxy};

use crate::server::{FIRST, Kind};

/// A step, as one command to Redis, or the statement to a database that carries it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The claim of a free key.
    Claim,
    /// That of an abandoned or released one.
    TakeOver,
    Renew,
    Commit,
    Release,
    /// A claim is given back.
    Undo,
    /// A waiter wants to be woken.
    Subscribe,
    /// A waiter looks, and leaves its mark.
    Watch,
}

/// Which way it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leg {
    Request,
    Reply,
}

impl Step {
    pub(crate) const ALL: [Self; 8] = [
        Self::Claim,
        Self::TakeOver,
        Self::Renew,
        Self::Commit,
        Self::Release,
        Self::Undo,
        Self::Subscribe,
        Self::Watch,
    ];

    /// All that pass of this step.
    pub(crate) fn passing(self, kind: Kind, proxy: &Proxy) -> Passing {
        if kind != Kind::Redis {
            return proxy.passing(move |words| self.is_carried_out_by(words));
        }
        macro_rules! sha {
            ($($name:literal),*) => {
                Some(
                    Script::new(concat!($(include_str!(concat!("../../idem-redis/src/store/lua/", $name, ".lua"))),*))
                        .get_hash()
                        .to_owned(),
                )
            };
        }
        let sha = match self {
            Self::Claim | Self::Subscribe => None,
            Self::TakeOver => sha!("swap", "takeover"),
            Self::Renew => sha!("renew"),
            Self::Commit => sha!("commit"),
            Self::Release | Self::Undo => sha!("release"),
            Self::Watch => sha!("watch"),
        };
        proxy.passing(move |words| {
            let runs = |sha: &String| words[0] == b"EVALSHA" && words[1] == sha.as_bytes();
            match self {
                Self::Claim => words[0] == b"SET" && words.contains(&&b"NX"[..]),
                Self::Subscribe => words[0] == b"SUBSCRIBE",
                // The same script, told by its last word.
                Self::Release => sha.as_ref().is_some_and(runs) && words.last() != Some(&&b"1"[..]),
                Self::Undo => sha.as_ref().is_some_and(runs) && words.last() == Some(&&b"1"[..]),
                _ => sha.as_ref().is_some_and(runs),
            }
        })
    }

    /// Whether this is its statement: by what only that one has in it, or has for a parameter.
    fn is_carried_out_by(self, words: &[&[u8]]) -> bool {
        let [statement, parameters @ ..] = words else {
            return false;
        };
        let has = |text: &str| holds(statement, text);
        // With a limit for locks, MySQL gets its values in the statement.
        let with = |text: &str| {
            has(&hexadecimal(text)) || parameters.iter().any(|parameter| holds(parameter, text))
        };
        let over_what_was_read = has("UPDATE") && has("OR lease_until <= ");
        match self {
            Self::Claim => has("INSERT INTO"),
            Self::TakeOver => over_what_was_read && with("in_flight"),
            // The only update that moves the end of a lease and leaves the record's state alone.
            Self::Renew => has("UPDATE ") && has("lease_until = ") && !has("SET state = "),
            Self::Commit => {
                has("UPDATE") && (has("AND owner = $") || has("AND owner = ? AND state = "))
            }
            Self::Release => over_what_was_read && with("released"),
            Self::Undo => has("DELETE FROM") && has("AND revision = "),
            Self::Subscribe => has("LISTEN"),
            // MariaDB and MySQL take no mark: their waiters only look.
            Self::Watch => {
                has("SET waited = true")
                    || has("DIV 1000") && statement.starts_with(b"SELECT") && !with(FIRST)
            }
        }
    }
}

fn hexadecimal(text: &str) -> String {
    text.bytes().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}
