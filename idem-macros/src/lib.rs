//! The macros of `idem`: `#[idempotent]`, `#[derive(KeyPart)]` and `#[derive(ErrorPolicy)]`.
//!
//! Use them through the `idem` crate (package `idem-rs`), which exports them next to the runtime that the generated code
//! calls. The way of an attribute through this crate: `args` and `item` read what is written, `plan` says what it means and
//! what is wrong with it, `expand` writes the function anew and cannot fail.

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
mod item;
mod key_part;
mod paths;
mod plan;
#[cfg(test)]
mod snapshots;
mod value;

use proc_macro::TokenStream;

/// Guards an async function by an idempotency key: one body at a time, none after one has succeeded, and every duplicate
/// call gets the first call's answer.
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
/// The function is `async` and returns `Result<T, E>`, where `T` can be stored (`Serialize + DeserializeOwned`) and `E` can be
/// made from an `idem::Error` (`From<idem::Error>`). It may be a free function, a method, a generic function or a method
/// under `#[async_trait]`; its signature, its docs and its other attributes stay as they are written.
///
/// # Options
///
/// | option | meaning |
/// | --- | --- |
/// | `key = "req.order_id"` | Required, unless there is a `token`. What identifies one logical call: an expression over the parameters. |
/// | `token = "form.token"` | In place of `key`, and together with `subject`: a one-time token that was issued for this operation, by its `name`, as an `idem::Token`, a text that should be one, or an `Option` of these. The body runs for its first submission; a token that is unknown, expired, forged or another's is `Error::UnknownToken`. Such a call never runs unguarded, so `store_failure = run` and `missing_key` cannot stand beside it. |
/// | `subject = "session.id"` | Required with `token`: whom it was issued to, as one or several parts of a key. Take it from what the server knows of the caller, never from the form. `None` or empty: `Error::MissingSubject`. |
/// | `ttl = "5m"` | How long a committed outcome is kept and replayed, counted from the commit. |
/// | `remember = "30d"` | How long it is known that there was an outcome. Between `ttl` and `remember` a duplicate gets `Error::AlreadyDone`. By default no longer than `ttl`. |
/// | `name = "orders.create"` | The operation's name; keys of two operations never collide. A string or a constant expression of type `&'static str`. By default the module path and the name of the function, which change when it, its module or its crate is renamed: write one for whatever outlives a deployment. Required on functions of a type and on functions with type parameters, where the default would not be unique. On a default method of a trait, write `name = Self::NAME`, a constant of the trait. |
/// | `fingerprint = "req"` | What must be equal when a key comes again: anything `Serialize`. Same key, other fingerprint: `Error::FingerprintMismatch`. `none`, bare: there is none; under `Builder::strict` each function states one or the other. |
/// | `lease = "30s"` | How long the owner of a key may go without renewing its right to run the body. It is renewed while the body runs; after a crash, it is how long the key stays in flight. |
/// | `in_flight = wait("5s")` | What a call does that finds the key in flight: `wait("5s")` waits that long for the outcome, `wait` as long as the runtime says (the default), `reject` is `Error::InFlight` at once. |
/// | `duplicate = replay` | What a call gets that finds a committed outcome: `replay`, that outcome (the default), or `reject`, `Error::Duplicate`. |
/// | `abandoned = rerun` | What happens with a key whose owner crashed: `rerun` runs the body as the next attempt (the default), `reject` is `Error::Abandoned` until somebody settles the record, or its `hold` ends, `reconcile("lookup(&req)")` first asks what became of it. |
/// | `hold = "30d"` | With `abandoned = reject` or `reconcile`: how long an unsettled record protects its key, from the last sign of life of its owner. By default 30 days. |
/// | `store_failure = reject` | When the store cannot answer: `reject`, an error and no body (the default), or `run`, the body unguarded. |
/// | `missing_key = reject` | When a part of the key is `None` or empty: `reject`, `Error::MissingKey` (the default), or `run`, the body unguarded. |
/// | `max_attempts = 5` | After that many attempts, those that ended in a released error included, a claim gets `Error::AttemptsExhausted`. An attempt whose `reconcile` failed is not counted. |
/// | `detached` | Runs the body in a task of its own, so that a dropped caller does not stop it. The body takes all arguments along, and may borrow nothing from the caller: take arguments by value, and clone what you need of `self`. For web handlers, whose caller goes away when the client hangs up. |
/// | `transaction = tx` | The parameter, of type `&mut sqlx::Transaction<'_, DB>`, that the record is written in: rows and record are committed together by the caller, or neither is. `lease`, `abandoned`, `hold`, `store_failure`, `max_attempts`, `detached`, `retry` and `abandon` have no meaning beside it. |
/// | `runtime = "self.idempotency"` | The `Idempotency` to use, or a reference to it. By default the one of the scope, or the installed one. |
/// | `errors(PATTERN => ACTION, ..)` | What becomes of each error: see below. By default each releases the key, unless its type [says otherwise](derive.ErrorPolicy.html) or the runtime (`Builder::default_error`). |
/// | `crate = "::idem"` | Where the generated code finds the `idem` crate. |
///
/// # Values
///
/// **Expressions** (`key`, `token`, `subject`, `fingerprint`, `runtime`, the argument of `reconcile`) are Rust over the parameters, written bare
/// or in a string: `key = req.order_id` and `key = "req.order_id"` are the same. They are computed once, before the body, and
/// only borrow. A bare expression has the more exact error messages.
///
/// **Several parts** make one key (or one subject, or one fingerprint): `key = ("req.tenant", "req.order_id")`. A string always is an
/// expression, so a constant part is written bare: `key = (TENANT, "req.order_id")`. A part is anything that implements
/// `KeyPart`: strings, integers, `bool`, references and tuples of those, and types with `#[derive(KeyPart)]`.
///
/// **Durations** (`ttl`, `remember`, `lease`, `hold`, the argument of `wait`) are a string, `"500ms"`, `"30s"`, `"5m"`, `"1h 30m"` or
/// `"7d"`, or a bare expression of type `Duration`, which may use the parameters: `ttl = req.keep_for()`.
///
/// **`reconcile`** takes an expression that gives a future of `Result<Option<T>, E>`, with the function's own `T` and `E`:
/// `Some` is committed and returned, `None` runs the body, and `Err` goes to the caller.
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
/// The arms are those of one `match` on a reference to the error: with or-patterns, bindings and guards; every error must be covered,
/// and an arm that is never reached is an error. An action is
///
/// - `keep`: the error is the outcome. It is recorded, for `ttl`, and a duplicate gets an equal one. `keep(ttl = "1h")` keeps it for a time
///   of its own, in place of `ttl` and `remember`. The error type is `Serialize` and `DeserializeOwned`.
/// - `release`: the key is given up, and the next call runs the body.
/// - `abandon`: nobody knows what became of the work. The record is abandoned, as after a crash but at once, and the next call does what
///   the option `abandoned` says.
/// - `retry(max = 3)`: the body runs again, up to three times more in one call, all its errors together. The lease is held and renewed
///   meanwhile, and the attempt stays the same. `backoff = "100ms"` is the first pause; each further one is twice as long, up to
///   `max_backoff = "10s"` (or the backoff, if that is longer), and each is lengthened at random by up to a half. After the last try, `then = release` (or `abandon`, `keep`,
///   `keep(ttl = "1h")`). The arguments that the body uses are `Clone`, and each try gets its own; exclusive references are lent to one try after the other.
///
/// `errors(policy)` asks the type, as no `errors` at all does, and allows it to retry.
///
/// A guard sees what the pattern binds, and parameters that the body does not use up (references, and what is `Copy`). Durations and
/// `max` are computed before the body, unless they use a binding of the pattern.
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
/// A struct with one field is the same key as that field. A struct with several fields is a group of them, in the order in
/// which they are written; an enum is the variant's name and then the variant's fields. So a renamed variant or a reordered
/// struct is another key, and a renamed field is not.
///
/// Every field must be a `KeyPart`, and so must every type parameter. `#[idem(crate = "::idem")]` on the type says where the
/// generated code finds the `idem` crate.
#[proc_macro_derive(KeyPart, attributes(idem))]
pub fn key_part(item: TokenStream) -> TokenStream {
    key_part::derive(item.into()).into()
}

/// Says of each error of a type what becomes of a guarded call that returns it: for every function that has this error type and no
/// `errors(..)` of its own.
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
/// - `#[idem(keep)]` or `#[idem(keep(ttl = "1h"))]`: the error is recorded, and duplicates get an equal one;
/// - `#[idem(release)]`: the key is given up, and the next call runs the body. So it is on a variant without an action, unless the runtime says otherwise (`Builder::default_error`);
/// - `#[idem(abandon)]`: nobody knows what became of the work; the next call does what the function's `abandoned` says;
/// - `#[idem(retry(max = 3, backoff = "100ms", max_backoff = "10s", then = release))]`: the body is tried again in place, which a function
///   must allow by `errors(policy)`;
/// - `#[idem(inner)]`, on a variant with one field: the policy of the error inside.
///
/// Above a struct, or above the whole enum for all variants on which nothing stands, they mean the same. `#[idem(crate = "::idem")]` on
/// the type says where the generated code finds the `idem` crate.
///
/// A type that keeps errors is `Serialize` and `DeserializeOwned`.
#[proc_macro_derive(ErrorPolicy, attributes(idem))]
pub fn error_policy(item: TokenStream) -> TokenStream {
    error_policy::derive(item.into()).into()
}
