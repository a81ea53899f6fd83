//! From a handler's result to a settled delivery.

use std::time::Duration;

use idem_core::__private::outward;
use idem_core::{Dispose, Disposition, Report};

use crate::broker::Ticket;
use crate::delivery::Delivery;

/// The pause before a message comes again whose outcome is not recorded yet, or whose handler
/// panicked.
const SOON: Duration = Duration::from_secs(1);
/// How often a step at the broker is tried before the message is handed back.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often a pause looks whether the delivery is void.
const LOOK: Duration = Duration::from_secs(1);
/// How long one step at the broker may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Says what becomes of a delivery whose handler ended with this; a panic is `None`. What is not
/// recorded must come again, whatever the handler returned.
pub(crate) fn disposition<E: Dispose>(ended: Option<&Result<(), E>>, report: Report) -> Disposition {
    let disposition = match ended {
        Some(Ok(())) => Disposition::Ack,
        Some(Err(error)) => error.disposition(),
        None => Disposition::Retry { after: SOON },
    };
    match disposition {
        Disposition::Ack | Disposition::DeadLetter { .. } if report.unrecorded() > 0 => {
            Disposition::Retry { after: SOON }
        }
        other => other,
    }
}

/// Settles a delivery, and tries again while the broker has not taken it back. Not settled in the
/// end, it is handed back, unless a return could lose it.
///
/// If the process dies in between, the message is delivered again, and its key tells that it was
/// handled.
pub(crate) async fn settle<T: Ticket>(ticket: &T, delivery: &Delivery, disposition: &Disposition, panicked: bool) {
    announce(delivery, disposition, panicked);
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
        let ended = tokio::time::timeout(LIMIT, step).await;
        let Err(error) = ended.unwrap_or_else(|_| Err("the broker did not answer in time".into())) else { return };
        let source = delivery.source();
        if ticket.is_void() {
            outward(
                || tracing::info!(target: "idem", source, decision = "not_settled", detail = %error, "the delivery was lost with its connection; the message comes again"),
            );
            return;
        }
        outward(
            || tracing::warn!(target: "idem", source, decision = "not_settled", detail = %error, tries, "the broker has not accepted the settlement of a message"),
        );
        paused(ticket, pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
    let handed_back = tokio::time::timeout(LIMIT, ticket.hand_back()).await;
    if let Err(error) = handed_back.unwrap_or_else(|_| Err("the broker did not answer in time".into())) {
        let source = delivery.source();
        outward(
            || tracing::warn!(target: "idem", source, decision = "not_handed_back", detail = %error, "the message was not handed back; the broker delivers it again when it notices"),
        );
    }
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

fn announce(delivery: &Delivery, disposition: &Disposition, panicked: bool) {
    let (source, subject) = (delivery.source(), delivery.subject());
    if panicked {
        outward(
            || tracing::error!(target: "idem", source, subject, decision = "handler_panicked", "the handler of a message panicked; the message comes again"),
        );
    }
    match disposition {
        Disposition::Ack => outward(|| tracing::debug!(target: "idem", source, subject, decision = "acknowledged")),
        Disposition::Retry { after } => {
            outward(|| tracing::debug!(target: "idem", source, subject, decision = "comes_again", ?after));
        }
        Disposition::DeadLetter { reason } => {
            outward(
                || tracing::warn!(target: "idem", source, subject, decision = "dead_lettered", %reason, "a message is dead-lettered"),
            );
        }
    }
}
