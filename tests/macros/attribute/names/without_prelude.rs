use ::idem::{ErrorPolicy, KeyPart, idempotent};
use ::serde::{Deserialize, Serialize};

use super::{Failure, Runs};

mod core {}
mod std {}
mod idem {}
struct Option;
struct Some;
struct None;
struct Ok;
struct Err;
struct Box;
struct Vec;
struct Send;
struct Clone;
struct Future;
type Result<T> = ::core::result::Result<T, Failure>;

#[derive(KeyPart)]
pub(super) struct Id {
    tenant: ::std::string::String,
    number: u64,
}

#[derive(KeyPart, ::core::clone::Clone)]
enum Either<T> {
    One(T),
    Two { id: u32 },
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
enum Whole {
    #[idem(keep, dead_letter)]
    Declined,
    #[idem(release, redeliver = "1m")]
    Gateway,
    #[idem(release)]
    Other(::std::string::String),
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
enum Generic<E> {
    #[idem(inner)]
    Inner(E),
    Other(::std::string::String),
}

impl ::core::convert::From<::idem::Error> for Whole {
    fn from(error: ::idem::Error) -> Self {
        Self::Other(error.code().into_text())
    }
}

trait IntoText {
    fn into_text(self) -> ::std::string::String;
}

impl IntoText for &str {
    fn into_text(self) -> ::std::string::String {
        <::std::string::String as ::core::convert::From<&str>>::from(self)
    }
}

#[idempotent(key = key, fingerprint = key.number, ttl = "1h")]
pub(super) async fn plain(runs: &Runs, key: &Id) -> Result<u32> {
    ::core::result::Result::Ok(runs.count())
}

#[idempotent(key = "key", errors(Whole::Declined => keep, _ => retry(max = 3, then = keep)))]
async fn retried(runs: &Runs, key: Either<u32>) -> ::core::result::Result<u32, Whole> {
    let _ = key;
    ::core::result::Result::Ok(runs.count())
}

#[idempotent(key = id, detached)]
async fn detached(id: u32) -> ::core::result::Result<u32, Whole> {
    ::core::result::Result::Ok(id)
}

#[idempotent(key = id, abandoned = reconcile("ask(id)"), missing_key = run)]
async fn asking(id: ::core::option::Option<u32>) -> Result<u32> {
    let _ = id;
    ::core::result::Result::Ok(1)
}

async fn ask(_: ::core::option::Option<u32>) -> Result<::core::option::Option<u32>> {
    ::core::result::Result::Ok(::core::option::Option::None)
}

#[derive(KeyPart, ::core::clone::Clone)]
#[idem(crate = "::idem")]
pub(super) struct Pair<'a, T>(pub(super) &'a str, pub(super) T);

#[derive(KeyPart, ::core::clone::Clone)]
enum Kind {
    Card,
    Wire(::core::option::Option<u32>),
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
#[idem(crate = "::idem")]
enum Each {
    #[idem(keep(ttl = "1h"))]
    Kept(u32),
    #[idem(retry(max = 2, backoff = "1ms", then = abandon), redeliver = "30s")]
    Retried { code: u32 },
    #[idem(abandon)]
    Abandoned,
    #[idem(inner)]
    Inner(Whole),
}

#[derive(Debug, Serialize, Deserialize, ErrorPolicy)]
#[idem(keep)]
pub(super) struct Refused(pub(super) ::std::string::String);

impl ::core::convert::From<::idem::Error> for Refused {
    fn from(error: ::idem::Error) -> Self {
        Self(error.code().into_text())
    }
}

#[idempotent(
    name = "names.bare.token",
    token = token,
    subject = user,
    fingerprint = amount,
    ttl = "1h",
    remember = "2h",
    in_flight = wait("1s"),
    duplicate = reject,
)]
pub(super) async fn with_token(
    token: &::idem::Token,
    user: u64,
    amount: u32,
) -> ::core::result::Result<u32, Refused> {
    ::core::result::Result::Ok(amount)
}

#[idempotent(
    name = "names.bare.options",
    key = (pair, kind),
    fingerprint = none,
    lease = ::core::time::Duration::from_secs(10),
    in_flight = reject,
    duplicate = replay,
    abandoned = reject,
    hold = "31d",
    store_failure = run,
    max_attempts = 3,
    outcome_version = 2,
    upgrade(1 => from_first),
    runtime = runtime,
    crate = "::idem",
    errors(policy),
)]
async fn options(
    runtime: &::idem::Idempotency,
    pair: Pair<'_, u32>,
    kind: Kind,
) -> ::core::result::Result<u32, Whole> {
    ::core::result::Result::Ok(pair.1)
}

fn from_first(value: u16) -> u32 {
    ::core::convert::From::from(value)
}

fn policy(_: &Whole) -> ::idem::ErrorAction {
    ::idem::ErrorAction::Release
}

pub(super) async fn with_options(
    runtime: &::idem::Idempotency,
    number: u32,
) -> ::core::result::Result<u32, u32> {
    let kind = Kind::Wire(::core::option::Option::Some(1));
    let answer = options(runtime, Pair("a", number), kind).await;
    answer.map_err(|_| 0)
}

pub(super) struct Service(pub(super) Runs);

impl Service {
    #[idempotent(name = "names.bare.method", key = id, observe, abandoned = reconcile(self.ask(id)))]
    pub(super) async fn method(&self, id: u32) -> Result<u32> {
        ::core::result::Result::Ok(self.0.count())
    }

    async fn ask(&self, id: u32) -> Result<::core::option::Option<u32>> {
        ::core::result::Result::Ok(::core::option::Option::Some(id))
    }

    #[idempotent(name = "names.bare.generic", key = id, detached)]
    pub(super) async fn generic<T>(id: u32, value: T) -> ::core::result::Result<T, Refused>
    where
        T: ::core::marker::Send + Serialize + ::serde::de::DeserializeOwned + 'static,
    {
        ::core::result::Result::Ok(value)
    }
}

#[cfg(feature = "sqlite")]
#[idempotent(name = "names.bare.tx", key = id, fingerprint = text, transaction = tx)]
pub(super) async fn in_transaction(
    tx: &mut ::idem::sqlx::SqliteTransaction<'_>,
    id: u32,
    text: &str,
) -> ::core::result::Result<::std::string::String, Refused> {
    let _ = tx;
    ::core::result::Result::Err(Refused(text.into_text()))
}

pub(super) fn key() -> Id {
    Id {
        tenant: "acme".into_text(),
        number: 1,
    }
}
