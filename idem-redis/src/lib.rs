//! The Redis store of `idem`; use it through the facade, the package `idem-rs`, with its feature `redis`.
//!
//! # What it needs
//!
//! Redis 7.0 or newer, or Valkey: one server, a master under Sentinel, or a cluster
//! ([`RedisStoreBuilder::url`] has the forms of their URLs). It must not evict keys (`maxmemory-policy noeviction`): an evicted record
//! lets a body run twice.
//!
//! A user with these rights, for the prefix `idem`:
//!
//! ```text
//! ACL SETUSER app on >password ~idem:* &idem:* +set +get +del +append +pttl +pexpire +evalsha +script|load
//!                              +subscribe +unsubscribe +publish +ping +info +time
//! ```
//!
//! | also | where |
//! | --- | --- |
//! | `+select` | the URL names a database |
//! | `+role` | under Sentinel; and at the Sentinels, if they have users: `+sentinel\|get-master-addr-by-name +subscribe +ping &+switch-master` |
//! | `+cluster\|slots +asking` | in a cluster |
//! | `+wait` | with [`replicas`](RedisStoreBuilder::replicas) |
//! | `+scan +getrange` | for operators who list records: the program `idem` |
//!
//! `connect`, and each connection after it, refuses a user or a server that lacks one of the commands up to `+script|load`: a body could run,
//! and its outcome not be recorded. Without `+time` the server's clock is believed, whatever it shows. Without `&idem:*`, `SUBSCRIBE` and `PUBLISH` all promises hold, but waiters ask again and again instead of being woken.
//!
//! # When servers are lost
//!
//! Calls fail with errors that may be retried, each within its time limit, and go on by themselves: within a second of the return of
//! a server, of a fail-over that Sentinel tells of, and of the cluster's naming another master. A claim is sent again as the same owner, a
//! commit is tried on in the background. In a cluster only the calls of the lost node's keys are held up, unless the cluster itself
//! stops serving (`cluster-require-full-coverage`).
//!
//! What Redis forgets, it forgets for us too, and then the next call runs the body again:
//!
//! - **A restart without persistence** forgets everything; with `appendfsync everysec`, the last second or two. A master that comes back
//!   empty before it was failed over has its replicas empty themselves as well: let it not restart by itself where it has no persistence.
//! - **A fail-over** forgets what the old master had acknowledged and the new one not yet received, because replication is
//!   asynchronous: most of the time less than a few milliseconds. The same goes for what a master accepted that was cut off from
//!   the others, until it noticed. [`replicas`](RedisStoreBuilder::replicas) narrows this, and says what remains.
//!
//! # When the clock of a server is set
//!
//! The age of a lease is read off the expiry of its record, by the server's wall clock. Where somebody sets that ahead, or a fail-over
//! brings a server whose clock is ahead, living owners look dead. So each store looks at the server's time beside its own monotonic
//! clock, at each connection and every 5 s. A take-over asks for both: by the server's clock the lease has run out, and by the claimant's
//! own clock 95 % of it have passed since the last renewal (the owner stops after 90 %). It does not matter how often the clock was set, how
//! far, or when the last look was. After a jump, a key is taken over up to one length of its lease later than else. Jumps that a look finds are
//! logged. What this cannot see:
//!
//! - a clock that is set back and put right again between two looks;
//! - a process that connected only after the clock was set takes it as it is;
//! - so does a connection that the application brought along, and in a cluster the first connection to a node;
//! - a clock that is set ahead by more than a record is still kept for (`ttl`, `remember`) makes the server forget the record itself.
//!
//! A clock that is set back takes no key from anybody: records, abandoned ones too, stay for so much longer.
//!
//! # What it sends
//!
//! | step | commands |
//! | --- | --- |
//! | claim of a new key, replay | one `SET key record NX GET PX hold` |
//! | commit, release | one `EVALSHA` |
//! | replay where `remember` is longer than `ttl` | the same `SET`, and one `GET` |
//! | claim of what was released, in flight or abandoned | the same `SET`, and one `EVALSHA` |
//! | claim that became an owner, and commit, with `replicas` | then one `WAIT`, shared by all who ask at the same time on a connection |
//! | renewal | one `EVALSHA` for up to 250 leases; in a cluster, for those in one slot, up to 500 leases in one message to each node |
//! | wait | one `SUBSCRIBE` for each key and process, on a second connection that the first waiter has made; one `EVALSHA` for each waiter |
//! | every 5 s | one `TIME` on each connection |
//! | once for each connection | `HELLO`, `SCRIPT LOAD`, one `EVALSHA` that looks at the user's rights, `INFO`, `TIME`; under Sentinel `ROLE`, and one connection to a Sentinel that tells of fail-overs |
//! | once, and when a node is lost or a slot moves | in a cluster: `CLUSTER SLOTS` to each master |
//!
//! A key, its channel and an outcome that is kept aside are in one slot. Channels are plain ones, which a cluster carries to all nodes, so
//! that a waiter is woken wherever the slot has moved meanwhile.
//!
//! # Why it is so
//!
//! - **The claim is one command** because the floor is one round trip, and `SET` with `NX` and `GET` either writes the record or
//!   gives the one that is there. Whatever that makes of the claim is decided by
//!   [`Record::on_claim`](idem_core::record::Record::on_claim), as in every store, and written by a compare-and-set on the very text
//!   that was read: if it has changed, the new text is decided upon.
//! - **Time is the server's.** A record in flight holds the expiry that it was written with, so the age of its lease is that less what
//!   is left (`PTTL`), and no clock of a client is asked what time it is. A record whose expiry somebody took away is an error, never abandoned.
//! - **The owner is compared as a prefix** of the record, so that commit, release and renewal are short scripts.
//! - **An outcome that is forgotten before the fact is** (`remember` longer than `ttl`) has a key of its own, `prefix:{record's key}`:
//!   its memory is freed in time, and the mark stays. The braces put both keys into one slot of a cluster.
//! - **A commit that nobody waits for publishes nothing.** A waiter leaves a mark, one byte behind the record, after its subscription
//!   was confirmed; a commit or release that finds the mark publishes on the channel that is named as the record's key.
//! - **What a body has done is recorded even where the server's memory is full**: commits, releases and renewals are allowed there,
//!   while no new body begins. Duplicates get their outcome.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod batch;
mod claim;
mod clock;
mod cluster;
mod config;
mod connect;
mod connection;
mod error;
mod home;
mod issue;
mod keys;
mod lane;
mod link;
mod look;
mod many;
mod own;
mod place;
mod quick;
mod remove;
mod renew;
mod replicas;
mod script;
mod sentinel;
mod server;
mod session;
mod slot;
mod slots;
mod store;
mod survey;
mod target;
mod wait;
mod wake;

pub use redis;

pub use crate::config::RedisStoreBuilder;
pub use crate::connection::Connection;
pub use crate::store::RedisStore;
pub use crate::survey::Survey;
