//! The steps of a call as they pass on the wire.

use idem_redis::redis::Script;
use idem_testkit::{Passing, Proxy};

/// A step, as one command to Redis.
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
    /// All that pass of this step.
    pub(crate) fn passing(self, proxy: &Proxy) -> Passing {
        macro_rules! sha {
            ($name:literal) => {
                Some(
                    Script::new(include_str!(concat!("../../idem-redis/src/store/lua/", $name, ".lua")))
                        .get_hash()
                        .to_owned(),
                )
            };
        }
        let sha = match self {
            Self::Claim | Self::Subscribe => None,
            Self::TakeOver => sha!("takeover"),
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
}
