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
mod paths;
mod plan;
#[cfg(test)]
mod snapshots;
mod transaction;
mod value;
mod versions;

use proc_macro::TokenStream;

/// Guards an async function by an idempotency key: one body at a time, none after one has
/// succeeded, and every duplicate call gets the first call's answer.
///
/// ```ignore
/// use idem::idempotent;
///
/// #[idempotent(key = "req.order_id", ttl = "5m")]
/// async fn create_order(req: CreateOrder) -> Result<Receipt, OrderError> {
///     // ...
/// }
/// ```
///
/// The function is `async` and returns `Result<T, E>`, where `T` can be stored
/// (`Serialize + DeserializeOwned`) and `E` can be made from an `idem::Error`
/// (`From<idem::Error>`). It may be a free function, a method, a generic function or a method under
/// `#[async_trait]`; its signature, its docs and its other attributes stay as they are written.
///
/// # Options
///
/// [The table of options](https://docs.rs/idem-rs/latest/idem/guide/options/) has all of them, with
/// defaults and limits. [The guide](https://docs.rs/idem-rs/latest/idem/guide/attribute/) explains
/// them. These are used most:
///
/// | option | meaning |
/// | --- | --- |
/// | `key = "req.order_id"` | Identifies one logical call: an expression over the parameters. Required, unless there is a `token`. |
/// | `fingerprint = "req"` | The arguments that must be equal when the key comes again. |
/// | `ttl = "5m"` | How long the outcome is kept and replayed, from the commit. |
/// | `name = "orders.create"` | The operation. Required on methods and generic functions. |
/// | `abandoned = reject` | After a crash, a person decides. Also: `rerun` (the default), `reconcile(..)`. |
/// | `errors(PATTERN => ACTION, ..)` | The action for each error: see below. |
/// | `detached` | The body runs in a separate task, so that a dropped caller does not stop it. |
///
/// # Values
///
/// **Expressions** (`key`, `token`, `subject`, `fingerprint`, `runtime`, the argument of
/// `reconcile`) are Rust over the parameters, written bare or in a string: `key = req.order_id` and
/// `key = "req.order_id"` are the same. They are computed once, before the body, and only borrow. A
/// bare expression has the more exact error messages.
///
/// **Several parts** make one key (or one subject, or one fingerprint):
/// `key = ("req.tenant", "req.order_id")`. A string always is an expression, so a constant part is
/// written bare: `key = (TENANT, "req.order_id")`. A part is anything that implements `KeyPart`:
/// strings, integers, `bool`, references and tuples of those, and types with `#[derive(KeyPart)]`.
///
/// **Durations** (`ttl`, `remember`, `lease`, `hold`, the argument of `wait`) are strings:
/// `"500ms"`, `"30s"`, `"5m"`, `"1h 30m"` or `"7d"`. They may also be bare expressions of type
/// `Duration`, which may use the parameters: `ttl = req.keep_for()`.
///
/// **`reconcile`** takes an expression that gives a future of `Result<Option<T>, E>`, with the
/// function's own `T` and `E`. `Some` is committed and returned, `None` runs the body, and `Err`
/// goes to the caller.
///
/// # Errors
///
/// ```ignore
/// #[idempotent(
///     key = req.order_id,
///     errors(
///         OrderError::CardDeclined { .. } => keep,
///         OrderError::Stock(error) if error.is_final() => keep(ttl = "1h"),
///         OrderError::GatewayTimeout => retry(max = 3, backoff = "100ms"),
///         _ => release,
///     ),
/// )]
/// ```
///
/// The arms are those of one `match` on a reference to the error, with or-patterns, bindings and
/// guards. They must cover every error, and an unreachable arm is an error. An action is
///
/// - `keep`: the error is the outcome. It is recorded for `ttl`, and a duplicate gets an equal one.
///   `keep(ttl = "1h")` replaces `ttl` and `remember`. The error type is `Serialize` and
///   `DeserializeOwned`.
/// - `release`: the key is released, and the next call runs the body.
/// - `abandon`: the outcome of the work is unknown. The record is abandoned, as after a crash but
///   at once, and the next call does what the option `abandoned` says.
/// - `retry(max = 3)`: the body runs again, up to three times more in one call, all its errors
///   together. The lease is held and renewed meanwhile, and the attempt stays the same.
///   `backoff = "100ms"` is the first pause. Each further one is twice as long, up to
///   `max_backoff = "10s"` (or the backoff, if that is longer). Each is lengthened at random by up
///   to a half. After the last try, `then = release` (or `abandon`, `keep`, `keep(ttl = "1h")`).
///   The arguments that the body uses are `Clone`, and each try gets its own; exclusive references
///   are lent to one try after the other.
///
/// `errors(policy)` asks the type, as no `errors` at all does, and allows it to retry.
///
/// A guard sees what the pattern binds, and parameters that the body does not use up (references,
/// and what is `Copy`). Durations and `max` are computed before the body, unless they use a binding
/// of the pattern.
#[proc_macro_attribute]
pub fn idempotent(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::idempotent(args.into(), &item.into()).into()
}

/// Makes a type a part of a key.
///
/// ```ignore
/// #[derive(idem::KeyPart)]
/// struct OrderId(Uuid);
///
/// #[derive(idem::KeyPart)]
/// enum Payee {
///     Customer(CustomerId),
///     Merchant { shop: ShopId, till: u32 },
///     House,
/// }
/// ```
///
/// A struct with one field is the same key as that field. A struct with several fields is a group
/// of them, in the order in which they are written; an enum is the variant's name and then the
/// variant's fields. So a renamed variant or a reordered struct is another key, and a renamed field
/// is not.
///
/// Every field must be a `KeyPart`, and so must every type parameter. `#[idem(crate = "::idem")]`
/// on the type says where the generated code finds the `idem` crate.
#[proc_macro_derive(KeyPart, attributes(idem))]
pub fn key_part(item: TokenStream) -> TokenStream {
    key_part::derive(item.into()).into()
}

/// Says of each error of a type what becomes of a guarded call that returns it: for every function
/// that has this error type and no `errors(..)` of its own.
///
/// ```ignore
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
/// On a variant stands one of
///
/// - `#[idem(keep)]` or `#[idem(keep(ttl = "1h"))]`: the error is recorded, and duplicates get an
///   equal one;
/// - `#[idem(release)]`: the key is released, and the next call runs the body. This is the default
///   for a variant, unless the runtime has another one (`Builder::default_error`);
/// - `#[idem(abandon)]`: the outcome of the work is unknown; the next call does what the function's
///   `abandoned` says;
/// - `#[idem(retry(max = 3, backoff = "100ms", max_backoff = "10s", then = release))]`: the body is
///   tried again in place, which a function must allow by `errors(policy)`;
/// - `#[idem(inner)]`, on a variant with one field: the policy of the error inside;
/// - `#[idem(dead_letter)]`, alone or with an action: a message whose handler fails with this error
///   is put aside. This, or `#[idem(dispose)]` above the type, derives `Dispose`: a marked or kept
///   error is dead-lettered, with the variant's name in snake case as the reason; of a variant with
///   one field that is `Dispose` itself, that is asked; after any other error the message comes
///   again.
///
/// Above a struct, or above the whole enum for all variants on which nothing stands, they mean the
/// same. `#[idem(crate = "::idem")]` on the type says where the generated code finds the `idem`
/// crate.
///
/// A type that keeps errors is `Serialize` and `DeserializeOwned`.
#[proc_macro_derive(ErrorPolicy, attributes(idem))]
pub fn error_policy(item: TokenStream) -> TokenStream {
    error_policy::derive(item.into()).into()
}
