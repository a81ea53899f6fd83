//! Webhooks as a payment provider delivers them, made from a seed: each run has the same.
//!
//! A provider sends a webhook again if it did not see the answer in time. So one payment may arrive
//! twice at once, again while the first delivery is still being handled, or much later.

#[path = "../dice/mod.rs"]
mod dice;

use self::dice::Dice;
use super::{Delivery, euro};

const SEED: u64 = 20_260_115;
const EVENTS: u64 = 1_000;
const DELIVERIES: usize = 1_600;
/// First deliveries end here, to leave time for late duplicates.
const LAST_FIRST_MS: u64 = 1_100;
/// One event is delivered this often in one moment.
const BURST: usize = 40;
/// So many deliveries carry another amount under an event that was delivered before: a fault of the
/// provider, or fraud.
const CONFLICTS: usize = 12;

/// All deliveries. They are not in the order of their arrival.
pub(crate) fn deliveries() -> Vec<Delivery> {
    let mut dice = Dice(SEED);
    let firsts: Vec<_> = (1..=EVENTS)
        .map(|number| first_delivery(number, &mut dice))
        .collect();
    let mut all = firsts.clone();
    let burst = &firsts[firsts.len() / 2];
    all.extend(std::iter::repeat_n(burst.clone(), BURST - 1));
    let spread = firsts.iter().step_by(firsts.len() / CONFLICTS);
    all.extend(
        spread
            .take(CONFLICTS)
            .map(|first| with_other_amount(first, &mut dice)),
    );
    while all.len() < DELIVERIES {
        let place = usize::try_from(dice.below(EVENTS)).unwrap_or_default();
        all.push(duplicate(&firsts[place], &mut dice));
    }
    all
}

fn first_delivery(number: u64, dice: &mut Dice) -> Delivery {
    // A few orders are big.
    let most = if dice.one_in(150) { 1_000_000 } else { 250 };
    Delivery {
        event: format!("evt_{number:05}"),
        order: format!("ord_{:08x}", dice.below(1 << 32)),
        amount_cents: (3 + dice.below(most)) * 100 - 1,
        currency: euro(),
        at_ms: dice.below(LAST_FIRST_MS),
        note: None,
    }
}

/// The same event again: at once, soon, while the first is likely still at work, or late.
fn duplicate(first: &Delivery, dice: &mut Dice) -> Delivery {
    let later_ms = match dice.below(3) {
        0 => 0,
        1 => 2 + dice.below(24),
        _ => 250 + dice.below(150),
    };
    Delivery {
        at_ms: first.at_ms + later_ms,
        ..first.clone()
    }
}

/// The same event with another amount, when the first delivery is over: by then there is an answer
/// that must not be given.
fn with_other_amount(first: &Delivery, dice: &mut Dice) -> Delivery {
    let amount_cents = if dice.one_in(2) {
        first.amount_cents * 10
    } else {
        first.amount_cents + 1 + dice.below(500)
    };
    Delivery {
        amount_cents,
        at_ms: first.at_ms + 80 + dice.below(320),
        ..first.clone()
    }
}
