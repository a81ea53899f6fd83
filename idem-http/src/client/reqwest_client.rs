//! The settings of the middleware for reqwest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use idem_core::KeyGenerator;
use reqwest::{IntoUrl, Request, Url};

type LookupUrl = Arc<dyn Fn(&Request, &str) -> reqwest::Result<Url> + Send + Sync>;

/// A middleware for reqwest that gives each POST and PATCH an idempotency key, and retries it
/// safely.
///
/// All tries of a request carry one key. Add this middleware before others that retry, so that it
/// is outermost.
///
/// The key is the first of these:
///
/// 1. the header, if the caller has set it;
/// 2. the extension [`RequestKey`];
/// 3. with [`keys_from_call`](Self::keys_from_call), a child key of the guarded body that sends the
///    request;
/// 4. a new key of a [`KeyGenerator`].
///
/// Only a key of the caller's own survives a restart of the caller's process. A request of another
/// method passes unchanged, unless the caller gave it a key.
///
/// # What is retried
///
/// | result of a try | retried | may have been carried out |
/// | --- | --- | --- |
/// | 2xx, 3xx, or a replay | no, it is the answer | – |
/// | 425, 429 | yes | no |
/// | 409 with `Retry-After` or an `idempotency_error` | yes | yes |
/// | 409 that says abandoned, or attempts exhausted | no | yes |
/// | 409 that says done | no, it is the answer | – |
/// | any other 409 | yes | no |
/// | 401, 403 | no | no |
/// | any other 4xx, 422 among them | never, it is the answer | – |
/// | 408, 500, 502, 503, 504 | yes | yes |
/// | 501, 505 | no, it is the answer | – |
/// | any other 5xx | no | yes |
/// | connection refused, host not found, TLS failed | yes | no |
/// | connection lost, timeout, response cut in its body | yes | yes |
/// | too many redirects | no | yes |
/// | an error of other middleware | no | yes, unless reqwest says inside that it did not connect |
/// | the deadline, during a try | no | yes |
///
/// If `x-should-retry` or `Stripe-Should-Retry` is `false`, the tries end. If it is `true`, any 5xx
/// is retried, unless it is an answer. The pause before the next try is that of `Retry-After`, in
/// seconds or as a date, or of `retry-after-ms`. Otherwise it doubles from
/// [`backoff`](Self::backoff). Both have jitter. A `Retry-After` beyond the deadline ends the tries
/// immediately. A request whose body is a stream is sent once.
///
/// If the client gives up and no try may have been carried out, the caller gets the last response
/// or error. Otherwise the outcome is unknown: the caller gets [`UnknownOutcome`], which holds the
/// key. The events `request_retried` (DEBUG) and `outcome_unknown` (WARN) have the target `idem`.
///
/// Only the `timeout` of the reqwest client limits a single try. Set one, or a lost reply takes all
/// of the deadline.
///
/// Redirects that reqwest follows are a part of the try. If the response or the error is of another
/// URL than the request's, a "no" in the last column is a "yes": the target of the redirect has
/// refused, not the server that got the request. A refused connection to the target is an exception:
/// reqwest reports it with the URL of the request, so the try counts as not carried out. Use
/// `redirect::Policy::none()` for a server that answers POST with 303.
///
/// # Cancellation safety
///
/// A dropped request may have been carried out. Send it again with the same [`RequestKey`].
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use idem_http::{IdempotencyClient, RequestKey, UnknownOutcome};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let reqwest = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
/// let client = reqwest_middleware::ClientBuilder::new(reqwest)
///     .with(IdempotencyClient::new("checkout").tries(4).deadline(Duration::from_secs(30)))
///     .build();
/// let sent = client
///     .post("https://api.example.com/v1/charges")
///     .with_extension(RequestKey::new("order-7"))
///     .send()
///     .await;
/// match sent {
///     Ok(response) => println!("{}", response.status()),
///     Err(error) => match UnknownOutcome::find(&error) {
///         Some(unknown) => println!("ask later what became of {}", unknown.key()),
///         None => println!("not carried out: {error}"),
///     },
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`RequestKey`]: crate::RequestKey
/// [`UnknownOutcome`]: crate::UnknownOutcome
#[derive(Clone)]
pub struct IdempotencyClient {
    pub(super) keys: KeyGenerator,
    pub(super) header: HeaderName,
    pub(super) tries: u32,
    pub(super) deadline: Duration,
    pub(super) backoff: Duration,
    pub(super) max_body: usize,
    pub(super) lookup_url: Option<LookupUrl>,
    pub(super) keys_from_call: bool,
}

