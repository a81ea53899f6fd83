//! The data of the examples: webhooks as a payment provider delivers them, some of them more than
//! once.
//!
//! A provider sends a webhook again if it did not see the answer in time. So one payment may arrive
//! from two servers at once, while the first delivery is still being handled, or much later. The
//! true totals are easy to tell: the money due is the sum, over the events, of the amount that was
//! delivered first.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;

const FILE: &str = "examples/data/deliveries.jsonl";

/// The file is the same for everybody. A release of fastrand may change its numbers for one seed:
/// Cargo.lock holds it, and `--check` tells.
const SEED: u64 = 20_260_115;

const EVENTS: usize = 1_000;
const LINES: usize = 1_600;

/// No delivery comes later than this.
const END_MS: u64 = 1_500;
/// First deliveries end here, to leave time for late duplicates.
const LAST_FIRST_MS: u64 = 1_100;

/// One event is delivered this often in one moment.
const BURST: usize = 40;
/// So many deliveries carry another amount under an event that was delivered before: a fault of the
/// provider, or fraud.
const CONFLICTS: usize = 12;
const BIG_AMOUNTS: usize = 6;
const NOTES: [&str; 8] = [
    "Bitte bei Müller im 3. Stock abgeben",
    "Cadeau 🎁 ne pas indiquer le prix",
    "配達は午後でお願いします",
    "Для Ольги, с днём рождения",
    "She said \"ring twice\"",
    "توصيل بعد الظهر من فضلك",
    "Señal: portal 4º, escalera B",
    "Zażółć gęślą jaźń",
];

/// One webhook request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Delivery {
    /// The provider's id of the event: the same for each delivery of it, hence the key.
    event: String,
    order: String,
    /// In the currency's smallest unit.
    amount_cents: u64,
    currency: String,
    /// When it arrives, from the start.
    at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let deliveries = deliveries();
    workspace.shell().write_file(FILE, render(&deliveries)?)?;
    println!("{FILE}: {}", Totals::of(&deliveries));
    Ok(())
}

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let found = workspace.shell().read_file(FILE)?;
    let deliveries = deliveries();
    let wanted = render(&deliveries)?;
    if found != wanted {
        let same = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted).count();
        bail!("{FILE} differs at line {} from what is generated: run `cargo xtask deliveries`", same + 1);
    }
    println!("{FILE}: {}", Totals::of(&deliveries));
    Ok(())
}

fn render(deliveries: &[Delivery]) -> Result<String> {
    let mut text = String::new();
    for delivery in deliveries {
        text += &serde_json::to_string(delivery).context("a delivery is no JSON")?;
        text.push('\n');
    }
    Ok(text)
}

/// All deliveries, in the order of their arrival.
fn deliveries() -> Vec<Delivery> {
    let mut rng = Rng::with_seed(SEED);
    let firsts = first_deliveries(&mut rng);

    let mut others: Vec<usize> = (0..EVENTS).collect();
    let burst = others.remove(EVENTS / 2);
    rng.shuffle(&mut others);
    let (conflicting, repeated) = others.split_at(CONFLICTS);

    let mut all = firsts.clone();
    all.extend(vec![firsts[burst].clone(); BURST - 1]);
    all.extend(conflicting.iter().map(|&event| with_other_amount(&firsts[event], &mut rng)));
    for &event in repeated {
        let missing = LINES - all.len();
        let again = times_again(&mut rng).min(missing);
        for _ in 0..again {
            all.push(duplicate(&firsts[event], &mut rng));
        }
    }
    // Those that come at once stand together.
    all.sort_by(|a, b| (a.at_ms, &a.event).cmp(&(b.at_ms, &b.event)));
    all
}

/// One delivery for each event, numbered as they arrive.
fn first_deliveries(rng: &mut Rng) -> Vec<Delivery> {
    let mut times: Vec<u64> = (0..EVENTS).map(|_| rng.u64(..=LAST_FIRST_MS)).collect();
    times.sort_unstable();
    let mut orders = BTreeSet::new();
    let mut deliveries: Vec<_> = (1..)
        .zip(times)
        .map(|(number, at_ms)| Delivery {
            event: format!("evt_{number:05}"),
            order: new_order(&mut orders, rng),
            amount_cents: rng.u64(3..=250) * 100 - 1,
            currency: "EUR".to_owned(),
            at_ms,
            note: rng.u8(..40).eq(&0).then(|| NOTES[rng.usize(..NOTES.len())].to_owned()),
        })
        .collect();
    for _ in 0..BIG_AMOUNTS {
        deliveries[rng.usize(..EVENTS)].amount_cents = rng.u64(10_000_000..100_000_000);
    }
    deliveries
}

fn new_order(taken: &mut BTreeSet<String>, rng: &mut Rng) -> String {
    loop {
        let id: String = std::iter::repeat_with(|| rng.alphanumeric().to_ascii_lowercase()).take(8).collect();
        if taken.insert(id.clone()) {
            return format!("ord_{id}");
        }
    }
}

/// How many more times an event is delivered that is delivered more than once: 1 to 5, fewer being
/// likelier.
fn times_again(rng: &mut Rng) -> usize {
    match rng.u8(..100) {
        0..55 => 1,
        55..77 => 2,
        77..89 => 3,
        89..96 => 4,
        _ => 5,
    }
}

