//! From a handler's result to a settled delivery.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_core::{Dispose, Disposition, KeyDigest, Report};

use crate::broker::Ticket;
use crate::delivery::Delivery;
use crate::error::BoxError;
use crate::events::{Decision, Facts, report_with};

/// The pause before a message comes again whose outcome is not recorded yet, or whose handler
/// panicked.
pub(crate) const SOON: Duration = Duration::from_secs(1);
/// The longest reason of a dead letter, in bytes: brokers have little room for headers.
const LONGEST_REASON: usize = 1024;
/// How often a step at the broker is tried before the message is handed back.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often a pause looks whether the delivery is void.
const LOOK: Duration = Duration::from_secs(1);
/// How long one step at the broker may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Says what becomes of a delivery whose handler ended with this. What is not recorded must come
/// again, whatever the handler returned.
pub(crate) fn disposition<E: Dispose>(ended: &Result<(), E>, report: Report) -> Disposition {
    let disposition = match ended {
        Ok(()) => Disposition::Ack,
        Err(error) => error.disposition(),
    };
    match disposition {
        Disposition::Ack | Disposition::DeadLetter { .. } if report.unrecorded() > 0 => {
            Disposition::Retry { after: SOON }
        }
        Disposition::DeadLetter { reason } if reason.len() > LONGEST_REASON => {
            let end = (0..=LONGEST_REASON).rfind(|end| reason.is_char_boundary(*end)).unwrap_or_default();
            Disposition::dead_letter(reason[..end].to_owned())
        }
        other => other,
    }
}

/// Settles a delivery, and tries again while the broker has not taken it back. Not settled in the
/// end, it is handed back, unless a return could lose it.
///
/// If the process dies in between, the message is delivered again, and its key tells that it was
/// handled.
pub(crate) async fn settle<T: Ticket>(
    ticket: &T,
    delivery: &Delivery,
    disposition: &Disposition,
    key: Option<KeyDigest>,
) {
    announce(delivery, disposition, key);
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    while T::KEEPS || tries < TRIES {
        tries += 1;
        let step = async {
            match disposition {
                Disposition::Ack => ticket.ack().await,
                Disposition::Retry { after } => ticket.retry(delivery, *after).await,
                Disposition::DeadLetter { reason } => ticket.dead_letter(delivery, reason).await,
            }
        };
        // A client may wait forever for the answer of a connection that has ended.
        let ended = tokio::time::timeout(LIMIT, caught(step)).await;
        let Err(error) = ended.unwrap_or_else(|_| Err("the broker did not answer in time".into())) else { return };
        let is_void = ticket.is_void();
        let facts = Facts {
            delivery: Some(delivery),
            key,
            detail: Some(&error),
            tries: Some(tries),
            is_void,
            ..Facts::default()
        };
        report_with(Decision::NotSettled, delivery.source(), &facts);
        if is_void {
            return;
        }
        paused(ticket, pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    let handed_back = tokio::time::timeout(LIMIT, caught(ticket.hand_back())).await;
    if let Err(error) = handed_back.unwrap_or_else(|_| Err("the broker did not answer in time".into())) {
        not_handed_back(delivery, &error);
    }
}

/// Reports a message that the broker still has to miss.
pub(crate) fn not_handed_back(delivery: &Delivery, error: &BoxError) {
    let facts = Facts { delivery: Some(delivery), detail: Some(error), ..Facts::default() };
    report_with(Decision::NotHandedBack, delivery.source(), &facts);
}

/// A step whose panic is an error of that step: one message must not end the consumer.
pub(crate) async fn caught(step: impl Future<Output = Result<(), BoxError>>) -> Result<(), BoxError> {
    AssertUnwindSafe(step).catch_unwind().await.unwrap_or_else(|_| Err("the broker's client panicked".into()))
}

/// Pauses, but not for a delivery that is void by then.
async fn paused<T: Ticket>(ticket: &T, pause: Duration) {
    let mut left = pause;
    while !left.is_zero() && !ticket.is_void() {
        let step = LOOK.min(left);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

fn announce(delivery: &Delivery, disposition: &Disposition, key: Option<KeyDigest>) {
    let mut facts = Facts { delivery: Some(delivery), key, ..Facts::default() };
    let unreadable = delivery.unreadable();
    let decision = match disposition {
        Disposition::Ack => Decision::Acknowledged,
        Disposition::Retry { after } => {
            facts.after = Some(*after);
            Decision::ComesAgain
        }
        Disposition::DeadLetter { reason } => {
            facts.reason = Some(reason);
            facts.detail = unreadable.map(|unreadable| unreadable as &dyn Display);
            Decision::DeadLettered
        }
    };
    report_with(decision, delivery.source(), &facts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Long;

    impl Dispose for Long {
        fn disposition(&self) -> Disposition {
            Disposition::dead_letter(format!("-{}", "é".repeat(1_000_000)))
        }
    }

    #[tokio::test]
    async fn a_reason_that_no_header_has_room_for_is_cut() {
        let ((), report) = idem_core::watch(async {}).await;
        let cut = format!("-{}", "é".repeat(511));
        assert_eq!(disposition(&Err(Long), report), Disposition::dead_letter(cut));
    }
}
