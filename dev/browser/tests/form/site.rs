//! The example's own server, on a free port, over a warehouse that the test holds and releases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use idem::{Builder, Idempotency, MemoryStore};
use idem_testkit::ManualClock;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::shop::{self, Book, OutOfStock, Shop, Wanted, Warehouse};

/// Something that the browser must do by itself comes within this time.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Site {
    address: String,
    gate: Arc<Gate>,
    wire: Arc<Wire>,
    clock: ManualClock,
}

/// The warehouse.
struct Gate {
    open: watch::Sender<bool>,
    runs: watch::Sender<u32>,
    out_of_stock: AtomicU32,
}

/// The traffic between browser and server.
#[derive(Default)]
struct Wire {
    forms: watch::Sender<u32>,
    loses_answers: AtomicBool,
    keeps_pages: AtomicBool,
}

impl Site {
    pub(crate) async fn open() -> Result<Self> {
        Self::start(|builder| builder, |_| {}).await
    }

    /// A site whose shop is not quite the example's.
    pub(crate) async fn open_with(change: impl FnOnce(&mut Shop)) -> Result<Self> {
        Self::start(|builder| builder, change).await
    }

    /// A site that allows so many tokens that do not count.
    pub(crate) async fn open_guarded(failures: u32) -> Result<Self> {
        Self::start(
            |builder| builder.limit_token_failures(failures, Duration::from_secs(3600)),
            |_| {},
        )
        .await
    }

    async fn start(
        runtime: impl FnOnce(Builder) -> Builder,
        change: impl FnOnce(&mut Shop),
    ) -> Result<Self> {
        let clock = ManualClock::new();
        let gate = Arc::new(Gate {
            open: watch::Sender::new(true),
            runs: watch::Sender::default(),
            out_of_stock: AtomicU32::new(0),
        });
        let wire = Arc::new(Wire::default());
        let store = MemoryStore::with_clock(clock.clone());
        let idempotency = runtime(Idempotency::builder(store)).build();
        let mut shop = Shop::new(idempotency, Book::in_memory(), Behind(Arc::clone(&gate)));
        change(&mut shop);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let router = shop::router(shop).layer(from_fn_with_state(Arc::clone(&wire), pass));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            gate,
            wire,
            clock,
        })
    }

    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// From now on orders take until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.gate.open.send_replace(false);
    }

    pub(crate) fn release(&self) {
        self.gate.open.send_replace(true);
    }

    /// So many orders, from now on, find the shelf empty.
    pub(crate) fn is_out_of_stock(&self, times: u32) {
        self.gate.out_of_stock.store(times, Ordering::Relaxed);
    }

    /// How often the warehouse was asked.
    pub(crate) fn runs(&self) -> u32 {
        *self.gate.runs.borrow()
    }

    /// How many forms have come in.
    pub(crate) fn forms(&self) -> u32 {
        *self.wire.forms.borrow()
    }

    /// Waits until so many forms have come in.
    pub(crate) async fn has_forms(&self, count: u32) -> Result<()> {
        let mut forms = self.wire.forms.subscribe();
        let come = tokio::time::timeout(LIMIT, forms.wait_for(|forms| *forms >= count)).await;
        come.with_context(|| format!("{} forms came in, not {count}", self.forms()))??;
        Ok(())
    }

    /// From now on no answer to a form reaches the browser.
    pub(crate) fn loses_answers(&self, loses: bool) {
        self.wire.loses_answers.store(loses, Ordering::Relaxed);
    }

    /// From now on the browser is allowed to keep pages, and to show them again without asking.
    pub(crate) fn keeps_pages(&self) {
        self.wire.keeps_pages.store(true, Ordering::Relaxed);
    }

    /// So much time passes for the records.
    pub(crate) fn passes(&self, time: Duration) {
        self.clock.advance(time);
    }
}

struct Behind(Arc<Gate>);

#[async_trait]
impl Warehouse for Behind {
    async fn reserve(&self, _: &Wanted) -> Result<(), OutOfStock> {
        let Self(gate) = self;
        gate.runs.send_modify(|runs| *runs += 1);
        // Open for good if the test has ended.
        let _ = gate.open.subscribe().wait_for(|open| *open).await;
        let empty = gate
            .out_of_stock
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |times| {
                times.checked_sub(1)
            });
        if empty.is_ok() {
            Err(OutOfStock)
        } else {
            Ok(())
        }
    }
}

async fn pass(State(wire): State<Arc<Wire>>, request: Request, next: Next) -> Response {
    let is_form = request.method() == Method::POST;
    if is_form {
        wire.forms.send_modify(|forms| *forms += 1);
    }
    let mut response = next.run(request).await;
    if is_form && wire.loses_answers.load(Ordering::Relaxed) {
        // The connection is cut, and nothing said about it.
        std::panic::resume_unwind(Box::new("lost"));
    }
    if !is_form && wire.keeps_pages.load(Ordering::Relaxed) {
        response.headers_mut().insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("max-age=600"),
        );
    }
    response
}
