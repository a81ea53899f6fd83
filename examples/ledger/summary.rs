//! The result of a run of the ledger.

use std::fmt::Write as _;
use std::time::Duration;

/// The fate of a call before its client has an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// The future is dropped after so many polls. Its transaction is committed all the same, or
    /// dropped as well.
    Dropped { after: u64, commits: bool },
    /// The transfer is made, and the transaction rolled back.
    RolledBack,
    /// The transfer is made, and the connection closed before the commit.
    Closed,
}

/// The calls of clients.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) calls: u64,
    pub(crate) retried: u64,
    dropped: u64,
    rolled_back: u64,
    closed: u64,
    /// Processes.
    pub(crate) killed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, fate: Fate) {
        self.calls += 1;
        match fate {
            Fate::Dropped { .. } => self.dropped += 1,
            Fate::RolledBack => self.rolled_back += 1,
            Fate::Closed => self.closed += 1,
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            retried: self.retried + other.retried,
            dropped: self.dropped + other.dropped,
            rolled_back: self.rolled_back + other.rolled_back,
            closed: self.closed + other.closed,
            killed: self.killed + other.killed,
        }
    }
}

/// The answers that clients got, compared with the rows.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) orders: u64,
    pub(crate) counts: Counts,
    pub(crate) answers: u64,
    /// Rows of transfers.
    pub(crate) transfers: u64,
    /// Orders that have at least one such row.
    pub(crate) moved: u64,
    pub(crate) declined: u64,
    /// Rows beyond the first of an order.
    pub(crate) made_again: u64,
    pub(crate) wrong_answers: usize,
    pub(crate) wrong_balances: usize,
    pub(crate) opening_cents: i64,
    pub(crate) closing_cents: i64,
}

impl Summary {
    /// Says whether all invariants hold.
    pub(crate) fn holds(&self) -> bool {
        self.broken().is_empty()
    }

    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.opening_cents != self.closing_cents {
            let change = self.closing_cents - self.opening_cents;
            let what = if change > 0 { "appeared" } else { "vanished" };
            broken.push(format!("{} have {what}", money(change.abs())));
        }
        if self.made_again > 0 {
            broken.push(format!("{} transfers were made again", self.made_again));
        }
        if self.moved + self.declined != self.orders {
            broken.push(format!(
                "{} orders were made or declined, of {}",
                self.moved + self.declined,
                self.orders
            ));
        }
        if self.wrong_answers > 0 {
            broken.push(format!(
                "{} answers are not what the rows say",
                self.wrong_answers
            ));
        }
        if self.wrong_balances > 0 {
            broken.push(format!(
                "{} balances are not the sum of their transfers",
                self.wrong_balances
            ));
        }
        broken
    }

    pub(crate) fn render(&self, place: &str, time: Duration) -> String {
        let mut out = String::new();
        let mut line = |label: &str, value: String, remark: &str| {
            let _ = writeln!(
                out,
                "{}",
                format!("  {label:<28}{value:>12}   {remark}").trim_end()
            );
        };
        line("What the clients did", String::new(), "");
        line(
            "  orders",
            grouped(self.orders),
            "each sent by one to five clients, near to each other",
        );
        line("  calls", grouped(self.counts.calls), "");
        line(
            "    cut off in mid-call",
            grouped(self.counts.dropped),
            "half of them commit all the same",
        );
        line(
            "    rolled back",
            grouped(self.counts.rolled_back),
            "after the transfer",
        );
        line(
            "    connection closed",
            grouped(self.counts.closed),
            "after the transfer, before the commit",
        );
        line(
            "    sent again",
            grouped(self.counts.retried),
            "the database was busy",
        );
        line(
            "  processes killed",
            grouped(self.counts.killed),
            "branches that sent the same orders",
        );
        line("", String::new(), "");
        line("What the bank did", String::new(), "");
        line("  transfers", grouped(self.transfers), "");
        line(
            "  orders declined",
            grouped(self.declined),
            "not enough money: kept, and told to all duplicates",
        );
        let replayed = self.answers.saturating_sub(self.orders);
        line(
            "  answers told again",
            grouped(replayed),
            "to duplicates; no row was touched",
        );
        line("", String::new(), "");
        line("What the rows say", String::new(), "");
        line("  transfers made twice", grouped(self.made_again), "");
        line(
            "  answers without their row",
            grouped(self.wrong_answers as u64),
            "",
        );
        line(
            "  balances that are off",
            grouped(self.wrong_balances as u64),
            "each is the sum of its transfers",
        );
        line("  money at the start", money(self.opening_cents), "");
        line("  money at the end", money(self.closing_cents), "");
        let _ = writeln!(out);
        let broken = self.broken();
        if broken.is_empty() {
            let _ = writeln!(
                out,
                "  ✓ Each order happened once or was declined, and no cent has appeared or \
                 vanished."
            );
        }
        for broken in broken {
            let _ = writeln!(out, "  ✗ {broken}");
        }
        let _ = write!(
            out,
            "    {:.1} s; accounts, transfers and records in {place}",
            time.as_secs_f64()
        );
        out
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

fn money(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", grouped(cents / 100), cents % 100)
}
