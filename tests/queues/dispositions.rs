//! The dispositions that the derive gives to a handler's errors.

use std::time::Duration;

use idem::{Dispose as _, Disposition, Error, ErrorPolicy};

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, ErrorPolicy)]
enum HandleError {
    #[idem(dead_letter)]
    Unreadable,
    MailServerBusy,
    #[idem(abandon, dead_letter)]
    NoReply {
        #[allow(dead_code)]
        code: u16,
    },
    #[idem(release, redeliver = "1m")]
    MailServerDown,
    #[idem(redeliver = DAY)]
    SenderPaused(#[allow(dead_code)] Nested),
    Nested(Nested),
    Text(#[allow(dead_code)] String),
    #[idem(release)]
    Idempotency(Error),
}

#[derive(Debug, serde::Serialize, serde::Deserialize, ErrorPolicy)]
#[idem(dispose)]
enum Nested {
    #[idem(keep)]
    Refused,
    Busy,
}

#[test]
fn poison_is_put_aside_by_its_name_and_an_error_inside_is_asked_and_the_rest_comes_again() {
    let comes_again = Disposition::Retry {
        after: Duration::from_secs(1),
    };
    let in_flight = Error::in_flight("mails.on_order", "m-1", Duration::from_secs(7));
    for (error, expected) in [
        (
            HandleError::Unreadable,
            Disposition::dead_letter("unreadable"),
        ),
        (
            HandleError::NoReply { code: 7 },
            Disposition::dead_letter("no_reply"),
        ),
        (HandleError::MailServerBusy, comes_again.clone()),
        (
            HandleError::MailServerDown,
            Disposition::Retry {
                after: Duration::from_secs(60),
            },
        ),
        // The pause of the variant comes before the disposition of the error inside.
        (
            HandleError::SenderPaused(Nested::Refused),
            Disposition::Retry { after: DAY },
        ),
        (
            HandleError::Text("of no error type".into()),
            comes_again.clone(),
        ),
        // Kept, it would be the answer each time.
        (
            HandleError::Nested(Nested::Refused),
            Disposition::dead_letter("refused"),
        ),
        (HandleError::Nested(Nested::Busy), comes_again),
        (
            HandleError::Idempotency(in_flight),
            Disposition::Retry {
                after: Duration::from_secs(7),
            },
        ),
        (
            HandleError::Idempotency(Error::missing_key("mails.on_order")),
            Disposition::dead_letter("missing_key"),
        ),
    ] {
        assert_eq!(error.disposition(), expected, "{error:?}");
    }
}

/// Says nothing of messages.
#[derive(Debug, serde::Serialize, serde::Deserialize, ErrorPolicy)]
enum StockError {
    #[idem(keep)]
    SoldOut,
    #[idem(keep(ttl = "1h"))]
    Paused,
    #[idem(retry(max = 3, then = keep))]
    Unclear,
    #[idem(retry(max = 3))]
    Timeout,
    Busy,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, ErrorPolicy)]
#[idem(dispose)]
enum OrderError {
    #[idem(inner)]
    OutOfStock(StockError),
    #[idem(inner)]
    Boxed {
        #[allow(dead_code)]
        error: Box<StockError>,
    },
    #[idem(inner)]
    Nested(Nested),
}

#[test]
fn an_error_inside_that_is_kept_is_put_aside_although_it_says_nothing_of_messages() {
    let comes_again = Disposition::Retry {
        after: Duration::from_secs(1),
    };
    for (error, expected) in [
        (
            OrderError::OutOfStock(StockError::SoldOut),
            Disposition::dead_letter("out_of_stock"),
        ),
        (
            OrderError::OutOfStock(StockError::Paused),
            Disposition::dead_letter("out_of_stock"),
        ),
        (
            OrderError::OutOfStock(StockError::Unclear),
            Disposition::dead_letter("out_of_stock"),
        ),
        (
            OrderError::OutOfStock(StockError::Timeout),
            comes_again.clone(),
        ),
        (
            OrderError::OutOfStock(StockError::Busy),
            comes_again.clone(),
        ),
        (
            OrderError::Boxed {
                error: Box::new(StockError::SoldOut),
            },
            Disposition::dead_letter("boxed"),
        ),
        // Its own verdict comes first.
        (
            OrderError::Nested(Nested::Refused),
            Disposition::dead_letter("refused"),
        ),
        (OrderError::Nested(Nested::Busy), comes_again),
    ] {
        assert_eq!(error.disposition(), expected, "{error:?}");
    }
}

#[derive(Debug, ErrorPolicy)]
#[idem(dispose)]
enum Wrapped<E> {
    Other(E),
    #[idem(redeliver = "1m")]
    Busy(#[allow(dead_code)] E),
}

#[test]
fn an_error_inside_of_a_type_parameter_is_asked() {
    let refused = Wrapped::Other(Nested::Refused);
    assert_eq!(refused.disposition(), Disposition::dead_letter("refused"));
    let busy = Wrapped::Busy(Nested::Refused);
    assert_eq!(
        busy.disposition(),
        Disposition::Retry {
            after: Duration::from_secs(60)
        }
    );
}
