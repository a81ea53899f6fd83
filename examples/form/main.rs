//! A shop whose order form orders once, whatever the visitor does with it.
//!
//! ```text
//! cargo run --example form --features axum
//! ```
//!
//! Then open <http://localhost:3000>, order, and try to order twice. Double click the button
//! (without JavaScript, too), or reload while the order is being placed. Press back and send the
//! form again, open it in two tabs, or change the order and send it again. Stop the program and
//! start it again while the form is open: its tokens are gone, and you get a fresh form with your
//! typed values.
//!
//! `--port 8080` listens elsewhere (0: any free port). `--takes 10` makes an order take ten
//! seconds. `--store redis://127.0.0.1/` keeps tokens and orders in Redis, so that several
//! processes are one shop: order from one, and send the same form to another. With
//! `--store sqlite://form.db`, `postgres://..` or `mysql://..` the tokens are kept there, and the
//! orders stay in memory.
//!
//! The essential code is in `shop/mod.rs`. `idem-browser` does all of the above with a real
//! browser.

#[path = "../rebuild/mod.rs"]
mod rebuild;
mod shop;

use std::time::Duration;

use async_trait::async_trait;

use crate::shop::{Book, OutOfStock, Shop, Tea, Wanted, Warehouse};

/// It takes its time, and what is rare is found at the second try alone.
struct SlowWarehouse {
    takes: Duration,
}

#[async_trait]
impl Warehouse for SlowWarehouse {
    async fn reserve(&self, wanted: &Wanted) -> Result<(), OutOfStock> {
        tokio::time::sleep(self.takes).await;
        let first_try = idem::current().is_none_or(|call| call.attempt() == 1);
        if wanted.tea == Tea::SilverNeedle && first_try {
            Err(OutOfStock)
        } else {
            Ok(())
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut port = 3000;
    let mut takes = 3;
    let mut store = None;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--port", Some(value)) => {
                port = value
                    .parse()
                    .map_err(|error| format!("--port {value}: {error}"))?;
            }
            ("--takes", Some(value)) => {
                takes = value
                    .parse()
                    .map_err(|error| format!("--takes {value}: {error}"))?;
            }
            ("--store" | "--redis", Some(url)) => store = Some(url),
            _ => return Err("usage: form [--port PORT] [--takes SECONDS] [--store URL]".into()),
        }
    }
    let url = store.unwrap_or_else(|| "memory:".to_owned());
    if let Some(feature) = rebuild::missing_feature(&url) {
        rebuild::run_with_features("form", &format!("axum,{feature}"))?;
        return Ok(());
    }
    let book = if url.starts_with("redis") {
        Book::in_redis(&url).await?
    } else {
        Book::in_memory()
    };
    // Tokens cannot be found by guessing. A client that tries is refused for a while, and shows up
    // in the events.
    let idempotency = idem::builder(url)
        .settings(|builder| builder.limit_token_failures(20, "1m"))
        // It may run on a slow disk.
        .time_limit(Duration::from_secs(15))
        .connect()
        .await?;
    let shop = Shop::new(
        idempotency,
        book,
        SlowWarehouse {
            takes: Duration::from_secs(takes),
        },
    );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    println!(
        "\nOpen it, order, and try to order twice: double click, reload, go back and send again."
    );
    axum::serve(listener, shop::router(shop)).await?;
    Ok(())
}
