//! A payment provider delivers webhooks: some twice, some five times, some all at once, a few with
//! another amount under an id that was used before. Each order must be charged once.
//!
//! ```text
//! cargo run --example quickstart                                    # 1,600 deliveries made from a seed, records in memory
//! cargo run --example quickstart -- my-deliveries.jsonl             # your own file, or `-` for standard input
//! cargo run --example quickstart -- --store sqlite://quickstart.db  # records in a file; run it twice
//! cargo run --example quickstart -- --store redis://127.0.0.1/      # records in Redis; or postgres://user:password@host/db, or mysql://..
//! ```
//!
//! With another store than memory, the example first builds itself again with that store's client.
//!
//! A line is a JSON object with `event` (the provider's id of the event), `order`, `amount_cents`,
//! and if you like `currency`, `at_ms` (when it arrives, from the start) and `note`.

// An example reads the clock where it likes.
#![allow(clippy::disallowed_methods)]

#[path = "rebuild/mod.rs"]
mod rebuild;

#[path = "quickstart/deliveries.rs"]
mod deliveries;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use idem::idempotent;
use serde::{Deserialize, Serialize};

/// A delivery of the provider.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Delivery {
    event: String,
    order: String,
    amount_cents: u64,
    #[serde(default = "euro")]
    currency: String,
    #[serde(default)]
    at_ms: u64,
    #[serde(default)]
    note: Option<String>,
}

/// The answer to the provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Receipt {
    number: u64,
    charged_cents: u64,
}

#[derive(Debug, thiserror::Error)]
enum ChargeError {
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// The one line that matters. Without it, every delivery is charged: try it.
#[idempotent(
    key = "delivery.event",
    ttl = "10m",
    fingerprint = ("delivery.order", "delivery.amount_cents", "delivery.currency")
)]
async fn charge(bank: &Bank, delivery: &Delivery) -> Result<Receipt, ChargeError> {
    Ok(bank.charge(delivery.amount_cents).await)
}

/// A bank that takes its time and asks no questions.
#[derive(Default)]
struct Bank {
    charges: Mutex<(u64, u64)>,
}

impl Bank {
    async fn charge(&self, cents: u64) -> Receipt {
        tokio::time::sleep(Duration::from_millis(20 + cents % 20)).await;
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        charges.0 += 1;
        charges.1 += cents;
        Receipt {
            number: charges.0,
            charged_cents: cents,
        }
    }

    fn totals(&self) -> (u64, u64) {
        *self.charges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("quickstart: {problem}");
            ExitCode::from(2)
        }
    }
}

async fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let arguments = Arguments::read()?;
    let (mut deliveries, unreadable) = match &arguments.input {
        Some(input) => read(input)?,
        None => (deliveries::deliveries(), 0),
    };
    deliveries.sort_by_key(|delivery| delivery.at_ms);

    // The store remembers the outcomes. This and the attribute above are all that is needed.
    let url = arguments.store.as_deref().unwrap_or("memory:");
    if let Some(feature) = rebuild::missing_feature(url) {
        return rebuild::run_with_features("quickstart", feature);
    }
    // An example may run on a slow disk.
    let store = idem::builder(url).time_limit(Duration::from_secs(15));
    idem::install(store.connect().await?)?;

    let bank = Arc::new(Bank::default());
    let begun = Instant::now();
    let mut calls = Vec::new();
    for delivery in &deliveries {
        // Each comes at its time, without waiting for the one before.
        tokio::time::sleep_until((begun + Duration::from_millis(delivery.at_ms)).into()).await;
        let bank = bank.clone();
        let delivery = delivery.clone();
        calls.push(tokio::spawn(async move { charge(&bank, &delivery).await }));
    }
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await?);
    }
    let summary = Summary::of(&deliveries, &answers, unreadable, &bank, begun.elapsed());
    let place = url.split(':').next().unwrap_or_default();
    println!("{}", summary.render(place));
    Ok(summary.adds_up())
}

/// The deliveries and their results.
struct Summary {
    deliveries: usize,
    unique: u64,
    executed: u64,
    replayed: u64,
    refused: BTreeMap<String, u64>,
    due_cents: u64,
    charged_cents: u64,
    unguarded_cents: u64,
    wrong_answers: u64,
    time: Duration,
}

