//! A summary of the run, for people.

use std::collections::BTreeMap;

/// The counts of a run.
pub(crate) struct Summary {
    orders: u32,
    duplicates: usize,
    deliveries: u32,
    bodies: u32,
    /// How often each order's mail was sent.
    sent: BTreeMap<u32, u32>,
    /// The orders that are dead letters, and why.
    pub(crate) aside: BTreeMap<u32, String>,
}

impl Summary {
    pub(crate) fn new(orders: u32, duplicates: usize) -> Self {
        Self {
            orders,
            duplicates,
            deliveries: 0,
            bodies: 0,
            sent: BTreeMap::new(),
            aside: BTreeMap::new(),
        }
    }

    /// A line of a consumer.
    pub(crate) fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("sent", number)) => {
                if let Ok(number) = number.parse() {
                    *self.sent.entry(number).or_default() += 1;
                }
            }
            Some(("begun", _)) => self.bodies += 1,
            _ if line == "delivered" => self.deliveries += 1,
            _ => {}
        }
    }

    /// How many customers have a mail.
    pub(crate) fn customers(&self) -> usize {
        self.sent.len()
    }

    /// Prints all, and says whether it is as promised.
    pub(crate) fn show(&self, graveyard: &str, address: impl Fn(u32) -> Option<String>) -> bool {
        let row =
            |name: &str, count: usize, note: &str| println!("  {name:<22}{count:>6}   {note}");
        let orders = self.orders as usize;
        let messages = orders + self.duplicates;
        println!();
        row("orders", orders, "");
        row(
            "messages published",
            messages,
            &format!("{} duplicates under the same id", self.duplicates),
        );
        row(
            "deliveries",
            self.deliveries as usize,
            "the broker delivers again after a crash or an error",
        );
        row(
            "bodies run",
            self.bodies as usize,
            "a duplicate runs none; a failed or killed one runs again",
        );
        row("customers with a mail", self.customers(), "");
        row(
            "dead letters",
            self.aside.len(),
            &format!("in the {graveyard}, each with its reason"),
        );
        let mut by_reason = BTreeMap::<&str, Vec<String>>::new();
        for (number, reason) in &self.aside {
            by_reason
                .entry(reason)
                .or_default()
                .push(number.to_string());
        }
        for (reason, numbers) in by_reason {
            println!(
                "    {reason:<20}{:>6}   orders {}",
                numbers.len(),
                shortened(&numbers)
            );
        }
        let missing: Vec<String> = (1..=self.orders)
            .filter(|number| !self.sent.contains_key(number) && !self.aside.contains_key(number))
            .map(|number| number.to_string())
            .collect();
        row("lost", missing.len(), &shortened(&missing));
        let twice: Vec<String> = self
            .sent
            .iter()
            .filter(|(_, times)| **times > 1)
            .map(|(number, _)| number.to_string())
            .collect();
        row("mails sent twice", twice.len(), &shortened(&twice));
        println!();
        let wrong = self
            .aside
            .keys()
            .filter(|number| address(**number).is_some())
            .count();
        // No more than the killed consumer had in hand.
        let as_promised =
            missing.is_empty() && wrong == 0 && twice.len() <= crate::consumer::CONCURRENCY;
        if !twice.is_empty() {
            println!(
                "  The killed consumer had sent {} of its mails and not recorded it yet, so they \
                 were sent again. Only a mail\n  server that recognises the key \
                 (`idem::current()`) closes that gap.\n",
                twice.len()
            );
        }
        if as_promised {
            println!(
                "  \u{2713} {} customers have their mail, {} orders are dead letters, and none is \
                 lost",
                self.customers(),
                self.aside.len()
            );
        } else {
            println!(
                "  \u{2717} {} orders are lost, {wrong} are dead letters without need",
                missing.len()
            );
        }
        as_promised
    }
}

/// The first of them.
fn shortened(numbers: &[String]) -> String {
    const SHOWN: usize = 12;

    let more = if numbers.len() > SHOWN { " .." } else { "" };
    format!(
        "{}{more}",
        numbers
            .iter()
            .take(SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    )
}