impl IdempotencyClient {
    /// Creates a client whose generated keys begin with `prefix`, as in `checkout-<uuid>`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            keys: KeyGenerator::new(prefix.into()),
            header: HeaderName::from_static("idempotency-key"),
            tries: 4,
            deadline: Duration::from_secs(30),
            backoff: Duration::from_millis(200),
            max_body: 1 << 20,
            lookup_url: None,
            keys_from_call: false,
        }
    }

    /// Sets how often a request is sent, at most. Default: 4. 0 counts as 1.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// Sets the time for all tries and pauses together. Default: 30 seconds.
    ///
    /// A try that still runs then is dropped. A lookup may take up to five seconds more.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the pause after the first try, if the server suggests none. Default: 200 ms. Each
    /// further pause is twice as long, up to 10 s, or `backoff` if that is longer. A random part of
    /// up to a half is taken off each pause.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets up to which size, in bytes, a response is read before it is returned. Default: 1 MiB.
    ///
    /// If such a response is truncated, the request is retried. A response that is larger, or of
    /// unknown length, streams to the caller, who gets the error.
    #[must_use]
    pub fn max_body(mut self, max_body: usize) -> Self {
        self.max_body = max_body;
        self
    }

    /// Sets the header that holds the key. Default: `Idempotency-Key`.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sets where to look a request up before the client returns [`UnknownOutcome`].
    ///
    /// `url` gets the request and its key, percent-encoded as a path's segment. The server there
    /// must answer like [`lookup`](https://docs.rs/idem-http/latest/idem_http/fn.lookup.html). If
    /// it returns a recorded response, that is the result of the request. While the request is in
    /// flight, or the server is unavailable, the client asks again: until the deadline, or for five
    /// seconds if that is longer. If the URL has the same origin, the lookup carries the request's
    /// headers, except those of the body and the key. If the URL is invalid, the request is not
    /// sent.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_http::IdempotencyClient;
    /// let client = IdempotencyClient::new("checkout")
    ///     .lookup_url(|request, key| format!("{}/by-key/{key}", request.url()));
    /// ```
    ///
    /// [`UnknownOutcome`]: crate::UnknownOutcome
    #[must_use]
    pub fn lookup_url<F, U>(mut self, url: F) -> Self
    where
        F: Fn(&Request, &str) -> U + Send + Sync + 'static,
        U: IntoUrl,
    {
        self.lookup_url = Some(Arc::new(move |request, key| url(request, key).into_url()));
        self
    }

    /// Gives requests inside a guarded body a [child key](idem_core::Call::child_key) of that call.
    ///
    /// A body that runs again after a crash then sends the same keys, so a chain of services has
    /// one key per hop. The name of the child key is method and URL. If a body sends two requests
    /// to one URL, give each a name with [`RequestKey::child`]; otherwise the second one is a
    /// duplicate of the first. Outside a guarded body, keys are generated.
    ///
    /// [`RequestKey::child`]: crate::RequestKey::child
    #[must_use]
    pub fn keys_from_call(mut self) -> Self {
        self.keys_from_call = true;
        self
    }
}

impl fmt::Debug for IdempotencyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyClient")
            .field("keys", &self.keys)
            .field("header", &self.header)
            .field("tries", &self.tries)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
