//! The macros of `idem`: `#[idempotent]`, `#[derive(KeyPart)]` and `#[derive(ErrorPolicy)]`.
//!
//! Use them through the `idem` crate (package `idem-rs`), which exports them next to the runtime
//! that the generated code calls. An attribute passes through this crate in three steps. `args` and
//! `item` parse the text, `plan` finds its meaning and mistakes, and `expand` rewrites the function
//! and cannot fail.

mod action;
mod args;
mod arguments;
mod arms;
mod async_trait;
mod bindings;
mod diag;
mod duration;
mod error_policy;
mod expand;
mod handling;
mod item;
mod key_part;
mod lifetimes;
mod paths;
mod plan;
#[cfg(test)]
mod snapshots;
mod transaction;
mod value;
mod versions;

use proc_macro::TokenStream;

/// Makes an async function idempotent: for each key one body runs at a time, no body runs after one
/// has succeeded, and every duplicate call gets the first call's answer.
///
/// ```
/// use idem::{Idempotency, MemoryStore, idempotent};
///
/// struct CreateOrder {
///     order_id: String,
///     item: String,
/// }
///
/// #[idempotent(name = "orders.create", key = req.order_id, ttl = "5m")]
/// async fn create_order(req: CreateOrder) -> Result<String, idem::Error> {
///     println!("ordering {}", req.item); // once
///     Ok(format!("receipt for {}", req.order_id))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // Once, at the start of the program: the runtime of all annotated functions.
///     idem::install(Idempotency::new(MemoryStore::new()))?;
///
///     let req = || CreateOrder { order_id: "o-1".to_owned(), item: "tea".to_owned() };
///     let first = create_order(req()).await?;
///     assert_eq!(create_order(req()).await?, first); // the recorded answer
///     Ok(())
/// }
/// ```
///
/// The key may also be a string, as in other frameworks: `key = "req.order_id"` means the same.
///
/// The function is `async` and returns `Result<T, E>`. `T` is `Serialize + DeserializeOwned`, and
/// `E` is `From<idem::Error>`. It may be a free function, a method, a generic function or a method
/// under `#[async_trait]`. Its signature, docs and other attributes stay as they are written.
///
/// # Options
///
/// [The table of options](../idem/guide/options/index.html) has all of them, with
/// defaults and limits. [The guide](../idem/guide/attribute/index.html) explains
/// them. These are used most:
///
/// | option | meaning |
/// | --- | --- |
/// | `key = "req.order_id"` | Identifies one logical call: an expression over the parameters. Required, unless there is a `token`. |
/// | `fingerprint = "req"` | The arguments that must be equal when the key comes again. |
/// | `ttl = "5m"` | How long the outcome is kept and replayed, from the commit. |
/// | `name = "orders.create"` | The operation. Required on methods, on generic functions and with `token`. |
/// | `abandoned = reject` | After a crash, a person decides. Also: `rerun` (the default), `reconcile(..)`. |
/// | `errors(PATTERN => ACTION, ..)` | The action for each error: see below. |
/// | `detached` | The body runs in a separate task, so that a dropped caller does not stop it. |
///
/// # Values
///
/// **Expressions** (`key`, `token`, `subject`, `fingerprint`, `runtime`, the argument of
/// `reconcile`) are Rust expressions over the parameters, written bare or in a string:
/// `key = req.order_id` and `key = "req.order_id"` are the same. They are computed once, before the
/// body, and only borrow. Bare expressions have more exact error messages.
///
/// **Several parts** make one key (or one subject, or one fingerprint):
/// `key = ("req.tenant", "req.order_id")`. A string is always an expression, so write a constant
/// part bare: `key = (TENANT, "req.order_id")`. A part is any type that implements `KeyPart`:
/// strings, integers, `bool`, references and tuples of those, and types with `#[derive(KeyPart)]`.
///
/// **Durations** (`ttl`, `remember`, `lease`, `hold`, the argument of `wait`) are strings:
/// `"500ms"`, `"30s"`, `"5m"`, `"1h 30m"` or `"7d"`. They may also be bare expressions of type
/// `Duration`, which may use the parameters: `ttl = req.keep_for()`.
///
/// **`reconcile`** takes an expression for a future of `Result<Option<T>, E>`, with the function's
/// own `T` and `E`. `Some` is committed and returned, `None` runs the body, and `Err` goes to the
/// caller.
///
/// # Errors
///
/// ```
/// use idem::idempotent;
///
/// # #[derive(Clone)] struct CreateOrder { order_id: String }
/// #[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
/// enum OrderError {
///     #[error("declined, code {code}")]
///     CardDeclined { code: u16 },
///     #[error("{left} in stock")]
///     Stock { left: u32 },
///     #[error("the gateway did not answer")]
///     GatewayTimeout,
///     #[error(transparent)]
///     #[serde(skip)] // never kept
///     Idempotency(#[from] idem::Error),
/// }
///
/// #[idempotent(
///     key = req.order_id,
///     errors(
///         OrderError::CardDeclined { .. } => keep,
///         OrderError::Stock { left } if *left == 0 => keep(ttl = "1h"),
///         OrderError::GatewayTimeout => retry(max = 3, backoff = "100ms"),
///         _ => release,
///     ),
/// )]
/// async fn create_order(req: CreateOrder) -> Result<u64, OrderError> {
///     Err(OrderError::CardDeclined { code: 51 })
/// }
/// # fn main() {}
/// ```
///
/// The arms become one `match` on a reference to the error. Or-patterns, bindings and guards work.
/// The arms must cover every error, and an unreachable arm is an error. The actions are
///
/// - `keep`: the error is recorded as the outcome for `ttl`, and a duplicate gets an equal error.
///   `keep(ttl = "1h")` replaces `ttl` and `remember`. The error type must be `Serialize` and
///   `DeserializeOwned`.
/// - `release`: the key is released, and the next call runs the body.
/// - `abandon`: the outcome of the work is unknown. The record is abandoned immediately, as after a
///   crash, and the next call does what the option `abandoned` says.
/// - `retry(max = 3)`: the body runs again, up to three more times in one call, counted over all
///   its errors. The lease is renewed meanwhile, and the attempt stays the same.
///   `backoff = "100ms"` is the first pause. Each further pause is twice as long, up to
///   `max_backoff = "10s"` (or the backoff, if that is longer). A random part of up to a half is
///   added to each pause. After the last try, `then` decides: `release` (the default), `abandon`,
///   `keep` or `keep(ttl = "1h")`. The arguments that the body uses must be `Clone` or references:
///   each try gets a clone, and all tries share a `&mut` reference.
///
/// `errors(policy)` uses the policy of the error type, like a function without `errors(..)`, and
/// also allows it to retry.
///
/// A guard may use the bindings of its pattern, and parameters that are references or `Copy`.
/// Durations and `max` are computed before the body, unless they use a binding of the pattern.
#[proc_macro_attribute]
pub fn idempotent(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(args.into(), &item.into()).into()
}

