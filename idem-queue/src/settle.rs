//! From a handler's result to a settled delivery.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_core::adapter::Backoff;
use idem_core::{Dispose, Disposition, KeyDigest, Report};

use crate::broker::Ticket;
use crate::delivery::Delivery;
use crate::error::BoxError;
use crate::events::{Decision, EventFields, report_with};

/// The pause before a message comes again because its outcome is not recorded yet, or because its
/// handler panicked.
pub(crate) const RETRY_SOON: Duration = Duration::from_secs(1);
/// The longest reason of a dead letter, in bytes: brokers have little room for headers.
const LONGEST_REASON: usize = 1024;
/// How often a step at the broker is tried before the message is handed back.
const TRIES: u32 = 6;
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// How often a pause checks whether the delivery is void.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long one step at the broker may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// Decides what to do with a delivery whose handler has ended. A message whose outcome is not
/// recorded must come again, whatever the handler returned.
pub(crate) fn disposition<E: Dispose>(ended: &Result<(), E>, report: Report) -> Disposition {
    let disposition = match ended {
        Ok(()) => Disposition::Ack,
        Err(error) => error.disposition(),
    };
    match disposition {
        Disposition::Ack | Disposition::DeadLetter { .. } if report.unrecorded() > 0 => {
            Disposition::Retry { after: RETRY_SOON }
        }
        Disposition::DeadLetter { reason } if reason.len() > LONGEST_REASON => {
            let end = (0..=LONGEST_REASON)
                .rfind(|end| reason.is_char_boundary(*end))
                .unwrap_or_default();
            Disposition::dead_letter(reason[..end].to_owned())
        }
        other => other,
    }
}

/// Settles a delivery, and tries again until the broker has taken it back. After the last try the
/// message is handed back, unless the ticket [`KEEPS`](Ticket::KEEPS) it.
///
/// If the process dies in between, the message is delivered again, and its key shows that it was
/// handled.
pub(crate) async fn settle<T: Ticket>(
    ticket: &T,
    delivery: &Delivery,
    disposition: &Disposition,
    key: Option<KeyDigest>,
) {
    report_disposition(delivery, disposition, key);
    let mut pauses = PAUSES;
    let mut tries = 0;
    while T::KEEPS || tries < TRIES {
        tries += 1;
        // On the heap, unless it is common: the future of each delivery has room for this one, and
        // is moved several times.
        let step = async {
            match disposition {
                Disposition::Ack => ticket.ack().await,
                Disposition::Retry { after } => Box::pin(ticket.retry(delivery, *after)).await,
                Disposition::DeadLetter { reason } => {
                    Box::pin(ticket.dead_letter(delivery, reason)).await
                }
            }
        };
        // A client may wait forever for the answer of a connection that has ended.
        let ended = tokio::time::timeout(STEP_TIMEOUT, catch_client_panic(step)).await;
        let Err(error) = ended.unwrap_or_else(|_| Err("the broker did not answer in time".into()))
        else {
            return;
        };
        let is_void = ticket.is_void();
        not_settled(delivery, key, &error, (tries, is_void));
        if is_void {
            return;
        }
        pause_unless_void(ticket, pauses.next_pause()).await;
    }
    let handing_back = Box::pin(catch_client_panic(ticket.hand_back()));
    let handed_back = tokio::time::timeout(STEP_TIMEOUT, handing_back).await;
    if let Err(error) =
        handed_back.unwrap_or_else(|_| Err("the broker did not answer in time".into()))
    {
        not_handed_back(delivery, &error);
    }
}

/// Reports a step that failed. Its fields are not `Send`, so they may not live across an await.
fn not_settled(
    delivery: &Delivery,
    key: Option<KeyDigest>,
    error: &BoxError,
    (tries, is_void): (u32, bool),
) {
    let fields = EventFields {
        delivery: Some(delivery),
        key,
        detail: Some(error),
        tries: Some(tries),
        is_void,
        ..EventFields::default()
    };
    report_with(Decision::NotSettled, delivery.source(), &fields);
}

/// Reports a message that was not handed back. Only the broker can notice it now.
pub(crate) fn not_handed_back(delivery: &Delivery, error: &BoxError) {
    let fields = EventFields {
        delivery: Some(delivery),
        detail: Some(error),
        ..EventFields::default()
    };
    report_with(Decision::NotHandedBack, delivery.source(), &fields);
}

/// Turns a panic of the broker's client into an error of the step: one message must not end the
/// consumer.
pub(crate) async fn catch_client_panic(
    step: impl Future<Output = Result<(), BoxError>>,
) -> Result<(), BoxError> {
    AssertUnwindSafe(step)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err("the broker's client panicked".into()))
}

/// Pauses, but no longer than until the delivery is void.
async fn pause_unless_void<T: Ticket>(ticket: &T, pause: Duration) {
    let mut left = pause;
    while !left.is_zero() && !ticket.is_void() {
        let step = CHECK_EVERY.min(left);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

fn report_disposition(delivery: &Delivery, disposition: &Disposition, key: Option<KeyDigest>) {
    let mut fields = EventFields {
        delivery: Some(delivery),
        key,
        ..EventFields::default()
    };
    let unreadable = delivery.unreadable();
    let decision = match disposition {
        Disposition::Ack => Decision::Acknowledged,
        Disposition::Retry { after } => {
            fields.after = Some(*after);
            Decision::ComesAgain
        }
        Disposition::DeadLetter { reason } => {
            fields.reason = Some(reason);
            fields.detail = unreadable.map(|unreadable| unreadable as &dyn Display);
            Decision::DeadLettered
        }
    };
    report_with(decision, delivery.source(), &fields);
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
        assert_eq!(
            disposition(&Err(Long), report),
            Disposition::dead_letter(cut)
        );
    }
}
