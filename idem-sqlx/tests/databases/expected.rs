//! Claims that expect what the last ones of their operation found: where that is wrong, they answer
//! as any other claim does.

use std::time::Duration;

use bytes::Bytes;
use idem_core::Key;
use idem_core::store::record::{
    Claim, Claimed, Commit, Encoded, Owner, Ownership, RecordId, Release, ReleaseTo, Removed,
};
use idem_core::store::{CodecId, Store};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use tokio::task::JoinSet;

use crate::LONG;
use crate::pools::{mariadb, postgres, real_mysql, sqlite};

/// How many claims in a row are taken for a habit, and more.
const HABIT: usize = 10;
const OPERATION: &str = "expected";
const LEASE: Duration = Duration::from_secs(60);

/// The findings of the last claims of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    Nothing,
    /// Of other processes.
    Records,
    /// The process has claimed the next key itself, and its record was removed.
    ThisKey,
}

/// What is at the key of the next claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtKey {
    Nothing,
    InFlight,
    Abandoned,
    Released,
    Committed,
    Expired,
    /// The row that this claim wrote when it was sent before.
    Own,
}

pub(crate) const AT_KEY: [AtKey; 7] = [
    AtKey::Nothing,
    AtKey::InFlight,
    AtKey::Abandoned,
    AtKey::Released,
    AtKey::Committed,
    AtKey::Expired,
    AtKey::Own,
];

pub(crate) fn claim_of(key: &str) -> Claim {
    let id = RecordId::new(OPERATION, &Key::encode(key).unwrap()).unwrap();
    Claim::new(id, Owner::generate(), LEASE, LEASE * 2)
}

async fn commit(store: &impl Store, claim: &Claim, ttl: Duration) {
    let outcome = Encoded::new(CodecId::JSON, Bytes::from_static(b"7"));
    let commit = Commit::new(claim.id.clone(), claim.owner, 1, Some(outcome), ttl);
    assert_eq!(store.commit(&commit).await.unwrap(), Ownership::Held);
}

/// Makes a store's claim of a key expect one of these.
pub(crate) async fn accustom(store: &impl Store, other: &impl Store, found: Found, key: &str) {
    for number in 0..HABIT {
        let next = claim_of(&format!("{key}, {number}"));
        match found {
            Found::Nothing => {}
            Found::Records => {
                other.claim(&next.clone()).await.unwrap();
                commit(other, &next, LONG).await;
            }
            Found::ThisKey => {
                let claim = claim_of(key);
                store.claim(&claim).await.unwrap();
                commit(store, &claim, LONG).await;
                let removed = store.remove(&claim.id).await.unwrap();
                assert_eq!(removed, Removed::Removed);
                return;
            }
        }
        store.claim(&next).await.unwrap();
    }
}

/// Has another process write what is at the key.
pub(crate) async fn write(store: &impl Store, at_key: AtKey, claim: &Claim) {
    let other = match at_key {
        AtKey::Nothing => return,
        AtKey::Own => claim.clone(),
        AtKey::Abandoned => claim
            .clone()
            .with_owner(Owner::generate())
            .with_lease(Duration::from_millis(1)),
        _ => claim.clone().with_owner(Owner::generate()),
    };
    store.claim(&other).await.unwrap();
    match at_key {
        AtKey::Released => {
            let release = Release::new(
                other.id.clone(),
                other.owner,
                ReleaseTo::Released { keep: LONG },
            );
            assert_eq!(store.release(&release).await.unwrap(), Ownership::Held);
        }
        AtKey::Committed => commit(store, &other, LONG).await,
        AtKey::Expired => {
            commit(store, &other, Duration::from_millis(1)).await;
            while store.inspect(&other.id).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        }
        AtKey::Abandoned => {
            let has_lapsed = async || {
                let info = store.inspect(&other.id).await.unwrap().unwrap();
                info.lease_left.is_none_or(|left| left.is_zero())
            };
            while !has_lapsed().await {
                tokio::task::yield_now().await;
            }
        }
        _ => {}
    }
}

/// Whether this is the answer to a claim of a key with this.
pub(crate) fn is_answer(at_key: AtKey, claimed: &Claimed) -> bool {
    match claimed {
        Claimed::Owned { attempt, .. } => match at_key {
            AtKey::Nothing | AtKey::Expired | AtKey::Own => *attempt == 1,
            AtKey::Abandoned | AtKey::Released => *attempt == 2,
            AtKey::InFlight | AtKey::Committed => false,
        },
        Claimed::InFlight { .. } => at_key == AtKey::InFlight,
        Claimed::Committed { .. } => at_key == AtKey::Committed,
        _ => false,
    }
}

/// `connect` returns a store as another process would have one.
async fn answers_whatever_is_expected<S: Store>(connect: impl Fn() -> S) {
    for found in [Found::Nothing, Found::Records, Found::ThisKey] {
        for at_key in AT_KEY {
            let name = format!("{found:?}, {at_key:?}");
            let store = connect();
            accustom(&store, &connect(), found, &name).await;
            let claim = claim_of(&name);
            write(&connect(), at_key, &claim).await;
            let claimed = store.claim(&claim).await.unwrap();
            assert!(is_answer(at_key, &claimed), "{name}: {claimed:?}");
            // Others see the same.
            let others = connect().claim(&claim_of(&name)).await.unwrap();
            let is_seen = match claimed {
                Claimed::Owned { attempt, .. } => {
                    matches!(others, Claimed::InFlight { attempt: seen, .. } if seen == attempt)
                }
                _ => std::mem::discriminant(&claimed) == std::mem::discriminant(&others),
            };
            assert!(is_seen, "{name}: {claimed:?}, then {others:?}");
        }
    }
}

/// Claims of one key at once, by processes with either habit.
async fn one_owner_whatever_is_expected<S: Store>(connect: impl Fn() -> S) {
    for round in 0..10 {
        let mut claims = JoinSet::new();
        for number in 0..6 {
            let store = connect();
            let found = [Found::Nothing, Found::Records][number % 2];
            let habit = format!("at once, {round}, {number}");
            accustom(&store, &connect(), found, &habit).await;
            let claim = claim_of(&format!("at once, {round}"));
            claims.spawn(async move { store.claim(&claim).await.unwrap() });
        }
        let claimed = claims.join_all().await;
        let owners = claimed
            .iter()
            .filter(|claimed| matches!(claimed, Claimed::Owned { .. }))
            .count();
        assert_eq!(owners, 1, "{claimed:?}");
    }
}

macro_rules! on {
    ($($database:ident: $Store:ident;)+) => {
        $(
            mod $database {
                use super::*;

                #[tokio::test]
                async fn a_claim_answers_whatever_is_expected() {
                    let (pool, _) = super::$database().await;
                    answers_whatever_is_expected(|| $Store::builder(pool.clone()).time_limit(LONG).build()).await;
                }

                #[tokio::test(flavor = "multi_thread")]
                async fn a_key_has_one_owner_whatever_is_expected() {
                    let (pool, _) = super::$database().await;
                    one_owner_whatever_is_expected(|| $Store::builder(pool.clone()).time_limit(LONG).build()).await;
                }
            }
        )+
    };
}

on! {
    postgres: PostgresStore;
    mariadb: MySqlStore;
    real_mysql: MySqlStore;
    sqlite: SqliteStore;
}