/// The same event again: at once, soon, while the first is likely still at work, or late.
fn duplicate(first: &Delivery, rng: &mut Rng) -> Delivery {
    let at_ms = match rng.u8(..3) {
        0 => first.at_ms,
        1 => first.at_ms + rng.u64(2..=25),
        _ => rng.u64(first.at_ms + 250..=END_MS),
    };
    Delivery { at_ms, ..first.clone() }
}

/// The same event with another amount, when the first delivery is over: by then there is an answer
/// that must not be given.
fn with_other_amount(first: &Delivery, rng: &mut Rng) -> Delivery {
    let amount_cents = if rng.bool() { first.amount_cents * 10 } else { first.amount_cents + rng.u64(1..=500) };
    Delivery { amount_cents, at_ms: first.at_ms + rng.u64(80..=400), ..first.clone() }
}

/// The totals that a reader of the file must get.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    lines: usize,
    events: usize,
    conflicts: usize,
    /// The sum of the first amount of each event.
    due_cents: u64,
    /// The sum over all lines: what is charged when nothing guards.
    unguarded_cents: u64,
}

impl Totals {
    fn of(deliveries: &[Delivery]) -> Self {
        let mut totals = Self { lines: deliveries.len(), ..Self::default() };
        let mut first_amounts = BTreeMap::new();
        for Delivery { event, amount_cents, .. } in deliveries {
            totals.unguarded_cents += amount_cents;
            let first = *first_amounts.entry(event).or_insert(*amount_cents);
            totals.conflicts += usize::from(first != *amount_cents);
        }
        totals.events = first_amounts.len();
        totals.due_cents = first_amounts.into_values().sum();
        totals
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lines, events, conflicts, due_cents, unguarded_cents } = self;
        write!(f, "{lines} deliveries of {events} events, {conflicts} of them with another amount; ")?;
        write!(f, "{due_cents} cents due, {unguarded_cents} if each delivery were charged")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The deliveries of each event, in order.
    fn by_event(all: &[Delivery]) -> BTreeMap<&str, Vec<&Delivery>> {
        let mut events: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
        for delivery in all {
            events.entry(&delivery.event).or_default().push(delivery);
        }
        events
    }

    #[test]
    fn the_file_is_the_same_every_time() {
        assert_eq!(deliveries(), deliveries());
    }

    #[test]
    fn each_line_reads_back_equal() {
        let all = deliveries();
        let text = render(&all).unwrap();
        let read: Vec<Delivery> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, all);
    }

    #[test]
    fn there_are_1600_deliveries_of_1000_events_and_orders() {
        let all = deliveries();
        let orders: BTreeSet<_> = all.iter().map(|delivery| &delivery.order).collect();
        let totals = Totals::of(&all);
        assert_eq!((totals.lines, totals.events, orders.len()), (LINES, EVENTS, EVENTS));
        assert!(totals.due_cents < totals.unguarded_cents);
    }

    #[test]
    fn they_are_in_order_of_arrival_and_within_the_end() {
        let all = deliveries();
        assert!(all.is_sorted_by_key(|delivery| delivery.at_ms));
        assert!(all.iter().all(|delivery| delivery.at_ms <= END_MS));
    }

    #[test]
    fn one_event_comes_40_times_at_once_and_others_2_to_6_times() {
        let all = deliveries();
        let events = by_event(&all);
        let bursts: Vec<_> = events.values().filter(|event| event.len() > 6).collect();
        assert_eq!(bursts.len(), 1);
        assert_eq!(bursts[0].len(), BURST);
        assert!(bursts[0].iter().all(|delivery| delivery.at_ms == bursts[0][0].at_ms));
        for times in 1..=6 {
            assert!(events.values().any(|event| event.len() == times), "no event comes {times} times");
        }
    }

    #[test]
    fn duplicates_come_at_once_soon_and_late() {
        let all = deliveries();
        let delays: Vec<_> = by_event(&all)
            .values()
            .flat_map(|event| event[1..].iter().map(|delivery| delivery.at_ms - event[0].at_ms))
            .collect();
        assert!(delays.iter().filter(|delay| **delay == 0).count() > 100);
        assert!(delays.iter().filter(|delay| (1..=25).contains(*delay)).count() > 100);
        assert!(delays.iter().filter(|delay| **delay >= 250).count() > 100);
        let adjacent = all.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(adjacent >= delays.iter().filter(|delay| **delay == 0).count());
    }

    #[test]
    fn twelve_deliveries_have_another_amount_and_come_after_the_first() {
        let all = deliveries();
        assert_eq!(Totals::of(&all).conflicts, CONFLICTS);
        for event in by_event(&all).values() {
            for delivery in event.iter().filter(|delivery| delivery.amount_cents != event[0].amount_cents) {
                assert!(delivery.at_ms >= event[0].at_ms + 50);
                assert_eq!(delivery.order, event[0].order);
            }
        }
    }

    #[test]
    fn some_orders_have_notes_and_some_are_big() {
        let all = deliveries();
        assert!(all.iter().any(|delivery| delivery.note.as_ref().is_some_and(|note| !note.is_ascii())));
        assert!(all.iter().any(|delivery| delivery.amount_cents >= 10_000_000));
    }
}