impl Summary {
    fn of(
        deliveries: &[Delivery],
        answers: &[Result<Receipt, ChargeError>],
        unreadable: u64,
        bank: &Bank,
        time: Duration,
    ) -> Self {
        // What is due is what the first delivery of each event says.
        let mut due: HashMap<&str, u64> = HashMap::new();
        let mut refused = BTreeMap::new();
        let mut answered = 0;
        let mut wrong_answers = 0;
        for delivery in deliveries
            .iter()
            .filter(|delivery| !delivery.event.is_empty())
        {
            due.entry(&delivery.event).or_insert(delivery.amount_cents);
        }
        for (delivery, answer) in deliveries.iter().zip(answers) {
            match answer {
                Ok(receipt) => {
                    answered += 1;
                    wrong_answers +=
                        u64::from(due.get(delivery.event.as_str()) != Some(&receipt.charged_cents));
                }
                Err(ChargeError::Idempotency(error)) => {
                    *refused.entry(in_words(error)).or_insert(0) += 1;
                }
            }
        }
        if unreadable > 0 {
            refused.insert("the line is no delivery".to_owned(), unreadable);
        }
        let (executed, charged_cents) = bank.totals();
        Self {
            deliveries: deliveries.len() + usize::try_from(unreadable).unwrap_or_default(),
            unique: due.len() as u64,
            executed,
            replayed: u64::saturating_sub(answered, executed),
            refused,
            due_cents: due.values().sum(),
            charged_cents,
            unguarded_cents: deliveries
                .iter()
                .map(|delivery| delivery.amount_cents)
                .sum(),
            wrong_answers,
            time,
        }
    }

    /// Checks that only due charges were made, each once, and that no caller got another event's
    /// receipt. (If the store has seen the same events before, nothing is charged again.)
    fn adds_up(&self) -> bool {
        let first_run = self.executed == self.unique && self.charged_cents == self.due_cents;
        let seen_before = self.executed == 0 && self.charged_cents == 0 && self.replayed > 0;
        (first_run || seen_before || self.unique == 0) && self.wrong_answers == 0
    }

    fn render(&self, place: &str) -> String {
        let mut out = String::new();
        let refused: u64 = self.refused.values().sum();
        let mut line = |label: &str, value: String| {
            let _ = writeln!(out, "  {label:<22}{value:>14}");
        };
        line("deliveries", self.deliveries.to_string());
        line("unique events", self.unique.to_string());
        line("executed", self.executed.to_string());
        line("replayed", self.replayed.to_string());
        line("refused", refused.to_string());
        for (reason, count) in &self.refused {
            let _ = writeln!(out, "      {count:>4} × {reason}");
        }
        let _ = writeln!(out);
        let mut line = |label: &str, value: String| {
            let _ = writeln!(out, "  {label:<22}{value:>14}");
        };
        line("money due", money(self.due_cents));
        line("money charged", money(self.charged_cents));
        line("without idem", money(self.unguarded_cents));
        let _ = writeln!(out);
        let verdict = match (self.adds_up(), self.executed) {
            (true, 0) => "✓ all of this was charged in an earlier run; nothing was charged again",
            (true, _) => "✓ every event was charged once, and every duplicate got its receipt",
            (false, _) => "✗ this does not add up",
        };
        let _ = write!(
            out,
            "  {verdict}\n  {:.1} s, records in {place}",
            self.time.as_secs_f64()
        );
        out
    }
}

/// A reason that reads well in a list.
fn in_words(error: &idem::Error) -> String {
    match error {
        idem::Error::FingerprintMismatch { .. } => {
            "another order or amount under an event id that was used".to_owned()
        }
        idem::Error::MissingKey { .. } => "no event id".to_owned(),
        other => other.to_string(),
    }
}

fn money(cents: u64) -> String {
    let euros = (cents / 100).to_string();
    let mut grouped = String::new();
    for (place, digit) in euros.chars().enumerate() {
        if place > 0 && (euros.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    format!("{grouped}.{:02}", cents % 100)
}

fn euro() -> String {
    "EUR".to_owned()
}

struct Arguments {
    /// A file, or `-` for standard input.
    input: Option<String>,
    store: Option<String>,
}

impl Arguments {
    fn read() -> Result<Self, Box<dyn std::error::Error>> {
        let mut arguments = Self {
            input: None,
            store: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                option @ ("--store" | "--redis") => {
                    let url = words.next().ok_or_else(|| {
                        format!("`{option}` needs a URL, such as sqlite://quickstart.db")
                    })?;
                    arguments.store = Some(url);
                }
                "--help" | "-h" => {
                    return Err("usage: quickstart [FILE | -] [--store URL]".into());
                }
                option if option.starts_with("--") => {
                    return Err(format!(
                        "unknown option `{option}`; usage: quickstart [FILE | -] [--store URL]"
                    )
                    .into());
                }
                file => arguments.input = Some(file.to_owned()),
            }
        }
        Ok(arguments)
    }
}

/// The deliveries, and how many lines were none. Those are named on standard error.
fn read(input: &str) -> Result<(Vec<Delivery>, u64), Box<dyn std::error::Error>> {
    let text = if input == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(input).map_err(|error| format!("cannot read {input}: {error}"))?
    };
    let mut deliveries = Vec::new();
    let mut unreadable = 0;
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        match serde_json::from_str::<Delivery>(line) {
            Ok(delivery) => deliveries.push(delivery),
            Err(error) => {
                unreadable += 1;
                eprintln!("line {}: {error}", number + 1);
            }
        }
    }
    Ok((deliveries, unreadable))
}