/// Derives `KeyPart`, so that values of the type can be parts of a key.
///
/// ```
/// #[derive(idem::KeyPart)]
/// struct OrderId(u64);
///
/// #[derive(idem::KeyPart)]
/// enum Payee {
///     Customer(u64),
///     Merchant { shop: String, till: u32 },
///     House,
/// }
/// ```
///
/// A struct with one field has the same key as that field. A struct with several fields is a group
/// of them, in the order of the declaration. An enum is the variant's name and then the variant's
/// fields. So if you rename a variant or reorder fields, keys change. If you rename a field, they
/// do not.
///
/// Every field and every type parameter must be a `KeyPart`. `#[idem(crate = "::idem")]` on the
/// type says where the generated code finds the `idem` crate.
#[proc_macro_derive(KeyPart, attributes(idem))]
pub fn key_part(item: TokenStream) -> TokenStream {
    key_part::derive(item.into()).into()
}

/// Derives `ErrorPolicy`, the policy of an error type. It holds for every annotated function that
/// returns the type and has no `errors(..)` of its own.
///
/// ```
/// # #[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error, idem::ErrorPolicy)]
/// # #[error("sold out")] #[idem(release)] struct StockError;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, thiserror::Error, idem::ErrorPolicy)]
/// enum OrderError {
///     #[error("the card was declined")]
///     #[idem(keep)]
///     CardDeclined { code: u16 },
///     #[error("the gateway did not answer")]
///     #[idem(retry(max = 3, backoff = "100ms"))]
///     GatewayTimeout,
///     #[error(transparent)]
///     #[idem(inner)]
///     Stock(#[from] StockError),
///     #[error(transparent)]
///     #[serde(skip)]
///     Idempotency(#[from] idem::Error),
/// }
/// ```
///
/// The attributes of a variant:
///
/// - `#[idem(keep)]` or `#[idem(keep(ttl = "1h"))]`: the error is recorded, and duplicates get an
///   equal one;
/// - `#[idem(release)]`: the key is released, and the next call runs the body. This is the default
///   for a variant, unless the runtime has another one (`Builder::default_error`);
/// - `#[idem(abandon)]`: the outcome of the work is unknown; the next call does what the function's
///   `abandoned` says;
/// - `#[idem(retry(max = 3, backoff = "100ms", max_backoff = "10s", then = release))]`: the body
///   runs again in the same call, which the function must allow with `errors(policy)`;
/// - `#[idem(inner)]`, on a variant with one field: the policy of that field's type decides;
/// - `#[idem(dead_letter)]`, alone or with an action: a message whose handler fails with this error
///   is dead-lettered;
/// - `#[idem(redeliver = "1m")]`, alone or with an action other than `keep`: the message is
///   delivered again after this pause, instead of one second. The pause is a string or a constant
///   of type `Duration`. RabbitMQ pauses for 10 minutes at most.
///
/// With `#[idem(dead_letter)]` or `#[idem(redeliver = "1m")]` on a variant, or `#[idem(dispose)]`
/// or `#[idem(dead_letter)]` above the type, the derive also implements `Dispose`. An error that is
/// marked `dead_letter`, or kept, dead-letters the message, with the variant's name in snake case
/// as the reason. If a variant without such a mark has one field that implements `Dispose`, that
/// field decides. After any other error the message is delivered again, after one second.
///
/// Above a struct, or above an enum for all variants without an attribute, they mean the same;
/// `redeliver` above an enum is refused.
/// `#[idem(crate = "::idem")]` on the type says where the generated code finds the `idem` crate.
///
/// A type that keeps errors must be `Serialize` and `DeserializeOwned`.
#[proc_macro_derive(ErrorPolicy, attributes(idem))]
pub fn error_policy(item: TokenStream) -> TokenStream {
    error_policy::derive(item.into()).into()
}
