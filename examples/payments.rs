//! A shop takes payments through a gateway that declines cards, loses replies and goes down. The
//! policy for each error is stated once: on the error type for charges, on the function for
//! refunds.
//!
//! ```text
//! cargo run --example payments
//! ```
//!
//! Every call is made twice, as clients do. A line says what the caller got, and how many requests
//! that cost.

use std::error::Error;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem::{ErrorPolicy, Idempotency, MemoryStore, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, thiserror::Error, ErrorPolicy)]
enum PaymentError {
    /// The bank's last word: recorded like a receipt, and a duplicate gets it without another
    /// request.
    #[error("declined, code {code}")]
    #[idem(keep)]
    Declined { code: u16 },
    /// Perhaps the money has moved. The body runs again in the same call; that is safe for a
    /// charge, which carries a key.
    #[error("no reply")]
    #[idem(retry(max = 3, backoff = "10ms"))]
    NoReply,
    /// Nothing was done, so nothing is recorded: the next call runs the body.
    #[error("the gateway is down")]
    #[idem(release)]
    Down,
    /// Without a key from the call there is none for the gateway, and a retry could charge twice.
    #[error("not guarded")]
    Unguarded,
    /// An error of `idem` itself. It is never kept.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] idem::Error),
}

/// As the error type says. `errors(policy)` allows it to retry.
#[idempotent(
    key = order.id,
    fingerprint = order,
    name = "payments.charge",
    ttl = "24h",
    errors(policy),
)]
async fn charge(gateway: &Gateway, order: &Order) -> Result<Receipt, PaymentError> {
    // The same key in each try and each attempt: however often the request comes, the gateway
    // carries it out once.
    let call = idem::current().ok_or(PaymentError::Unguarded)?;
    gateway
        .transfer(Some(call.child_key("gateway.charge")), order.cents)
        .await
}

/// The gateway accepts no keys for refunds, so the policy for charges would be wrong here. A refund
/// whose reply was lost is not sent again until an operator has looked.
#[idempotent(
    key = order.id,
    name = "payments.refund",
    abandoned = reject,
    errors(
        PaymentError::NoReply => abandon,
        PaymentError::Declined { .. } => keep,
        PaymentError::Down | PaymentError::Unguarded | PaymentError::Idempotency(_) => release,
    ),
)]
async fn refund(gateway: &Gateway, order: &Order) -> Result<Receipt, PaymentError> {
    gateway.transfer(None, -order.cents).await
}

#[derive(Serialize)]
struct Order {
    id: &'static str,
    cents: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    number: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let idempotency = Idempotency::new(MemoryStore::new());
    idem::install(idempotency.clone())?;
    let gateway = Gateway::default();
    let [tea, cake, rice] =
        [("tea", 499), ("cake", 2_350), ("rice", 120)].map(|(id, cents)| Order { id, cents });
    let mut sound = true;

    println!("charges, by `#[derive(ErrorPolicy)]`");
    gateway.books().fault = Some(Fault::LoseReply);
    sound &= gateway
        .account_for(
            "tea: a reply is lost",
            charge(&gateway, &tea),
            "receipt 1",
            2,
        )
        .await;
    sound &= gateway
        .account_for("again", charge(&gateway, &tea), "receipt 1", 0)
        .await;
    gateway.books().fault = Some(Fault::Decline(51));
    sound &= gateway
        .account_for(
            "cake: declined",
            charge(&gateway, &cake),
            "declined, code 51",
            1,
        )
        .await;
    sound &= gateway
        .account_for("again", charge(&gateway, &cake), "declined, code 51", 0)
        .await;
    gateway.books().fault = Some(Fault::Down);
    sound &= gateway
        .account_for(
            "rice: an outage",
            charge(&gateway, &rice),
            "the gateway is down",
            1,
        )
        .await;
    sound &= gateway
        .account_for("again, after it", charge(&gateway, &rice), "receipt 2", 1)
        .await;

    println!("\nrefunds, by `errors(..)`");
    gateway.books().fault = Some(Fault::LoseReply);
    sound &= gateway
        .account_for(
            "tea: a reply is lost",
            refund(&gateway, &tea),
            "no reply",
            1,
        )
        .await;
    sound &= gateway
        .account_for("again", refund(&gateway, &tea), "outcome unknown", 0)
        .await;
    let found = Receipt {
        number: gateway.books().ledger.len(),
    };
    idempotency
        .operation("payments.refund")
        .key(tea.id)
        .settle(&found)
        .await?;
    sound &= gateway
        .account_for(
            "somebody has looked",
            refund(&gateway, &tea),
            "receipt 3",
            0,
        )
        .await;

    let moved: Vec<i64> = gateway
        .books()
        .ledger
        .iter()
        .map(|(_, cents)| *cents)
        .collect();
    println!("\n  the gateway moved {moved:?} cents");
    if !sound || moved != [tea.cents, rice.cents, -tea.cents] {
        return Err("✗ this does not add up".into());
    }
    println!("  ✓ tea and rice were charged once, cake never, and tea was refunded once");
    Ok(())
}

#[derive(Default)]
struct Gateway(Mutex<Books>);

#[derive(Default)]
struct Books {
    requests: usize,
    /// The fault of the next request; the one after it succeeds.
    fault: Option<Fault>,
    ledger: Vec<(Option<String>, i64)>,
}

enum Fault {
    Decline(u16),
    /// The money moves, and the reply is lost.
    LoseReply,
    Down,
}

impl Gateway {
    /// Moves money. A request whose key came before is the one that was carried out then.
    async fn transfer(&self, key: Option<String>, cents: i64) -> Result<Receipt, PaymentError> {
        tokio::time::sleep(Duration::from_millis(5)).await; // The network.
        let mut books = self.books();
        books.requests += 1;
        let fault = books.fault.take();
        match fault {
            Some(Fault::Decline(code)) => return Err(PaymentError::Declined { code }),
            Some(Fault::Down) => return Err(PaymentError::Down),
            Some(Fault::LoseReply) | None => {}
        }
        let before = books
            .ledger
            .iter()
            .position(|(other, _)| key.is_some() && *other == key);
        let place = before.unwrap_or(books.ledger.len());
        if before.is_none() {
            books.ledger.push((key, cents));
        }
        if fault.is_some() {
            Err(PaymentError::NoReply)
        } else {
            Ok(Receipt { number: place + 1 })
        }
    }

    /// Says what a call gets and how many requests it costs, and whether that is what is due.
    async fn account_for<F>(&self, what: &str, call: F, due: &str, due_requests: usize) -> bool
    where
        F: Future<Output = Result<Receipt, PaymentError>>,
    {
        let before = self.books().requests;
        let got = match call.await {
            Ok(receipt) => format!("receipt {}", receipt.number),
            Err(PaymentError::Idempotency(idem::Error::Abandoned { .. })) => {
                "outcome unknown".to_owned()
            }
            Err(error) => error.to_string(),
        };
        let requests = self.books().requests - before;
        println!("  {what:<22}{got:<22}requests: {requests}");
        got == due && requests == due_requests
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
